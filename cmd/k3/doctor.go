package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	gopsutil "github.com/shirou/gopsutil/v4/disk"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

// diagnosis is what k3 doctor finds. Sizes are in bytes, rates in bytes a second, times in seconds.
type diagnosis struct {
	Machine  machine         `json:"machine"`
	Backend  string          `json:"backend"`
	Threads  int             `json:"threads"`
	Backends []backendState  `json:"backends"`
	Limits   []memory.Limit  `json:"memory_limits"`
	Free     int64           `json:"memory_free"`
	Warnings []string        `json:"warnings,omitempty"`
	Preset   string          `json:"preset,omitempty"` // the largest that fits
	Rates    planRates       `json:"rates"`
	Disks    []diskState     `json:"disks"`
	Presets  []presetOutlook `json:"presets"`
	Model    string          `json:"model"`
	Present  bool            `json:"model_present"`
	Missing  []string        `json:"missing,omitempty"`
	Next     string          `json:"next"`
}

type backendState struct {
	Name    string `json:"name"`
	Missing string `json:"missing,omitempty"`
}

type diskState struct {
	Path   string     `json:"path"` // where it was measured
	Device string     `json:"device,omitempty"`
	Free   int64      `json:"free"`
	Size   int64      `json:"size"`
	Direct bool       `json:"direct"`
	Loads  []diskLoad `json:"loads,omitempty"`
	Error  string     `json:"error,omitempty"`
}

type diskLoad struct {
	Kind    string  `json:"kind"` // "sequential" or "experts": random reads of an expert's size
	Readers int     `json:"readers"`
	Rate    float64 `json:"rate"`
}

// best is the fastest rate of random expert-sized reads, which is how the engine reads.
func (d diskState) best() (rate float64) {
	for _, l := range d.Loads {
		if l.Kind == "experts" {
			rate = max(rate, l.Rate)
		}
	}
	return rate
}

