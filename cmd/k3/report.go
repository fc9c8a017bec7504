package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/estimate"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

// report is what --report writes and, in short, what a run prints when it ends. Times are in seconds, sizes in bytes.
type report struct {
	Version      string            `json:"version"`
	Model        string            `json:"model"`
	Geometry     estimate.Geometry `json:"geometry"`
	Preset       string            `json:"preset,omitempty"`
	Backend      string            `json:"backend"`
	Threads      int               `json:"threads"`
	Context      int               `json:"context"`
	PrefillChunk int               `json:"prefill_chunk"`
	Seed         uint64            `json:"seed"`
	Temperature  float64           `json:"temperature"`
	PromptTokens int               `json:"prompt_tokens"`
	IDs          []int             `json:"ids"` // generated
	Text         string            `json:"text"`
	Reasoning    string            `json:"reasoning,omitempty"`
	ToolCalls    []chat.CallJSON   `json:"tool_calls,omitempty"`
	StopReason   string            `json:"stop_reason"`
	Error        string            `json:"error,omitempty"`
	Prefill      phase             `json:"prefill"`
	Decode       phase             `json:"decode"`
	Guesses      *guesses          `json:"guesses,omitempty"` // with --speculate
	PlannedRSS   int64             `json:"planned_rss_bytes"`
	PeakRSS      int64             `json:"peak_rss_bytes,omitempty"`
	Memory       map[string]int64  `json:"memory_bytes"` // outside the Go heap, by purpose
	Residency    residency         `json:"residency"`
	Policy       string            `json:"policy"`
	Checked      checkedFiles      `json:"checked_reads"`
	Machine      machine           `json:"machine"`
}

// residency is how much of the weights there was memory for.
type residency struct {
	Tiles          int   `json:"trunk_tiles"`
	KeptTiles      int   `json:"pinned_tiles"`
	TrunkBytes     int64 `json:"trunk_bytes"` // a pass needs
	KeptTrunkBytes int64 `json:"pinned_bytes"`
	Experts        int   `json:"experts"`
	ExpertSlots    int   `json:"expert_slots"`
}

// checkedFiles is how many of the files that weights are read from have checksums, which every read of them is compared with.
type checkedFiles struct {
	Checked int  `json:"checked"`
	Files   int  `json:"files"`
	Off     bool `json:"off,omitempty"` // by io.check
}

// announce says it of reads to come.
func (c checkedFiles) announce() string {
	return strings.NewReplacer("was checked", "is checked", "were checked", "are checked").Replace(c.String())
}

func (c checkedFiles) String() string {
	switch {
	case c.Off:
		return "not checked (io.check: off)"
	case c.Checked == 0:
		return "not checked: there are no checksums (k3 verify --deep makes them)"
	case c.Checked == c.Files:
		return "every one was checked"
	}
	return fmt.Sprintf("those of %d of %d files were checked (k3 verify --deep makes checksums of the others)", c.Checked, c.Files)
}

// phase is a part of a run. Its sums are over the layers, whose last is lm_head.
type phase struct {
	Tokens          int     `json:"tokens"`
	Passes          int     `json:"passes"`
	SecondsPerToken float64 `json:"seconds_per_token"`
	cost
	ReadPerToken float64 `json:"read_bytes_per_token"`
	WaitShare    float64 `json:"wait_share"` // of the time, computing waited for the disk
	HitRate      float64 `json:"expert_hit_rate"`
	Layers       []cost  `json:"layers,omitempty"`
}

// cost is what a phase or one of its layers took.
type cost struct {
	Seconds        float64 `json:"seconds"`
	TrunkRead      int64   `json:"trunk_read_bytes"`
	ExpertRead     int64   `json:"expert_read_bytes"`
	WaitSeconds    float64 `json:"wait_seconds"` // for the disk
	ExpertRequests int     `json:"expert_requests"`
	ExpertHits     int     `json:"expert_hits"` // in memory when asked for
}

func newCost(c core.Cost) cost {
	return cost{c.Time.Seconds(), c.TrunkRead, c.ExpertRead, c.Wait().Seconds(), c.ExpertAsked, c.ExpertHit}
}

type guesses struct {
	Proposed     int     `json:"proposed"`
	Accepted     int     `json:"accepted"`
	SavedSeconds float64 `json:"saved_seconds"`
}

func (g *guesses) String() string {
	saved := ui.Seconds(g.SavedSeconds) + " saved"
	if g.SavedSeconds < 0 {
		saved = ui.Seconds(-g.SavedSeconds) + " lost"
	}
	return fmt.Sprintf("%d of %d were right, %s", g.Accepted, g.Proposed, saved)
}

