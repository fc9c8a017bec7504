package hub

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// The endpoint says on the way to a file what the file is. What is not what the metadata said is not begun.
func TestWhatTheEndpointPromisesMustBeWhatTheMetadataSay(t *testing.T) {
	c, err := New(Options{Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sum, other, commit := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 40)
	x := &transfer{download: &download{client: c, plan: &Plan{Commit: commit}}, item: &Item{File: File{Size: 5, SHA256: sum}}}
	for _, test := range []struct {
		header, value string
		status        int
		host          string
		ok            bool
	}{
		{"X-Linked-Size", "5", 302, "127.0.0.1:1", true},
		{"X-Linked-Size", "6", 302, "127.0.0.1:1", false},
		{"X-Linked-Size", "6", 302, "elsewhere.invalid", true}, // another host's words are another matter
		{"X-Linked-Size", "6", 400, "127.0.0.1:1", true},       // an error is told as such
		{"X-Linked-Size", "many", 302, "127.0.0.1:1", true},
		{"X-Linked-Etag", `"` + sum + `"`, 302, "127.0.0.1:1", true},
		{"X-Linked-Etag", `"` + strings.ToUpper(sum) + `"`, 302, "127.0.0.1:1", true},
		{"X-Linked-Etag", `"` + other + `"`, 302, "127.0.0.1:1", false},
		{"X-Linked-Etag", `"no sum"`, 302, "127.0.0.1:1", true},
		{"X-Repo-Commit", strings.ToUpper(commit), 302, "127.0.0.1:1", true},
		{"X-Repo-Commit", strings.Repeat("d", 40), 302, "127.0.0.1:1", false},
		{"X-Repo-Commit", "main", 302, "127.0.0.1:1", true},
	} {
		a := &answer{&http.Response{StatusCode: test.status, Header: http.Header{test.header: {test.value}}},
			&url.URL{Scheme: "http", Host: test.host}}
		if err := x.promised(a); (err == nil) != test.ok || err != nil && !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %s, status %d of %s: %v", test.header, test.value, test.status, test.host, err)
		}
	}
}

func TestTheFirstLayerAloneIsALanguageModel(t *testing.T) {
	index := []byte(`{"weight_map": {"language_model.model.layers.0.input_layernorm.weight": "a", "language_model.model.norm.weight": "b",
		"vision_tower.patch_embed.weight": "c"}}`)
	shards, err := shardsOfLayers(index, 1)
	if err != nil || len(shards) != 2 || !shards["a"] || !shards["b"] {
		t.Errorf("%v, %v", shards, err)
	}
	if _, err := shardsOfLayers(index, 2); !errors.Is(err, ErrRequest) {
		t.Errorf("two layers of one: %v", err)
	}
	if _, err := shardsOfLayers([]byte(`{"weight_map": {"vision_tower.patch_embed.weight": "c"}}`), 1); !errors.Is(err, ErrMetadata) {
		t.Errorf("no layer: %v", err)
	}
}

func TestAServersWordsAreOneLineOfALengthThatCanBeRead(t *testing.T) {
	for words, want := range map[string]string{
		" not\n\tfound\x00 \u200b": "not found", strings.Repeat("a", 200): strings.Repeat("a", 200),
		strings.Repeat("a", 201): strings.Repeat("a", 200) + "...", strings.Repeat("a", 199) + "é": strings.Repeat("a", 199) + "...",
	} {
		if got := clean(words); got != want {
			t.Errorf("%q becomes %q", words, got)
		}
	}
}

func TestAFileThatCannotBeLookedUpIsAnError(t *testing.T) {
	c, err := New(Options{Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.describeOnce(t.Context(), &Snapshot{Repo: "a/b", Commit: strings.Repeat("c", 40)}, &File{Name: "x"}); err == nil {
		t.Error("no error")
	}
}
