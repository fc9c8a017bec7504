package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/estimate"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

// planReport is what k3 plan says. Sizes are in bytes, times in seconds, rates in bytes a second.
type planReport struct {
	Model       string               `json:"model"`
	Present     bool                 `json:"model_present"` // false: this is for the released model, which is not there
	Total       int64                `json:"total_bytes"`
	Used        int64                `json:"used_bytes"`
	Items       []planItem           `json:"items"`
	Context     int                  `json:"context"`
	PrefillRows int                  `json:"prefill_rows"`
	RingBuffers int                  `json:"ring_buffers"`
	PinnedTrunk int64                `json:"pinned_trunk_bytes"`
	ExpertSlots int                  `json:"expert_slots"`
	Experts     int                  `json:"experts"`
	Session     int64                `json:"session_bytes"` // a saved session of a full context
	Rates       *estimate.Rates      `json:"rates,omitempty"`
	Prediction  *estimate.Prediction `json:"prediction,omitempty"` // of a token
	Others      []planBudget         `json:"other_budgets,omitempty"`
	Sequences   int                  `json:"sequences"`
	Shared      []estimate.Shared    `json:"shared,omitempty"`         // of so many texts at a time, with the same memory
	Best        int                  `json:"best_sequences,omitempty"` // that make most tokens an hour; 0: not known
}

// planBudget is what a token would take with the memory of a preset, by the same rates.
type planBudget struct {
	Preset     string              `json:"preset"`
	Memory     int64               `json:"memory"`
	Prediction estimate.Prediction `json:"prediction"`
}

type planItem struct {
	Purpose string `json:"purpose"`
	Bytes   int64  `json:"bytes"`
}

