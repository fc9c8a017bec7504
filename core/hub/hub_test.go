package hub_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/hub/hubtest"
)

const (
	released = "9f62e4e9fffbd0a83ddd60e1c209d828994b3569"
	repo     = "moonshotai/Kimi-K3"
	block    = 1 << 10
	shard1   = "model-00001-of-000002.safetensors"
	shard2   = "model-00002-of-000002.safetensors"
)

// TestMain also is the process that TestKilledDownloadGoesOn kills.
func TestMain(m *testing.M) {
	if endpoint := os.Getenv("K3_TEST_ENDPOINT"); endpoint != "" {
		c, err := hub.New(hub.Options{Endpoint: endpoint})
		if err == nil {
			_, err = download(c, hub.Request{Dir: os.Getenv("K3_TEST_DIR")})
		}
		fmt.Println(err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// content is n bytes that are never the same twice.
func content(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func model() map[string][]byte {
	return map[string][]byte{
		"config.json":             []byte(`{"model_type":"kimi_k3"}`),
		"tiktoken.model":          content(3*block+17, 1),
		shard1:                    content(40*block+123, 2),
		shard2:                    content(33*block, 3),
		"README.md":               []byte("# Kimi"),
		"LICENSE":                 {},
		"figures/logo.png":        content(100, 4),
		"original/a.safetensors":  content(100, 5),
		"modeling_kimi.py":        []byte("import torch"),
		"generation_config.json":  []byte("{}"),
		"tokenizer_config.json":   []byte(`{"added_tokens_decoder":{}}`),
		"tokenization_kimi.py":    []byte("x"),
		".gitattributes":          []byte("y"),
		"chat template #1 ü.json": []byte("{}"), // characters that must be escaped in a URL
	}
}

// start runs a hub with the files.
func start(t *testing.T, files map[string][]byte) *hubtest.Hub {
	t.Helper()
	h := hubtest.New(files)
	t.Cleanup(h.Close)
	return h
}

func client(t *testing.T, o hub.Options) *hub.Client {
	t.Helper()
	o.Delay, o.Tries = time.Millisecond, max(o.Tries, 8)
	c, err := hub.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func download(c *hub.Client, r hub.Request) (hub.Result, error) {
	return downloadContext(context.Background(), c, r, hub.Config{Connections: 4})
}

func downloadContext(ctx context.Context, c *hub.Client, r hub.Request, o hub.Config) (hub.Result, error) {
	r.Block = block
	s, err := c.Snapshot(ctx, repo, released)
	if err != nil {
		return hub.Result{}, err
	}
	p, err := c.MakePlan(ctx, s, r)
	if err != nil {
		return hub.Result{}, err
	}
	return c.Download(ctx, p, o)
}

// holds checks that a directory has the wanted files, and nothing else but what k3 keeps for itself.
func holds(t *testing.T, dir string, files map[string][]byte, names ...string) {
	t.Helper()
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(data, files[name]) {
			t.Errorf("%s is not what the hub has", name)
		}
	}
	var have []string
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && d.Name() == hub.Folder {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			have = append(have, filepath.ToSlash(rel))
		}
		return nil
	})
	want := slices.Clone(names)
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("the directory has %q, want %q", have, want)
	}
}

// needed are the files of model that a model needs.
var needed = []string{"config.json", "tiktoken.model", shard1, shard2, "README.md", "LICENSE", "generation_config.json", "tokenizer_config.json", "chat template #1 ü.json"}

func TestDownloadPutsWholeFilesInPlace(t *testing.T) {
	files := model()
	h, dir := start(t, files), filepath.Join(t.TempDir(), "new folder", "ü")
	var done []string
	var last hub.Progress
	r, err := downloadContext(t.Context(), client(t, hub.Options{Endpoint: h.URL() + "/"}), hub.Request{Dir: dir}, hub.Config{
		Done:     func(i hub.Item) { done = append(done, i.Name) },
		Progress: func(p hub.Progress) { last = p },
	})
	if err != nil {
		t.Fatal(err)
	}
	holds(t, dir, files, needed...)
	total := int64(0)
	for _, name := range needed {
		total += int64(len(files[name]))
	}
	if r.Files != len(needed) || r.Received != total || len(done) != len(needed) || last.Done != total || last.Total != total {
		t.Errorf("%d files, %d of %d bytes, %d reported, progress %+v", r.Files, r.Received, total, len(done), last)
	}
	m, err := hub.ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	if m.Repo != repo || m.Commit != released || len(m.Files) != len(files) {
		t.Errorf("manifest of %s at %s with %d files", m.Repo, m.Commit, len(m.Files))
	}
	if f := m.Find(shard1); f == nil || f.SHA256 != hubtest.SHA256(files[shard1]) || f.Checked == nil {
		t.Errorf("entry of %s: %+v", shard1, f)
	}
	if f := m.Find("config.json"); f == nil || f.GitSHA1 != hubtest.GitSHA1(files["config.json"]) || f.SHA256 != "" {
		t.Errorf("entry of config.json: %+v", f)
	}

	// A second time, nothing is fetched but the metadata.
	h.Forget()
	if r, err := download(client(t, hub.Options{Endpoint: h.URL()}), hub.Request{Dir: dir}); err != nil || r.Received != 0 || r.Files != 0 || len(h.Requests()) != 1 {
		t.Errorf("again: %+v, %v, %d requests", r, err, len(h.Requests()))
	}
}

func TestTheTokenGoesToTheEndpointOnly(t *testing.T) {
	const token = "hf_thisIsSecret"
	h, dir := start(t, model()), t.TempDir()
	h.SetToken(token)
	if _, err := download(client(t, hub.Options{Endpoint: h.URL()}), hub.Request{Dir: dir}); !errors.Is(err, hub.ErrAccess) || !strings.Contains(err.Error(), "restricted") {
		t.Fatalf("without the token: %v", err)
	}
	h.Forget()
	if _, err := download(client(t, hub.Options{Endpoint: h.URL(), Token: token}), hub.Request{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	front, cdn := 0, 0
	for _, q := range h.Requests() {
		switch {
		case q.CDN:
			cdn++
			if q.Auth != "" {
				t.Fatalf("the second host was sent %q", q.Auth)
			}
		default:
			front++
		}
	}
	if front == 0 || cdn == 0 {
		t.Errorf("%d requests to the endpoint and %d to the second host", front, cdn)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if data, _ := os.ReadFile(path); bytes.Contains(data, []byte(token)) {
			t.Errorf("%s has the token", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Another port of the same machine is another host, and so is a name below the endpoint's.
func TestARedirectNeverTakesTheTokenAlong(t *testing.T) {
	h := start(t, model())
	other := start(t, model())
	h.SetToken("hf_secret")
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if q.CDN || q.File == "" {
			return false
		}
		w.Header().Set("Location", other.URL()+r.URL.EscapedPath())
		w.WriteHeader(http.StatusPermanentRedirect)
		return true
	})
	if _, err := download(client(t, hub.Options{Endpoint: h.URL(), Token: "hf_secret"}), hub.Request{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	if len(other.Requests()) == 0 {
		t.Fatal("nobody was redirected")
	}
	for _, q := range other.Requests() {
		if q.Auth != "" {
			t.Fatalf("the other host was sent %q", q.Auth)
		}
	}
}

func TestATokenIsNotSentInTheClear(t *testing.T) {
	for endpoint, withheld := range map[string]bool{
		"http://hub.example": true, "https://hub.example": false, "http://localhost:1": false, "http://127.0.0.1:1": false, "http://[::1]:1": false,
	} {
		c, err := hub.New(hub.Options{Endpoint: endpoint, Token: "hf_x"})
		if err != nil {
			t.Fatal(err)
		}
		if c.TokenWithheld() != withheld {
			t.Errorf("%s: withheld %v, want %v", endpoint, !withheld, withheld)
		}
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, o := range []hub.Options{
		{Endpoint: "ftp://x"}, {Endpoint: "huggingface.co"}, {Endpoint: "https://user:secret@x"}, {Endpoint: "https://"}, {Endpoint: "https://x?y=1"},
		{Endpoint: "https://x", Token: "hf_secret\nHost: evil"}, {Token: "hf secret"}, {Endpoint: "://secret"},
	} {
		_, err := hub.New(o)
		if !errors.Is(err, hub.ErrRequest) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	h := start(t, model())
	c := client(t, hub.Options{Endpoint: h.URL()})
	for _, bad := range []string{"", "a/b/c", "../x", "a b", "a/..", "/a", "a?b/c", "a/%2e%2e"} {
		if _, err := c.Snapshot(t.Context(), bad, "main"); !errors.Is(err, hub.ErrRequest) {
			t.Errorf("repository %q: %v", bad, err)
		}
	}
	if _, err := c.Snapshot(t.Context(), repo, "nope"); !errors.Is(err, hub.ErrNotFound) || !strings.Contains(err.Error(), "Invalid rev id: nope") {
		t.Errorf("no such revision: %v", err)
	}
	if len(h.Requests()) != 1 {
		t.Errorf("%d requests, want 1: an answer of 404 is not asked for again", len(h.Requests()))
	}
	if s, err := c.Snapshot(t.Context(), repo, "main"); err != nil || s.Commit != released {
		t.Errorf("a branch: %v, %v", s, err)
	}
}

// misbehaves tells how a hub misbehaves, what a download makes of it, and how often it may ask.
var misbehaves = []struct {
	name  string
	fault func(h *hubtest.Hub) hubtest.Fault
	want  error // nil: it is downloaded all the same
	says  string
}{
	{"drops connections in the middle of a body", everyOther(func(w http.ResponseWriter, r *http.Request, data []byte) {
		first, last, _ := hubtest.Range(r, len(data))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		w.Header().Set("Content-Length", strconv.Itoa(last-first+1))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data[first : first+(last-first)/2])
		panic(http.ErrAbortHandler)
	}), nil, ""},
	{"ends a chunked body early", everyOther(func(w http.ResponseWriter, r *http.Request, data []byte) {
		first, last, _ := hubtest.Range(r, len(data))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		w.WriteHeader(http.StatusPartialContent)
		w.(http.Flusher).Flush()
		w.Write(data[first : first+(last-first)/2])
	}), nil, ""},
	{"sends more than the range", everyOther(func(w http.ResponseWriter, r *http.Request, data []byte) {
		first, last, _ := hubtest.Range(r, len(data))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		w.WriteHeader(http.StatusPartialContent)
		w.(http.Flusher).Flush()
		w.Write(data[first : last+1])
		w.Write(make([]byte, 5000))
	}), nil, ""},
	{"sends less than it was asked for", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		first, last, _ := hubtest.Range(r, len(data))
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, min(last, first+700)))
		hubtest.Serve(w, r, data)
	}), nil, ""},
	{"ignores ranges", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		r.Header.Del("Range")
		hubtest.Serve(w, r, data)
	}), nil, ""},
	{"ignores ranges and breaks off", everyOther(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:len(data)/2])
		panic(http.ErrAbortHandler)
	}), nil, ""},
	{"answers 500, 502, 503 now and then", sometimes(http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable), nil, ""},
	{"limits the rate", sometimes(http.StatusTooManyRequests), nil, ""},
	{"lets addresses expire", sometimes(http.StatusForbidden, http.StatusNotFound), nil, ""},
	{"answers 416 once", once(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
	}), nil, ""},
	{"sends a wrong range once", once(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 1-2/%d", len(data)))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data[1:3])
	}), nil, ""},
	{"always sends a wrong range", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-9/%d", len(data)))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data[:10])
	}), hub.ErrMetadata, `"bytes 0-9/`},
	{"sends a range without saying which", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data[:10])
	}), hub.ErrMetadata, `it sends ""`},
	{"contradicts its own range", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		first, last, _ := hubtest.Range(r, len(data))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data[:10])
	}), hub.ErrMetadata, "10 bytes for the range"},
	{"has a file of another length", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		hubtest.Serve(w, r, data[:len(data)-1])
	}), hub.ErrChanged, "its metadata say"},
	{"has a shorter file: 416", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Header().Set("Content-Range", "bytes */5")
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
	}), hub.ErrChanged, "the server has 5 bytes"},
	{"ignores ranges and has another length", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)-1))
		w.Write(data[:len(data)-1])
	}), hub.ErrChanged, "its metadata say"},
	{"ignores ranges and always ends early", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Write(data[:len(data)-1])
	}), errAny, "the connection broke"},
	{"compresses", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Header().Set("Content-Encoding", "gzip")
		hubtest.Serve(w, r, data)
	}), hub.ErrMetadata, "gzip"},
	{"redirects in a circle", func(h *hubtest.Hub) hubtest.Fault {
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			if q.File == shard1 && !q.CDN {
				w.Header().Set("Location", r.URL.EscapedPath())
				w.WriteHeader(http.StatusFound)
				return true
			}
			return false
		}
	}, hub.ErrMetadata, "redirects"},
	{"redirects to a file of this machine", func(h *hubtest.Hub) hubtest.Fault {
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			if q.File == shard1 && !q.CDN {
				w.Header().Set("Location", "file:///etc/passwd")
				w.WriteHeader(http.StatusFound)
				return true
			}
			return false
		}
	}, hub.ErrMetadata, "not on the web"},
	{"has no such file", func(h *hubtest.Hub) hubtest.Fault {
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			if q.File == shard1 && !q.CDN {
				w.WriteHeader(http.StatusNotFound)
				return true
			}
			return false
		}
	}, hub.ErrNotFound, "404"},
	{"changed: another checksum on the way", func(h *hubtest.Hub) hubtest.Fault {
		h.Set(shard1, content(40*block+123, 77))
		return nil
	}, hub.ErrChanged, "SHA-256"},
	{"changed: another commit", func(h *hubtest.Hub) hubtest.Fault {
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			if q.File == shard1 {
				w.Header().Set("X-Repo-Commit", strings.Repeat("a", 40))
			}
			return false
		}
	}, hub.ErrChanged, "commit aaaa"},
	{"sends other bytes", always(func(w http.ResponseWriter, r *http.Request, data []byte) {
		bad := slices.Clone(data)
		bad[len(bad)/2] ^= 1
		hubtest.Serve(w, r, bad)
	}), hub.ErrDigest, "SHA-256"},
	{"is down", func(h *hubtest.Hub) hubtest.Fault {
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			if q.File != "" {
				panic(http.ErrAbortHandler)
			}
			return false
		}
	}, errAny, "it closed the connection without an answer"},
}

