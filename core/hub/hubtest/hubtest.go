// Package hubtest is a small hub for tests: it answers as Hugging Face does, with metadata, redirects to a second host for large
// files, relative redirects for small ones, and ranges; and it can be told to misbehave.
package hubtest

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Request is one request that a hub had.
type Request struct {
	CDN    bool // it went to the second host
	Method string
	File   string // "" for metadata
	Range  string
	Auth   string // the Authorization header
	Query  string
}

// Fault may answer a request in place of the hub; it says whether it did.
type Fault func(w http.ResponseWriter, r *http.Request, q Request) bool

// Hub is a running hub. Its first host is 127.0.0.1, its second localhost.
type Hub struct {
	Repo, Commit string

	mu       sync.Mutex
	token    string
	bare     bool
	fault    Fault
	files    map[string][]byte
	promised map[string][]byte // what the metadata are of
	requests []Request
	front    *httptest.Server
	cdn      *httptest.Server
}

// New starts a hub with the files of one repository, moonshotai/Kimi-K3 at the released commit. Files called *.safetensors or
// *.model are large ones.
func New(files map[string][]byte) *Hub {
	h := &Hub{Repo: "moonshotai/Kimi-K3", Commit: "9f62e4e9fffbd0a83ddd60e1c209d828994b3569", files: map[string][]byte{}, promised: map[string][]byte{}}
	for name, data := range files {
		h.files[name], h.promised[name] = data, data
	}
	h.cdn = httptest.NewServer(http.HandlerFunc(h.serveCDN))
	h.front = httptest.NewServer(http.HandlerFunc(h.serveFront)) // last: it tells where the other is
	return h
}

// Close stops both hosts, cutting their connections.
func (h *Hub) Close() {
	for _, s := range []*httptest.Server{h.front, h.cdn} {
		s.CloseClientConnections()
		s.Close()
	}
}

// URL is the endpoint.
func (h *Hub) URL() string { return h.front.URL }

// Set changes what a file's content is from now on, but not what the metadata say.
func (h *Hub) Set(name string, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[name] = data
}

// SetFault lets the hub misbehave, or behave again with nil.
func (h *Hub) SetFault(f Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = f
}

// SetToken lets the first host answer only to those who have the token.
func (h *Hub) SetToken(token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.token = token
}

// SetBare leaves sizes and checksums out of the metadata.
func (h *Hub) SetBare() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bare = true
}

// Requests returns the requests so far.
func (h *Hub) Requests() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// Forget forgets the requests so far.
func (h *Hub) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = nil
}

func large(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".model")
}

// SHA256 is the checksum of data.
func SHA256(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// GitSHA1 is git's name for data.
func GitSHA1(data []byte) string {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...))
	return hex.EncodeToString(sum[:])
}

// note records a request and gives what answering it takes.
func (h *Hub) note(r *http.Request, file string, cdn bool) (q Request, data []byte, ok bool, token string, fault Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q = Request{cdn, r.Method, file, r.Header.Get("Range"), r.Header.Get("Authorization"), r.URL.RawQuery}
	h.requests = append(h.requests, q)
	data, ok = h.files[file]
	return q, data, ok, h.token, h.fault
}

func (h *Hub) serveFront(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	api := "/api/models/" + h.Repo + "/revision/"
	resolve := "/" + h.Repo + "/resolve/" + h.Commit + "/"
	cache := "/api/resolve-cache/models/" + h.Repo + "/" + h.Commit + "/"
	file := ""
	for _, prefix := range []string{resolve, cache} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			file = rest
		}
	}
	q, data, ok, token, fault := h.note(r, file, false)
	w.Header().Set("X-Repo-Commit", h.Commit)
	if token != "" && q.Auth != "Bearer "+token {
		w.Header().Set("X-Error-Message", "Access to model "+h.Repo+" is restricted.")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if fault != nil && fault(w, r, q) {
		return
	}
	switch {
	case strings.HasPrefix(path, api):
		h.metadata(w, strings.TrimPrefix(path, api), r.URL.Query().Get("blobs") == "true")
	case file == "" || !ok:
		w.Header().Set("X-Error-Message", "Entry not found")
		w.WriteHeader(http.StatusNotFound)
	case strings.HasPrefix(path, cache):
		w.Header().Set("Etag", `"`+GitSHA1(data)+`"`)
		Serve(w, r, data)
	case large(file):
		w.Header().Set("X-Linked-Etag", `"`+SHA256(data)+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
		_, port, _ := strings.Cut(strings.TrimPrefix(h.cdn.URL, "http://"), ":")
		w.Header().Set("Location", "http://localhost:"+port+"/xet/"+url.PathEscape(file)+"?Signature=secret")
		w.WriteHeader(http.StatusFound)
	default:
		w.Header().Set("X-Linked-Etag", `"`+GitSHA1(data)+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
		w.Header().Set("Location", cache+url.PathEscape(file))
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

func (h *Hub) metadata(w http.ResponseWriter, revision string, blobs bool) {
	if revision != h.Commit && revision != "main" {
		w.Header().Set("X-Error-Message", "Invalid rev id: "+revision)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	siblings := []map[string]any{}
	for name, data := range h.promised {
		s := map[string]any{"rfilename": name}
		if blobs && !h.bare {
			s["size"], s["blobId"] = len(data), GitSHA1(data)
			if large(name) {
				s["blobId"] = GitSHA1([]byte("the pointer of " + name))
				s["lfs"] = map[string]any{"sha256": SHA256(data), "size": len(data), "pointerSize": 134}
			}
		}
		siblings = append(siblings, s)
	}
	slices.SortFunc(siblings, func(a, b map[string]any) int {
		return strings.Compare(a["rfilename"].(string), b["rfilename"].(string))
	})
	json.NewEncoder(w).Encode(map[string]any{"id": h.Repo, "sha": h.Commit, "siblings": siblings})
}

func (h *Hub) serveCDN(w http.ResponseWriter, r *http.Request) {
	file, _ := strings.CutPrefix(r.URL.Path, "/xet/")
	q, data, ok, _, fault := h.note(r, file, true)
	if fault != nil && fault(w, r, q) {
		return
	}
	if !ok || q.Query != "Signature=secret" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	// The second host's tag looks like a SHA-256 and is none of the file.
	w.Header().Set("Etag", `"`+SHA256(append([]byte("xet"), data...))+`"`)
	Serve(w, r, data)
}

// Serve answers with data, or the range of it that is asked for.
func Serve(w http.ResponseWriter, r *http.Request, data []byte) {
	first, last, ok := Range(r, len(data))
	if !ok {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		if r.Method != http.MethodHead {
			w.Write(data)
		}
		return
	}
	if first >= len(data) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(data)))
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
	w.Header().Set("Content-Length", strconv.Itoa(last-first+1))
	w.WriteHeader(http.StatusPartialContent)
	w.Write(data[first : last+1])
}

// Range reads the range a request asks for, of a file of n bytes.
func Range(r *http.Request, n int) (first, last int, ok bool) {
	text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	a, b, _ := strings.Cut(text, "-")
	first, err := strconv.Atoi(a)
	last, err2 := strconv.Atoi(b)
	return first, min(last, n-1), ok && err == nil && err2 == nil
}
