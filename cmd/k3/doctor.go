package main

import (
	"cmp"
	"context"
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

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/estimate"
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
	Preset   string          `json:"preset,omitempty"`       // the largest that fits
	Least    int64           `json:"least_memory,omitempty"` // that the released model works with, if no preset fits
	Place    string          `json:"place,omitempty"`        // the disk that the predictions are for
	Rates    estimate.Rates  `json:"rates"`
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
	Path  string `json:"path"` // where it was measured
	Free  int64  `json:"free"` // -1: it does not say
	Size  int64  `json:"size"`
	Error string `json:"error,omitempty"` // why it was not measured
	diskRows
}

// best is the load of random expert-sized reads that is fastest, which is how the engine reads, or nil.
func (d *diskState) best() *diskRow {
	var best *diskRow
	for i, x := range d.Rows {
		if x.Order == "random" && (best == nil || x.Rate.Median > best.Rate.Median) {
			best = &d.Rows[i]
		}
	}
	return best
}

type presetOutlook struct {
	Name       string               `json:"name"`
	Memory     int64                `json:"memory"`
	Fits       bool                 `json:"fits"` // the machine has the memory free
	Prediction *estimate.Prediction `json:"prediction,omitempty"`
	Error      string               `json:"error,omitempty"`
}

// releasedBytes is what the released checkpoint takes on disk.
const releasedBytes = 1_560_936_091_448

func doctorCommand() *cobra.Command {
	var asJSON bool
	var dirs []string
	var perLoad time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, how fast the model would be, and what to do next",
		Long: "Look at the processor, the memory and the disks of this machine, measure them for some seconds, and predict how long a token\n" +
			"of the released model would take with each preset. Works before anything is downloaded. A disk is measured with the largest\n" +
			"shard of the model, or with a scratch file of 1 GiB, removed again. What cannot be measured is said.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
			defer line.Clear()
			d, err := diagnose(ctx, c, dirs, perLoad, line)
			if ctx.Err() != nil {
				return ui.ErrInterrupted
			}
			if err != nil {
				return err
			}
			line.Clear()
			if asJSON {
				return ui.WriteJSON(cmd.OutOrStdout(), d)
			}
			return d.write(cmd.OutOrStdout())
		},
	}
	cmd.Flags().SortFlags = false
	addConfigFlags(cmd, "model", "threads", "backend")
	cmd.Flags().StringSliceVar(&dirs, "dir", nil, "measure the disks of these `DIRS` (default: the model's and every disk that this user can write to)")
	cmd.Flags().DurationVar(&perLoad, "time", 400*time.Millisecond, "read for `TIME` with each of the 12 loads of a disk, in 3 parts")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func diagnose(ctx context.Context, c presets.Config, dirs []string, perLoad time.Duration, line *ui.Progress) (diagnosis, error) {
	m := memory.Probe()
	d := diagnosis{Model: c.Model, Limits: m.Limits, Free: m.Free().Free, Warnings: m.Warnings, Threads: c.Compute.Threads}
	if d.Model == presets.DemoModel {
		d.Model = defaultModel()
	}
	_, err := modelFiles(d.Model, configFile)
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
	line.Show(time.Now(), "measuring the processor")
	if err := addCompute(ctx, &d.Rates, d.Backend, d.Threads); err != nil {
		return d, err
	}
	if len(dirs) == 0 {
		dirs = writableDisks(d.Model)
	}
	for _, dir := range dirs {
		x := measureDisk(ctx, dir, d.loads(perLoad), line)
		if ctx.Err() != nil {
			return d, ctx.Err()
		}
		d.Disks = append(d.Disks, x)
	}
	if place := d.place(); place != nil {
		d.Place = place.Path
		addDisk(&d.Rates, place.diskRows, place.best().Rate)
	}
	d.outlook()
	d.advise()
	return d, nil
}

// doctorRounds is how many times each load of a disk is measured.
const doctorRounds = leastRepeats