func planCommand() *cobra.Command {
	var asJSON, quick bool
	var sequences sequencesFlag
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say what memory a configuration would use, and how fast it would be",
		Long: "Say what every byte of memory would be used for, and how long a token would take on this machine, with this memory and that of\n" +
			"each preset: the disk that holds the model and the processor are measured, several times, for two or three seconds. Where the\n" +
			"figures differ, the time is a range.\n\n" +
			"A preset whose model is not there yet is planned for the released model. The disk it would be on is then measured with a scratch\n" +
			"file of 1 GiB, removed again.\n\n" +
			"With --sequences it plans for several texts at a time, which share each pass over the weights, and says what 1, 2, 4, ... of them\n" +
			"would be worth: more texts make more of each pass, and their states leave less memory for weights.",
		Example: "  k3 plan --preset laptop\n  k3 plan --model ~/k3model --memory 8GiB --json\n" +
			"  k3 plan --preset workstation --context 4096 --sequences auto",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := makePlan(cmd, quick, sequences)
			if err != nil {
				return err
			}
			if asJSON {
				return ui.WriteJSON(cmd.OutOrStdout(), r)
			}
			return r.write(cmd)
		},
	}
	cmd.Flags().SortFlags = false
	addConfigFlags(cmd, "model", "trunk", "memory", "trunk-memory", "expert-memory", "context", "prefill-chunk", "speculate", "threads", "backend")
	cmd.Flags().Var(&sequences, "sequences", "plan for `N` texts at a time, or auto: as many as make most tokens an hour")
	cmd.Flags().BoolVar(&quick, "no-measure", false, "measure nothing and predict nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// sequencesFlag is a number of texts, or auto.
type sequencesFlag struct {
	n    int // 0: not given
	auto bool
}

func (f *sequencesFlag) Type() string { return "number of texts" }

func (f *sequencesFlag) String() string {
	if f.auto || f.n == 0 {
		return "auto"
	}
	return strconv.Itoa(f.n)
}

func (f *sequencesFlag) Set(text string) error {
	n, err := strconv.Atoi(text)
	if f.auto = text == "auto"; !f.auto && (err != nil || n < 1) {
		return fmt.Errorf("%q: must be a whole number from 1 up, or auto", text)
	}
	f.n = n
	return nil
}

func makePlan(cmd *cobra.Command, quick bool, sequences sequencesFlag) (r planReport, err error) {
	if sequences.auto && quick {
		return r, ui.Usagef("--sequences auto rests on measurements: it does not go with --no-measure")
	}
	c, err := loadConfig(cmd)
	if err != nil {
		return r, err
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	defer func() {
		if ctx.Err() != nil {
			err = ui.ErrInterrupted
		}
	}()
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
	defer line.Clear()
	files, err := modelFiles(c.Model, configFile)
	if r.Present = err == nil; !r.Present && !awaited(cmd, c) {
		return r, err
	}
	announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
	line.Opening(c.Model)
	o := engineOptions(c, files, line)
	o.Sequences = sequences.n
	var p memory.Plan
	var geometry *checkpoint.Config
	quantized := true
	if r.Present {
		p, geometry, err = core.MakePlan(ctx, o)
	} else {
		line.Notice(fmt.Sprintf("%s is not there: this is for the released model of %s", c.Model, ui.Size(releasedBytes)))
		geometry = fabricate.Geometry("full")
		if o.Context == 0 {
			o.Context = core.DefaultContext
		}
		if o.Memory == 0 {
			o.Memory = memory.Probe().Free().Free / 10 * 9
		}
		p, err = core.PlanGeometry(geometry, true, o)
	}
	if err != nil {
		return r, err
	}
	if r.Present {
		quantized = geometry.Quantized
	}
	w := estimate.WeightsOf(geometry, quantized)
	r.Rates = &estimate.Rates{}
	if !quick {
		line.Show(time.Now(), "measuring the processor")
		if err := addCompute(ctx, r.Rates, c.Compute.Backend, c.Compute.Threads); err != nil {
			return r, err
		}
		if !r.Present {
			files = nil
		}
		if err := addModel(ctx, r.Rates, c, files, line); err != nil {
			return r, err
		}
	}
	if r.Sequences = max(sequences.n, 1); sequences.n > 0 || sequences.auto {
		if p, err = r.share(p, w, sequences); err != nil {
			return r, err
		}
	}
	fixed, position := graph.StateBytes(geometry)
	r.Model, r.Total, r.Used, r.Context, r.PrefillRows, r.RingBuffers = c.Model, p.Total, p.Total-p.Unused, p.Context, p.PrefillRows, p.Ring
	r.PinnedTrunk, r.ExpertSlots, r.Experts = p.Pinned, p.Slots, w.ExpertLayers*w.Experts
	r.Session = int64(fixed) + int64(position)*int64(p.Context)
	for _, i := range p.Items {
		r.Items = append(r.Items, planItem(i))
	}
	if quick {
		r.Rates = nil
		return r, nil
	}
	x := r.Rates.Predict(p, w)
	r.Prediction = &x
	if r.Shared != nil || o.TrunkMemory > 0 || o.ExpertMemory > 0 || x.TrunkRead+x.ExpertRead == 0 {
		return r, nil // a division by hand is for one total, and more than all weights is of no use
	}
	for _, name := range presets.Names() {
		budget, err := presets.Budget(name)
		if err != nil {
			return r, err
		}
		if other, err := p.Within(int64(budget)); budget > 0 && err == nil {
			r.Others = append(r.Others, planBudget{name, int64(budget), r.Rates.Predict(other, w)})
		}
	}
	return r, nil
}

// share adds what several texts at a time are worth, and returns the plan for as many as are wanted.
func (r *planReport) share(p memory.Plan, w estimate.Weights, sequences sequencesFlag) (memory.Plan, error) {
	all, best, err := r.Rates.Share(p, w, sequences.n)
	if err != nil {
		return p, err
	}
	r.Shared = all
	if best >= 0 {
		r.Best = all[best].Sequences
	}
	if sequences.auto {
		if best < 0 {
			return p, errors.New("--sequences auto: not all that it rests on could be measured")
		}
		r.Sequences = r.Best
	}
	return p.WithSequences(r.Sequences)
}

// awaited tells whether the configuration's model is the one that a preset expects and nobody has fetched yet.
func awaited(cmd *cobra.Command, c presets.Config) bool {
	if given, err := presets.Given(cmd.Flags(), os.Environ(), "model"); err != nil || given {
		return false
	}
	entries, err := os.ReadDir(c.Model)
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}

// addModel measures the disk that the model is on, or would be on. What cannot be measured is a note.
func addModel(ctx context.Context, r *estimate.Rates, c presets.Config, files disk.Files, line *ui.Progress) error {
	rows, err := measureModel(ctx, c, files, line)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r.Notes = append(r.Notes, "the disk could not be measured: "+ui.OneLine(err))
		return nil
	}
	addDisk(r, rows, rows.Rows[0].Rate)
	return nil
}

// measureModel reads the model's largest shard for a second, in random blocks of the size the engine reads. A model that is not
// there, whose files are nil, would be on the disk that is then measured.
func measureModel(ctx context.Context, c presets.Config, files disk.Files, line *ui.Progress) (diskRows, error) {
	const repeats, each = 5, 200 * time.Millisecond
	loads := []disk.Load{{Block: disk.DefaultPiece, Readers: max(c.IO.Readers, 1), Random: true, Time: each}}
	if files == nil {
		return measureScratch(ctx, disk.Existing(c.Model), loads, repeats, line)
	}
	dir := c.Model
	if dir == presets.DemoModel {
		dir = ""
	}
	name, err := estimate.LargestShard(files)
	if err != nil {
		return diskRows{}, err
	}
	file, err := files.Open(name)
	if err != nil {
		return diskRows{}, err
	}
	defer file.Close()
	return measureFile(ctx, file, dir, loads, repeats, line)
}

func (r planReport) write(cmd *cobra.Command) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
	about := map[string]string{
		memory.Program: "code and runtime", memory.Heap: "index of tensors, tokenizer, what comes and goes",
		memory.Vectors: "norms, biases, convolutions", memory.Workspace: "a pass of up to " + ui.Plural(r.PrefillRows, "row", "rows"),
		memory.Logits:       "scores of the vocabulary, a row",
		memory.Guesses:      "rows that may be taken back",
		memory.State:        "what a text leaves behind, whatever its length" + r.times(),
		memory.Latents:      "attention caches of " + ui.Plural(r.Context, "position", "positions") + r.times(),
		memory.TrunkRing:    fmt.Sprintf("%d buffers that the rest of the trunk passes through", r.RingBuffers),
		memory.TrunkTiles:   "the part of the trunk that stays",
		memory.TrunkScratch: "the compressed part that is in use, expanded",
		memory.ExpertSlots:  fmt.Sprintf("%d of %d experts", r.ExpertSlots, r.Experts),
	}
	for _, i := range r.Items {
		if i.Bytes > 0 {
			fmt.Fprintf(w, "%s\t%d\t%s\t  %s\n", i.Purpose, i.Bytes, ui.InMemory(i.Bytes), about[i.Purpose])
		}
	}
	fmt.Fprintf(w, "unused\t%d\t%s\t\n", r.Total-r.Used, ui.InMemory(r.Total-r.Used))
	fmt.Fprintf(w, "total\t%d\t%s\t  the whole process\n", r.Total, ui.InMemory(r.Total))
	if err := w.Flush(); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "\na saved session of %s takes %s\n", ui.Plural(r.Context, "token", "tokens"), ui.Size(r.Session))
	if r.Prediction == nil && r.Shared != nil {
		return r.writeShared(out)
	}
	if r.Prediction == nil {
		return nil
	}
	fmt.Fprintln(out)
	writeRates(out, r.Rates)
	x := r.Prediction
	fmt.Fprintf(out, "a token needs %s of trunk, %s of it from the disk, and %s of experts, %s of it from the disk (%.0f%% in memory, a rule of thumb)\n",
		ui.Size(x.TrunkBytes), ui.Size(x.TrunkRead), ui.Size(x.ExpertBytes), ui.Size(x.ExpertRead), 100*x.HitRate)
	if r.Rates.Complete() {
		fmt.Fprintf(out, "a token takes about %s: %s of reading beside %s of computing\n", tokenTime(*r.Rates, *x), between(x.DiskSeconds, x.DiskSeconds),
			between(x.ComputeSeconds, x.ComputeSeconds))
	} else if x.Seconds > 0 {
		fmt.Fprintf(out, "a token takes about %s\n", tokenTime(*r.Rates, *x))
	}
	if r.Shared != nil {
		return r.writeShared(out)
	}
	if len(r.Others) == 0 || x.Seconds == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nby the same figures, with the memory of the presets:\n\n")
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "PRESET\tMEMORY\tA TOKEN\tREADS\t")
	for _, o := range r.Others {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\n", o.Preset, ui.InMemory(o.Memory), tokenTime(*r.Rates, o.Prediction),
			ui.Size(o.Prediction.TrunkRead+o.Prediction.ExpertRead))
	}
	return w.Flush()
}

