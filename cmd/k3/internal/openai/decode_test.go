package openai

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/tokenizer"
)

const fixtureDir = "../../../../../shared/fixtures"

// fixture calls each with the lines of a file of reference data, and skips the test where there is none.
func fixture(t *testing.T, name string, each func(line []byte)) {
	t.Helper()
	f, err := os.Open(filepath.Join(fixtureDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no fixtures here")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<24)
	n := 0
	for ; lines.Scan(); n++ {
		each(lines.Bytes())
	}
	if n == 0 || lines.Err() != nil {
		t.Fatal(n, lines.Err())
	}
}

// What chat.ParseRequest and Decode both take they read alike.
func TestDecodeReadsConversationsLikeTheReference(t *testing.T) {
	refused := map[string]string{ // what the API does not have, or this server not yet
		"no_generation_prompt":          "add_generation_prompt",
		"response_format_schema_inline": "response_format.json_schema.name",
		"image_part":                    "messages[0].content[0].type",
	}
	fixture(t, "chat/chat-a.jsonl", func(line []byte) {
		var c struct {
			Name     string
			Request  json.RawMessage
			Segments []chat.Segment
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		want, err := chat.ParseRequest(c.Request)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Decode(ChatCompletions, c.Request, Options{})
		if param := refused[c.Name]; param != "" {
			if e := (*Error)(nil); !errors.As(err, &e) || e.Param != param {
				t.Errorf("%s: got %v, want it refused for %s", c.Name, err, param)
			}
			return
		}
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			return
		}
		r.Chat.Effort, r.Chat.AddGenerationPrompt, r.Chat.ImagePrompts = want.Effort, want.AddGenerationPrompt, want.ImagePrompts
		if segments, err := chat.Render(r.Chat); err != nil || !slices.Equal(segments, c.Segments) {
			t.Errorf("%s: got %v, %v\nwant %v", c.Name, segments, err, c.Segments)
		}
	})
}

// releasedFiles is the released vocabulary with the added tokens of the markup at their released ids.
type releasedFiles struct{ disk.Files }

func (r releasedFiles) Open(name string) (disk.File, error) {
	if name != "tokenizer_config.json" {
		return r.Files.Open(name)
	}
	const config = `{"eos_token":"[EOS]","added_tokens_decoder":{"163585":{"content":"[EOS]"},"163586":{"content":"<|end_of_msg|>"},
		"163587":{"content":"<|open|>"},"163588":{"content":"<|close|>"},"163589":{"content":"<|sep|>"}}}`
	return disk.FS(fstest.MapFS{name: {Data: []byte(config)}}, "memory").Open(name)
}

// The numbers are those that Moonshot's API counts (Kimi-Vendor-Verifier).
func TestPromptTokensAreThoseThatMoonshotCounts(t *testing.T) {
	var tok *tokenizer.Tokenizer
	fixture(t, "kvv/prompt-tokens.jsonl", func(line []byte) {
		if tok == nil {
			var err error
			if tok, err = tokenizer.Load(releasedFiles{disk.Dir(filepath.Join(fixtureDir, "tokenizer"))}); err != nil {
				t.Fatal(err)
			}
		}
		var c struct {
			ID      string
			Request json.RawMessage
			Want    int `json:"expected_prompt_tokens"`
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		r, err := Decode(ChatCompletions, c.Request, Options{Aliases: []string{"__MODEL__"}})
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			return
		}
		segments, err := chat.Render(r.Chat)
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			return
		}
		ids, err := chat.Encode(tok, segments)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.PromptTokens(len(ids)); got != c.Want {
			t.Errorf("%s: %d tokens, want %d", c.ID, got, c.Want)
		}
	})
}
