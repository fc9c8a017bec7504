package presets

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// auto is the word for "choose for me"; as a number it is 0.
const auto = "auto"

// setting is one key of the configuration.
type setting struct {
	key      string // as in the files, with dots
	flag     string // "" when there is none
	usage    string // for the flag's help; a back-quoted word names its value
	standard string // the default, "" for none
	kind     kind
}

// kind reads the values of a setting.
type kind struct {
	want  string   // what a value must be, with its range, to follow "must be"
	tags  []string // the YAML types a value may have
	parse func(text string) (any, error)
	list  bool // several may be given; parse returns a []string
	path  bool // the name of a file or directory
}

const generate = "generate."

// settings is the whole configuration, in the order people think of it.
var settings = []setting{
	{"model", "model", "`DIR` of the checkpoint, or demo, the built-in demonstration model", DemoModel, path()},
	{"trunk", "trunk", "`DIR` of the packed trunk", "", path()},
	{"memory.total", "memory", "`SIZE` the whole process may take, as 8GiB; auto: what the machine leaves free", auto, size()},
	{"memory.trunk", "trunk-memory", "`SIZE` of memory for the trunk; auto: what the plan gives it", auto, size()},
	{"memory.experts", "expert-memory", "`SIZE` of memory for experts; auto: what the plan gives them", auto, size()},
	{"cache.policy", "policy", "`NAME` of the policy that says which expert leaves memory", "adaptive", name()},
	{"io.direct", "", "", auto, choice(auto, "off")},
	{"io.check", "", "", auto, choice(auto, "off")},
	{"io.readers", "", "", "8", integer(1, 256)},
	{"compute.backend", "backend", "`NAME` of the kernels to use; auto: the fastest this processor runs", auto, name()},
	{"compute.threads", "threads", "`N` threads to compute with; auto: one a processor", auto, orAuto(integer(1, 1024))},
	{generate + "max_tokens", "max-tokens", "`N` tokens to generate at most", "64", integer(1, 1<<24)},
	{generate + "temperature", "temperature", "`X` divides the logits; 0 is greedy", "0", number("a number from 0 (greedy) up",
		func(x float64) bool { return x >= 0 })},
	{generate + "top_k", "top-k", "choose among the `K` most probable tokens; 0 is all", "0", integer(0, math.MaxInt32)},
	{generate + "top_p", "top-p", "choose among the most probable tokens that together have probability `P`; 1 is all", "1",
		number("a number above 0 and at most 1", func(x float64) bool { return x > 0 && x <= 1 })},
	{generate + "min_p", "min-p", "choose among tokens at least `P` times as probable as the most probable; 0 is all", "0",
		number("a number from 0 to 1", func(x float64) bool { return x >= 0 && x <= 1 })},
	{generate + "repetition_penalty", "repetition-penalty", "`X` lowers the logits of what occurred before; 1 is off", "1",
		number("a number from 0.01 to 100", func(x float64) bool { return x >= 0.01 && x <= 100 })},
	{generate + "seed", "seed", "`N` that chooses the random draws", "0", unsigned()},
	{generate + "stop", "stop", "`TEXT` to end in front of (repeatable)", "", texts()},
	{generate + "ignore_eos", "ignore-eos", "go on after the tokens that end a turn or the text", "false", boolean()},
	{"context", "context", "`N` positions a sequence may have; auto: what the request needs", auto, orAuto(integer(1, 1<<24))},
	{"prefill_chunk", "prefill-chunk", "`N` prompt tokens in one pass; auto: what the memory allows", auto, orAuto(integer(1, 1<<16))},
	{"speculate", "speculate", "`N` tokens to guess ahead at most, as far as it pays; 0 is off, auto is 8", "0", orMeaning(8, integer(0, 64))},
}

// find returns the setting that match accepts, or nil.
func find(match func(s *setting) bool) *setting {
	for i := range settings {
		if match(&settings[i]) {
			return &settings[i]
		}
	}
	return nil
}

// read parses a value; the error says what it must be.
func (s *setting) read(text string) (any, error) {
	v, err := s.kind.parse(text)
	var instead advice
	switch {
	case errors.As(err, &instead):
		return nil, fmt.Errorf("%q: %w", text, instead)
	case err != nil:
		return nil, fmt.Errorf("%q: must be %s", text, s.kind.want)
	}
	return v, nil
}

// boolean reports whether the setting's flag may stand without a value.
func (s *setting) boolean() bool { return slices.Contains(s.kind.tags, "!!bool") }