var errAny = errors.New("any")

// always lets the second host answer for shard1 in its own way.
func always(answer func(w http.ResponseWriter, r *http.Request, data []byte)) func(h *hubtest.Hub) hubtest.Fault {
	return func(h *hubtest.Hub) hubtest.Fault {
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			if q.CDN && q.File == shard1 {
				answer(w, r, model()[shard1])
				return true
			}
			return false
		}
	}
}

// everyOther does that for every other request.
func everyOther(answer func(w http.ResponseWriter, r *http.Request, data []byte)) func(h *hubtest.Hub) hubtest.Fault {
	return func(h *hubtest.Hub) hubtest.Fault {
		var n atomic.Int64
		f := always(answer)(h)
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			return q.CDN && n.Add(1)%2 == 1 && f(w, r, q)
		}
	}
}

// once does that for the first request.
func once(answer func(w http.ResponseWriter, r *http.Request, data []byte)) func(h *hubtest.Hub) hubtest.Fault {
	return func(h *hubtest.Hub) hubtest.Fault {
		var n atomic.Int64
		f := always(answer)(h)
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			return q.CDN && q.File == shard1 && n.Add(1) == 1 && f(w, r, q)
		}
	}
}

// sometimes answers with bad statuses on both hosts; on the first only with those that ask to come again.
func sometimes(codes ...int) func(h *hubtest.Hub) hubtest.Fault {
	return func(h *hubtest.Hub) hubtest.Fault {
		var n atomic.Int64
		return func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			i := n.Add(1)
			code := codes[int(i)%len(codes)]
			if i%5 != 0 || !q.CDN && code < 429 {
				return false
			}
			w.WriteHeader(code)
			return true
		}
	}
}

