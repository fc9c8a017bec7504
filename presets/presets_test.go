package presets

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/k3infer/k3/core/sample"
)

// allFlags are the flags of all settings.
func allFlags() []string {
	var names []string
	for _, s := range settings {
		if s.flag != "" {
			names = append(names, s.flag)
		}
	}
	return names
}

func load(t *testing.T, args, environ []string) (Config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags, allFlags()...)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(flags, environ)
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "my.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultsAreTheDemonstrationModelAndGreedy(t *testing.T) {
	c, err := load(t, nil, []string{"PATH=/bin", "K3S_TOKEN=x", "K3_MODEL="})
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Model: "demo", Cache: Cache{"adaptive"}, IO: IO{"auto", "auto", 8}, Compute: Compute{"auto", 0},
		Generate: Generate{MaxTokens: 64, TopP: 1, RepetitionPenalty: 1},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if s := c.Generate.Sample(); s != (sample.Params{TopP: 1, RepetitionPenalty: 1}) || s.Validate() != nil {
		t.Errorf("sampling parameters %+v", s)
	}
}

func TestFlagsBeatEnvironmentBeatsFileBeatsPresetBeatsDefaults(t *testing.T) {
	file := write(t, "memory: {total: 5GiB}\ngenerate: {max_tokens: 7, top_k: 5}\nio: {readers: 3}\n")
	for _, c := range []struct {
		args, env []string
		total     Size
		tokens    int
		topK      int
		readers   int
		preset    string
	}{
		{nil, nil, 0, 64, 0, 8, ""},
		{[]string{"--preset", "laptop"}, nil, 8 << 30, 64, 0, 8, "laptop"},
		{nil, []string{"K3_PRESET=laptop"}, 8 << 30, 64, 0, 8, "laptop"},
		{[]string{"--preset", "ultra"}, []string{"K3_PRESET=laptop"}, 3 << 30, 64, 0, 8, "ultra"},
		{[]string{"--preset", "laptop", "--config", file}, nil, 5 << 30, 7, 5, 3, "laptop"},
		{[]string{"--preset", "laptop"}, []string{"K3_CONFIG=" + file}, 5 << 30, 7, 5, 3, "laptop"},
		{[]string{"--config", file}, []string{"K3_MEMORY_TOTAL=6GiB", "K3_IO_READERS=9"}, 6 << 30, 7, 5, 9, ""},
		{[]string{"--config", file}, []string{"K3_MEMORY=6GiB", "K3_MAX_TOKENS=8"}, 6 << 30, 8, 5, 3, ""},
		{[]string{"--config", file, "--memory=7GiB"}, []string{"K3_MEMORY=6GiB"}, 7 << 30, 7, 5, 3, ""},
		{[]string{"--config", file, "--memory=auto", "--top-k=0"}, []string{"K3_GENERATE_TOP_K=6"}, 0, 7, 0, 3, ""},
	} {
		got, err := load(t, c.args, c.env)
		if err != nil {
			t.Errorf("%v %v: %v", c.args, c.env, err)
			continue
		}
		if got.Memory.Total != c.total || got.Generate.MaxTokens != c.tokens || got.Generate.TopK != c.topK ||
			got.IO.Readers != c.readers || got.Preset != c.preset {
			t.Errorf("%v %v: got %+v, want %+v", c.args, c.env, got, c)
		}
	}
}

