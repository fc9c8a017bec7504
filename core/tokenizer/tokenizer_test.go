package tokenizer

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"unicode/utf8"

	"github.com/k3infer/k3/core/disk"
)

const (
	demoDir    = "../../presets/demo/checkpoint"
	fixtureDir = "../../../shared/fixtures/tokenizer"
)

// releasedAdded names the added tokens of the released checkpoint.
var releasedAdded = map[int]string{
	163584: "[BOS]", 163585: "[EOS]", 163586: "<|end_of_msg|>", 163587: "<|open|>", 163588: "<|close|>", 163589: "<|sep|>",
	163590: "[start_header_id]", 163591: "[end_header_id]", 163593: "[EOT]", 163602: "<|media_begin|>",
	163603: "<|media_content|>", 163604: "<|media_end|>", 163605: "<|media_pad|>", 163649: "<osagent_mode>",
	163838: "[UNK]", 163839: "[PAD]",
}

func configOf(added map[int]string) []byte {
	decoder := map[string]any{}
	for id, content := range added {
		decoder[fmt.Sprint(id)] = map[string]any{"content": content, "special": true}
	}
	data, _ := json.Marshal(map[string]any{"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]"})
	return data
}

var demo = sync.OnceValue(func() *Tokenizer {
	t, err := Load(disk.Dir(demoDir))
	if err != nil {
		panic(err)
	}
	return t
})

var released = sync.OnceValue(func() *Tokenizer {
	model, err := os.ReadFile(filepath.Join(fixtureDir, "tiktoken.model"))
	if err != nil {
		return nil
	}
	t, err := Load(files("tiktoken.model", string(model), "tokenizer_config.json", string(configOf(releasedAdded))))
	if err != nil {
		panic(err)
	}
	return t
})

func releasedOrSkip(t testing.TB) *Tokenizer {
	t.Helper()
	tok := released()
	if tok == nil {
		t.Skip("no released vocabulary here")
	}
	return tok
}

// files is an in-memory directory of name, content, name, content...
func files(pairs ...string) disk.Files {
	m := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return disk.FS(m, "memory")
}