type presetOutlook struct {
	Name    string  `json:"name"`
	Memory  int64   `json:"memory"`
	Fits    bool    `json:"fits"`              // the machine has the memory free
	Seconds float64 `json:"seconds,omitempty"` // a token, predicted
	Read    int64   `json:"read_bytes,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// releasedBytes is what the released checkpoint takes on disk.
const releasedBytes = 1_560_936_091_448

// scratchBytes is the file that a disk is measured with, and scratchTime the longest time to write it.
const (
	scratchBytes = 1 << 30
	scratchTime  = 4 * time.Second
	expertBlock  = releasedExpertBytes / disk.Block * disk.Block
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	var dirs []string
	var perLoad time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, how fast the model would be, and what to do next",
		Long: "Look at the processor, the memory and the disks of this machine, measure them for some seconds, and predict how long a token\n" +
			"of the released model would take with each preset. Works before anything is downloaded. A disk is measured with a scratch\n" +
			"file of 1 GiB, removed again.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			line := newProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
			defer line.clear()
			d, err := diagnose(ctx, c, dirs, perLoad, line)
			if err != nil {
				return err
			}
			line.clear()
			if asJSON {
				return writeIndented(cmd.OutOrStdout(), d)
			}
			return d.write(cmd.OutOrStdout())
		},
	}
	cmd.Flags().SortFlags = false
	addConfigFlags(cmd, "model", "threads", "backend")
	cmd.Flags().StringSliceVar(&dirs, "dir", nil, "measure the disks of these `DIRS` (default: every disk that this user can write to)")
	cmd.Flags().DurationVar(&perLoad, "time", 400*time.Millisecond, "read for `TIME` with each of the 12 loads of a disk")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func diagnose(ctx context.Context, c presets.Config, dirs []string, perLoad time.Duration, line *progress) (diagnosis, error) {
	m := memory.Probe()
	d := diagnosis{Model: c.Model, Limits: m.Limits, Free: m.Free().Free, Warnings: m.Warnings, Threads: c.Compute.Threads}
	if d.Model == presets.DemoModel {
		d.Model = defaultModel()
	}
	_, err := modelFiles(d.Model, "config.json")
	d.Present = err == nil
	d.Machine = thisMachine(disk.Existing(d.Model))
	backend, err := kernel.Select(c.Compute.Backend)
	if err != nil {
		return d, err
	}
	d.Backend = backend.Name()
	if d.Threads == 0 {
		d.Threads = kernel.DefaultThreads()
	}
	for _, x := range kernel.Drivers() {
		d.Backends = append(d.Backends, backendState{x.Name, x.Missing()})
	}
	line.show(time.Now(), "measuring the processor")
	rates, err := core.MeasureCompute(ctx, d.Backend, d.Threads)
	if err != nil {
		return d, err
	}
	d.Rates = planRates{Trunk: rates.Trunk, Experts: rates.Experts}
	if len(dirs) == 0 {
		dirs = writableDisks(d.Model)
	}
	for _, dir := range dirs {
		line.show(time.Now(), "measuring the disk of "+dir)
		x := measureDisk(ctx, dir, perLoad)
		if ctx.Err() != nil {
			return d, ctx.Err()
		}
		d.Disks = append(d.Disks, x)
		if x.best() > rates.Disk {
			rates.Disk, d.Rates.Direct = x.best(), x.Direct
		}
	}
	d.Rates.Disk = rates.Disk
	d.outlook(rates)
	d.advise()
	return d, nil
}

// defaultModel is where the presets expect the released model.
func defaultModel() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return "k3model"
	}
	return filepath.Join(home, "k3model")
}

// writableDisks returns a directory on each disk that this user can write to, the model's place first.
func writableDisks(model string) []string {
	candidates := []string{disk.Existing(model)}
	if wd, err := os.Getwd(); err == nil {
		candidates = append(candidates, wd)
	}
	if home, err := os.UserHomeDir(); err == nil {
		candidates = append(candidates, home)
	}
	parts, err := gopsutil.Partitions(false)
	if err == nil {
		for _, p := range parts {
			candidates = append(candidates, p.Mountpoint)
		}
	}
	var dirs, devices []string
	for _, dir := range candidates {
		device := deviceOf(dir, parts)
		if slices.Contains(devices, device) {
			continue
		}
		f, err := os.CreateTemp(dir, ".k3-doctor-*")
		if err != nil {
			continue
		}
		f.Close()
		os.Remove(f.Name())
		dirs, devices = append(dirs, dir), append(devices, device)
	}
	return dirs
}

// deviceOf is the device of the partition that holds dir.
func deviceOf(dir string, parts []gopsutil.PartitionStat) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	best, device := -1, dir
	for _, p := range parts {
		rel, err := filepath.Rel(p.Mountpoint, abs)
		if err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) && len(p.Mountpoint) > best {
			best, device = len(p.Mountpoint), p.Device
		}
	}
	return device
}

// measureDisk measures the disk of dir with a scratch file of its own. What goes wrong is part of the result.
func measureDisk(ctx context.Context, dir string, perLoad time.Duration) diskState {
	d := diskState{Path: dir, Device: diskName(dir)}
	if u, err := gopsutil.UsageWithContext(ctx, dir); err == nil {
		d.Free, d.Size = int64(u.Free), int64(u.Total)
	}
	if err := d.measure(ctx, perLoad); err != nil {
		d.Error = oneLine(err)
	}
	return d
}

func (d *diskState) measure(ctx context.Context, perLoad time.Duration) (err error) {
	f, err := os.CreateTemp(d.Path, ".k3-doctor-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if d.Free > 0 && d.Free < 2*scratchBytes {
		return fmt.Errorf("only %s free: not measured", size(d.Free))
	}
	if err := fillScratch(ctx, f); err != nil {
		return err
	}
	file, err := disk.Dir(filepath.Dir(f.Name())).Open(filepath.Base(f.Name()))
	if err != nil {
		return err
	}
	defer file.Close()
	for _, kind := range []string{"sequential", "experts"} {
		for readers := 1; readers <= 32; readers *= 2 {
			load := disk.Load{Block: disk.DefaultPiece, Readers: readers, Time: perLoad}
			if kind == "experts" {
				load.Block, load.Random, load.Seed = expertBlock, true, uint64(readers)
			}
			rate, direct, err := disk.Measure(ctx, file, load)
			if err != nil {
				return err
			}
			d.Direct = direct
			d.Loads = append(d.Loads, diskLoad{kind, readers, rate})
		}
	}
	return nil
}

// fillScratch writes what a disk is to be measured with.
func fillScratch(ctx context.Context, f *os.File) error {
	block := make([]byte, 8<<20)
	if _, err := rand.Read(block); err != nil { // a disk that compresses must not look faster than it is
		return err
	}
	for start, n := time.Now(), 0; n < scratchBytes && ctx.Err() == nil && (time.Since(start) < scratchTime || n < 8*len(block)); n += len(block) {
		block[0]++
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return f.Sync()
}

// outlook predicts a token of the released model with every preset.
func (d *diagnosis) outlook(rates core.Rates) {
	c := fabricate.Geometry("full")
	for _, name := range presets.Names() {
		p, err := presets.Load(pflag.NewFlagSet("", pflag.ContinueOnError), []string{"K3_PRESET=" + name})
		if err != nil || name == "demo" {
			continue
		}
		x := presetOutlook{Name: name, Memory: int64(p.Memory.Total)}
		if x.Memory == 0 {
			x.Memory = d.Free / 10 * 9
		}
		x.Fits = x.Memory <= d.Free
		plan, err := core.PlanGeometry(c, true, core.Options{Memory: x.Memory, Context: core.DefaultContext, Threads: d.Threads, Backend: d.Backend})
		if err != nil {
			x.Error = oneLine(err)
			x.Fits = false
		} else if rates.Disk > 0 {
			y := core.Predict(plan, core.WeightsOf(c, true), rates)
			x.Seconds, x.Read = y.Seconds, y.TrunkRead+y.ExpertRead
		}
		if x.Fits && name != "auto" && x.Memory > d.memoryOf(d.Preset) {
			d.Preset = name
		}
		d.Presets = append(d.Presets, x)
	}
}

func (d *diagnosis) memoryOf(preset string) int64 {
	for _, p := range d.Presets {
		if p.Name == preset {
			return p.Memory
		}
	}
	return 0
}

// advise says what is missing and the next command.
func (d *diagnosis) advise() {
	preset := d.Preset
	if preset == "" {
		preset = "auto"
		d.Missing = append(d.Missing, "memory: no preset fits what is free; --memory takes less, down to about 1.4 GiB with a context of 2000 tokens")
	}
	if d.Present {
		d.Next = fmt.Sprintf("k3 verify %s && k3 run --preset %s --model %s --prompt 'The capital of France is'", d.Model, preset, d.Model)
		return
	}
	d.Missing = append(d.Missing, fmt.Sprintf("the model: %s is not there (%s)", d.Model, size(releasedBytes)))
	roomiest := slices.MaxFunc(append([]diskState{{}}, d.Disks...), func(a, b diskState) int { return cmp.Compare(a.Free, b.Free) })
	switch {
	case d.freeAt(d.Model) >= releasedBytes:
		d.Next = "k3 download " + d.Model
	case roomiest.Free >= releasedBytes:
		d.Next = "k3 download " + filepath.Join(roomiest.Path, "k3model")
	default:
		d.Missing = append(d.Missing, fmt.Sprintf("disk: the roomiest that this user can write to has %s free", size(roomiest.Free)))
		d.Next = "k3 run --prompt 'The capital of France is'" // the demonstration model runs everywhere
	}
}

// freeAt is the space free on the disk that will hold a path.
func (d *diagnosis) freeAt(path string) int64 {
	u, err := gopsutil.Usage(disk.Existing(path))
	if err != nil {
		return 0
	}
	return int64(u.Free)
}

func (d diagnosis) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "processor\t%s, %d threads, %s/%s\n", cmp.Or(d.Machine.CPU, "unknown"), d.Threads, runtime.GOOS, runtime.GOARCH)
	var others []string
	for _, b := range d.Backends {
		if b.Missing != "" {
			others = append(others, b.Name+" needs "+b.Missing)
		}
	}
	note := ""
	if len(others) > 0 {
		note = " (" + strings.Join(others, "; ") + ")"
	}
	fmt.Fprintf(w, "backend\t%s%s: %s/s of trunk and %s/s of experts\n", d.Backend, note, size(int64(d.Rates.Trunk)), size(int64(d.Rates.Experts)))
	for _, l := range d.Limits {
		fmt.Fprintf(w, "memory\t%s: %s, of which this process can have %s\n", l.Source, inMemory(l.Bytes), inMemory(l.Free))
	}
	for _, x := range d.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", x)
	}
	for _, x := range d.Disks {
		name := x.Path
		if x.Device != "" {
			name += " on " + x.Device
		}
		fmt.Fprintf(w, "disk\t%s: %s free of %s\n", name, size(x.Free), size(x.Size))
		if x.Error != "" {
			fmt.Fprintf(w, "\t%s\n", x.Error)
			continue
		}
		if !x.Direct {
			fmt.Fprintf(w, "\tno direct reads here: the figures may be the page cache's\n")
		}
		for _, kind := range []string{"sequential", "experts"} {
			fmt.Fprintf(w, "\t%s", map[string]string{"sequential": "one after the other:", "experts": "experts at random:"}[kind])
			for _, l := range x.Loads {
				if l.Kind == kind {
					fmt.Fprintf(w, "  %d at a time %s/s", l.Readers, size(int64(l.Rate)))
				}
			}
			fmt.Fprintln(w)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe released model on this machine, predicted from these figures (experts in memory by a rule of thumb):\n\n")
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "PRESET\tMEMORY\tA TOKEN\tREADS\t")
	for _, p := range d.Presets {
		fits := ""
		if !p.Fits {
			fits = "  more than is free"
		}
		switch {
		case p.Error != "":
			fmt.Fprintf(w, "%s\t%s\t-\t-\t  %s\n", p.Name, inMemory(p.Memory), p.Error)
		case p.Seconds == 0:
			fmt.Fprintf(w, "%s\t%s\t-\t-\t%s\n", p.Name, inMemory(p.Memory), fits)
		default:
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, inMemory(p.Memory), seconds(p.Seconds), size(p.Read), fits)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, m := range d.Missing {
		fmt.Fprintf(out, "missing: %s\n", m)
	}
	_, err := fmt.Fprintf(out, "next: %s\n", d.Next)
	return err
}
