package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/k3infer/k3/core"
)

// slow is how long a token may take before the layer it is in is shown.
const slow = time.Second

// redraw is the shortest time between two states of the progress line.
const redraw = 100 * time.Millisecond

// progress is a line on a terminal that says how far a run is. It writes nothing anywhere else. show, notice and clear
// may be called by several goroutines; update only by the one whose work it shows.
type progress struct {
	w       io.Writer // nil when there is no terminal
	stderr  io.Writer // for notices
	quiet   bool
	shared  bool // stdout is a terminal, too: text may stand in front of the line
	width   int
	mu      sync.Mutex // for shown, drawn and what is written
	shown   bool
	drawn   time.Time
	started time.Time // of this prefill
	token   time.Time // start of the token in flight
	before  int64     // bytes read before this prefill or token

	interrupt <-chan struct{} // closed when the text is to end after the pass in flight; nil: never
}

// newProgress returns the progress line of a run, silent if quiet.
func newProgress(stdout, stderr io.Writer, quiet bool) *progress {
	p := &progress{width: 80, stderr: stderr, quiet: quiet}
	if f, ok := stderr.(*os.File); ok && !quiet && term.IsTerminal(int(f.Fd())) && understandsEscapes(f) {
		p.w = f
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			p.width = width
		}
	}
	if f, ok := stdout.(*os.File); ok {
		p.shared = term.IsTerminal(int(f.Fd()))
	}
	return p
}

// opening shows that the model is being opened.
func (p *progress) opening(model string) { p.show(time.Now(), "opening "+model) }

// update shows where the engine is.
func (p *progress) update(at core.Progress) {
	if p.w == nil {
		return
	}
	now := time.Now()
	if first := at.Prefill && at.Done == 0; at.Layer == 0 && (first || !at.Prefill) {
		p.token, p.before = now, 0
		if at.Read != nil {
			p.before = at.Read()
		}
		if first {
			p.started = now
		}
	}
	if p.fresh(now) {
		return
	}
	ending := ""
	select {
	case <-p.interrupt:
		ending = "ends after this pass (Ctrl-C: at once), "
	default:
	}
	layer := fmt.Sprintf("layer %d/%d", min(at.Layer+1, at.Layers), at.Layers)
	of := float64(at.Layer) / float64(at.Layers+1) // of the pass
	if at.Prefill {
		done, total := float64(at.Done)+float64(at.Rows)*of, float64(at.Total)
		p.show(now, fmt.Sprintf("%sprompt %d/%d tokens, %s%s", ending, at.Done, at.Total, layer, p.pace(at, now.Sub(p.started), done/total)))
	} else if elapsed := now.Sub(p.token); elapsed > slow {
		p.show(now, fmt.Sprintf("[%stoken %d, %s%s]", ending, at.Done+1, layer, p.pace(at, elapsed, of)))
	}
}

// fresh reports whether the line was drawn so recently that it stays as it is.
func (p *progress) fresh(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.drawn) < redraw
}

// pace says what was read, how fast, and how long the rest takes, when elapsed went by for a part of the work.
func (p *progress) pace(at core.Progress, elapsed time.Duration, part float64) string {
	if elapsed < slow {
		return ""
	}
	text := ""
	if at.Read != nil {
		if n := at.Read() - p.before; n > 0 {
			text = fmt.Sprintf(", %.1f GB, %.2f GB/s", float64(n)/1e9, float64(n)/1e9/elapsed.Seconds())
		}
	}
	if part > 0 {
		text += fmt.Sprintf(", %s left", time.Duration(float64(elapsed)*(1-part)/part).Round(time.Second))
	}
	return text
}

// show puts text on the line.
func (p *progress) show(now time.Time, text string) {
	if p.w == nil {
		return
	}
	if runes := []rune(text); len(runes) > p.width-1 {
		text = string(runes[:p.width-1])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove()
	p.drawn, p.shown = now, true
	if p.shared {
		// Make sure that there is a line below, save the place, write there and come back: the text goes on undisturbed.
		fmt.Fprintf(p.w, "\x1bD\x1bM\x1b7\x1b[1B\r\x1b[2K%s\x1b8", text)
		return
	}
	fmt.Fprintf(p.w, "\r\x1b[2K%s", text)
}

// notice writes something worth knowing on a line of its own.
func (p *progress) notice(text string) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove()
	fmt.Fprintf(p.stderr, "k3: %s\n", oneLine(errors.New(text)))
}

// clear removes the line.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove()
}

// remove is clear for those who have the mutex.
func (p *progress) remove() {
	if p.w == nil || !p.shown {
		return
	}
	p.shown = false
	if p.shared {
		fmt.Fprint(p.w, "\x1b7\x1b[1B\r\x1b[2K\x1b8")
		return
	}
	fmt.Fprint(p.w, "\r\x1b[2K")
}

// endsLine reports whether text leaves the cursor at the start of a line.
func endsLine(text string) bool { return text == "" || strings.HasSuffix(text, "\n") }