func readLines[T any](t *testing.T, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no fixtures here")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []T
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var one T
		if err := json.Unmarshal(scanner.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if len(all) == 0 || scanner.Err() != nil {
		t.Fatalf("%s: %d lines, %v", path, len(all), scanner.Err())
	}
	return all
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestReferenceIDs(t *testing.T) {
	type line struct {
		Name, Text string
		IDs        []int
		Special    bool
		MaxRun     int `json:"max_run"`
		MaxChars   int `json:"max_chars"`
	}
	for _, name := range []string{"kimi-tokenizer-golden", "tok-rivoli", "tok-rivoli-chunked"} {
		t.Run(name, func(t *testing.T) {
			for _, l := range readLines[line](t, filepath.Join(fixtureDir, name+".jsonl")) {
				tok := *releasedOrSkip(t)
				if l.MaxRun > 0 {
					tok.limits = limits{l.MaxChars, l.MaxRun}
				}
				encode := tok.Encode
				if l.Special {
					encode = tok.EncodeSpecial
				}
				ids := must[[]int](t)(encode(l.Text))
				if !slices.Equal(ids, l.IDs) {
					t.Errorf("%s %q: got %v, want %v", l.Name, l.Text, ids, l.IDs)
				}
				if back := must[[]byte](t)(tok.Decode(ids)); string(back) != l.Text {
					t.Errorf("%q came back as %q", l.Text, back)
				}
			}
		})
	}
}

func TestReferencePieces(t *testing.T) {
	type line struct {
		Text   string
		Pieces []string
	}
	for _, l := range readLines[line](t, filepath.Join(fixtureDir, "splits.jsonl")) {
		if got := must[[]string](t)(demo().Pieces(l.Text)); !slices.Equal(got, l.Pieces) {
			t.Errorf("%q: got %q, want %q", l.Text, got, l.Pieces)
		}
	}
}

func TestOracle(t *testing.T) {
	type line struct {
		Text   string
		Pieces []string
		IDs    []int
	}
	for _, l := range readLines[line](t, "testdata/oracle.jsonl") {
		if got := must[[]string](t)(demo().Pieces(l.Text)); !slices.Equal(got, l.Pieces) {
			t.Errorf("%q: got pieces %q, want %q", l.Text, got, l.Pieces)
		}
		if got := must[[]int](t)(demo().Encode(l.Text)); !slices.Equal(got, l.IDs) {
			t.Errorf("%q: got ids %v, want %v", l.Text, got, l.IDs)
		}
	}
}

func TestUnicode16Classes(t *testing.T) {
	for r, want := range map[rune]uint8{
		0x0C3C: upper | lower, 0x1C89: upper | letter, 0xA7C0: upper | letter, 0x16D40: upper | lower | letter,
		0x2EBF0: han | letter, 0x323B0: 0, '々': han | letter, '〇': han | number, '〆': upper | lower | letter, 'ǅ': upper | letter,
		0x1C: 0, '\r': space | newline, 0x3000: space, 0x10FFFF: 0, 0: 0, 'ー': upper | lower | letter, 0x200D: 0,
	} {
		if got := classOf(r); got != want {
			t.Errorf("U+%04X: class %b, want %b", r, got, want)
		}
	}
}

func TestCuts(t *testing.T) {
	lengths := func(l limits, text string) (n []int) {
		l.cut(text, func(s string) { n = append(n, utf8.RuneCountInString(s)) })
		return n
	}
	a, sp := strings.Repeat("a", 12500), strings.Repeat(" ", 12500)
	for _, c := range []struct {
		name, text string
		want       []int
	}{
		{"a run at the limit is one stretch", a + a, []int{25000}},
		{"a run above it is cut", a + a + "a", []int{25000, 1}},
		{"spaces at the limit", sp + sp, []int{25000}},
		{"spaces above it", sp + sp + " ", []int{25000, 1}},
		{"a space starts the run again", a + " " + a + "a", []int{25002}},
		{"characters count, not bytes", strings.Repeat("字", 25001), []int{25000, 1}},
		{"separators count as spaces", sp + sp + "\x1c", []int{25000, 1}},
		{"zero width does not", sp + sp + "\u200b", []int{25001}},
		{"a chunk", strings.Repeat("ab ", 133333) + "a", []int{400000}},
		{"two chunks", strings.Repeat("ab ", 133333) + "ab", []int{400000, 1}},
		{"a chunk starts the run again", strings.Repeat("ab ", 133333) + a + a + "a", []int{400000, 25000}},
		{"nothing", "", nil},
	} {
		if got := lengths(reference, c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// slowCut is the reference's algorithm, written down as plainly as possible.
func slowCut(l limits, text string) (parts []string) {
	for all := []rune(text); len(all) > 0; {
		chunk := all[:min(l.chars, len(all))]
		all = all[len(chunk):]
		start, length, spaces := 0, 0, isSpace(chunk[0])
		for i, r := range chunk {
			if isSpace(r) != spaces {
				length, spaces = 1, !spaces
			} else if length++; length > l.run {
				parts = append(parts, string(chunk[start:i]))
				start, length = i, 1
			}
		}
		parts = append(parts, string(chunk[start:]))
	}
	return parts
}

func TestInvalidUTF8IsRefusedWithItsOffset(t *testing.T) {
	for text, offset := range map[string]int{"\xff": 0, "ab\xe4\xbd": 2, "é\xed\xa0\x80": 2, "\uFFFD\x80": 3, "\xc0\x80": 0} {
		for _, encode := range []func(string) ([]int, error){demo().Encode, demo().EncodeSpecial} {
			ids, err := encode(text)
			if !errors.Is(err, ErrInvalidUTF8) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d", offset)) || ids != nil {
				t.Errorf("%q: got %v, %v, want offset %d", text, ids, err, offset)
			}
		}
		if _, err := demo().Pieces(text); !errors.Is(err, ErrInvalidUTF8) {
			t.Errorf("%q: pieces: %v", text, err)
		}
		if r := ReplaceInvalid(text); !utf8.ValidString(r) || !strings.Contains(r, "\uFFFD") {
			t.Errorf("%q replaced is %q", text, r)
		}
	}
	if _, err := demo().Encode("\uFFFD"); err != nil {
		t.Errorf("a written replacement character is fine: %v", err)
	}
}

func TestTextNeverBecomesASpecialToken(t *testing.T) {
	for _, content := range []string{"<|open|>", "[EOS]", "<|reserved_token_1300|>", "x<|end_of_msg|>[BOS]"} {
		for _, id := range must[[]int](t)(demo().Encode(content)) {
			if id >= demo().Ranks() {
				t.Errorf("%q became id %d", content, id)
			}
		}
	}
	got := must[[]int](t)(demo().EncodeSpecial("<|open|>a<|reserved_token_1300|><|reserved_token_1283|>"))
	want := append([]int{1283, 64, 1300}, must[[]int](t)(demo().Encode("<|reserved_token_1283|>"))...)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v (1283 has a content of its own)", got, want)
	}
}

func TestLongestAddedTokenWins(t *testing.T) {
	model := string(must[[]byte](t)(os.ReadFile(demoDir + "/tiktoken.model")))
	tok := must[*Tokenizer](t)(Load(files("tiktoken.model", model, "tokenizer_config.json",
		`{"added_tokens_decoder":{"1280":{"content":"<a"},"1281":{"content":"<a>"},"1282":{"content":"<"},"2000":{"content":"é"}},"eos_token":{"content":"<a"}}`)))
	if got := must[[]int](t)(tok.EncodeSpecial("<<a<a>é")); !slices.Equal(got, []int{1282, 1280, 1281, 2000}) {
		t.Errorf("got %v", got)
	}
	if id, ok := tok.EOS(); id != 1280 || !ok {
		t.Errorf("eos %d %v", id, ok)
	}
	if _, ok := tok.BOS(); ok || tok.Vocab() != 2001 {
		t.Errorf("bos %v, vocab %d", ok, tok.Vocab())
	}
}

func TestSpecials(t *testing.T) {
	tok := demo()
	if tok.Vocab() != 1536 || tok.Ranks() != 1280 {
		t.Errorf("vocab %d, ranks %d", tok.Vocab(), tok.Ranks())
	}
	if id, ok := tok.EOS(); id != 1281 || !ok {
		t.Errorf("eos %d %v", id, ok)
	}
	if id, ok := tok.BOS(); id != 1280 || !ok {
		t.Errorf("bos %d %v", id, ok)
	}
	for content, want := range map[string]int{"<|sep|>": 1285, "[PAD]": 1535, "<|reserved_token_1300|>": 1300, "the": -1, "": -1,
		"<|reserved_token_1283|>": -1, "<|reserved_token_01300|>": -1, "<|reserved_token_1536|>": -1, "<|reserved_token_7|>": -1,
		"<|reserved_token_1300|>x": -1, "<|reserved_token_": -1} {
		if id, ok := tok.Special(content); ok != (want >= 0) || ok && id != want {
			t.Errorf("%q: got %d %v, want %d", content, id, ok, want)
		}
	}
	for id, want := range map[int]string{1283: "<|open|>", 1300: "<|reserved_token_1300|>", 1535: "[PAD]"} {
		if got := must[[]byte](t)(tok.Decode([]int{id})); string(got) != want {
			t.Errorf("%d: got %q, want %q", id, got, want)
		}
	}
	for _, id := range []int{-1, 1536, 1 << 40} {
		if _, err := tok.Decode([]int{64, id}); !errors.Is(err, ErrUnknownID) {
			t.Errorf("%d: got %v", id, err)
		}
	}
}

func TestStreamingHoldsWhatMayStillComplete(t *testing.T) {
	for _, c := range []struct {
		name      string
		in, want  []string
		remaining string
	}{
		{"characters over several tokens", []string{"\xe4\xbd", "\xa0\xf0\x9f", "\x98\x80\x21", "\xff"}, []string{"", "你", "😀!", "\uFFFD"}, ""},
		{"what cannot complete comes at once", []string{"\xe4\xff", "\xe4a", "\xf0\x9f\xf0\x9f"}, []string{"\uFFFD\uFFFD", "\uFFFDa", "\uFFFD"}, "\uFFFD"},
		{"a surrogate cannot complete", []string{"\xed", "\xa0", "\x80"}, []string{"", "\uFFFD\uFFFD", "\uFFFD"}, ""},
		{"overlong", []string{"\xc0", "\xe0", "\x80"}, []string{"\uFFFD", "", "\uFFFD\uFFFD"}, ""},
		{"above U+10FFFF", []string{"\xf4", "\x90", "\xf5"}, []string{"", "\uFFFD\uFFFD", "\uFFFD"}, ""},
		{"an incomplete end", []string{"a\xf0", "\x9f", "\x98"}, []string{"a", "", ""}, "\uFFFD"},
		{"a real replacement character", []string{"\xef\xbf", "\xbd"}, []string{"", "\uFFFD"}, ""},
	} {
		var d Decoder
		for i, in := range c.in {
			if got := d.PushBytes([]byte(in)); got != c.want[i] {
				t.Errorf("%s: step %d: got %q, want %q", c.name, i, got, c.want[i])
			}
		}
		if got := d.Flush(); got != c.remaining || d.Flush() != "" {
			t.Errorf("%s: flush: got %q, want %q", c.name, got, c.remaining)
		}
	}
	// The same through ids: the demonstration vocabulary has a token for every byte.
	d, out := demo().NewDecoder(), ""
	for _, b := range "é<|" {
		for _, id := range must[[]int](t)(demo().Encode(string(b))) {
			out += d.Push(id)
		}
	}
	if out += d.Push(1283) + d.Push(1300) + d.Push(99999) + d.Push(-1); out != "é<|<|open|><|reserved_token_1300|><|reserved_token_99999|>" {
		t.Errorf("got %q", out)
	}
}

func TestLoadRefusesDamagedFiles(t *testing.T) {
	model := string(must[[]byte](t)(os.ReadFile(demoDir + "/tiktoken.model")))
	lines := strings.SplitAfter(strings.TrimSpace(model), "\n")
	lines[len(lines)-1] += "\n"
	replaced := func(line int, with string) string {
		changed := slices.Clone(lines)
		changed[line-1] = with
		return strings.Join(changed, "")
	}
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	wantError := func(t *testing.T, err error, words ...string) {
		t.Helper()
		if !errors.Is(err, ErrFormat) {
			t.Fatalf("got %v, want ErrFormat", err)
		}
		for _, w := range append(words, "memory") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: does not say %q", err, w)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: more than one line", err)
		}
	}
	for _, c := range []struct {
		name, model string
		words       []string
	}{
		{"bad base64", replaced(300, "!!!! 299\n"), []string{"line 300", "base64"}},
		{"unpadded base64", replaced(300, "YQ 299\n"), []string{"line 300", "base64"}},
		{"base64 with stray bits", replaced(300, "YR== 299\n"), []string{"line 300", "base64"}},
		{"carriage return inside", replaced(300, "YW\rJj 299\n"), []string{"line 300"}},
		{"empty token", replaced(300, " 299\n"), []string{"line 300", "empty"}},
		{"no rank", replaced(300, "YWJj\n"), []string{"line 300"}},
		{"rank is no number", replaced(300, "YWJj x\n"), []string{"line 300"}},
		{"negative rank", replaced(300, "YWJj -1\n"), []string{"line 300"}},
		{"signed rank", replaced(300, "YWJj +299\n"), []string{"line 300"}},
		{"fractional rank", replaced(300, "YWJj 299.0\n"), []string{"line 300"}},
		{"two spaces", replaced(300, "YWJj  299\n"), []string{"line 300"}},
		{"duplicate rank", replaced(300, b64("zqzq")+" 298\n"), []string{"line 300", "line 299", "rank 298"}},
		{"too large rank", replaced(300, b64("zqzq")+" 1280\n"), []string{"line 300", "rank 1280"}},
		{"huge rank", replaced(300, b64("zqzq")+" 4294967295\n"), []string{"line 300"}},
		{"missing rank", replaced(300, ""), []string{"line 1279", "rank 1279"}},
		{"duplicate token", replaced(300, strings.Split(lines[400], " ")[0]+" 299\n"), []string{"line 401", "line 300"}},
		{"missing single byte", replaced(5, b64("zqzq")+" 4\n"), []string{"0x25"}},
		{"empty file", "", []string{"no tokens"}},
		{"binary", "\x00\xff\x00", []string{"line 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(files("tiktoken.model", c.model))
			wantError(t, err, append(c.words, "tiktoken.model")...)
		})
	}
	entry := func(s string) string { return `{"added_tokens_decoder":{` + s + `}}` }
	for _, c := range []struct {
		name, config string
		words        []string
	}{
		{"duplicate id", entry(`"1280":{"content":"a"},"1280":{"content":"b"}`), []string{"1280", "twice"}},
		{"duplicate id through an escape", entry(`"1280":{"content":"a"},"\u00312\u00380":{"content":"b"}`), []string{"1280", "twice"}},
		{"duplicate content", entry(`"1280":{"content":"a"},"1281":{"content":"\u0061"}`), []string{"1281", "1280"}},
		{"id inside the ranks", entry(`"1279":{"content":"a"}`), []string{"1279", "ranks"}},
		{"negative id", entry(`"-1":{"content":"a"}`), []string{"-1"}},
		{"id is no number", entry(`"x":{"content":"a"}`), []string{`"x"`}},
		{"id with leading zero", entry(`"01280":{"content":"a"}`), []string{"01280"}},
		{"fractional id", entry(`"1280.5":{"content":"a"}`), []string{"1280.5"}},
		{"huge id", entry(`"99999999999":{"content":"a"}`), []string{"99999999999"}},
		{"overflowing id", entry(`"99999999999999999999999":{"content":"a"}`), []string{"99999999999"}},
		{"entry is a string", entry(`"1280":"a"`), []string{"1280"}},
		{"entry is null", entry(`"1280":null`), []string{"1280"}},
		{"content is a number", entry(`"1280":{"content":1}`), []string{"1280", "content"}},
		{"content is null", entry(`"1280":{"content":null}`), []string{"1280", "content"}},
		{"content is empty", entry(`"1280":{"content":""}`), []string{"1280", "content"}},
		{"no content", entry(`"1280":{"Content":"a"}`), []string{"1280", "content"}},
		{"content twice", entry(`"1280":{"content":"a","content":"a"}`), []string{"1280", "twice"}},
		{"a list", `{"added_tokens_decoder":[]}`, []string{"added_tokens_decoder"}},
		{"null", `{"added_tokens_decoder":null}`, []string{"added_tokens_decoder"}},
		{"the table twice", `{"added_tokens_decoder":{},"added_tokens_decoder":{}}`, []string{"added_tokens_decoder", "twice"}},
		{"unknown eos", `{"eos_token":"[NO]"}`, []string{"eos_token", "[NO]"}},
		{"eos is a number", `{"eos_token":1281}`, []string{"eos_token"}},
		{"eos is empty", `{"eos_token":""}`, []string{"eos_token"}},
		{"bos is a list", `{"bos_token":["[BOS]"]}`, []string{"bos_token"}},
		{"not an object", `[]`, []string{"object"}},
		{"null file", `null`, []string{"object"}},
		{"empty file", ``, nil},
		{"trailing comma", `{"a":1,}`, nil},
		{"comment", "{} // x", nil},
		{"byte order mark", "\ufeff{}", nil},
		{"two values", `{}{}`, nil},
		{"not UTF-8", "{\"a\":\"\xff\"}", nil},
		{"nested too deep", `{"a":` + strings.Repeat("[", 200000) + strings.Repeat("]", 200000) + `}`, nil},
	} {
		t.Run("config: "+c.name, func(t *testing.T) {
			_, err := Load(files("tiktoken.model", model, "tokenizer_config.json", c.config))
			wantError(t, err, append(c.words, "tokenizer_config.json")...)
		})
	}
	for name, c := range map[string][2]string{
		"CRLF":                 {strings.ReplaceAll(model, "\n", "\r\n"), `{}`},
		"blank lines":          {"\n\r\n" + strings.ReplaceAll(model, "\n", "\n\n"), " {\n} "},
		"no newline at end":    {strings.TrimSpace(model), `{"eos_token":null}`},
		"any order":            {strings.Join(reversed(lines), ""), `{}`},
		"unknown fields":       {model, `{"x":{"a":[{}]},"added_tokens_decoder":{"1280":{"content":"a","y":{"content":1}}},"eos_token": "a"}`},
		"eos that is reserved": {model, `{"eos_token":"<|reserved_token_1400|>"}`},
	} {
		tok, err := Load(files("tiktoken.model", c[0], "tokenizer_config.json", c[1]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got, want := must[[]int](t)(tok.Encode("The capital")), must[[]int](t)(demo().Encode("The capital")); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if tok, err := Load(files("tiktoken.model", model)); err != nil || tok.Vocab() != 1536 {
		t.Errorf("without a configuration: %v", err)
	}
	if _, err := Load(files("tokenizer_config.json", "{}")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "tiktoken.model") {
		t.Errorf("without ranks: %v", err)
	}
}

// slowMerge is the definition: merge the pair of lowest rank, the leftmost of equals, until there is none.
func slowMerge(v *vocabulary, piece string) (ids []int) {
	if id := v.rank(piece); id != none {
		return []int{int(id)}
	}
	var parts []string
	for i := range len(piece) {
		parts = append(parts, piece[i:i+1])
	}
	for {
		best, at := none, -1
		for i := range len(parts) - 1 {
			if rank := v.rank(parts[i] + parts[i+1]); rank < best {
				best, at = rank, i
			}
		}
		if at < 0 {
			break
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
	for _, p := range parts {
		ids = append(ids, int(v.rank(p)))
	}
	return ids
}

func TestLongPiecesAreNotQuadratic(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	tok := *demo()
	tok.limits = limits{1 << 30, 1 << 30} // a quadratic merge of a piece this long would take hours
	for _, unit := range []string{"^", "a", " ", "a'", "\u0301", "Aa", "中", "\n"} {
		text := strings.Repeat(unit, 300_000/len(unit))
		if back := must[[]byte](t)(tok.Decode(must[[]int](t)(tok.Encode(text)))); string(back) != text {
			t.Errorf("%q repeated did not come back", unit)
		}
	}
}

func TestAPartThatIsNotUTF8IsNamedByItsPlaceInTheWhole(t *testing.T) {
	tok := *demo()
	tok.limits.chars = 4
	failed := errors.New("failed")
	for text, want := range map[string]string{"a\xff": "byte 1 is 0xFF", "éééééééé\xe4\xbd": "byte 16 is 0xE4", "\u2028\ufffd\x80": "byte 6 is 0x80"} {
		err := tok.Chunks(strings.NewReader(text), func(string) error { return nil })
		if !errors.Is(err, ErrInvalidUTF8) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if err := tok.Chunks(strings.NewReader("abcdefgh"), func(string) error { return failed }); err != failed {
		t.Errorf("%v", err)
	}
	if err := tok.Chunks(iotest.ErrReader(failed), func(string) error { return nil }); err != failed {
		t.Errorf("%v", err)
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, text := range []string{"", "The capital of France is Paris.\n", "it'ſ  \r\n 々〇⺀\u0301A", "<|open|>[EOS]", "你好😀\x00\u0085",
		"def f(x):\n\treturn x**2  # ²\n", strings.Repeat("returnreturn", 20), strings.Repeat("^", 99), "\xff\xe4\xbd"} {
		f.Add(text, 7, 3)
	}
	f.Fuzz(func(t *testing.T, text string, chars, runs int) {
		tok := *demo()
		tok.limits = limits{1 + chars&0x3f, 1 + runs&0xf}
		pieces, err := tok.Pieces(text)
		if !utf8.ValidString(text) {
			if !errors.Is(err, ErrInvalidUTF8) {
				t.Fatalf("%q: %v", text, err)
			}
			text = ReplaceInvalid(text)
			pieces, err = tok.Pieces(text)
		}
		if err != nil || strings.Join(pieces, "") != text {
			t.Fatalf("%q became %q, %v", text, pieces, err)
		}
		var parts []string
		tok.limits.cut(text, func(s string) { parts = append(parts, s) })
		if want := slowCut(tok.limits, text); !slices.Equal(parts, want) {
			t.Fatalf("%q cut to %q, want %q", text, parts, want)
		}
		ids := must[[]int](t)(tok.Encode(text))
		var chunked []int
		if err := tok.Chunks(iotest.OneByteReader(strings.NewReader(text)), func(part string) error {
			if len(part) > utf8.UTFMax*tok.limits.chars {
				t.Fatalf("%q: a part of %d bytes", text, len(part))
			}
			chunked = append(chunked, must[[]int](t)(tok.Encode(part))...)
			return nil
		}); err != nil || !slices.Equal(chunked, ids) || len(text) > len(ids)*tok.Longest() {
			t.Fatalf("%q: %v in parts, %v at once, %v", text, chunked, ids, err)
		}
		if got := must[[]byte](t)(tok.Decode(ids)); string(got) != text {
			t.Fatalf("%q came back as %q", text, got)
		}
		var want []int
		for _, p := range pieces {
			want = append(want, slowMerge(tok.vocabulary, p)...)
		}
		if !slices.Equal(ids, want) {
			t.Fatalf("%q: got %v, want %v", text, ids, want)
		}
		if got := must[[]byte](t)(tok.Decode(must[[]int](t)(tok.EncodeSpecial(text)))); string(got) != text {
			t.Fatalf("%q came back from special encoding as %q", text, got)
		}
	})
}

func FuzzStreamingDecode(f *testing.F) {
	f.Add([]byte{0xe4, 0xbd, 0xa0, 0xf0, 0x9f, 0x98, 0x80, 0x21, 0xff}, uint64(0x55))
	f.Add([]byte("\xed\xa0\x80\xf4\x90\xc0a\xe0\x80\xf0\x9f\xf0"), uint64(0x1ff))
	f.Fuzz(func(t *testing.T, p []byte, breaks uint64) {
		var d Decoder
		var out strings.Builder
		start := 0
		for i := range p {
			if breaks>>(i%64)&1 == 1 {
				s := d.PushBytes(p[start:i])
				if !utf8.ValidString(s) {
					t.Fatalf("%q came out", s)
				}
				if held := p[i-len(d.pending) : i]; utf8.FullRune(held) && len(held) > 0 {
					t.Fatalf("%q is held but cannot complete", held)
				}
				out.WriteString(s)
				start = i
			}
		}
		out.WriteString(d.PushBytes(p[start:]) + d.Flush())
		if whole := ReplaceInvalid(string(p)); out.String() != whole {
			t.Fatalf("%q: in steps %q, at once %q", p, out.String(), whole)
		}
	})
}

func FuzzLoad(f *testing.F) {
	model, _ := os.ReadFile(demoDir + "/tiktoken.model")
	config, _ := os.ReadFile(demoDir + "/tokenizer_config.json")
	f.Add(model[:4000], config)
	f.Add(model, []byte(`{"added_tokens_decoder":{"1280":{"content":"a"},"1280":{}},"eos_token":{"content":"a"}}`))
	f.Fuzz(func(t *testing.T, model, config []byte) {
		tok, err := Load(files("tiktoken.model", string(model), "tokenizer_config.json", string(config)))
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("not ErrFormat: %v", err)
			}
			return
		}
		if ids, err := tok.EncodeSpecial("ab <|open|> 你好"); err != nil || len(ids) == 0 {
			t.Fatal(ids, err)
		}
	})
}

// goSource is a megabyte of the standard library.
func goSource(b *testing.B) string {
	var out strings.Builder
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Skip("no Go here")
	}
	paths, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", "net", "http", "*.go"))
	for _, p := range paths {
		data := must[[]byte](b)(os.ReadFile(p))
		out.Write(data)
	}
	if out.Len() < 1<<20 {
		b.Skip("no Go source here")
	}
	return out.String()[:1<<20]
}

func BenchmarkEncode(b *testing.B) {
	tok := releasedOrSkip(b)
	for _, c := range []struct{ name, text string }{
		{"go source", goSource(b)},
		{"caret", strings.Repeat("^", 1e6)},
		{"one letter", strings.Repeat("a", 1e6)},
		{"spaces", strings.Repeat(" ", 1e6)},
		{"apostrophes", strings.Repeat("a'", 5e5)},
		{"letters and digits", strings.Repeat("abcdefghijklmnopqrstuvwxyz", 38461)},
		{"chinese", strings.Repeat("我们在测试分词器。这是一个很长的句子，", 17543)},
		{"emoji", strings.Repeat("😀🚀", 125000)},
		{"newlines", strings.Repeat("\n", 1e6)},
		{"marks", strings.Repeat("\u0301", 5e5)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			for b.Loop() {
				if _, err := tok.Encode(c.text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("special angle brackets", func(b *testing.B) {
		text := strings.Repeat("<|", 5e5)
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if _, err := tok.EncodeSpecial(text); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkLoadReleased(b *testing.B) {
	releasedOrSkip(b)
	b.ReportAllocs()
	var tok *Tokenizer
	for b.Loop() {
		tok = must[*Tokenizer](b)(Load(disk.Dir(fixtureDir)))
	}
	v := tok.vocabulary
	b.ReportMetric(float64(cap(v.arena)+4*cap(v.ends)+4*cap(v.table)), "state-bytes")
}

func reversed(lines []string) []string {
	lines = slices.Clone(lines)
	slices.Reverse(lines)
	return lines
}
