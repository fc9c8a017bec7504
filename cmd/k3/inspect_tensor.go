package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/stats"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/presets"
)

// described is what k3 inspect has found; it is written in words, or as JSON.
type described interface{ write(w io.Writer) error }

// inspectFlags are the flags of k3 inspect that ask for something particular.
type inspectFlags struct {
	tensor, expert string
	roundtrip      []string
}

func (f *inspectFlags) add(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&f.tensor, "tensor", "", "describe the tensor `NAME` and its values")
	flags.StringVar(&f.expert, "expert", "", "say where the experts of a layer lie: `LAYER`, or LAYER,EXPERT for the tensors of one")
	flags.StringSliceVar(&f.roundtrip, "roundtrip", nil,
		"round each matrix of the trunk to int8, int4, ... (`TYPES`), in groups of 32 with a float32 scale, and say how large the errors are")
}

// look decides what to look at.
func (f *inspectFlags) look(cmd *cobra.Command) (func(cmd *cobra.Command, path string) (described, error), error) {
	var looks []func(cmd *cobra.Command, path string) (described, error)
	if cmd.Flags().Changed("tensor") {
		looks = append(looks, func(cmd *cobra.Command, path string) (described, error) { return inspectTensor(cmd, path, f.tensor) })
	}
	if cmd.Flags().Changed("expert") {
		var numbers []int
		for _, t := range strings.Split(f.expert, ",") {
			n, err := strconv.ParseUint(t, 10, 31)
			if err != nil || len(numbers) == 2 {
				return nil, ui.Usagef("--expert: %q: must be a layer, or a layer and an expert as 5,17", f.expert)
			}
			numbers = append(numbers, int(n))
		}
		looks = append(looks, func(cmd *cobra.Command, path string) (described, error) { return inspectExperts(cmd, path, numbers) })
	}
	if cmd.Flags().Changed("roundtrip") {
		var bits []int
		for _, t := range f.roundtrip {
			n, err := strconv.Atoi(strings.TrimPrefix(t, "int"))
			if err != nil || n < 2 || n > 16 || !strings.HasPrefix(t, "int") {
				return nil, ui.Usagef("--roundtrip: %q: must be from int2 to int16", t)
			}
			bits = append(bits, n)
		}
		looks = append(looks, func(cmd *cobra.Command, path string) (described, error) { return inspectRoundtrip(cmd, path, bits) })
	}
	switch len(looks) {
	case 0:
		return inspect, nil
	case 1:
		return looks[0], nil
	}
	return nil, ui.Usagef("--tensor, --expert and --roundtrip: one of them")
}

// openTensors opens a model's directory or one .safetensors file; m is nil for the latter.
func openTensors(cmd *cobra.Command, path string) (m *checkpoint.Model, index *checkpoint.Index, src stats.Source, close func() error, err error) {
	info, err := os.Stat(path)
	if path == presets.DemoModel || err == nil && info.IsDir() {
		files, err := modelFiles(path, configFile)
		if err != nil {
			return nil, nil, nil, nil, err
		}
		m, err := checkpoint.Open(cmd.Context(), files)
		if err != nil {
			return nil, nil, nil, nil, err
		}
		return m, m.Index, m, m.Close, nil
	}
	if err != nil {
		return nil, nil, nil, nil, noPath(path, err)
	}
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	if index, err = checkpoint.ReadFile(disk.Dir(dir), name); err != nil {
		return nil, nil, nil, nil, err
	}
	f, err := disk.Dir(dir).Open(name)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	return nil, index, stats.File(f), f.Close, nil
}

// openModel is openTensors for what only a model has.
func openModel(cmd *cobra.Command, path, flag string) (*checkpoint.Model, error) {
	m, _, _, close, err := openTensors(cmd, path)
	if err == nil && m == nil {
		err = errors.Join(ui.Usagef("--%s needs a model's directory, and %s is a file", flag, path), close())
	}
	return m, err
}

// tensorReport is one tensor.
type tensorReport struct {
	tensorInfo
	place
	Values *stats.Summary `json:"values,omitempty"`
	About  string         `json:"about,omitempty"` // the values
}

// place is where a tensor lies.
type place struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
}

func placeOf(index *checkpoint.Index, t checkpoint.Tensor) place {
	return place{index.Shards()[t.Shard].Name, t.Offset}
}

func inspectTensor(cmd *cobra.Command, path, name string) (r *tensorReport, err error) {
	_, index, src, close, err := openTensors(cmd, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, close()) }()
	t, ok := index.Lookup(name)
	if !ok {
		return nil, noTensor(index, path, name)
	}
	r = &tensorReport{tensorInfo: tensorInfo{t.Name, t.DType.String(), append([]int{}, t.Shape...), t.Bytes}, place: placeOf(index, t)}
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
	defer line.Clear()
	line.Show(time.Now(), "reading "+name)
	var values stats.Summary
	scale, packed := checkpoint.Tensor{}, false
	if base, ok := strings.CutSuffix(name, ".weight_packed"); ok {
		scale, packed = index.Lookup(base + ".weight_scale")
	}
	if packed {
		values, err = stats.SummarizeMXFP4(cmd.Context(), src, t, scale)
		r.About = "as MXFP4, with the scales of " + scale.Name
	} else {
		values, err = stats.Summarize(cmd.Context(), src, t)
	}
	switch {
	case errors.Is(err, stats.ErrType):
		r.About = "not read: " + stats.ErrType.Error()
	case err != nil:
		return nil, err
	default:
		r.Values = &values
	}
	return r, nil
}