// times is ", times N" for several texts.
func (r planReport) times() string {
	if r.Sequences < 2 {
		return ""
	}
	return fmt.Sprintf(", times %d", r.Sequences)
}

// writeShared writes what 1, 2, 4, ... texts at a time are worth.
func (r planReport) writeShared(out io.Writer) error {
	fmt.Fprintf(out, "\nseveral texts at a time, a row of each in every pass (experts as if every one were as likely as any other):\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "TEXTS\tSTATES\tA PASS READS\tA PASS TAKES\tTOKENS AN HOUR\tOF EACH TEXT\t")
	for _, x := range r.Shared {
		seconds, tokens, each, mark := "?", "?", "?", ""
		if x.Seconds > 0 {
			seconds, tokens, each = between(x.Seconds, x.Seconds), fmt.Sprintf("%.0f", x.Tokens), fmt.Sprintf("%.0f", x.Each)
		}
		if x.Sequences == r.Best {
			mark = "  most"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Sequences, ui.InMemory(x.StateBytes), ui.Size(x.TrunkRead+x.ExpertRead), seconds, tokens, each, mark)
	}
	return w.Flush()
}

// writeRates says what was measured, a line each.
func writeRates(out io.Writer, r *estimate.Rates) {
	if r.Disk != nil {
		fmt.Fprintf(out, "this machine reads %s\n", rateRange(r.Disk))
	}
	if r.Trunk != nil {
		fmt.Fprintf(out, "this machine computes with %s of trunk and %s of experts\n", rateRange(r.Trunk), rateRange(r.Experts))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(out, "note: %s\n", n)
	}
}
