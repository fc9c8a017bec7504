package tokenizer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

// encoded is a token as byte-level BPE writes it.
func encoded(token []byte) string {
	var out strings.Builder
	for _, b := range token {
		for c, of := range byteOf {
			if of == int16(b) {
				out.WriteRune(rune(c))
			}
		}
	}
	return out.String()
}

// jsonOf makes of a tokenizer what the usual converters make of a tiktoken.model: every split of a token into two is a merge,
// in the order of the tokens. edit may change it.
func jsonOf(tok *Tokenizer, edit func(model map[string]any, whole map[string]any)) string {
	v := tok.vocabulary
	vocab, merges := map[string]any{}, []any{}
	for rank := range v.size() {
		token := v.token(rank)
		vocab[encoded(token)] = rank
		type split struct{ left, right uint32 }
		var splits []split
		for i := 1; i < len(token); i++ {
			if l, r := v.rank(string(token[:i])), v.rank(string(token[i:])); l != none && r != none {
				splits = append(splits, split{l, r})
			}
		}
		slices.SortFunc(splits, func(a, b split) int { return int(a.left) - int(b.left) })
		for _, s := range splits {
			l, r := encoded(v.token(int(s.left))), encoded(v.token(int(s.right)))
			if rank%2 == 0 { // both spellings
				merges = append(merges, l+" "+r)
			} else {
				merges = append(merges, []string{l, r})
			}
		}
	}
	added := []any{}
	for id, text := range tok.contents {
		added = append(added, map[string]any{"id": id, "content": text, "special": true})
		vocab[text] = id // some writers repeat them here
	}
	pattern := map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `[\p{Han}]+|\s+`}}
	model := map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": true}
	whole := map[string]any{"version": "1.0", "added_tokens": added, "model": model,
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{pattern, map[string]any{"type": "ByteLevel"}}}}
	if edit != nil {
		edit(model, whole)
	}
	data, _ := json.Marshal(whole)
	return string(data)
}

func sameTokenizer(t *testing.T, want, got *Tokenizer) {
	t.Helper()
	if got.Ranks() != want.Ranks() || got.Vocab() != want.Vocab() || got.bos != want.bos || got.eos != want.eos {
		t.Fatalf("%d ranks, %d ids, BOS %d, EOS %d", got.Ranks(), got.Vocab(), got.bos, got.eos)
	}
	for id := range want.Vocab() {
		if string(got.bytesOf(id)) != string(want.bytesOf(id)) {
			t.Fatalf("id %d is %q, want %q", id, got.bytesOf(id), want.bytesOf(id))
		}
	}
}

func TestRanksAreRecoveredFromTokenizerJSON(t *testing.T) {
	config := string(must[[]byte](t)(os.ReadFile(filepath.Join(demoDir, configFile))))
	whole := jsonOf(demo(), nil)
	for name, got := range map[string]disk.Files{
		"with all of tokenizer_config.json": files(jsonFile, whole, configFile, config),
		"without added tokens in it":        files(jsonFile, whole, configFile, `{"bos_token":"[BOS]","eos_token":{"content":"[EOS]"}}`),
		"with an empty table in it":         files(jsonFile, whole, configFile, `{"bos_token":"[BOS]","eos_token":"[EOS]","added_tokens_decoder":{}}`),
		"of the ranks alone": files(jsonFile, jsonOf(demo(), func(model, whole map[string]any) {
			for _, text := range demo().contents {
				delete(model["vocab"].(map[string]any), text)
			}
			delete(whole, "added_tokens")
			delete(whole, "pre_tokenizer")
		}), configFile, config),
	} {
		tok, err := Load(got)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sameTokenizer(t, demo(), tok)
	}
}

func TestAllRanksOfTheReleasedVocabularyAreRecovered(t *testing.T) {
	want := releasedOrSkip(t)
	got, err := Load(files(jsonFile, jsonOf(want, nil), configFile, `{"bos_token":"[BOS]","eos_token":"[EOS]"}`))
	if err != nil {
		t.Fatal(err)
	}
	sameTokenizer(t, want, got)
	type line struct {
		Text string
		IDs  []int
	}
	for _, l := range readLines[line](t, filepath.Join(fixtureDir, "kimi-tokenizer-golden.jsonl")) {
		if ids := must[[]int](t)(got.Encode(l.Text)); !slices.Equal(ids, l.IDs) {
			t.Errorf("%q: got %v, want %v", l.Text, ids, l.IDs)
		}
	}
}

// transformers5 is a tokenizer_config.json as transformers 5 writes it.
const transformers5 = `{"bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]",
	"tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "model_max_length": 1000000000000000019884624838656,
	"extra_special_tokens": ["<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"]}`

