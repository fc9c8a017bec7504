// Package hub downloads model repositories from an endpoint that speaks the protocol of Hugging Face: metadata as JSON, files
// by ranges, large ones by way of another host. It is made for terabytes over lines that break: nothing that arrived and was
// written is fetched twice, whatever happens in between, and no file has its name before its checksum is right.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/k3infer/k3/core/internal/fault"
)

// DefaultEndpoint is the public hub.
const DefaultEndpoint = "https://huggingface.co"

const (
	maxHops     = 10
	maxMetadata = 64 << 20 // bytes of JSON about a repository
	maxIndex    = 512 << 20
	maxFile     = 1 << 46 // bytes: far above any file
	maxFiles    = 1 << 16
	stall       = time.Minute // without a byte, after which a connection counts as broken
)

// Options say how to reach an endpoint.
type Options struct {
	Endpoint  string        // an http or https URL; "" is DefaultEndpoint
	Token     string        // sent to the endpoint and to no other host; "" is none
	UserAgent string        // "" is "k3"
	Tries     int           // attempts in a row without a byte before giving up; 0 is 12, or 3 if no host ever answered
	Delay     time.Duration // before the second attempt, about; it doubles up to a minute. 0 is a second
	Stall     time.Duration // without a byte, after which a connection counts as broken; 0 is a minute
	Retry     func(Retry)   // told of each attempt that failed before the next is waited for, one at a time; may be nil
}

// Client talks to one endpoint. It may be used by several goroutines.
type Client struct {
	endpoint *url.URL
	token    string
	agent    string
	stall    time.Duration
	http     *http.Client
	retry    retry
}

// New checks the options; the error matches ErrRequest. Nothing is sent yet. Close ends the client's connections.
func New(o Options) (*Client, error) {
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	u, err := url.Parse(o.Endpoint)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fault.Errorf(ErrRequest, "hub: the endpoint is not a URL like %s", DefaultEndpoint)
	case u.User != nil:
		return nil, fault.Errorf(ErrRequest, "hub: the endpoint must not have a user name or password in it")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fault.Errorf(ErrRequest, "hub: the endpoint %s must not have a query or fragment", bare(u))
	}
	for _, r := range o.Token {
		if r <= ' ' || r > '~' {
			return nil, fault.Errorf(ErrRequest, "hub: the token has a character that no token has")
		}
	}
	u.Path = strings.TrimRight(u.Path, "/")
	c := &Client{endpoint: u, token: o.Token, agent: o.UserAgent, stall: o.Stall,
		retry: retry{tries: o.Tries, first: o.Tries, base: o.Delay, tell: o.Retry}}
	if c.agent == "" {
		c.agent = "k3"
	}
	if c.stall <= 0 {
		c.stall = stall
	}
	if c.retry.tries <= 0 {
		c.retry.tries, c.retry.first = 12, 3
	}
	if c.retry.base <= 0 {
		c.retry.base = time.Second
	}
	// Parallel ranges are worth it because each has a TCP connection of its own, which HTTP/2 would not give them.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:   30 * time.Second,
			ResponseHeaderTimeout: c.stall,
			IdleConnTimeout:       30 * time.Second,
			MaxIdleConnsPerHost:   64,
			DisableCompression:    true,
			Protocols:             protocols,
		},
		// Redirects are followed by hand: the token must not go along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close ends the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Endpoint is the URL the client talks to.
func (c *Client) Endpoint() string { return c.endpoint.String() }

// bare is a URL for a message: without query, which may hold a signature, and without a password.
func bare(u *url.URL) string {
	v := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return v.String()
}