func TestDownloadFromAHubThat(t *testing.T) {
	for _, m := range misbehaves {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			files := model()
			h, dir := start(t, files), t.TempDir()
			h.SetFault(m.fault(h))
			r, err := download(client(t, hub.Options{Endpoint: h.URL(), Token: "hf_secret"}), hub.Request{Dir: dir})
			if m.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				holds(t, dir, files, needed...)
				return
			}
			if m.want != errAny && !errors.Is(err, m.want) || err == nil || !strings.Contains(err.Error(), m.says) {
				t.Fatalf("error %v, want %v with %q", err, m.want, m.says)
			}
			if strings.Contains(err.Error(), "Signature") || strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has a secret: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, shard1)); err == nil {
				t.Errorf("%s is there", shard1)
			}
			if errors.Is(err, hub.ErrDigest) || errors.Is(err, hub.ErrChanged) || errors.Is(err, hub.ErrNotFound) {
				// The fault of one file is no reason to leave out the others.
				if data, err := os.ReadFile(filepath.Join(dir, shard2)); err != nil || !bytes.Equal(data, files[shard2]) {
					t.Errorf("%s: %v", shard2, err)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, "*.partial*")); left != nil && !errors.Is(err, hub.ErrNotFound) {
					t.Errorf("left behind: %v", left)
				}
			}
			if n := len(h.Requests()); n > 400 {
				t.Errorf("%d requests", n)
			}
			// When the hub is well again, so is the download.
			h.Set(shard1, files[shard1])
			h.SetFault(nil)
			if _, err := download(client(t, hub.Options{Endpoint: h.URL()}), hub.Request{Dir: dir}); err != nil {
				t.Fatalf("afterwards: %v", err)
			}
			holds(t, dir, files, needed...)
			_ = r
		})
	}
}