func TestAddedTokensOfTransformers5AreFound(t *testing.T) {
	model := string(must[[]byte](t)(os.ReadFile(filepath.Join(demoDir, ranksFile))))
	config := `{"bos_token": "[BOS]", "eos_token": "[EOS]", "extra_special_tokens": {"a": "<|open|>", "b": {"content": "<|sep|>"}}}`
	got, err := Load(files(ranksFile, model, configFile, config, jsonFile, jsonOf(demo(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	sameTokenizer(t, demo(), got)

	// Of another vocabulary than the released one nobody knows the ids.
	_, err = Load(files(ranksFile, model, configFile, config))
	want := `bos_token: "[BOS]" is not an added token: there is neither an added_tokens_decoder nor a tokenizer.json that has any`
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}

	data, err := os.ReadFile(filepath.Join(fixtureDir, ranksFile))
	if err != nil {
		t.Skip("no released vocabulary here")
	}
	got, err = Load(files(ranksFile, string(data), configFile, transformers5))
	if err != nil {
		t.Fatal(err)
	}
	for id, text := range map[int]string{163584: "[BOS]", 163585: "[EOS]", 163586: "<|end_of_msg|>", 163587: "<|open|>", 163588: "<|close|>",
		163589: "<|sep|>", 163838: "[UNK]", 163839: "[PAD]", 163590: "<|reserved_token_163590|>"} {
		if at, ok := got.Special(text); !ok || at != id {
			t.Errorf("%s is %d %v", text, at, ok)
		}
	}
	if id, ok := got.EOS(); !ok || id != 163585 {
		t.Errorf("EOS is %d %v", id, ok)
	}
	// Kimi Linear has other tokens after the same ranks.
	if _, err := Load(files(ranksFile, string(data), configFile, strings.Replace(transformers5, "<|open|>", "<|im_end|>", 1))); !errors.Is(err, ErrFormat) {
		t.Errorf("another model's tokens: %v", err)
	}
}

func TestTokenizerJSONThatDoesNotGiveRanksIsRefused(t *testing.T) {
	vocab := func(model map[string]any) map[string]any { return model["vocab"].(map[string]any) }
	for _, c := range []struct {
		name string
		edit func(model, whole map[string]any)
		want string
	}{
		{"another kind of model", func(m, _ map[string]any) { m["type"] = "Unigram" }, "a model of the type \"Unigram\", not BPE"},
		{"no vocabulary", func(m, _ map[string]any) { delete(m, "vocab") }, "model.vocab has no tokens"},
		{"no merges", func(m, _ map[string]any) { delete(m, "merges") }, "model.merges has no merges"},
		{"no model", func(_, w map[string]any) { delete(w, "model") }, "model.vocab has no tokens"},
		{"a hole", func(m, _ map[string]any) { delete(vocab(m), encoded(demo().vocabulary.token(700))) },
			"token 701 is in the place of 700: the ids are not ranks"},
		{"an id twice", func(m, _ map[string]any) { vocab(m)[encoded(demo().vocabulary.token(700))] = 699 }, "is in the place of"},
		{"pieces of SentencePiece", func(m, _ map[string]any) {
			delete(vocab(m), encoded(demo().vocabulary.token(700)))
			vocab(m)["▁the"] = 700
		}, `token 700, "▁the", is not byte-level BPE`},
		{"no single byte", func(m, _ map[string]any) {
			text := encoded(demo().vocabulary.token(5))
			delete(vocab(m), text)
			vocab(m)[text+text+text+text+text+text+text] = 5
		}, "the single byte 0x26 has no token"},
		{"merges in another order", func(m, _ map[string]any) { slices.Reverse(m["merges"].([]any)) }, "the ids are not ranks, which cannot be recovered"},
		{"a merge of nothing", func(m, _ map[string]any) { m["merges"] = []any{"a b c"} }, "a merge of 3 tokens"},
		{"a merge to nothing", func(m, _ map[string]any) { m["merges"] = []any{"Q Q Q Q"} }, "a merge of 4 tokens"},
		{"a merge to no token", func(m, _ map[string]any) { m["merges"] = []any{[]string{"Q", "Q"}} }, `merge 1 makes "QQ", which is no token`},
		{"a merge of characters", func(m, _ map[string]any) { m["merges"] = []any{"▁ a"} }, "a merge of \"▁\", which is not byte-level BPE"},
		{"an id that is none", func(m, _ map[string]any) { vocab(m)["x"] = -1 }, "byte"},
		{"a pattern for splitting that is not Kimi's", func(_, w map[string]any) {
			w["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `\p{N}{1,3}`}}
		}, "the pattern of the pre_tokenizer, \"\\\\p{N}{1,3}\", is not Kimi's"},
		{"an added token twice", func(_, w map[string]any) {
			w["added_tokens"] = append(w["added_tokens"].([]any), w["added_tokens"].([]any)[0])
		}, "a second time"},
		{"an added token without content", func(_, w map[string]any) { w["added_tokens"] = []any{map[string]any{"id": 1280}} }, "an added token without"},
		{"an added token inside the ranks", func(m, w map[string]any) {
			w["added_tokens"] = []any{map[string]any{"id": 3, "content": "<x>"}}
			for _, text := range demo().contents {
				delete(vocab(m), text)
			}
		}, "tokenizer.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(files(jsonFile, jsonOf(demo(), c.edit), configFile, `{}`))
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), jsonFile) ||
				strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestWhatIsInPlaceOfATokenizerIsNamed(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
	model := string(must[[]byte](t)(os.ReadFile(filepath.Join(demoDir, ranksFile))))
	for _, f := range []disk.Files{
		files(ranksFile, pointer), files(jsonFile, pointer), files(ranksFile, model, configFile, pointer),
	} {
		if _, err := Load(f); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "this is a git-lfs pointer") {
			t.Error(err)
		}
	}
	if _, err := Load(files(ranksFile, model, configFile, "\ufeff{}")); err == nil || !strings.Contains(err.Error(), "byte order mark") {
		t.Error(err)
	}
}

// FuzzJSON holds that a tokenizer.json is either refused, or gives ranks that encode every text and decode to it.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(jsonOf(demo(), nil)), []byte(`{"eos_token":"[EOS]"}`))
	f.Add([]byte(`{"model":{"vocab":{"a":0,"Ġ":1},"merges":["a Ġ",["a","a"]]},"added_tokens":[{"id":1280,"content":"x"}]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, data, config []byte) {
		tok, err := Load(files(jsonFile, string(data), configFile, string(config)))
		if err != nil {
			if !errors.Is(err, ErrFormat) || strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("%q", err)
			}
			return
		}
		const text = "ab <|open|> 你好"
		ids, err := tok.Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := tok.Decode(ids); err != nil || string(back) != text {
			t.Fatalf("%q, %v", back, err)
		}
	})
}