// home reports whether u is on the endpoint: same scheme, host and port.
func (c *Client) home(u *url.URL) bool {
	return u.Scheme == c.endpoint.Scheme && strings.EqualFold(u.Hostname(), c.endpoint.Hostname()) && port(u) == port(c.endpoint)
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// private reports whether what is sent to the endpoint cannot be read on the way.
func (c *Client) private() bool {
	if c.endpoint.Scheme == "https" || c.endpoint.Hostname() == "localhost" {
		return true
	}
	ip := net.ParseIP(c.endpoint.Hostname())
	return ip != nil && ip.IsLoopback()
}

// TokenWithheld reports whether there is a token that is not sent because the endpoint is another machine and speaks plain HTTP.
func (c *Client) TokenWithheld() bool { return c.token != "" && !c.private() }

// answer is a response with the URL that gave it. Its body ends with an error when nothing arrives for too long.
type answer struct {
	*http.Response
	url *url.URL
}

// send asks for u once, without following redirects. rng is the value of a Range header or "".
func (c *Client) send(ctx context.Context, method string, u *url.URL, rng string) (*answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, fault.Errorf(ErrMetadata, "%s is not an address that can be asked", bare(u))
	}
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Accept-Encoding", "identity")
	if rng != "" {
		req.Header.Set("Range", rng)
	}
	if c.token != "" && c.home(u) && c.private() {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		cancel(nil)
		return nil, plain(u, err)
	}
	c.retry.reached.Store(true)
	resp.Body = &watched{body: resp.Body, timer: time.AfterFunc(c.stall, func() { cancel(errStalled) }), cancel: cancel, ctx: ctx, stall: c.stall}
	return &answer{resp, u}, nil
}

var errStalled = errors.New("nothing arrived for too long")

