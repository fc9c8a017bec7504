package ui

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3infer/k3/core"
)

func TestTheProgressLineLeavesNothingBehind(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{w: &b, width: 30}
	p.Opening("a model with a very long name indeed")
	if got := b.String(); got != "\r\x1b[2Kopening a model with a very l" {
		t.Errorf("%q", got)
	}
	p.Clear()
	p.Clear()
	if !strings.HasSuffix(b.String(), "l\r\x1b[2K") {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	p.drawn = time.Time{}
	p.width = 80
	p.Update(core.Progress{Prefill: true, Done: 0, Total: 100, Rows: 50, Layer: 0, Layers: 10})
	if got := b.String(); got != "\r\x1b[2Kprompt 0/100 tokens, layer 1/10" {
		t.Errorf("%q", got)
	}
	p.started, p.drawn = time.Now().Add(-10*time.Second), time.Time{}
	p.Update(core.Progress{Prefill: true, Done: 50, Total: 100, Rows: 50, Layer: 0, Layers: 10})
	if !strings.HasSuffix(b.String(), "prompt 50/100 tokens, layer 1/10, 10s left") {
		t.Errorf("%q", b.String())
	}
	p.Clear()
	b.Reset()
	// A token shows itself only when it is slow.
	p.drawn = time.Time{}
	p.Update(core.Progress{Done: 4, Total: 9, Rows: 1, Layer: 0, Layers: 10})
	p.Update(core.Progress{Done: 4, Total: 9, Rows: 1, Layer: 3, Layers: 10})
	if b.Len() != 0 {
		t.Errorf("%q", b.String())
	}
	p.token, p.started = p.token.Add(-2*Slow), p.started.Add(-2*Slow)
	p.Update(core.Progress{Done: 4, Total: 9, Rows: 1, Layer: 3, Layers: 10})
	if !strings.HasSuffix(b.String(), "[token 5/9, layer 4/10, 35s left]") {
		t.Errorf("%q", b.String())
	}
	p.drawn = time.Time{}
	p.Update(core.Progress{Done: 4, Total: 9, Rows: 1, Layer: 3, Layers: 10, Read: func() int64 { return 5e9 }})
	if !strings.HasSuffix(b.String(), "[token 5/9, layer 4/10, 5.0 GB, 2.50 GB/s, 35s left]") {
		t.Errorf("%q", b.String())
	}
	interrupted := make(chan struct{})
	close(interrupted)
	p.drawn, p.Interrupt = time.Time{}, interrupted
	p.Update(core.Progress{Done: 4, Total: 9, Rows: 1, Layer: 3, Layers: 10})
	if !strings.HasSuffix(b.String(), "[ends after this pass (Ctrl-C: at once), token 5/9, layer 4/10, 35s left]") {
		t.Errorf("%q", b.String())
	}
	if p := NewProgress(io.Discard, &b, false); p.w != nil {
		t.Error("a line where there is no terminal")
	}
}

func TestTheTimeLeftIsThatOfAllTokens(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{w: &b, width: 80}
	p.Update(core.Progress{Prefill: true, Total: 10, Rows: 10, Layers: 9})
	p.Update(core.Progress{Done: 1, Total: 101, Rows: 1, Layers: 9})
	p.started = p.started.Add(-20 * time.Minute) // 10 tokens
	p.Update(core.Progress{Done: 11, Total: 101, Rows: 1, Layers: 9})
	p.token, p.drawn = p.token.Add(-time.Minute), time.Time{}
	p.Update(core.Progress{Done: 11, Total: 101, Rows: 1, Layers: 9})
	p.token, p.drawn = p.token.Add(-time.Minute), time.Time{}
	p.Update(core.Progress{Done: 11, Total: 101, Rows: 1, Layer: 5, Layers: 9})
	if !strings.HasSuffix(b.String(), "[token 12/101, layer 6/9, 2h50m left]") {
		t.Errorf("%q", b.String())
	}
}

func TestTheProgressLineFitsANarrowTerminal(t *testing.T) {
	text := "token 5/64, layer 4/93, 5.0 GB, 2.50 GB/s, 35s left"
	for columns, want := range map[int]string{
		80: text, 50: "token 5/64, layer 4/93, 5.0 GB, 35s left", 35: "token 5/64, layer 4/93, 35s left", 31: "token 5/64, 35s left",
		20: "token 5/64, 35s left", 19: "token 5/64", 5: "token", 0: "", -3: "",
	} {
		if got := shorten(text, columns); got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}

func TestOffTheTerminalThereIsALineAMinute(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(io.Discard, &b, false)
	at := core.Progress{Done: 4, Total: 9, Rows: 1, Layer: 0, Layers: 10}
	p.Opening("a model")
	p.Update(at)
	at.Layer = 3
	p.Update(at)
	if b.Len() > 0 {
		t.Errorf("before a minute: %q", b.String())
	}
	p.drawn = p.drawn.Add(-relate)
	p.token, p.started = p.token.Add(-relate), p.started.Add(-relate)
	p.Update(at)
	p.Update(at)
	p.Show(time.Now(), "more")
	if got := b.String(); got != "k3: token 5/9, layer 4/10, 17m20s left\n" {
		t.Errorf("%q", got)
	}
	p = NewProgress(io.Discard, &b, true)
	p.drawn = p.drawn.Add(-2 * relate)
	b.Reset()
	p.Update(at)
	p.Show(time.Now(), "more")
	if b.Len() > 0 {
		t.Errorf("quiet: %q", b.String())
	}
}

func TestNoticesAndTheProgressLineKeepApart(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{w: &b, stderr: &b, width: 80}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				p.Show(time.Now(), "line")
				p.Notice("notice")
				p.Clear()
			}
		})
	}
	all.Wait()
	const remove = "\r\x1b[2K"
	rest := strings.ReplaceAll(strings.ReplaceAll(b.String(), remove+"line", "<"), "<"+remove, "")
	if rest = strings.ReplaceAll(strings.ReplaceAll(rest, "k3: notice\n", ""), "<", ""); rest != "" {
		t.Errorf("%q is neither", rest)
	}
}