// A file that changes while it is downloaded shows another tag: what came before is worth nothing.
func TestAFileThatChangesBetweenRequestsIsBegunAgain(t *testing.T) {
	files := model()
	h, dir := start(t, files), t.TempDir()
	var n atomic.Int64
	old := content(len(files[shard1]), 99)
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if !q.CDN || q.File != shard1 || n.Add(1) > 2 {
			return false
		}
		w.Header().Set("Etag", `"old"`)
		hubtest.Serve(w, r, old)
		return true
	})
	c := client(t, hub.Options{Endpoint: h.URL()})
	if _, err := downloadContext(t.Context(), c, hub.Request{Dir: dir}, hub.Config{Connections: 1}); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, files, needed...)
	if n := n.Load(); n < 8 || n > 9 {
		t.Errorf("%d requests, want 2 and then 6 or 7: only what is of the old file is worth nothing", n)
	}

	// One that goes on changing is given up.
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if q.CDN {
			w.Header().Set("Etag", fmt.Sprint(n.Add(1)))
			hubtest.Serve(w, r, files[q.File])
		}
		return q.CDN
	})
	_, err := downloadContext(t.Context(), c, hub.Request{Dir: t.TempDir(), Include: []string{shard1}}, hub.Config{Connections: 1})
	if !errors.Is(err, hub.ErrChanged) {
		t.Errorf("error %v", err)
	}
}