// watched is a body whose reads fail when nothing arrives for too long.
type watched struct {
	body   io.ReadCloser
	timer  *time.Timer
	stall  time.Duration
	cancel context.CancelCauseFunc
	ctx    context.Context
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if n > 0 {
		w.timer.Reset(w.stall)
	}
	if err != nil && err != io.EOF {
		if cause := context.Cause(w.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	w.cancel(nil)
	return w.body.Close()
}

// redirected gives where an answer sends us, nil if it does not.
func (a *answer) redirected() (*url.URL, error) {
	switch a.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	to, err := url.Parse(a.Header.Get("Location"))
	if err != nil || a.Header.Get("Location") == "" {
		return nil, protocolf(ErrMetadata, "%s: a redirect to nowhere", bare(a.url))
	}
	to = a.url.ResolveReference(to)
	switch {
	case to.Scheme != "https" && to.Scheme != "http" || to.Host == "":
		return nil, protocolf(ErrMetadata, "%s: a redirect to something that is not on the web", bare(a.url))
	case a.url.Scheme == "https" && to.Scheme == "http":
		return nil, protocolf(ErrMetadata, "%s: a redirect from https to http://%s", bare(a.url), to.Host)
	}
	to.User, to.Fragment = nil, ""
	return to, nil
}

// failure is the error of an answer with a bad status. It closes the body.
func (c *Client) failure(a *answer) error {
	defer a.Body.Close()
	e := &statusError{code: a.StatusCode, where: bare(a.url), hub: c.home(a.url), after: retryAfter(a.Header, time.Now())}
	if e.hub {
		e.message = clean(a.Header.Get("X-Error-Message"))
	}
	return e
}

// clean makes a server's words fit for a line.
func clean(s string) string {
	const most = 200
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// get asks for u and follows redirects. Each answer that is one is shown to hop first, if that is not nil; an error of hop ends
// it. The answer is whatever comes after the last redirect.
func (c *Client) get(ctx context.Context, method string, u *url.URL, rng string, hop func(*answer) error) (*answer, error) {
	if err := c.retry.sleep(ctx, c.retry.paused()); err != nil {
		return nil, err
	}
	for range maxHops {
		a, err := c.send(ctx, method, u, rng)
		if err != nil {
			return nil, err
		}
		if hop != nil {
			if err := hop(a); err != nil {
				a.Body.Close()
				return nil, err
			}
		}
		next, err := a.redirected()
		if err != nil || next != nil {
			a.Body.Close()
		}
		switch {
		case err != nil:
			return nil, err
		case next == nil:
			return a, nil
		}
		u = next
	}
	return nil, protocolf(ErrMetadata, "%s: more than %d redirects", bare(u), maxHops)
}

// read reads a whole answer of at most limit bytes, trying again as often as makes sense.
func (c *Client) read(ctx context.Context, u *url.URL, limit int64) ([]byte, error) {
	var failures attempts
	for {
		data, err := c.readOnce(ctx, u, limit)
		if err == nil {
			return data, nil
		}
		if err := c.retry.wait(ctx, &failures, err); err != nil {
			return nil, err
		}
	}
}

func (c *Client) readOnce(ctx context.Context, u *url.URL, limit int64) ([]byte, error) {
	a, err := c.get(ctx, http.MethodGet, u, "", nil)
	if err != nil {
		return nil, err
	}
	if a.StatusCode != http.StatusOK {
		return nil, c.failure(a)
	}
	defer a.Body.Close()
	data, err := io.ReadAll(io.LimitReader(a.Body, limit+1))
	switch {
	case err != nil:
		return nil, plain(u, err)
	case int64(len(data)) > limit:
		return nil, fault.Errorf(ErrMetadata, "%s: more than %d bytes", bare(u), limit)
	}
	return data, nil
}

// File is one file of a repository.
type File struct {
	Name    string `json:"name"` // with slashes between folders
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256,omitempty"`   // of the content, in hexadecimal; "" for files that are kept in git itself
	GitSHA1 string `json:"git_sha1,omitempty"` // git's name for the content: SHA-1 over "blob SIZE\x00" and the content
}

// Snapshot is a repository at one commit.
type Snapshot struct {
	Repo   string
	Commit string
	Files  []File // in the order the endpoint gives
}

// Snapshot asks for the files of a repository at a revision: a commit, a branch or a tag.
func (c *Client) Snapshot(ctx context.Context, repo, revision string) (*Snapshot, error) {
	if err := checkRepo(repo); err != nil {
		return nil, err
	}
	if revision == "" || strings.ContainsFunc(revision, func(r rune) bool { return r <= ' ' || r == 0x7F }) {
		return nil, fault.Errorf(ErrRequest, "hub: %q is not a revision", revision)
	}
	u := c.endpoint.JoinPath("api", "models")
	u = u.JoinPath(strings.Split(repo, "/")...)
	u.RawQuery = "blobs=true"
	appendPath(u, "revision", revision)
	data, err := c.read(ctx, u, maxMetadata)
	if err != nil {
		return nil, fmt.Errorf("hub: look up %s at %s: %w", repo, revision, err)
	}
	s, err := parseSnapshot(repo, data)
	if err != nil {
		return nil, fmt.Errorf("hub: look up %s at %s: %w", repo, revision, err)
	}
	if isHex(revision, 40) && s.Commit != strings.ToLower(revision) {
		return nil, fault.Errorf(ErrMetadata, "hub: look up %s at %s: the server answers for commit %s", repo, revision, s.Commit)
	}
	return s, nil
}

// appendPath adds segments to a URL's path, escaping what would end a segment.
func appendPath(u *url.URL, segments ...string) {
	raw := u.EscapedPath()
	for _, s := range segments {
		u.Path += "/" + s
		raw += "/" + url.PathEscape(s)
	}
	u.RawPath = raw
}

// IsRepo reports whether a text can be the name of a repository.
func IsRepo(text string) bool { return checkRepo(text) == nil }

func checkRepo(repo string) error {
	parts := strings.Split(repo, "/")
	ok := len(parts) == 1 || len(parts) == 2
	for _, p := range parts {
		ok = ok && p != "" && strings.Trim(p, ".") != "" && !strings.ContainsFunc(p, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
		})
	}
	if !ok {
		return fault.Errorf(ErrRequest, "hub: %q is not a repository such as moonshotai/Kimi-K3", repo)
	}
	return nil
}

// parseSnapshot reads the metadata of a repository. File names are checked here, once: they become paths.
func parseSnapshot(repo string, data []byte) (*Snapshot, error) {
	var m struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				OID    string `json:"oid"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fault.Errorf(ErrMetadata, "not the JSON that is expected: %s", clean(err.Error()))
	}
	if !isHex(m.SHA, 40) {
		return nil, fault.Errorf(ErrMetadata, "it names no commit")
	}
	s := &Snapshot{Repo: repo, Commit: strings.ToLower(m.SHA)}
	seen := map[string]bool{}
	for _, b := range m.Siblings {
		f := File{Name: b.Name, Size: -1}
		if !validName(f.Name) {
			return nil, fault.Errorf(ErrMetadata, "%q is not a name for a file", f.Name)
		}
		if fold := strings.ToLower(f.Name); seen[fold] {
			return nil, fault.Errorf(ErrMetadata, "%s is listed twice", f.Name)
		} else {
			seen[fold] = true
		}
		if b.Size != nil {
			f.Size = *b.Size
		}
		if b.LFS != nil {
			if f.SHA256 = strings.ToLower(b.LFS.SHA256); f.SHA256 == "" {
				f.SHA256 = strings.ToLower(strings.TrimPrefix(b.LFS.OID, "sha256:"))
			}
			if !isHex(f.SHA256, 64) {
				return nil, fault.Errorf(ErrMetadata, "%s: %q is not a SHA-256", f.Name, clean(f.SHA256))
			}
			if b.LFS.Size != nil { // the outer size may be the pointer's
				f.Size = *b.LFS.Size
			}
		} else if isHex(b.BlobID, 40) {
			f.GitSHA1 = strings.ToLower(b.BlobID)
		}
		if f.Size < -1 || f.Size > maxFile || (b.Size != nil || b.LFS != nil && b.LFS.Size != nil) && f.Size < 0 {
			return nil, fault.Errorf(ErrMetadata, "%s: a size of %d", f.Name, f.Size)
		}
		s.Files = append(s.Files, f)
	}
	if n := len(s.Files); n == 0 || n > maxFiles {
		return nil, fault.Errorf(ErrMetadata, "it lists %d files", n)
	}
	return s, nil
}

// validName reports whether a repository's name for a file stays below the directory it is put in, on every system, and out of
// the folder that is ours.
func validName(name string) bool {
	if len(name) > 1000 || !filepath.IsLocal(filepath.FromSlash(name)) {
		return false
	}
	for i, part := range strings.Split(name, "/") {
		if part == "" || strings.Trim(part, ". ") == "" || strings.TrimRight(part, ". ") != part || i == 0 && strings.EqualFold(part, Folder) {
			return false
		}
		if strings.ContainsFunc(part, func(r rune) bool { return strings.ContainsRune(`\:*?"<>|`, r) || !unicode.IsPrint(r) }) {
			return false
		}
	}
	return true
}

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