func TestEverySettingReachesItsFieldFromEverySource(t *testing.T) {
	text := `
model: /a b/mödel
trunk: /trunk
memory: {total: 1.5GiB, trunk: 7.5GB, experts: 1048576}
cache: {policy: lru}
io: {direct: "off", readers: 2}
compute: {backend: generic, threads: 3}
generate:
  max_tokens: 4
  temperature: 0.5
  top_k: 6
  top_p: 0.75
  min_p: 0.125
  repetition_penalty: 1.25
  seed: 18446744073709551615
  stop: [a, "b c"]
  ignore_eos: true
context: 100
prefill_chunk: 10
speculate: 2
`
	want := Config{
		Model: "/a b/mödel", Trunk: "/trunk", Memory: Memory{3 << 29, 7500000000, 1 << 20}, Cache: Cache{"lru"},
		IO: IO{"off", "auto", 2}, Compute: Compute{"generic", 3},
		Generate: Generate{4, 0.5, 6, 0.75, 0.125, 1.25, 1<<64 - 1, []string{"a", "b c"}, true},
		Context:  100, PrefillChunk: 10, Speculate: 2,
	}
	file := write(t, text)
	got, err := load(t, []string{"--config", file}, nil)
	got.File = ""
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("from a file: %v\ngot  %+v\nwant %+v", err, got, want)
	}

	values := map[string]string{
		"model": want.Model, "trunk": want.Trunk, "memory.total": "1.5GiB", "memory.trunk": "7.5GB", "memory.experts": "1048576",
		"cache.policy": "lru", "io.direct": "off", "io.readers": "2", "compute.backend": "generic", "compute.threads": "3",
		"generate.max_tokens": "4", "generate.temperature": "0.5", "generate.top_k": "6", "generate.top_p": "0.75",
		"generate.min_p": "0.125", "generate.repetition_penalty": "1.25", "generate.seed": "18446744073709551615",
		"generate.stop": "a", "generate.ignore_eos": "true", "context": "100", "prefill_chunk": "10", "speculate": "2",
	}
	var env, args []string
	for _, s := range settings {
		env = append(env, s.env()[0]+"="+values[s.key])
		if s.flag != "" {
			args = append(args, "--"+s.flag+"="+values[s.key])
		}
	}
	want.Generate.Stop = []string{"a"}
	if got, err := load(t, nil, env); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("from the environment: %v\ngot  %+v\nwant %+v", err, got, want)
	}
	want.IO = IO{"auto", "auto", 8} // no flags
	want.Generate.Stop = []string{"a", "b c"}
	if got, err := load(t, append(args, "--stop", "b c"), nil); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("from flags: %v\ngot  %+v\nwant %+v", err, got, want)
	}
}