// env returns the names of the environment variables that hold the setting: after its key and after its flag.
func (s *setting) env() []string {
	upper := func(s string) string {
		return "K3_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s))
	}
	names := []string{upper(s.key)}
	if s.flag != "" && upper(s.flag) != names[0] {
		names = append(names, upper(s.flag))
	}
	return names
}

// errValue is never seen: read says what the value must be.
var errValue = fmt.Errorf("not such a value")

// advice is an error that knows better than the range of the values what to write instead.
type advice string

func (a advice) Error() string { return string(a) }

func integer(low, high int) kind {
	return kind{
		want: fmt.Sprintf("a whole number from %d to %d", low, high),
		tags: []string{"!!int"},
		parse: func(text string) (any, error) {
			v, err := strconv.Atoi(text)
			if err == nil && (v < low || v > high) {
				err = errValue
			}
			return v, err
		}}
}

func unsigned() kind {
	return kind{
		want: "a whole number from 0 to 18446744073709551615",
		tags: []string{"!!int"},
		parse: func(text string) (any, error) {
			return strconv.ParseUint(text, 10, 64)
		}}
}

func number(want string, in func(float64) bool) kind {
	return kind{want: want, tags: []string{"!!int", "!!float"}, parse: func(text string) (any, error) {
		v, err := strconv.ParseFloat(text, 64)
		if err == nil && (!in(v) || math.IsInf(v, 0)) {
			err = errValue
		}
		return v, err
	}}
}

func orAuto(k kind) kind { return orMeaning(0, k) }

// orMeaning accepts auto, too, which means v.
func orMeaning(v int, k kind) kind {
	return kind{
		want: k.want + ", or auto",
		tags: append(slices.Clone(k.tags), "!!str"),
		parse: func(text string) (any, error) {
			if text == auto {
				return v, nil
			}
			return k.parse(text)
		}}
}

func size() kind {
	return kind{
		want: "a size such as 8GiB, 7.5GB or 900MiB (up to 8192TiB), or auto",
		tags: []string{"!!str", "!!int"},
		parse: func(text string) (any, error) {
			if text == auto {
				return Size(0), nil
			}
			n, err := ParseSize(text)
			if _, unit := strconv.Atoi(text); err == nil && unit == nil && n < 1<<20 {
				return nil, unitMissing(n)
			}
			return n, err
		}}
}

// unitMissing answers a number of bytes that nobody means as such.
func unitMissing(n Size) error {
	unit := "GiB"
	if n >= 1<<10 {
		unit = "MiB"
	}
	return advice(fmt.Sprintf("a number without a unit is bytes: write %d%s", n, unit))
}

func boolean() kind {
	return kind{want: "true or false", tags: []string{"!!bool"}, parse: func(text string) (any, error) {
		if text != "true" && text != "false" {
			return nil, errValue
		}
		return text == "true", nil
	}}
}

func choice(words ...string) kind {
	return kind{
		want: "one of " + strings.Join(words, ", "),
		tags: []string{"!!str"},
		parse: func(text string) (any, error) {
			if !slices.Contains(words, text) {
				return nil, errValue
			}
			return text, nil
		}}
}

func name() kind {
	return kind{want: "a name", tags: []string{"!!str"}, parse: func(text string) (any, error) {
		if text == "" {
			return nil, errValue
		}
		return text, nil
	}}
}

func path() kind {
	return kind{want: "a path", path: true, tags: []string{"!!str"}, parse: func(text string) (any, error) {
		if text == "" || strings.ContainsRune(text, 0) {
			return nil, errValue
		}
		for _, home := range []string{"$HOME", "${HOME}", "%USERPROFILE%"} {
			if rest, ok := strings.CutPrefix(text, home); ok && (rest == "" || strings.ContainsRune(`/\`, rune(rest[0]))) {
				return nil, advice("variables are not replaced: write ~" + strings.ReplaceAll(rest, `\`, "/"))
			}
		}
		return expandHome(text), nil
	}}
}

func texts() kind {
	return kind{
		want: "a text that is not empty, or a list of such texts",
		tags: []string{"!!str"},
		parse: func(text string) (any, error) {
			if text == "" {
				return nil, errValue
			}
			return []string{text}, nil
		}, list: true}
}

// expandHome replaces a leading ~ by the home directory. Where none is known the path stays as it is, one that is not there: what a
// preset says of a model must not end a command that can do without.
func expandHome(p string) string {
	if p != "~" && !strings.HasPrefix(p, "~/") && !strings.HasPrefix(p, "~"+string(filepath.Separator)) {
		return p
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return p
	}
	return filepath.Join(home, p[1:])
}
