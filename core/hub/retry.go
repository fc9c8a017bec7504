package hub

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3infer/k3/core/internal/fault"
)

const (
	protocolTries = 3                // attempts when the server contradicts itself
	longestDelay  = time.Minute      // between two attempts of our own accord
	longestAfter  = 15 * time.Minute // that a server may ask for
)

// Retry is an attempt that failed and will be made again.
type Retry struct {
	Cause   string        // which host, and what went wrong
	Attempt int           // the next one: 2 after the first
	Tries   int           // after so many in a row it is given up
	Wait    time.Duration // before the next
}

// retry decides how often and how long to wait between attempts. All requests of a client share the pause a server asks for.
type retry struct {
	tries   int           // attempts in a row without a new byte
	first   int           // the same, as long as no host has answered: an address that is wrong stays wrong
	base    time.Duration // before the second attempt, about
	tell    func(Retry)   // may be nil
	reached atomic.Bool   // a host has answered

	mu      sync.Mutex
	until   time.Time
	telling sync.Mutex
}

// attempts counts the failures of one piece of work.
type attempts struct{ failed, protocol int }

// progressed forgets the failures: something arrived.
func (a *attempts) progressed() { *a = attempts{} }

// wait notes a failure and waits before the next attempt. It returns the error when there is to be none.
func (r *retry) wait(ctx context.Context, a *attempts, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var status *statusError
	var protocol *protocolError
	limit, count, after := r.tries, &a.failed, time.Duration(0)
	switch {
	case errors.As(err, &status):
		if status.final() {
			return err
		}
		if after = status.after; status.code == http.StatusRequestedRangeNotSatisfiable {
			limit, count = min(limit, protocolTries), &a.protocol
		}
	case errors.As(err, &protocol):
		limit, count = min(limit, protocolTries), &a.protocol
	case !temporary(err), untrusted(err):
		return err
	case unreachable(err) && !r.reached.Load():
		limit = r.first
	}
	if *count++; *count >= limit {
		return err
	}
	delay := r.base << min(*count-1, 16)
	if delay > longestDelay {
		delay = longestDelay
	}
	delay = delay/2 + rand.N(delay/2+1)
	if after > 0 {
		if after > longestAfter {
			return err
		}
		r.pause(after)
		delay = rand.N(r.base/2 + 1) // on top of the pause, so that not all ask at the same moment
	}
	delay += r.paused()
	r.report(Retry{cause(err), *count + 1, limit, delay})
	return r.sleep(ctx, delay)
}

func (r *retry) report(x Retry) {
	if r.tell == nil {
		return
	}
	r.telling.Lock()
	defer r.telling.Unlock()
	r.tell(x)
}

// temporary reports whether an error that is no answer may go away: everything the network does, but not what the disk does.
func temporary(err error) bool {
	var f *fault.Error
	var l *localError
	return !errors.As(err, &f) && !errors.As(err, &l)
}

// localError is a failure of this machine: a full disk stays full.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// pause lets nobody ask before d has passed.
func (r *retry) pause(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := time.Now().Add(d); until.After(r.until) {
		r.until = until
	}
}

// paused is how long nobody may ask yet.
func (r *retry) paused() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(time.Until(r.until), 0)
}

// sleep waits for d.
func (r *retry) sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retryAfter is how long the headers of an answer ask to wait: Retry-After in seconds or as a date, or the t of a RateLimit
// header whose r is 0. It is 0 without either.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if text := strings.TrimSpace(h.Get("Retry-After")); text != "" {
		if s, err := strconv.ParseUint(text, 10, 31); err == nil {
			return time.Duration(s) * time.Second
		}
		if at, err := http.ParseTime(text); err == nil {
			return max(at.Sub(now), 0)
		}
	}
	var left, seconds uint64 = 1, 0
	for _, field := range strings.FieldsFunc(h.Get("RateLimit"), func(r rune) bool { return r == ';' || r == ',' }) {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		n, err := strconv.ParseUint(value, 10, 31)
		switch {
		case err != nil:
		case name == "r":
			left = n
		case name == "t":
			seconds = n
		}
	}
	if left == 0 {
		return time.Duration(seconds) * time.Second
	}
	return 0
}