// noTensor says that there is no tensor of a name, and which there are with names like it.
func noTensor(index *checkpoint.Index, path, name string) error {
	count := 0
	var like []string
	for t := range index.All() {
		if name != "" && strings.Contains(t.Name, name) {
			if count++; count <= 3 {
				like = append(like, t.Name)
			}
		}
	}
	hint := ""
	if count > 0 {
		have := "tensors have"
		if count == 1 {
			have = "tensor has"
		}
		hint = fmt.Sprintf("; %d %s it in their names: %s", count, have, strings.Join(like, ", "))
		if count > len(like) {
			hint += ", ..."
		}
	}
	return ui.Usagef("--tensor: %s has no tensor %q%s", path, name, hint)
}

func (r *tensorReport) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "tensor\t%s\n", r.Name)
	fmt.Fprintf(w, "type\t%s\n", r.DType)
	fmt.Fprintf(w, "shape\t%v\n", r.Shape)
	fmt.Fprintf(w, "file\t%s, %d bytes from %d\n", r.File, r.Bytes, r.Offset)
	if r.About != "" {
		fmt.Fprintf(w, "values\t%s\n", r.About)
	}
	if v := r.Values; v != nil {
		fmt.Fprintf(w, "count\t%d\n", v.Count)
		fmt.Fprintf(w, "least\t%.7g\n", v.Min)
		fmt.Fprintf(w, "greatest\t%.7g\n", v.Max)
		fmt.Fprintf(w, "mean\t%.7g\n", v.Mean)
		fmt.Fprintf(w, "deviation\t%.7g\n", v.Std)
		fmt.Fprintf(w, "zeros\t%d\n", v.Zeros)
		fmt.Fprintf(w, "NaN\t%d\n", v.NaN)
		fmt.Fprintf(w, "infinite\t%d\n", v.Inf)
	}
	return w.Flush()
}

// expertsReport is where experts lie.
type expertsReport struct {
	Layer   int           `json:"layer"`
	Experts []expertPlace `json:"experts"`
}

type expertPlace struct {
	Expert  int           `json:"expert"`
	place                 // of its first byte
	Bytes   int64         `json:"bytes"`
	Reads   int           `json:"reads"` // that its tensors take: one if they are neighbours
	Tensors []tensorPlace `json:"tensors,omitempty"`
}

type tensorPlace struct {
	tensorInfo
	place
}

// inspectExperts looks for the experts of a layer, or for one expert.
func inspectExperts(cmd *cobra.Command, path string, numbers []int) (r *expertsReport, err error) {
	m, err := openModel(cmd, path, "expert")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	c := m.Config
	layer := numbers[0]
	if layer < c.DenseLayers || layer >= c.Layers {
		return nil, ui.Usagef("--expert: layer %d has no experts: must be from %d to %d", layer, c.DenseLayers, c.Layers-1)
	}
	first, last := 0, c.MoE.Experts-1
	if len(numbers) == 2 {
		if numbers[1] > last {
			return nil, ui.Usagef("--expert: there is no expert %d: must be from 0 to %d", numbers[1], last)
		}
		first, last = numbers[1], numbers[1]
	}
	r = &expertsReport{Layer: layer}
	for e := first; e <= last; e++ {
		tensors := m.Index.Expert(layer, e, nil)
		slices.SortFunc(tensors, func(a, b checkpoint.Tensor) int {
			return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Offset, b.Offset))
		})
		p := expertPlace{Expert: e}
		for i, t := range tensors {
			at := placeOf(m.Index, t)
			if i == 0 {
				p.place = at
			}
			if i == 0 || tensors[i-1].Shard != t.Shard || tensors[i-1].Offset+tensors[i-1].Bytes != t.Offset {
				p.Reads++
			}
			p.Bytes += t.Bytes
			if len(numbers) == 2 {
				p.Tensors = append(p.Tensors, tensorPlace{tensorInfo{t.String(), t.DType.String(), append([]int{}, t.Shape...), t.Bytes}, at})
			}
		}
		r.Experts = append(r.Experts, p)
	}
	return r, nil
}

func (r *expertsReport) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "layer\texpert\tfile\toffset\tbytes\treads\n")
	for _, e := range r.Experts {
		fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%d\t%d\n", r.Layer, e.Expert, e.File, e.Offset, e.Bytes, e.Reads)
	}
	if len(r.Experts) == 1 && len(r.Experts[0].Tensors) > 0 {
		fmt.Fprintf(w, "\ntensor\ttype\tshape\tfile\toffset\tbytes\n")
		for _, t := range r.Experts[0].Tensors {
			fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%d\t%d\n", t.Name, t.DType, t.Shape, t.File, t.Offset, t.Bytes)
		}
	}
	return w.Flush()
}