// location is where the endpoint has a file.
func (c *Client) location(s *Snapshot, f File) *url.URL {
	u := c.endpoint.JoinPath(strings.Split(s.Repo, "/")...)
	appendPath(u, "resolve", s.Commit)
	appendPath(u, strings.Split(f.Name, "/")...)
	return u
}

// describe completes a file of which the metadata give no size, as some mirrors do, by asking for its head.
func (c *Client) describe(ctx context.Context, s *Snapshot, f *File) error {
	var failures attempts
	for {
		err := c.describeOnce(ctx, s, f)
		if err == nil {
			return nil
		}
		if err := c.retry.wait(ctx, &failures, err); err != nil {
			return fmt.Errorf("hub: look up %s: %w", f.Name, err)
		}
	}
}

func (c *Client) describeOnce(ctx context.Context, s *Snapshot, f *File) error {
	size, tag := int64(-1), ""
	a, err := c.get(ctx, http.MethodHead, c.location(s, *f), "", func(a *answer) error {
		if !c.home(a.url) {
			return nil // another host's tags mean something else
		}
		if n, err := strconv.ParseInt(a.Header.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
			size = n
		}
		if t := etag(a.Header.Get("X-Linked-Etag")); t != "" {
			tag = t
		} else if t := etag(a.Header.Get("Etag")); t != "" && a.StatusCode == http.StatusOK && tag == "" {
			tag = t
		}
		return nil
	})
	if err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return c.failure(a)
	}
	a.Body.Close()
	if size < 0 {
		size = a.ContentLength
	}
	if size < 0 || size > maxFile {
		return protocolf(ErrMetadata, "%s: the server does not say how large it is", bare(a.url))
	}
	f.Size = size
	switch {
	case isHex(tag, 64):
		f.SHA256 = strings.ToLower(tag)
	case isHex(tag, 40):
		f.GitSHA1 = strings.ToLower(tag)
	}
	return nil
}

// etag is an entity tag without quotes and weakness.
func etag(s string) string { return strings.Trim(strings.TrimPrefix(strings.TrimSpace(s), "W/"), `"`) }
