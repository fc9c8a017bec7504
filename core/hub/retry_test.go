package hub_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3infer/k3/core/hub"
)

// nowhere is an address at which nothing listens.
func nowhere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestAnEndpointThatWasNeverReachedIsGivenUpSoonAndEveryAttemptIsTold(t *testing.T) {
	for tries, want := range map[int]int{0: 3, 5: 5} {
		var told []hub.Retry
		endpoint := nowhere(t)
		c, err := hub.New(hub.Options{Endpoint: endpoint, Delay: time.Millisecond, Tries: tries, Retry: func(r hub.Retry) { told = append(told, r) }})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Snapshot(t.Context(), repo, released); err == nil || !strings.HasSuffix(err.Error(), ": connection refused") {
			t.Errorf("error %v", err)
		}
		if len(told) != want-1 {
			t.Fatalf("%d of %d attempts told", len(told)+1, want)
		}
		for i, r := range told {
			if r.Attempt != i+2 || r.Tries != want || r.Wait <= 0 || r.Cause != strings.TrimPrefix(endpoint, "http://")+": connection refused" {
				t.Errorf("%+v", r)
			}
		}
	}
}

// What has answered once is worth more patience than an address that may be wrong.
func TestAConnectionThatIsLostLaterIsTriedLonger(t *testing.T) {
	h := start(t, model())
	var told atomic.Int64
	c, err := hub.New(hub.Options{Endpoint: h.URL(), Delay: time.Millisecond, Retry: func(r hub.Retry) {
		if told.Add(1); r.Tries != 12 {
			t.Errorf("%+v", r)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Snapshot(t.Context(), repo, released); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if _, err := c.Snapshot(t.Context(), repo, released); err == nil || told.Load() != 11 {
		t.Errorf("error %v after %d attempts more", err, told.Load())
	}
}

func TestCausesAreToldInPlainWords(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	busy := func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	half := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write([]byte("{"))
	}
	for want, answer := range map[string]http.HandlerFunc{
		"it closed the connection without an answer": abort, "503 Service Unavailable": busy, "the connection broke": half,
	} {
		s := httptest.NewServer(answer)
		var last string
		c, err := hub.New(hub.Options{Endpoint: s.URL, Delay: time.Millisecond, Tries: 2, Retry: func(r hub.Retry) { last = r.Cause }})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Snapshot(t.Context(), repo, released)
		if host := strings.TrimPrefix(s.URL, "http://"); last != host+": "+want || err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q, error %v, want %q", last, err, want)
		}
		c.Close()
		s.Close()
	}
	c := client(t, hub.Options{Endpoint: "http://no-such-host.invalid", Tries: 1})
	if _, err := c.Snapshot(t.Context(), repo, released); err == nil || !strings.Contains(err.Error(), "no-such-host.invalid") || strings.Contains(err.Error(), "lookup") {
		t.Errorf("error %v", err)
	}
}

func TestACertificateThatIsNotTrustedIsNotTriedAgain(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	c := client(t, hub.Options{Endpoint: s.URL, Retry: func(r hub.Retry) { t.Errorf("told %+v", r) }})
	if _, err := c.Snapshot(t.Context(), repo, released); err == nil || !strings.Contains(err.Error(), ": its certificate is not trusted: ") {
		t.Errorf("error %v", err)
	}
}

func TestFailuresOfSeveralFilesAreAnErrorEach(t *testing.T) {
	files := model()
	h, dir := start(t, files), t.TempDir()
	for _, name := range []string{shard1, shard2} {
		h.SetFault(nil)
		h.Set(name, make([]byte, len(files[name])))
	}
	_, err := download(client(t, hub.Options{Endpoint: h.URL()}), hub.Request{Dir: dir})
	var list hub.Failures
	if !errors.As(err, &list) || len(list) != 2 || !errors.Is(err, hub.ErrChanged) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %v", err)
	}
	for _, err := range list {
		if text := fmt.Sprint(err); !strings.HasPrefix(text, "hub: model-0000") {
			t.Errorf("%q", text)
		}
	}
}
