package main

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

// report is what --report writes and, in short, what a run prints when it ends. Times are in seconds, sizes in bytes.
type report struct {
	Version      string           `json:"version"`
	Model        string           `json:"model"`
	Geometry     geometry         `json:"geometry"`
	Preset       string           `json:"preset,omitempty"`
	Backend      string           `json:"backend"`
	Threads      int              `json:"threads"`
	Context      int              `json:"context"`
	PrefillChunk int              `json:"prefill_chunk"`
	Seed         uint64           `json:"seed"`
	Temperature  float64          `json:"temperature"`
	PromptTokens int              `json:"prompt_tokens"`
	IDs          []int            `json:"ids"` // generated
	Text         string           `json:"text"`
	Reasoning    string           `json:"reasoning,omitempty"`
	StopReason   string           `json:"stop_reason"`
	Error        string           `json:"error,omitempty"`
	Prefill      phase            `json:"prefill"`
	Decode       phase            `json:"decode"`
	Guesses      *guesses         `json:"guesses,omitempty"` // with --speculate
	PeakRSS      int64            `json:"peak_rss_bytes,omitempty"`
	Memory       map[string]int64 `json:"memory_bytes"` // outside the Go heap, by purpose
	Machine      machine          `json:"machine"`
}

type phase struct {
	Tokens          int     `json:"tokens"`
	Passes          int     `json:"passes"`
	Seconds         float64 `json:"seconds"`
	SecondsPerToken float64 `json:"seconds_per_token"`
}

type guesses struct {
	Proposed     int     `json:"proposed"`
	Accepted     int     `json:"accepted"`
	SavedSeconds float64 `json:"saved_seconds"`
}

func newPhase(p core.Phase) phase {
	x := phase{p.Tokens, p.Passes, p.Time.Seconds(), 0}
	if p.Tokens > 0 {
		x.SecondsPerToken = x.Seconds / float64(p.Tokens)
	}
	return x
}

// newReport says what a run did, also one that failed.
func newReport(c presets.Config, e *core.Engine, prompt []int, out core.Outcome, w *writer, failed error) *report {
	r := &report{
		Version: version(), Model: c.Model, Geometry: newGeometry(e.Config(), e.Config().Quantized), Preset: c.Preset,
		Backend: e.Backend(), Threads: e.Threads(), Context: e.Context(), PrefillChunk: e.MaxRows(),
		Seed: c.Generate.Seed, Temperature: c.Generate.Temperature,
		PromptTokens: len(prompt), IDs: append([]int{}, out.IDs...), Text: string(w.text), Reasoning: string(w.reasoning),
		StopReason: string(out.Reason),
		Prefill:    newPhase(out.Prefill), Decode: newPhase(out.Decode), Memory: e.Memory(), Machine: thisMachine(),
	}
	if g := out.Guesses; c.Speculate > 0 {
		r.Guesses = &guesses{g.Proposed, g.Accepted, g.Saved.Seconds()}
	}
	if failed != nil {
		r.Error = oneLine(failed)
	}
	if peak, err := memory.PeakRSS(); err == nil {
		r.PeakRSS = peak
	}
	return r
}

// write prints the report as a table.
func (r *report) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	phase := func(name string, p phase) {
		if p.Tokens > 0 {
			fmt.Fprintf(table, "%s\t%s in %s, %s a token\n",
				name, plural(p.Tokens, "token", "tokens"), seconds(p.Seconds), seconds(p.SecondsPerToken))
		}
	}
	fmt.Fprintln(table)
	phase("prompt", r.Prefill)
	phase("text", r.Decode)
	if g := r.Guesses; g != nil {
		fmt.Fprintf(table, "guesses\t%d of %d were right\n", g.Accepted, g.Proposed)
	}
	if r.StopReason != "" {
		fmt.Fprintf(table, "ended\t%s after %s\n", r.StopReason, plural(len(r.IDs), "token", "tokens"))
	}
	if r.PeakRSS > 0 {
		fmt.Fprintf(table, "memory\t%s at most\n", inMemory(r.PeakRSS))
	}
	fmt.Fprintf(table, "computed\tby %s with %s\n", r.Backend, plural(r.Threads, "thread", "threads"))
	return table.Flush()
}

// seconds writes a time with three digits.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	for unit := time.Duration(1); unit <= time.Minute; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}

// machine is what the run ran on.
type machine struct {
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	CPU        string `json:"cpu,omitempty"`
	Processors int    `json:"processors"`
}

func thisMachine() machine {
	return machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName(), Processors: runtime.NumCPU()}
}
