package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/estimate"
	"github.com/k3infer/k3/presets"
)

// diskResult is what k3 bench disk measured. Sizes are in bytes, rates in bytes a second.
type diskResult struct {
	Machine machine    `json:"machine"`
	Seconds float64    `json:"seconds"` // of each measurement
	Repeats int        `json:"repeats"`
	Disks   []diskRows `json:"disks"`
}

type diskRows struct {
	File   string    `json:"file"` // what was read, or the directory of a scratch file
	Device string    `json:"device,omitempty"`
	Direct bool      `json:"direct"`          // around the page cache
	Notes  []string  `json:"notes,omitempty"` // why the rates are not those of a disk
	Rows   []diskRow `json:"rows,omitempty"`
}

type diskRow struct {
	Order   string          `json:"order"` // sequential or random
	Block   int             `json:"block"`
	Readers int             `json:"readers"`
	Rate    estimate.Series `json:"rate"`
}

// diskFlags are the flags of k3 bench disk.
type diskFlags struct {
	readers []int
	blocks  []string
	repeats int
	each    time.Duration
	asJSON  bool
}

func benchDiskCommand() *cobra.Command {
	var f diskFlags
	cmd := &cobra.Command{
		Use:   "disk [flags] [PATH]...",
		Short: "Measure how fast disks are read, as the engine reads them",
		Long: "Read files around the page cache, with several readers at a time, one block after the other and at random. Of a model's\n" +
			"directory the largest shard is read, of any other a scratch file of 1 GiB, removed again. Without a PATH it is the model's\n" +
			"directory, or the current one.",
		RunE: func(cmd *cobra.Command, args []string) error { return benchDisk(cmd, f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	addConfigFlags(cmd, "model")
	flags.IntSliceVar(&f.readers, "readers", []int{1, 2, 4, 8, 16, 32}, "read with `N` readers, or several numbers")
	flags.StringSliceVar(&f.blocks, "block", nil,
		"read blocks of `SIZE`, or several sizes (default: what the engine reads of the trunk at a time, and a released expert)")
	flags.IntVar(&f.repeats, "repeats", leastRepeats, "measure everything `N` times")
	flags.DurationVar(&f.each, "time", 400*time.Millisecond, "read for `TIME` in each measurement")
	flags.BoolVar(&f.asJSON, "json", false, "write JSON")
	return cmd
}

// loads are the ways of reading to be measured.
func (f *diskFlags) loads() (loads []disk.Load, err error) {
	blocks := []int{disk.DefaultPiece, expertBlock}
	if len(f.blocks) > 0 {
		blocks = nil
	}
	for _, t := range f.blocks {
		s, err := presets.ParseSize(t)
		if err != nil {
			return nil, ui.Usagef("--block: %w", err)
		}
		if s < disk.Block || s > 1<<30 || s%disk.Block != 0 {
			return nil, ui.Usagef("--block: %s: must be a multiple of %d up to 1GiB", t, disk.Block)
		}
		blocks = append(blocks, int(s))
	}
	switch {
	case f.repeats < leastRepeats || f.repeats > 1000:
		return nil, ui.Usagef("--repeats: %d: must be from %d to 1000", f.repeats, leastRepeats)
	case f.each <= 0 || f.each > time.Hour:
		return nil, ui.Usagef("--time: %v: must be above 0 and at most 1h", f.each)
	}
	for _, random := range []bool{false, true} {
		for _, b := range blocks {
			for _, n := range f.readers {
				if n < 1 || n > 256 {
					return nil, ui.Usagef("--readers: %d: must be from 1 to 256", n)
				}
				loads = append(loads, disk.Load{Block: b, Readers: n, Random: random, Time: f.each})
			}
		}
	}
	return loads, nil
}

func benchDisk(cmd *cobra.Command, f diskFlags, paths []string) error {
	loads, err := f.loads()
	if err != nil {
		return err
	}
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		paths = []string{"."}
		if c.Model != presets.DemoModel {
			paths[0] = c.Model
		}
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
	defer line.Clear()
	r := diskResult{Machine: thisMachine(disk.Existing(paths[0])), Seconds: f.each.Seconds(), Repeats: f.repeats}
	for _, p := range paths {
		rows, err := benchPath(ctx, p, loads, f.repeats, line)
		if err != nil {
			return err
		}
		r.Disks = append(r.Disks, rows)
	}
	line.Clear()
	if f.asJSON {
		return ui.WriteJSON(cmd.OutOrStdout(), r)
	}
	return r.write(cmd.OutOrStdout())
}

// benchPath measures the disk that holds a file or directory.
func benchPath(ctx context.Context, path string, loads []disk.Load, repeats int, line *ui.Progress) (diskRows, error) {
	info, err := os.Stat(path)
	if err != nil {
		return diskRows{}, ui.Inputf("bench disk: %w", err)
	}
	dir, name := filepath.Split(path)
	if info.IsDir() {
		dir = path
		if name, err = estimate.LargestShard(disk.Dir(path)); err != nil {
			return diskRows{}, err
		}
	}
	if dir == "" {
		dir = "."
	}
	if name == "" {
		return measureScratch(ctx, dir, loads, repeats, line)
	}
	file, err := disk.Dir(dir).Open(name)
	if err != nil {
		return diskRows{}, err
	}
	defer file.Close()
	for _, l := range loads {
		if file.Size() < int64(l.Block) {
			return diskRows{}, ui.Inputf("bench disk: %s: %d bytes are less than a block of %d", file.Name(), file.Size(), l.Block)
		}
	}
	return measureFile(ctx, file, dir, loads, repeats, line)
}

func (r diskResult) write(out io.Writer) error {
	fmt.Fprintf(out, "%s\n", r.Machine.line())
	for _, d := range r.Disks {
		var about []string
		if d.Device != "" {
			about = append(about, d.Device)
		}
		if d.Direct {
			about = append(about, "around the page cache")
		}
		about = append(about, d.Notes...)
		fmt.Fprintf(out, "\n%s (%s), the median of %s %s:\n", d.File, strings.Join(about, "; "), ui.Plural(r.Repeats, "time", "times"), ui.Seconds(r.Seconds))
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "ORDER\tBLOCK\tREADERS\tRATE\tSPREAD\t")
		for _, x := range d.Rows {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s/s\t%.1f%%\t\n", x.Order, ui.InMemory(int64(x.Block)), x.Readers, ui.Size(int64(x.Rate.Median)), 100*x.Rate.Spread())
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