// roundtripReport is what rounding the trunk costs. An error is the mean error relative to the mean size of the weights.
type roundtripReport struct {
	Types   []string      `json:"types"`
	Errors  []roundError  `json:"errors"` // of the whole trunk, by type of integer
	Parts   []roundedPart `json:"parts"`
	Tensors []roundedPart `json:"tensors"`
}

type roundedPart struct {
	Name    string       `json:"name"`
	Weights int64        `json:"weights"`
	Errors  []roundError `json:"errors"`
}

type roundError struct {
	Mean    float64 `json:"mean"`
	RMS     float64 `json:"rms"`               // root mean square error, relative to the root mean square of the weights
	Skipped int64   `json:"skipped,omitempty"` // weights beside a NaN or infinity
}

func inspectRoundtrip(cmd *cobra.Command, path string, bits []int) (r *roundtripReport, err error) {
	m, err := openModel(cmd, path, "roundtrip")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	r = &roundtripReport{}
	for _, b := range bits {
		r.Types = append(r.Types, fmt.Sprintf("int%d", b))
	}
	var trunk []checkpoint.Tensor
	var all, done int64
	for s := range checkpoint.Required(m.Config, m.Quantized) {
		if s.Expert >= 0 || len(s.Shape) != 2 || slices.Min(s.Shape) < 2 {
			continue // vectors stay as they are in any scheme
		}
		t, ok := m.Index.Lookup(s.Name())
		if !ok {
			return nil, ui.Inputf("inspect %s: there is no %s", path, s.Name())
		}
		trunk, all = append(trunk, t), all+t.Bytes
	}
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
	defer line.Clear()
	type sums struct {
		weights int64
		sums    []stats.Rounding
	}
	total := sums{sums: make([]stats.Rounding, len(bits))}
	parts := map[string]*sums{}
	start := time.Now()
	for _, t := range trunk {
		left := ""
		if spent := time.Since(start); spent > ui.Slow && done > 0 {
			left = ", " + ui.LongTime(time.Duration(float64(spent)*float64(all-done)/float64(done))) + " left"
		}
		line.Show(time.Now(), fmt.Sprintf("rounding: %s of %s%s", ui.Size(done), ui.Size(all), left))
		rounded, err := stats.Round(cmd.Context(), m, t, bits)
		if err != nil {
			return nil, err
		}
		done += t.Bytes
		_, layer := splitName(t.Name)
		name := part(t.Name, layer, m.Config)
		p := parts[name]
		if p == nil {
			p = &sums{sums: make([]stats.Rounding, len(bits))}
			parts[name] = p
		}
		weights := t.Bytes * 8 / int64(t.DType.Bits())
		for i := range rounded {
			total.sums[i].Add(rounded[i])
			p.sums[i].Add(rounded[i])
		}
		total.weights, p.weights = total.weights+weights, p.weights+weights
		r.Tensors = append(r.Tensors, roundedPart{t.Name, weights, roundErrors(rounded)})
	}
	r.Errors = roundErrors(total.sums)
	for name, p := range parts {
		r.Parts = append(r.Parts, roundedPart{name, p.weights, roundErrors(p.sums)})
	}
	slices.SortFunc(r.Parts, func(a, b roundedPart) int {
		return cmp.Or(cmp.Compare(b.Weights, a.Weights), cmp.Compare(a.Name, b.Name))
	})
	return r, nil
}

func roundErrors(sums []stats.Rounding) (list []roundError) {
	for _, s := range sums {
		list = append(list, roundError{s.Mean(), s.RMS(), s.Skipped})
	}
	return list
}

func (r *roundtripReport) write(out io.Writer) error {
	fmt.Fprintf(out, "Each matrix of the trunk, rounded in groups of %d of a row with one float32 scale: the mean error, relative to the mean\n"+
		"size of the weights, and the root mean square error, relative to their root mean square.\n\n", stats.GroupSize)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	heading := func(what string) {
		fmt.Fprintf(w, "%s\tweights", what)
		for _, t := range r.Types {
			fmt.Fprintf(w, "\t%s\trms", t)
		}
		fmt.Fprintln(w)
	}
	row := func(p roundedPart) {
		fmt.Fprintf(w, "%s\t%d", p.Name, p.Weights)
		var skipped int64
		for _, e := range p.Errors {
			fmt.Fprintf(w, "\t%.4f\t%.4f", e.Mean, e.RMS)
			skipped = max(skipped, e.Skipped)
		}
		if skipped > 0 {
			fmt.Fprintf(w, "\t%d skipped beside NaN or infinity", skipped)
		}
		fmt.Fprintln(w)
	}
	heading("part")
	var weights int64
	for _, p := range r.Parts {
		row(p)
		weights += p.Weights
	}
	row(roundedPart{"all", weights, r.Errors})
	fmt.Fprintln(w)
	heading("tensor")
	for _, t := range r.Tensors {
		row(t)
	}
	return w.Flush()
}