// ranges adds up the bytes of a file that the second host was asked for, by block.
func ranges(h *hubtest.Hub, file string, size int) map[int]int {
	blocks := map[int]int{}
	for _, q := range h.Requests() {
		if !q.CDN || q.File != file {
			continue
		}
		a, b, _ := strings.Cut(strings.TrimPrefix(q.Range, "bytes="), "-")
		first, _ := strconv.Atoi(a)
		last, err := strconv.Atoi(b)
		if err != nil {
			continue
		}
		for b := first / block; b <= min(last, size-1)/block; b++ {
			blocks[b]++
		}
	}
	return blocks
}

// noted reads which blocks a download has recorded.
func noted(t *testing.T, path string) (blocks []int) {
	t.Helper()
	f, err := os.Open(path + ".partial.blocks")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		number, _, _ := strings.Cut(s.Text(), " ")
		if b, err := strconv.Atoi(number); err == nil {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

func TestKilledDownloadGoesOn(t *testing.T) {
	files := map[string][]byte{"config.json": []byte("{}"), shard1: content(200*block+5, 1)}
	h, dir := start(t, files), t.TempDir()
	var wait atomic.Bool
	wait.Store(true)
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if !q.CDN || !wait.Load() {
			return false
		}
		data := files[q.File]
		first, last, _ := hubtest.Range(r, len(data))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		w.WriteHeader(http.StatusPartialContent)
		for ; first <= last && wait.Load(); first += 100 {
			w.Write(data[first:min(first+100, last+1)])
			w.(http.Flusher).Flush()
			time.Sleep(2 * time.Millisecond)
		}
		return true
	})
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(me)
	cmd.Env = append(os.Environ(), "K3_TEST_ENDPOINT="+h.URL(), "K3_TEST_DIR="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, shard1)
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(path + ".partial.blocks"); err == nil && bytes.Count(data, []byte("\n")) > 12 {
			break
		}
		if time.Since(start) > 20*time.Second {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("nothing arrived: %s", &out)
		}
	}
	cmd.Process.Kill() // on Unix the signal 9
	if err := cmd.Wait(); err == nil || out.Len() > 0 {
		t.Fatalf("it ended by itself: %s", &out)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("an incomplete file has its name")
	}
	wait.Store(false)
	before := noted(t, path)
	if len(before) < 10 {
		t.Fatalf("%d blocks are noted", len(before))
	}
	h.Forget()
	r, err := download(client(t, hub.Options{Endpoint: h.URL()}), hub.Request{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	holds(t, dir, files, "config.json", shard1)
	again := ranges(h, shard1, len(files[shard1]))
	for _, b := range before {
		if again[b] > 0 {
			t.Errorf("block %d was there and was fetched again", b)
		}
	}
	if want := int64(len(files[shard1]) - len(before)*block); r.Received != want {
		t.Errorf("%d bytes came, want %d", r.Received, want)
	}
}

func TestCancelledDownloadGoesOn(t *testing.T) {
	files := model()
	h, dir := start(t, files), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int64
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if q.CDN && n.Add(1) == 5 {
			cancel()
		}
		return false
	})
	c := client(t, hub.Options{Endpoint: h.URL()})
	if _, err := downloadContext(ctx, c, hub.Request{Dir: dir}, hub.Config{Connections: 2}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if _, err := download(c, hub.Request{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, files, needed...)
}

// What a crash of the machine may leave: noted blocks that are not on disk, a line cut off, rubbish, another file's notes.
func TestDamagedPartialFilesAreMended(t *testing.T) {
	files := map[string][]byte{shard1: content(20*block+5, 1)}
	size := len(files[shard1])
	for name, damage := range map[string]func(data, notes string){
		"a block of zeros": func(data, notes string) {
			f, _ := os.OpenFile(data, os.O_RDWR, 0)
			defer f.Close()
			f.WriteAt(make([]byte, block), 3*block)
		},
		"a line cut off":         func(data, notes string) { truncate(notes, -3) },
		"no notes":               func(data, notes string) { os.Remove(notes) },
		"no data":                func(data, notes string) { os.Remove(data) },
		"short data":             func(data, notes string) { os.Truncate(data, 5*block+3) },
		"data that is too long":  func(data, notes string) { os.Truncate(data, int64(size)+99) },
		"rubbish in the notes":   func(data, notes string) { add(notes, "99999 0000\n-1 x\nhello\x00\n") },
		"notes of another file":  func(data, notes string) { os.WriteFile(notes, []byte(`{"size":7,"block":1024}`+"\n0 0\n"), 0o644) },
		"notes that are no JSON": func(data, notes string) { os.WriteFile(notes, []byte("\x00\x00\x00"), 0o644) },
		"a wrong sum":            func(data, notes string) { add(notes, "2 00000000\n") },
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			h, dir := start(t, files), t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := client(t, hub.Options{Endpoint: h.URL()})
			h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
				if first, _, _ := hubtest.Range(r, size); q.CDN && first >= 8*block {
					cancel()
					panic(http.ErrAbortHandler)
				}
				return false
			})
			if _, err := downloadContext(ctx, c, hub.Request{Dir: dir}, hub.Config{Connections: 1}); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			path := filepath.Join(dir, shard1)
			if n := len(noted(t, path)); n != 8 {
				t.Fatalf("%d blocks are noted, want 8", n)
			}
			damage(path+".partial", path+".partial.blocks")
			h.SetFault(nil)
			h.Forget()
			if _, err := download(c, hub.Request{Dir: dir}); err != nil {
				t.Fatal(err)
			}
			holds(t, dir, files, shard1)
			if name == "a block of zeros" {
				again := ranges(h, shard1, size)
				if again[3] != 1 || again[2] != 0 || again[4] != 0 {
					t.Errorf("fetched again: %v", again)
				}
			}
		})
	}
}