func TestAFileAtFaultIsRefusedWithPlaceAndCause(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"modle: x", `my.yaml:1: unknown key "modle", did you mean "model"?`},
		{"# c\nmemory:\n  totl: 8GiB", `:3: unknown key "memory.totl", did you mean "memory.total"?`},
		{"max_tokens: 5", `unknown key "max_tokens", did you mean "generate.max_tokens"?`},
		{"generate: {policy: lru}", `unknown key "generate.policy", did you mean "cache.policy"?`},
		{"Model: x", `unknown key "Model", did you mean "model"?`},
		{"xyzzy: 1", `unknown key "xyzzy"`},
		{"memory: 8GiB", `memory: must be a section with total, trunk, experts`},
		{"model: {a: b}", `model: a list or section: must be a path`},
		{"model:", `model: nothing: must be a path`},
		{"model: 12", `model: 12: must be a path`},
		{"model: a\nmodel: b", `:2: model: given twice`},
		{"memory: {total: 1GiB, total: 2GiB}", `memory.total: given twice`},
		{"memory: {total: 1GiB}\nmemory: {total: 2GiB}", `:2: memory.total: given twice`},
		{"memory: {total: 8Q}", `memory.total: "8Q": must be a size such as 8GiB`},
		{"memory: {total: \"1,5GiB\"}", `memory.total: "1,5GiB": must be a size such as 8GiB, 7.5GB`},
		{"memory: {total: 8}", `:1: memory.total: "8": a number without a unit is bytes: write 8GiB`},
		{"memory: {experts: 8192}", `memory.experts: "8192": a number without a unit is bytes: write 8192MiB`},
		{"memory: 4GiB", `memory: must be a section with total, trunk, experts, such as memory: {total: 4GiB}`},
		{"generation: {max_tokens: 5}", `unknown key "generation", did you mean "generate"?`},
		{"memory: {cache: {policy: lru}}", `unknown key "memory.cache", did you mean "cache"?`},
		{"io: {reader: 3}", `unknown key "io.reader", did you mean "io.readers"?`},
		{"temp: 0.5", `unknown key "temp", did you mean "generate.temperature"?`},
		{"trunk-memory: 1GiB", `unknown key "trunk-memory", did you mean "memory.trunk"?`},
		{"expert_memory: 1GiB", `unknown key "expert_memory", did you mean "memory.experts"?`},
		{`model: "C:\models\Kimi-K3"`, `my.yaml:1: found unknown escape character: in double quotes \ begins an escape; ` +
			`write a Windows path in single quotes, 'C:\models'`},
		{"context: 5\n" + `model: "C:\users\k3"`, `my.yaml:2: did not find expected hexdecimal number: in double quotes`},
		{"context: 5\n" + `model: "C:\new\tape"`, `my.yaml:2: model: "C:\new\tape": in double quotes`},
		{"model: $HOME/k3model", `model: "$HOME/k3model": variables are not replaced: write ~/k3model`},
		{`model: '%USERPROFILE%\k3\model'`, `variables are not replaced: write ~/k3/model`},
		{"memory:\n\ttotal: 8GiB", `my.yaml:2: found character that cannot start any token: indent with spaces`},
		{"model: demo\n- a", `my.yaml:2: did not find expected key`},
		{"model: demo\n  trunk: x", `my.yaml:2: mapping values are not allowed`},
		{"memory: {total: -1GiB}", `must be a size`},
		{"memory: {total: 0}", `must be a size`},
		{"memory: {total: 1.5}", `memory.total: 1.5: must be a size`},
		{"generate: {max_tokens: \"5\"}", `generate.max_tokens: the text "5": must be a whole number from 1 to 16777216`},
		{"generate: {max_tokens: 0}", `generate.max_tokens: "0": must be a whole number from 1 to 16777216`},
		{"generate: {max_tokens: 1.5}", `must be a whole number`},
		{"generate: {temperature: .nan}", `generate.temperature: ".nan": must be a number from 0 (greedy) up`},
		{"generate: {temperature: .inf}", `must be a number from 0 (greedy) up`},
		{"generate: {temperature: -1}", `must be a number from 0 (greedy) up`},
		{"generate: {top_p: 0}", `must be a number above 0 and at most 1`},
		{"generate: {stop: \"\"}", `generate.stop: "": must be a text that is not empty`},
		{"generate: {stop: [a, [b]]}", `generate.stop: a list or section: must be`},
		{"generate: {ignore_eos: \"true\"}", `generate.ignore_eos: the text "true": must be true or false`},
		{"generate: {seed: -1}", `generate.seed: "-1": must be a whole number from 0 to 18446744073709551615`},
		{"io: {direct: maybe}", `io.direct: "maybe": must be one of auto, off`},
		{"io: {readers: 0}", `io.readers: "0": must be a whole number from 1 to 256`},
		{"compute: {threads: many}", `must be a whole number from 1 to 1024, or auto`},
		{"- a", `must be keys and values`},
		{"just text", `must be keys and values`},
		{"a: [", `did not find`},
		{"model: a\n---\nmodel: b", `more than one document`},
		{"model: &x a\ntrunk: *x", `trunk: an alias: must be a path`},
		{"<<: {model: a}", `unknown key "<<"`},
		{"? [a]\n: b", `unknown key`},
		{strings.Repeat("[", 100000), `depth`},
		{strings.Repeat("# \n", 400000), `more than 1048576 bytes`},
	} {
		_, err := load(t, []string{"--config", write(t, c.text)}, nil)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q: error %v\nwant one line with %s", c.text, err, c.want)
		}
	}
	for _, text := range []string{"", "# nothing\n", "model: a\n", "compute: {threads: auto, backend: auto}", "memory.total: 8GiB",
		"\ufeffmodel: a", "model: demo\r\nmemory:\r\n  total: 1 GiB\r\n", `{"model":"demo","memory":{"total":"1GiB"}}`, "memory: {total: 8g}",
		`model: C:\models\new`, `model: 'C:\models\new'`, "\xff\xfem\x00o\x00d\x00e\x00l\x00:\x00 \x00a\x00"} {
		if _, err := load(t, []string{"--config", write(t, text)}, nil); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := load(t, []string{"--config", filepath.Join(t.TempDir(), "none.yaml")}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestTheEnvironmentIsAsStrict(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"K3_MEMROY=8GiB"}, "environment: unknown variable K3_MEMROY, did you mean \"K3_MEMORY\"?"},
		{[]string{"K3_PRESET=demo", "K3_MEMROY=8GiB"}, "environment: unknown variable K3_MEMROY"},
		{[]string{"K3_MEMORY=", "PATH=/bin", "K3_MEMROY=8GiB"}, "environment: unknown variable K3_MEMROY"},
		{[]string{"K3_THREADS=0"}, `environment: K3_THREADS: "0": must be a whole number from 1 to 1024, or auto`},
		{[]string{"K3_MEMORY=8GiB", "K3_MEMORY_TOTAL=8GiB"}, "K3_MEMORY_TOTAL and K3_MEMORY are both set"},
		{[]string{"K3_PRESET=laptp"}, `unknown preset "laptp", did you mean "laptop"?`},
		{[]string{"K3_PRESET=zzzzzzz"}, `unknown preset "zzzzzzz": there are demo, ultra, laptop`},
	} {
		if _, err := load(t, nil, c.env); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %s", c.env, err, c.want)
		}
	}
}