func newPhase(p core.Phase) phase {
	x := phase{Tokens: p.Tokens, Passes: p.Passes, cost: newCost(p.Cost)}
	if p.Tokens > 0 {
		x.SecondsPerToken = x.Seconds / float64(p.Tokens)
		x.ReadPerToken = float64(p.Read()) / float64(p.Tokens)
	}
	if x.Seconds > 0 {
		x.WaitShare = x.WaitSeconds / x.Seconds
	}
	if x.ExpertRequests > 0 {
		x.HitRate = float64(x.ExpertHits) / float64(x.ExpertRequests)
	}
	for _, l := range p.Layers {
		x.Layers = append(x.Layers, newCost(l))
	}
	return x
}

// newReport says what a run did, also one that failed.
func newReport(c presets.Config, e *core.Engine, prompt []int, out core.Outcome, w *ui.Writer, failed error) *report {
	r := &report{
		Version: version(), Model: c.Model, Geometry: estimate.GeometryOf(e.Config(), e.Quantized()), Preset: c.Preset,
		Backend: e.Backend(), Threads: e.Threads(), Context: e.Context(), PrefillChunk: e.MaxRows(),
		Seed: c.Generate.Seed, Temperature: c.Generate.Temperature,
		PromptTokens: len(prompt), IDs: append([]int{}, out.IDs...), Text: string(w.Text), Reasoning: string(w.Reasoning),
		StopReason: string(out.Reason),
		Prefill:    newPhase(out.Prefill), Decode: newPhase(out.Decode), Memory: e.Memory(), Policy: e.Policy(),
		Residency:  residency(e.Residency()),
		PlannedRSS: e.Plan().Total - e.Plan().Unused, Machine: thisMachine(c.Model),
	}
	if w.Parser != nil {
		r.ToolCalls = chat.CallsJSON(w.Parser.Message().ToolCalls)
	}
	if g := out.Guesses; c.Speculate > 0 {
		r.Guesses = &guesses{g.Proposed, g.Accepted, g.Saved.Seconds()}
	}
	if failed != nil {
		r.Error = ui.OneLine(failed)
	}
	r.Checked.Checked, r.Checked.Files = e.Checked()
	r.Checked.Off = c.IO.Check == "off"
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
				name, ui.Plural(p.Tokens, "token", "tokens"), ui.Seconds(p.Seconds), ui.Seconds(p.SecondsPerToken))
		}
	}
	fmt.Fprintln(table)
	phase("prompt", r.Prefill)
	phase("text", r.Decode)
	if all := r.Prefill.plus(r.Decode); all.TrunkRead+all.ExpertRead > 0 {
		fmt.Fprintf(table, "read\t%s of trunk and %s of experts; computing waited %.0f%% of the time\n",
			ui.Size(all.TrunkRead), ui.Size(all.ExpertRead), 100*all.WaitSeconds/all.Seconds)
	}
	if all := r.Prefill.plus(r.Decode); all.ExpertRequests > 0 {
		fmt.Fprintf(table, "experts\t%.1f%% of %d were in memory when asked for (%s)\n",
			100*float64(all.ExpertHits)/float64(all.ExpertRequests), all.ExpertRequests, r.Policy)
	}
	if r.Model != presets.DemoModel {
		fmt.Fprintf(table, "reads\t%s\n", r.Checked)
	}
	if g := r.Guesses; g != nil {
		fmt.Fprintf(table, "guesses\t%s in %s\n", g, ui.Plural(r.Decode.Passes, "pass", "passes"))
	}
	if r.StopReason != "" {
		fmt.Fprintf(table, "ended\t%s after %s\n", r.StopReason, ui.Plural(len(r.IDs), "token", "tokens"))
	}
	if r.PeakRSS > 0 {
		fmt.Fprintf(table, "memory\t%s at most, of %s planned\n", ui.InMemory(r.PeakRSS), ui.InMemory(r.PlannedRSS))
	}
	fmt.Fprintf(table, "computed\tby %s with %s\n", r.Backend, ui.Plural(r.Threads, "thread", "threads"))
	return table.Flush()
}

// plus adds what two phases took.
func (c cost) plus(x phase) cost {
	return cost{c.Seconds + x.Seconds, c.TrunkRead + x.TrunkRead, c.ExpertRead + x.ExpertRead, c.WaitSeconds + x.WaitSeconds,
		c.ExpertRequests + x.ExpertRequests, c.ExpertHits + x.ExpertHits}
}

// machine is what the run ran on.
type machine struct {
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	CPU        string `json:"cpu,omitempty"`
	Processors int    `json:"processors"`
	Memory     int64  `json:"memory_bytes"`   // that this process may use: the host's, or its cgroup's
	Disk       string `json:"disk,omitempty"` // the device that the model is on
}

// thisMachine describes the machine that computes with the model in a directory.
func thisMachine(model string) machine {
	return machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName(), Processors: runtime.NumCPU(),
		Memory: memory.Probe().Limit().Bytes, Disk: diskName(model)}
}