// loads are the ways of reading that a disk is measured with, as far as there is memory for their buffers.
func (d *diagnosis) loads(each time.Duration) (loads []disk.Load) {
	for _, random := range []bool{false, true} {
		block := disk.DefaultPiece
		if random {
			block = expertBlock
		}
		for readers := 1; readers <= 32; readers *= 2 {
			if readers == 1 || int64(readers*block) <= d.Free/4 {
				loads = append(loads, disk.Load{Block: block, Readers: readers, Random: random, Time: max(each/doctorRounds, 1)})
			}
		}
	}
	return loads
}

// place is the disk that the model is on, or would be on: the fastest with room for it, or the fastest of all if none has. One whose
// figures are not those of a disk is the last choice. nil: none was measured.
func (d *diagnosis) place() (place *diskState) {
	rank := func(x *diskState) (n int) {
		if x.Free >= releasedBytes {
			n = 2
		}
		if len(x.Notes) == 0 {
			n++
		}
		return n
	}
	for i := range d.Disks {
		x := &d.Disks[i]
		switch {
		case x.best() == nil:
		case d.Present && x.Path == disk.Existing(d.Model):
			return x
		case place == nil || rank(x) > rank(place) || rank(x) == rank(place) && x.best().Rate.Median > place.best().Rate.Median:
			place = x
		}
	}
	return place
}

// defaultModel is where the presets expect the released model.
func defaultModel() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return "k3model"
	}
	return filepath.Join(home, "k3model")
}

// writableDisks returns the model's place, and a directory on each other disk that this user can write to.
func writableDisks(model string) []string {
	var candidates []string
	if wd, err := os.Getwd(); err == nil {
		candidates = append(candidates, wd)
	}
	if home, err := os.UserHomeDir(); err == nil {
		candidates = append(candidates, home)
	}
	parts, err := gopsutil.Partitions(false)
	if err == nil {
		for i := range parts {
			parts[i].Mountpoint = rootOf(parts[i].Mountpoint)
			candidates = append(candidates, parts[i].Mountpoint)
		}
	}
	dirs := []string{disk.Existing(model)}
	writable := func(dir string) bool {
		f, err := os.CreateTemp(dir, ".k3-scratch-*")
		if err != nil {
			return false
		}
		f.Close()
		return os.Remove(f.Name()) == nil
	}
	var devices []string
	if writable(dirs[0]) {
		devices = append(devices, deviceOf(dirs[0], parts))
	}
	for _, dir := range candidates {
		device := deviceOf(dir, parts)
		if !slices.Contains(devices, device) && !slices.Contains(dirs, dir) && writable(dir) {
			dirs, devices = append(dirs, dir), append(devices, device)
		}
	}
	return dirs
}