func TestFlagsSayTheRange(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{"--memory=8Q", "must be a size such as 8GiB"},
		{"--memory=8", `"8": a number without a unit is bytes: write 8GiB`},
		{"--temperature=NaN", "must be a number from 0 (greedy) up"},
		{"--temperature=1e999", "must be a number from 0 (greedy) up"},
		{"--max-tokens=5.5", "must be a whole number from 1 to 16777216"},
		{"--stop=", "must be a text that is not empty"},
		{"--ignore-eos=yes", "must be true or false"},
		{"--model=", "must be a path"},
	} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		AddFlags(flags, allFlags()...)
		if err := flags.Parse([]string{c.arg}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.arg, err, c.want)
		}
	}
}

func TestTildeIsTheHomeDirectory(t *testing.T) {
	home, err := os.UserHomeDir()
	if err != nil {
		t.Skip(err)
	}
	for in, want := range map[string]string{
		"~": home, "~/k3 model": filepath.Join(home, "k3 model"), "./~": "./~", "~x/y": "~x/y", "a/~/b": "a/~/b",
	} {
		if c, err := load(t, []string{"--config", write(t, "model: "+in)}, nil); err != nil && in != "~" || err == nil && c.Model != want {
			t.Errorf("%s: %q, %v; want %q", in, c.Model, err, want)
		}
		if c, err := load(t, []string{"--model", in}, nil); err != nil || c.Model != want {
			t.Errorf("%s: %q, %v; want %q", in, c.Model, err, want)
		}
	}
}

// A preset must not end a command that can do without its model, so a ~ that means nothing stays and is not there.
func TestWithoutAHomeDirectoryATildeStays(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("USERPROFILE", "")
	t.Setenv("home", "") // plan9
	c, err := load(t, []string{"--preset", "laptop"}, nil)
	if err != nil || c.Model != "~/k3model" || c.Memory.Total != 8<<30 {
		t.Errorf("%q, %d, %v", c.Model, c.Memory.Total, err)
	}
}