func truncate(path string, by int64) {
	if info, err := os.Stat(path); err == nil {
		os.Truncate(path, info.Size()+by)
	}
}

func add(path, text string) {
	f, _ := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	defer f.Close()
	f.WriteString(text)
}

func TestNothingIsOverwrittenWithoutForce(t *testing.T) {
	files := model()
	h, dir := start(t, files), t.TempDir()
	mine := map[string][]byte{
		"config.json": []byte("my own"),
		shard1:        content(len(files[shard1]), 50), // the right size
		shard2:        files[shard2],                   // the right file
	}
	for name, data := range mine {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := client(t, hub.Options{Endpoint: h.URL()})
	_, err := download(c, hub.Request{Dir: dir})
	if !errors.Is(err, hub.ErrExists) || !strings.Contains(err.Error(), "config.json, "+shard1+" in ") {
		t.Fatalf("error %v", err)
	}
	holds(t, dir, mine, "config.json", shard1, shard2)
	if n := len(h.Requests()); n != 1 {
		t.Errorf("%d requests: files were fetched that had no place", n)
	}
	// Only what is wrong is replaced.
	h.Forget()
	r, err := download(c, hub.Request{Dir: dir, Force: true})
	if err != nil || r.Files != len(needed)-1 {
		t.Fatalf("%+v, %v", r, err)
	}
	holds(t, dir, files, needed...)
	if n := len(ranges(h, shard2, len(files[shard2]))); n != 0 {
		t.Errorf("%d blocks of the good file were fetched", n)
	}
	// Force looks again at files that were right once, whatever their time says.
	path := filepath.Join(dir, shard2)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Clone(files[shard2])
	bad[5] ^= 1
	os.WriteFile(path, bad, 0o644)
	os.Chtimes(path, info.ModTime(), info.ModTime())
	if r, err := download(c, hub.Request{Dir: dir, Include: []string{shard2}, Force: true}); err != nil || r.Files != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	holds(t, dir, files, needed...)
}

func TestAnotherRevisionIsNotMixedIn(t *testing.T) {
	files := model()
	h, dir := start(t, files), t.TempDir()
	c := client(t, hub.Options{Endpoint: h.URL()})
	if _, err := download(c, hub.Request{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	s, err := c.Snapshot(t.Context(), repo, released)
	if err != nil {
		t.Fatal(err)
	}
	s.Commit = strings.Repeat("b", 40)
	if _, err := c.MakePlan(t.Context(), s, hub.Request{Dir: dir}); !errors.Is(err, hub.ErrManifest) {
		t.Errorf("error %v", err)
	}
	if _, err := c.MakePlan(t.Context(), s, hub.Request{Dir: dir, Force: true}); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"no JSON": "x", "no repository": `{"commit":"` + released + `"}`, "an unknown field": `{"x":1}`,
		"a name outside": `{"repo":"a/b","commit":"` + released + `","files":[{"name":"../x","size":1}]}`,
		"a relative dir": `{"repo":"a/b","commit":"` + released + `","files":[{"name":"x","size":1,"dir":"y"}]}`,
	} {
		os.WriteFile(filepath.Join(dir, hub.Folder, "manifest.json"), []byte(text), 0o644)
		if _, err := hub.ReadManifest(dir); !errors.Is(err, hub.ErrManifest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShardsAreSpreadOverDirectories(t *testing.T) {
	files := map[string][]byte{"config.json": []byte("{}")}
	var shards []string
	for i := range 6 {
		name := fmt.Sprintf("model-%05d-of-000006.safetensors", i+1)
		files[name] = content(3*block, uint64(i))
		shards = append(shards, name)
	}
	h, dir := start(t, files), t.TempDir()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	c := client(t, hub.Options{Endpoint: h.URL()})
	if _, err := download(c, hub.Request{Dir: dir, Dirs: []string{a, b}}); err != nil {
		if runtime.GOOS == "windows" && strings.Contains(err.Error(), "Developer Mode") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	holds(t, dir, files, append([]string{"config.json"}, shards...)...)
	holds(t, a, files, shards[0], shards[2], shards[4])
	holds(t, b, files, shards[1], shards[3], shards[5])
	for _, name := range shards {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s: %v, no link", name, err)
		}
	}
	// A damaged shard is fetched again to where it was, also when the directories are not named again.
	os.Truncate(filepath.Join(b, shards[1]), 5)
	os.Remove(filepath.Join(a, shards[2]))
	for _, dirs := range [][]string{nil, {b, a}} {
		if _, err := download(c, hub.Request{Dir: dir, Dirs: dirs, Force: true}); err != nil {
			t.Fatal(err)
		}
		holds(t, dir, files, append([]string{"config.json"}, shards...)...)
		holds(t, a, files, shards[0], shards[2], shards[4])
		holds(t, b, files, shards[1], shards[3], shards[5])
	}
	// Something else in the place of a link stays.
	link := filepath.Join(dir, shards[0])
	os.Remove(link)
	os.WriteFile(link, []byte("mine"), 0o644)
	if _, err := download(c, hub.Request{Dir: dir}); !errors.Is(err, hub.ErrExists) {
		t.Errorf("error %v", err)
	}
}

func TestTheModelsDirectoryMayBeOneOfThoseThatShardsAreSpreadOver(t *testing.T) {
	files := map[string][]byte{"config.json": []byte("{}")}
	for i := range 4 {
		files[fmt.Sprintf("model-%05d-of-000004.safetensors", i+1)] = content(3*block, uint64(i))
	}
	h, dir, other := start(t, files), t.TempDir(), t.TempDir()
	c := client(t, hub.Options{Endpoint: h.URL()})
	if _, err := download(c, hub.Request{Dir: dir, Dirs: []string{dir, other}}); err != nil {
		if runtime.GOOS == "windows" && strings.Contains(err.Error(), "Developer Mode") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	links := 0
	for name, data := range files {
		path := filepath.Join(dir, name)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %v, or other bytes", name, err)
		}
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
			links++
		}
	}
	if links != 2 {
		t.Errorf("%d links, where two of four shards lie elsewhere", links)
	}
}

func TestOnlyWhatIsAskedForIsFetched(t *testing.T) {
	files := model()
	index := map[string]any{"weight_map": map[string]string{
		"language_model.model.layers.0.input_layernorm.weight": shard1, "language_model.model.layers.1.input_layernorm.weight": shard2,
		"language_model.lm_head.weight": "head.safetensors", "vision_tower.x": "vision.safetensors",
	}}
	text, _ := json.Marshal(index)
	files["model.safetensors.index.json"] = text
	files["head.safetensors"], files["vision.safetensors"] = content(9, 1), content(9, 2)
	h := start(t, files)
	c := client(t, hub.Options{Endpoint: h.URL()})
	small := []string{"LICENSE", "README.md", "chat template #1 ü.json", "config.json", "generation_config.json", "model.safetensors.index.json", "tiktoken.model", "tokenizer_config.json"}
	for _, x := range []struct {
		request hub.Request
		want    []string
	}{
		{hub.Request{Include: []string{"config.json", "*.png"}}, []string{"config.json", "figures/logo.png"}},
		{hub.Request{Include: []string{"original/*"}}, []string{"original/a.safetensors"}},
		{hub.Request{Layers: 1}, append([]string{shard1, "head.safetensors"}, small...)},
		{hub.Request{Layers: 2}, append([]string{shard1, shard2, "head.safetensors"}, small...)},
	} {
		dir := t.TempDir()
		x.request.Dir = dir
		if _, err := download(c, x.request); err != nil {
			t.Fatalf("%+v: %v", x.request, err)
		}
		holds(t, dir, files, x.want...)
	}
	for _, r := range []hub.Request{{Layers: 3}, {Layers: -1}, {Layers: 1, Include: []string{"*"}}, {Include: []string{"nothing*"}}, {Include: []string{"["}}} {
		r.Dir = filepath.Join(t.TempDir(), "x")
		if _, err := download(c, r); !errors.Is(err, hub.ErrRequest) {
			t.Errorf("%+v: %v", r, err)
		}
		if _, err := os.Stat(r.Dir); err == nil {
			t.Errorf("%+v: a directory was made", r)
		}
	}
}

// Some mirrors give names only. The head of a file has the rest, on the way to the second host.
func TestMetadataWithoutSizesAreCompleted(t *testing.T) {
	files := model()
	h, dir := start(t, files), t.TempDir()
	h.SetBare()
	if _, err := download(client(t, hub.Options{Endpoint: h.URL()}), hub.Request{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, files, needed...)
	m, err := hub.ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f := m.Find(shard1); f == nil || f.SHA256 != hubtest.SHA256(files[shard1]) {
		t.Errorf("%+v", f)
	}
	if f := m.Find("config.json"); f == nil || f.GitSHA1 != hubtest.GitSHA1(files["config.json"]) {
		t.Errorf("%+v", f)
	}
}

func TestMetadataThatCannotBeUsedAreRefused(t *testing.T) {
	h := start(t, model())
	file := func(f string) string { return `{"sha":"` + released + `","siblings":[` + f + `]}` }
	for name, body := range map[string]string{
		"no JSON": "<html>", "no commit": `{"siblings":[{"rfilename":"x"}]}`, "no files": file(""), "another commit": `{"sha":"` + strings.Repeat("c", 40) + `","siblings":[{"rfilename":"x"}]}`,
		"a path upwards": file(`{"rfilename":"../x"}`), "an absolute path": file(`{"rfilename":"/x"}`), "a drive": file(`{"rfilename":"c:x"}`),
		"a backslash": file(`{"rfilename":"a\\..\\b"}`), "our folder": file(`{"rfilename":".K3/manifest.json"}`), "a NUL": file(`{"rfilename":"a\u0000"}`),
		"no name": file(`{"size":1}`), "twice": file(`{"rfilename":"x"},{"rfilename":"X"}`), "a negative size": file(`{"rfilename":"x","size":-1}`),
		"a huge size": file(`{"rfilename":"x","size":1e30}`), "no checksum": file(`{"rfilename":"x","size":1,"lfs":{"sha256":"x"}}`), "a trailing dot": file(`{"rfilename":"x."}`),
	} {
		h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
			w.Write([]byte(body))
			return true
		})
		if _, err := client(t, hub.Options{Endpoint: h.URL()}).Snapshot(t.Context(), repo, released); !errors.Is(err, hub.ErrMetadata) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFreeSpaceIsLookedAtFirst(t *testing.T) {
	h, dir := start(t, model()), t.TempDir()
	c := client(t, hub.Options{Endpoint: h.URL()})
	s, err := c.Snapshot(t.Context(), repo, released)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Files {
		if s.Files[i].Name == shard1 {
			s.Files[i].Size = 1 << 60
		}
	}
	p, err := c.MakePlan(t.Context(), s, hub.Request{Dir: filepath.Join(dir, "x", "y")})
	if !errors.Is(err, hub.ErrSpace) || p == nil || len(p.Disks) != 1 || p.Disks[0].Need < 1<<60 || p.Disks[0].Free <= 0 {
		t.Errorf("%v, %+v", err, p)
	}
	holds(t, dir, nil)
}

func TestOneDownloadAtATimeInADirectory(t *testing.T) {
	h, dir := start(t, model()), t.TempDir()
	c := client(t, hub.Options{Endpoint: h.URL()})
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if q.CDN {
			once.Do(func() { close(begun) })
			<-release
		}
		return false
	})
	first := make(chan error)
	go func() {
		_, err := download(c, hub.Request{Dir: dir})
		first <- err
	}()
	<-begun
	_, err := download(c, hub.Request{Dir: dir})
	close(release)
	if !errors.Is(err, hub.ErrBusy) {
		t.Errorf("error %v", err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestServersAreGivenTheTimeTheyAskFor(t *testing.T) {
	h, dir := start(t, model()), t.TempDir()
	var asked, came atomic.Int64
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		now := time.Now().UnixMilli()
		switch {
		case q.CDN && asked.CompareAndSwap(0, now):
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		case asked.Load() > 0 && now > asked.Load()+200: // those under way when it was said do not count
			came.CompareAndSwap(0, now)
		}
		return false
	})
	if _, err := download(client(t, hub.Options{Endpoint: h.URL()}), hub.Request{Dir: dir, Include: []string{shard1}}); err != nil {
		t.Fatal(err)
	}
	if waited := came.Load() - asked.Load(); waited < 990 || waited > 5000 {
		t.Errorf("after %d ms somebody asked again", waited)
	}
}

func TestABodyThatStallsIsAskedForAgain(t *testing.T) {
	h, dir := start(t, model()), t.TempDir()
	var n atomic.Int64
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if q.CDN && n.Add(1) == 1 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-8191/%d", len(model()[shard1])))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(model()[shard1][:500])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}
		return false
	})
	c := client(t, hub.Options{Endpoint: h.URL(), Stall: 100 * time.Millisecond})
	if _, err := download(c, hub.Request{Dir: dir, Include: []string{shard1}}); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, model(), shard1)
}

func TestTokenIsFoundWhereOthersKeepIt(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		os.WriteFile(path, []byte(text), 0o600)
		return path
	}
	path := write("mine", "hf_path\n")
	write("home/token", " hf_home \n")
	write("cache/huggingface/token", "hf_cache")
	home, cache := filepath.Join(dir, "home"), filepath.Join(dir, "cache")
	for _, x := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HF_TOKEN": " hf_env\n", "HF_TOKEN_PATH": path}, "hf_env"},
		{map[string]string{"HF_TOKEN_PATH": path, "HF_HOME": home}, "hf_path"},
		{map[string]string{"HF_HOME": home, "XDG_CACHE_HOME": cache}, "hf_home"},
		{map[string]string{"XDG_CACHE_HOME": cache}, "hf_cache"},
		{map[string]string{"HF_HOME": dir}, ""},
	} {
		got, err := hub.Token(func(name string) string { return x.env[name] })
		if err != nil || got != x.want {
			t.Errorf("%v: %q, %v", x.env, got, err)
		}
	}
}
