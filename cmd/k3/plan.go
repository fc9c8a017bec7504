package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/memory"
)

// planReport is what k3 plan says. Sizes are in bytes, times in seconds, rates in bytes a second.
type planReport struct {
	Model       string           `json:"model"`
	Total       int64            `json:"total_bytes"`
	Used        int64            `json:"used_bytes"`
	Items       []planItem       `json:"items"`
	Context     int              `json:"context"`
	PrefillRows int              `json:"prefill_rows"`
	RingBuffers int              `json:"ring_buffers"`
	PinnedTrunk int64            `json:"pinned_trunk_bytes"`
	ExpertSlots int              `json:"expert_slots"`
	Experts     int              `json:"experts"`
	Session     int64            `json:"session_bytes"` // a saved session of a full context
	Rates       *planRates       `json:"rates,omitempty"`
	Prediction  *core.Prediction `json:"prediction,omitempty"` // of a token
}

type planItem struct {
	Purpose string `json:"purpose"`
	Bytes   int64  `json:"bytes"`
}

type planRates struct {
	Disk    float64 `json:"disk"`
	Trunk   float64 `json:"trunk"`
	Experts float64 `json:"experts"`
	Direct  bool    `json:"direct"` // the disk was read around the page cache
}

func planCommand() *cobra.Command {
	var asJSON, quick bool
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say what memory a configuration would use, and how fast it would be",
		Long: "Say what every byte of memory would be used for, and how long a token would take on this machine: the disk that holds the\n" +
			"model and the processor are measured for a second or two.",
		Example: "  k3 plan --model ~/k3model --memory 8GiB\n  k3 plan --preset laptop --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := makePlan(cmd, quick)
			if err != nil {
				return err
			}
			if asJSON {
				return writeIndented(cmd.OutOrStdout(), r)
			}
			return r.write(cmd)
		},
	}
	cmd.Flags().SortFlags = false
	addConfigFlags(cmd, "model", "trunk", "memory", "trunk-memory", "expert-memory", "context", "prefill-chunk", "speculate", "threads", "backend")
	cmd.Flags().BoolVar(&quick, "no-measure", false, "measure nothing and predict nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func makePlan(cmd *cobra.Command, quick bool) (planReport, error) {
	var r planReport
	c, err := loadConfig(cmd)
	if err != nil {
		return r, err
	}
	files, err := modelFiles(c.Model, "config.json")
	if err != nil {
		return r, err
	}
	announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
	ctx, _, stop := interrupts(cmd.Context())
	defer stop()
	line := newProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
	defer line.clear()
	line.opening(c.Model)
	p, geometry, err := core.MakePlan(ctx, engineOptions(c, files, line))
	if err != nil {
		return r, err
	}
	fixed, position := graph.StateBytes(geometry)
	w := core.WeightsOf(geometry, geometry.Quantized)
	r = planReport{Model: c.Model, Total: p.Total, Used: p.Total - p.Unused, Context: p.Context, PrefillRows: p.PrefillRows, RingBuffers: p.Ring,
		PinnedTrunk: p.Pinned, ExpertSlots: p.Slots, Experts: w.ExpertLayers * w.Experts, Session: int64(fixed) + int64(position)*int64(p.Context)}
	for _, i := range p.Items {
		r.Items = append(r.Items, planItem(i))
	}
	if quick {
		return r, nil
	}
	line.show(time.Now(), "measuring the disk and the processor")
	rates, err := core.MeasureCompute(ctx, c.Compute.Backend, c.Compute.Threads)
	if err != nil {
		return r, err
	}
	r.Rates = &planRates{Trunk: rates.Trunk, Experts: rates.Experts}
	if rates.Disk, r.Rates.Direct, err = measureModel(ctx, files, max(c.IO.Readers, 1)); err != nil {
		return r, err
	}
	r.Rates.Disk = rates.Disk
	x := core.Predict(p, w, rates)
	r.Prediction = &x
	return r, nil
}

// measureModel reads the model's largest shard for a second, in random blocks of the size the engine reads.
func measureModel(ctx context.Context, files disk.Files, readers int) (rate float64, direct bool, err error) {
	m, err := checkpoint.Open(ctx, files)
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var largest disk.File
	for i := range m.Index.Shards() {
		if f := m.Shard(i); largest == nil || f.Size() > largest.Size() {
			largest = f
		}
	}
	block := min(disk.DefaultPiece, int(largest.Size())/disk.Block*disk.Block)
	return disk.Measure(ctx, largest, disk.Load{Block: block, Readers: readers, Random: true, Time: time.Second})
}

func (r planReport) write(cmd *cobra.Command) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
	about := map[string]string{
		memory.Program: "code and runtime", memory.Heap: "index of tensors, tokenizer, what comes and goes",
		memory.Vectors: "norms, biases, convolutions", memory.Workspace: fmt.Sprintf("a pass of up to %d rows", r.PrefillRows),
		memory.State:        "what a text leaves behind, whatever its length",
		memory.Latents:      fmt.Sprintf("attention caches of %d positions", r.Context),
		memory.TrunkRing:    fmt.Sprintf("%d buffers that the rest of the trunk passes through", r.RingBuffers),
		memory.TrunkTiles:   "the part of the trunk that stays",
		memory.TrunkScratch: "the compressed part that is in use, expanded",
		memory.ExpertSlots:  fmt.Sprintf("%d of %d experts", r.ExpertSlots, r.Experts),
	}
	for _, i := range r.Items {
		if i.Bytes > 0 {
			fmt.Fprintf(w, "%s\t%d\t%s\t  %s\n", i.Purpose, i.Bytes, inMemory(i.Bytes), about[i.Purpose])
		}
	}
	fmt.Fprintf(w, "unused\t%d\t%s\t\n", r.Total-r.Used, inMemory(r.Total-r.Used))
	fmt.Fprintf(w, "total\t%d\t%s\t  the whole process\n", r.Total, inMemory(r.Total))
	if err := w.Flush(); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "\na saved session of %d tokens takes %s\n", r.Context, size(r.Session))
	if x := r.Prediction; x != nil {
		direct := ""
		if !r.Rates.Direct {
			direct = " (through the page cache: the disk itself may be slower)"
		}
		fmt.Fprintf(out, "\nthis machine reads %s/s%s and computes with %s/s of trunk and %s/s of experts\n",
			size(int64(r.Rates.Disk)), direct, size(int64(r.Rates.Trunk)), size(int64(r.Rates.Experts)))
		fmt.Fprintf(out, "a token needs %s of trunk, %s of it from the disk, and %s of experts, %s of it from the disk (%.0f%% in memory, a rule of thumb)\n",
			size(x.TrunkBytes), size(x.TrunkRead), size(x.ExpertBytes), size(x.ExpertRead), 100*x.HitRate)
		_, err := fmt.Fprintf(out, "a token takes about %s: %s of reading beside %s of computing\n", seconds(x.Seconds), seconds(x.DiskSeconds), seconds(x.ComputeSeconds))
		return err
	}
	return nil
}
