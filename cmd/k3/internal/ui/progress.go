package ui

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/k3infer/k3/core"
)

// Slow is how long a token may take before the layer it is in is shown.
const Slow = time.Second

// redraw is the shortest time between two states of the progress line, relate that between two lines where there is no terminal.
const (
	redraw = 100 * time.Millisecond
	relate = time.Minute
)

// Progress is a line on a terminal that says how far a run is. Where stderr is none it writes a line now and then. Show,
// Notice and Clear may be called by several goroutines; Update only by the one whose work it shows.
type Progress struct {
	w       io.Writer // nil when there is no terminal
	stderr  io.Writer // for notices, or nil
	quiet   bool
	Shared  bool // stdout is a terminal, too: text may stand in front of the line
	width   int
	mu      sync.Mutex // for shown, drawn and what is written
	shown   bool
	drawn   time.Time
	decode  bool      // tokens are generated, and not the prompt computed
	started time.Time // of the prompt, or of the first token
	from    int       // tokens done then
	token   time.Time // start of the prompt, or of the token in flight
	before  int64     // bytes read before that

	Interrupt <-chan struct{} // closed when the text is to end after the pass in flight; nil: never
}

// NewProgress returns the progress line of a run, silent if quiet.
func NewProgress(stdout, stderr io.Writer, quiet bool) *Progress {
	p := &Progress{width: 80, stderr: stderr, quiet: quiet, drawn: time.Now()}
	if f, ok := stderr.(*os.File); ok && !quiet && term.IsTerminal(int(f.Fd())) && understandsEscapes(f) {
		p.w, p.drawn = f, time.Time{}
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			p.width = width
		}
	}
	if f, ok := stdout.(*os.File); ok {
		p.Shared = term.IsTerminal(int(f.Fd()))
	}
	return p
}

// Opening shows that the model is being opened.
func (p *Progress) Opening(model string) { p.Show(time.Now(), "opening "+model) }

// Update shows where the engine is.
func (p *Progress) Update(at core.Progress) {
	if p.quiet {
		return
	}
	now := time.Now()
	if at.Layer == 0 {
		p.begin(now, at)
	}
	if p.Fresh(now) {
		return
	}
	var parts []string
	select {
	case <-p.Interrupt:
		parts = append(parts, "ends after this pass (Ctrl-C: at once)")
	default:
	}
	if at.Prefill {
		parts = append(parts, fmt.Sprintf("prompt %d/%d tokens", at.Done, at.Total))
	} else {
		parts = append(parts, fmt.Sprintf("token %d/%d", at.Done+1, at.Total))
	}
	parts = append(parts, fmt.Sprintf("layer %d/%d", min(at.Layer+1, at.Layers), at.Layers))
	inFlight := now.Sub(p.token)
	if inFlight >= Slow && at.Read != nil && at.Read() > p.before {
		gigabytes := float64(at.Read()-p.before) / 1e9
		parts = append(parts, fmt.Sprintf("%.1f GB", gigabytes), fmt.Sprintf("%.2f GB/s", gigabytes/inFlight.Seconds()))
	}
	of := float64(at.Layer) / float64(at.Layers+1) // of the pass
	if at.Prefill {
		of *= float64(at.Rows)
	}
	done, all := float64(at.Done-p.from)+of, float64(at.Total-p.from)
	if elapsed := now.Sub(p.started); elapsed >= Slow && done > 0 {
		parts = append(parts, LongTime(time.Duration(float64(elapsed)*max(all-done, 0)/done))+" left")
	}
	text := strings.Join(parts, ", ")
	switch {
	case at.Prefill || p.w == nil:
		p.Show(now, text)
	case inFlight > Slow: // others are not worth a line
		p.Show(now, "["+shorten(text, p.width-3)+"]")
	}
}

// Fresh reports whether the line was drawn so recently that it stays as it is.
func (p *Progress) Fresh(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.drawn) < p.interval()
}

// begin takes note of the beginning of a pass.
func (p *Progress) begin(now time.Time, at core.Progress) {
	if at.Prefill && at.Done > 0 {
		return
	}
	if at.Prefill || !p.decode || at.Done < p.from {
		p.started, p.from, p.decode = now, at.Done, !at.Prefill
	}
	p.token, p.before = now, 0
	if at.Read != nil {
		p.before = at.Read()
	}
}

// interval is the shortest time between two states of progress.
func (p *Progress) interval() time.Duration {
	if p.w == nil {
		return relate
	}
	return redraw
}

// shorten makes a line of progress fit into a number of columns: without its last parts, but with the time that is left, if it can.
func shorten(text string, columns int) string {
	columns = max(columns, 0)
	parts := strings.Split(text, ", ")
	for len(parts) > 1 && utf8.RuneCountInString(text) > columns {
		last := len(parts) - 1
		if last > 1 && strings.HasSuffix(parts[last], " left") {
			last--
		}
		parts = slices.Delete(parts, last, last+1)
		text = strings.Join(parts, ", ")
	}
	if runes := []rune(text); len(runes) > columns {
		text = string(runes[:columns])
	}
	return text
}

// Show puts text on the line.
func (p *Progress) Show(now time.Time, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil {
		if !p.quiet && p.stderr != nil && now.Sub(p.drawn) >= relate {
			p.drawn = now
			fmt.Fprintf(p.stderr, "k3: %s\n", text)
		}
		return
	}
	text = shorten(text, p.width-1)
	p.remove()
	p.drawn, p.shown = now, true
	if p.Shared {
		// Make sure that there is a line below, save the place, write there and come back: the text goes on undisturbed.
		fmt.Fprintf(p.w, "\x1bD\x1bM\x1b7\x1b[1B\r\x1b[2K%s\x1b8", text)
		return
	}
	fmt.Fprintf(p.w, "\r\x1b[2K%s", text)
}

// Notice writes something worth knowing on a line of its own.
func (p *Progress) Notice(text string) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove()
	fmt.Fprintf(p.stderr, "k3: %s\n", OneLine(errors.New(text)))
}

// Clear removes the line.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove()
}

// remove is Clear for those who have the mutex.
func (p *Progress) remove() {
	if p.w == nil || !p.shown {
		return
	}
	p.shown = false
	if p.Shared {
		fmt.Fprint(p.w, "\x1b7\x1b[1B\r\x1b[2K\x1b8")
		return
	}
	fmt.Fprint(p.w, "\r\x1b[2K")
}

// EndsLine reports whether text leaves the cursor at the start of a line.
func EndsLine(text string) bool { return text == "" || strings.HasSuffix(text, "\n") }