// rootOf is the directory at the top of a drive: C:\ for C:, which would be the current directory of that drive.
func rootOf(mount string) string {
	if mount != "" && filepath.VolumeName(mount) == mount {
		return mount + string(filepath.Separator)
	}
	return mount
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

// measureDisk measures the disk of dir: with the largest shard in it, or with a scratch file where there is none of any size. What
// goes wrong is part of the result.
func measureDisk(ctx context.Context, dir string, loads []disk.Load, line *ui.Progress) diskState {
	d := diskState{Path: dir, Free: -1, diskRows: diskRows{Device: diskName(dir)}}
	if u, err := gopsutil.UsageWithContext(ctx, dir); err == nil {
		d.Free, d.Size = int64(u.Free), int64(u.Total)
	}
	rows, err := func() (diskRows, error) {
		if info, err := os.Stat(dir); err != nil {
			return diskRows{}, errors.New("there is no such directory")
		} else if !info.IsDir() {
			return diskRows{}, errors.New("not a directory")
		}
		files := disk.Dir(dir)
		if name, err := estimate.LargestShard(files); err == nil && name != "" {
			file, err := files.Open(name)
			if err == nil {
				defer file.Close()
				if file.Size() >= 8*expertBlock {
					return measureFile(ctx, file, dir, loads, doctorRounds, line)
				}
			}
		}
		return measureScratch(ctx, dir, loads, doctorRounds, line)
	}()
	if err != nil {
		d.Error = strings.TrimPrefix(ui.OneLine(err), dir+": ")
		return d
	}
	d.diskRows = rows
	return d
}

// outlook predicts a token of the released model with every preset, all by the same figures.
func (d *diagnosis) outlook() {
	c := fabricate.Geometry("full")
	weights := estimate.WeightsOf(c, true)
	plan, err := d.releasedPlan(c, 1<<50) // whatever the memory
	for _, name := range presets.Names() {
		budget, e := presets.Budget(name)
		if e != nil || name == presets.DemoModel {
			continue
		}
		x := presetOutlook{Name: name, Memory: int64(budget)}
		if x.Memory == 0 {
			x.Memory = d.Free / 10 * 9
		}
		within, e := plan, err
		if e == nil {
			within, e = plan.Within(x.Memory)
		}
		if x.Fits = x.Memory <= d.Free && e == nil; e != nil {
			x.Error = "too little for the released model"
		} else {
			y := d.Rates.Predict(within, weights)
			x.Prediction = &y
		}
		if x.Fits && name != "auto" && (d.Preset == "" || x.Memory > d.outlookOf(d.Preset).Memory) {
			d.Preset = name
		}
		d.Presets = append(d.Presets, x)
	}
	if d.Preset != "" || err != nil {
		return
	}
	d.Least = int64(roundUp(estimate.LeastMemory(plan)))
}

// releasedPlan is the plan of the released model.
func (d *diagnosis) releasedPlan(c *checkpoint.Config, total int64) (memory.Plan, error) {
	return core.PlanGeometry(c, true, core.Options{Memory: total, Context: core.DefaultContext, Threads: d.Threads, Backend: d.Backend})
}

func (d *diagnosis) outlookOf(preset string) *presetOutlook {
	for i := range d.Presets {
		if d.Presets[i].Name == preset {
			return &d.Presets[i]
		}
	}
	return nil
}

// advise says what is missing and the next command.
func (d *diagnosis) advise() {
	const prompt = "--prompt 'The capital of France is'"
	setting := "--preset " + d.Preset
	if d.Preset == "" {
		smallest := d.Presets[0]
		text := fmt.Sprintf("memory: no preset fits: the smallest, %s, takes %s, and %s are free", smallest.Name, ui.InMemory(smallest.Memory), ui.InMemory(d.Free))
		setting = ""
		if d.Least > 0 && d.Least <= d.Free {
			setting = fmt.Sprintf("--memory %s", presets.Size(d.Least))
			text += fmt.Sprintf("; %s works, slowly", setting)
		} else if d.Least > 0 {
			text += fmt.Sprintf("; the least that works is %s", presets.Size(d.Least))
		}
		d.Missing = append(d.Missing, text)
	}
	demo := "k3 run " + prompt // runs everywhere
	model := ui.QuoteArgument(d.Model)
	roomiest := slices.MaxFunc(append([]diskState{{}}, d.Disks...), func(a, b diskState) int { return cmp.Compare(a.Free, b.Free) })
	if !d.Present {
		d.Missing = append(d.Missing, fmt.Sprintf("the model: %s is not there (%s)", d.Model, ui.Size(releasedBytes)))
	}
	switch {
	case setting == "":
		d.Next = demo
	case d.Present:
		d.Next = fmt.Sprintf("k3 verify %s && k3 run %s --model %s %s", model, setting, model, prompt)
	case d.freeAt(d.Model) >= releasedBytes:
		d.Next = "k3 download " + model
	case roomiest.Free >= releasedBytes:
		d.Next = "k3 download " + ui.QuoteArgument(filepath.Join(roomiest.Path, "k3model"))
	default:
		d.Missing = append(d.Missing, fmt.Sprintf("disk: %s are needed, and the roomiest that this user can write to has %s free", ui.Size(releasedBytes),
			ui.Size(max(roomiest.Free, 0))))
		d.Next = demo
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
	fmt.Fprintf(w, "processor\t%s, %s, %s/%s\n", cmp.Or(d.Machine.CPU, "unknown"), ui.Plural(d.Threads, "thread", "threads"), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(w, "backend\t%s", d.Backend)
	if d.Rates.Trunk != nil {
		fmt.Fprintf(w, ": %s of trunk, %s of experts", rateRange(d.Rates.Trunk), rateRange(d.Rates.Experts))
	}
	fmt.Fprintln(w)
	for _, b := range d.Backends {
		if b.Missing != "" {
			fmt.Fprintf(w, "\t%s needs %s\n", b.Name, b.Missing)
		}
	}
	for _, l := range d.Limits {
		fmt.Fprintf(w, "memory\t%s: %s, of which this process can have %s\n", l.Source, ui.InMemory(l.Bytes), ui.InMemory(l.Free))
	}
	for _, x := range d.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", x)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, x := range d.Disks {
		if err := x.write(out); err != nil {
			return err
		}
	}
	if d.Place == "" {
		fmt.Fprintf(out, "\nThe released model on this machine, predicted without a disk, of which none was measured (experts in memory by a rule of thumb):\n\n")
	} else {
		fmt.Fprintf(out, "\nThe released model on this machine, read from the disk of %s, predicted from these figures (experts in memory by a rule of thumb):\n\n",
			d.Place)
	}
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "PRESET\tMEMORY\tA TOKEN\tREADS\t")
	for _, p := range d.Presets {
		fits := ""
		if !p.Fits {
			fits = "  more than is free"
		}
		if p.Error != "" {
			fmt.Fprintf(w, "%s\t%s\t-\t-\t  %s\n", p.Name, ui.InMemory(p.Memory), p.Error)
			continue
		}
		x := *p.Prediction
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, ui.InMemory(p.Memory), tokenTime(d.Rates, x), ui.Size(x.TrunkRead+x.ExpertRead), fits)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, n := range d.Rates.Notes {
		fmt.Fprintf(out, "note: %s\n", n)
	}
	if d.Preset != "" {
		p := d.outlookOf(d.Preset)
		fmt.Fprintf(out, "recommended: --preset %s, %s, the largest that fits\n", p.Name, ui.InMemory(p.Memory))
	}
	for _, m := range d.Missing {
		fmt.Fprintf(out, "missing: %s\n", m)
	}
	_, err := fmt.Fprintf(out, "next: %s\n", d.Next)
	return err
}

// write says what is known of a disk, with its rates in a table.
func (d *diskState) write(out io.Writer) error {
	name := d.Path
	if d.Device != "" {
		name += " on " + d.Device
	}
	free := "it does not say what is free"
	if d.Free >= 0 {
		free = fmt.Sprintf("%s free of %s", ui.Size(d.Free), ui.Size(d.Size))
	}
	fmt.Fprintf(out, "disk       %s: %s\n", name, free)
	if d.Error != "" {
		fmt.Fprintf(out, "           not measured: %s\n", d.Error)
		return nil
	}
	for _, n := range d.Notes {
		fmt.Fprintf(out, "           %s\n", n)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	var readers []int
	rates := map[string]map[int]string{"sequential": {}, "random": {}}
	for _, x := range d.Rows {
		if rates[x.Order][x.Readers] = ui.Size(int64(x.Rate.Median)) + "/s"; !slices.Contains(readers, x.Readers) {
			readers = append(readers, x.Readers)
		}
	}
	fmt.Fprint(w, "reads at a time\t")
	for _, n := range readers {
		fmt.Fprintf(w, "%d\t", n)
	}
	for _, row := range []struct{ title, order string }{{"in order", "sequential"}, {"experts at random", "random"}} {
		fmt.Fprintf(w, "\n           %s\t", row.title)
		for _, n := range readers {
			fmt.Fprintf(w, "%s\t", cmp.Or(rates[row.order][n], "-"))
		}
	}
	fmt.Fprintln(w)
	return w.Flush()
}