func TestPresetsAreTheFilesAndSayWhatTheyAre(t *testing.T) {
	totals := map[string]Size{"demo": 0, "ultra": 3 << 30, "laptop": 8 << 30, "desktop": 32 << 30, "workstation": 96 << 30,
		"server": 128 << 30, "max": 224 << 30, "auto": 0}
	entries, err := filepath.Glob("*.yaml")
	if err != nil || len(entries) != len(Names()) || len(totals) != len(Names()) {
		t.Fatalf("files %v, names %v (%v)", entries, Names(), err)
	}
	for _, name := range Names() {
		if got, err := Budget(name); err != nil || got != totals[name] {
			t.Errorf("%s: %d bytes, %v; want %d", name, got, err, totals[name])
		}
		c, err := load(t, []string{"--preset", name}, nil)
		if err != nil || c.Memory.Total != totals[name] || (c.Model == DemoModel) != (name == "demo") {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		// The file on disk is usable by --config, too.
		f, err := load(t, []string{"--config", name + ".yaml"}, nil)
		// Named by the user, the trunk must be there; named by a preset, it need not.
		if c.TrunkIfThere != (c.Trunk != "") || f.TrunkIfThere {
			t.Errorf("%s: the trunk need be there: %v by name, %v by file", name, !c.TrunkIfThere, !f.TrunkIfThere)
		}
		f.File, f.Preset, f.TrunkIfThere = "", name, c.TrunkIfThere
		if err != nil || !reflect.DeepEqual(f, c) {
			t.Errorf("%s.yaml: %+v, %v; want %+v", name, f, err, c)
		}
		if s := Summary(name); len(s) < 20 || strings.Contains(s, "#") {
			t.Errorf("%s: summary %q", name, s)
		}
	}
	if _, err := Text("lap"); !errors.Is(err, ErrConfig) {
		t.Errorf("unknown preset: %v", err)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"8GiB": 8 << 30, "8GB": 8e9, "8 GiB": 8 << 30, "8gib": 8 << 30, "512MiB": 512 << 20, "512MB": 512e6, "1": 1, "4096": 4096,
		"4096B": 4096, "1.5GiB": 3 << 29, "7.5GB": 75e8, ".5KiB": 512, "2TiB": 2 << 40, "1TB": 1e12, "8192TiB": 8 << 50, "1.0000001KB": 1000,
		"8G": 8 << 30, "8g": 8 << 30, "8Gi": 8 << 30, "8 G": 8 << 30, "1.5G": 3 << 29, "8M": 8 << 20, "1T": 1 << 40, "4k": 4096, "4Ki": 4096,
	} {
		got, err := ParseSize(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
		if again, err := ParseSize(got.String()); err != nil || again != got {
			t.Errorf("%s: String gives %q, which reads as %d, %v", text, got, again, err)
		}
	}
	for _, text := range []string{
		"", "GiB", "8gigs", "8GG", "8Gib i", "G", "8I", "-1GiB", "+1GiB", "0", "0GiB", "1.5", "1e9", "1e9GiB", "1/2GiB", "0x10", "8193TiB", "1..5GiB", " 8GiB",
		"8GiB ", "8,5GiB", "99999999999999999999999TiB", "8GiBGiB", ".", ".GiB", "nan", "inf", "1_000", "0.0001B", "８GiB",
	} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
	for s, want := range map[Size]string{8 << 30: "8GiB", 8e9: "8GB", 3 << 29: "1536MiB", 1234567: "1234567", 0: "0", 75e8: "7500MB"} {
		if got := s.String(); got != want {
			t.Errorf("%d: %s, want %s", int64(s), got, want)
		}
	}
}

func TestNearestSuggestsOnlyWhatIsNear(t *testing.T) {
	words := []string{"model", "memory", "max-tokens", "temperature", "top-k", "top-p"}
	for in, want := range map[string]string{
		"modle": "model", "max_tokens": "max-tokens", "maxtokens": "max-tokens", "temprature": "temperature", "TOP-K": "top-k",
		"temp": "temperature", "max": "max-tokens", "tokens": "max-tokens", "memory-limit": "memory", "model_dir": "model", "mem": "memory",
		"zzz": "", "": "", "verbose": "", "t": "", "te": "", "help": "", "ks": "", strings.Repeat("x", 1000): "",
	} {
		if got := Nearest(in, words); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	for _, s := range []string{"model: a", "memory: {total: 8GiB}", "generate: {stop: [a, b]}", "a: [", "? [a]\n: b", "<<: *x", "--- a\n..."} {
		f.Add([]byte(s))
	}
	for _, name := range Names() {
		text, err := Text(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := parseFile("f", data)
		if err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("%v", err)
		}
		for key, v := range values {
			if v == nil {
				t.Errorf("%s is nil", key)
			}
		}
	})
}

func TestASettingOfTheTextIsSetByItsFlag(t *testing.T) {
	g := Generate{MaxTokens: 5, TopP: 1, RepetitionPenalty: 1, Stop: []string{"x"}}
	for _, s := range [][2]string{
		{"temperature", "0.5"}, {"top-k", "6"}, {"top-p", "0.75"}, {"min-p", "0.125"}, {"repetition-penalty", "1.25"},
		{"seed", "18446744073709551615"}, {"max-tokens", "4"},
	} {
		if err := g.Set(s[0], s[1]); err != nil {
			t.Error(err)
		}
	}
	if want := (Generate{4, 0.5, 6, 0.75, 0.125, 1.25, 1<<64 - 1, []string{"x"}, false}); !reflect.DeepEqual(g, want) {
		t.Errorf("%+v, want %+v", g, want)
	}
	before := g
	for _, s := range [][3]string{
		{"temperature", "hot", "must be a number from 0"}, {"top-p", "0", "above 0"}, {"max-tokens", "0", "from 1"}, {"memory", "8GiB", "unknown"},
		{"", "1", "unknown"},
	} {
		if err := g.Set(s[0], s[1]); err == nil || !strings.Contains(err.Error(), s[2]) || !reflect.DeepEqual(g, before) {
			t.Errorf("%s %s: %v, %+v", s[0], s[1], err, g)
		}
	}
}
