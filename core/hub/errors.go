package hub

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

var (
	// ErrNotFound says that the endpoint has no such repository, revision or file.
	ErrNotFound = errors.New("not found on the server")
	// ErrAccess says that the endpoint wants a token, or another one.
	ErrAccess = errors.New("the server refuses access")
	// ErrMetadata says that what the endpoint tells about a repository cannot be used.
	ErrMetadata = errors.New("unusable answer of the server")
	// ErrChanged says that the server's file is not the one its metadata promise.
	ErrChanged = errors.New("the file changed on the server")
	// ErrDigest says that a downloaded file does not have the published checksum.
	ErrDigest = errors.New("wrong checksum")
	// ErrSpace says that the disks have no room for what is to be fetched.
	ErrSpace = errors.New("not enough free space")
	// ErrExists says that a file is in the way and may not be replaced.
	ErrExists = errors.New("a different file is there")
	// ErrBusy says that another download works in the same directory.
	ErrBusy = errors.New("another download works in this directory")
	// ErrRequest says that what was asked for cannot be done: an unknown layer, a pattern without a match, a bad endpoint.
	ErrRequest = errors.New("impossible request")
	// ErrManifest says that the manifest of a directory is damaged or is another repository's.
	ErrManifest = errors.New("unusable manifest")
)

// Failures are the errors of several files, one each.
type Failures []error

func (f Failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives all of them.
func (f Failures) Unwrap() []error { return f }

// failures is nil without errors, the only one, or Failures.
func failures(errs ...error) error {
	var list Failures
	for _, err := range errs {
		list = append(list, fmt.Errorf("hub: %w", err))
	}
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return list
}

// statusError is an answer that is not the one hoped for.
type statusError struct {
	code    int
	where   string        // the URL without query, which may hold a signature
	message string        // what the server says about it
	after   time.Duration // how long it asks to wait, 0 if it does not
	hub     bool          // the endpoint itself said it, not a host it sent us to
}

func (e *statusError) Error() string { return e.where + ": " + e.answer() }

// answer is the status in words.
func (e *statusError) answer() string {
	text := fmt.Sprintf("%d %s", e.code, http.StatusText(e.code))
	if e.message != "" {
		text += ": " + e.message
	}
	return text
}

func (e *statusError) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.hub && (e.code == http.StatusNotFound || e.code == http.StatusGone)
	case ErrAccess:
		return e.hub && (e.code == http.StatusUnauthorized || e.code == http.StatusForbidden)
	}
	return false
}

// final reports whether trying again cannot help. A host the endpoint sent us to may refuse an address that has expired; the
// endpoint then gives a fresh one.
func (e *statusError) final() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusRequestedRangeNotSatisfiable:
		return false
	}
	return e.hub && e.code < 500
}

// protocolError is an answer that contradicts the request or itself. Servers do that in passing, so it is worth a few
// attempts, but not as many as a network that is down.
type protocolError struct {
	kind error // the sentinel it turns into when it lasts
	msg  string
}

func (e *protocolError) Error() string        { return e.msg }
func (e *protocolError) Is(target error) bool { return target == e.kind }

func protocolf(kind error, format string, args ...any) error {
	return &protocolError{kind, fmt.Sprintf(format, args...)}
}
