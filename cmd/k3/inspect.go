package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/estimate"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
)

func inspectCommand() *cobra.Command {
	var asJSON bool
	var f inspectFlags
	cmd := &cobra.Command{
		Use:   "inspect [flags] PATH",
		Short: "Describe a model directory, a .safetensors file or a config.json",
		Long: "Describe a model directory (demo is the built-in one), one .safetensors file of whatever tensors, or a config.json,\n" +
			"after checking all that can be checked without reading weights. What is damaged or not of this architecture is refused.\n" +
			"With one of the flags, describe one tensor and its values, where experts lie, or what rounding the trunk would cost.",
		Example: "  k3 inspect ~/k3model\n  k3 inspect --tensor language_model.model.norm.weight ~/k3model\n" +
			"  k3 inspect --expert 5,17 ~/k3model\n  k3 inspect --roundtrip int8,int4 ~/k3model",
		Args: oneArgument("a path"),
		RunE: func(cmd *cobra.Command, args []string) error {
			look, err := f.look(cmd)
			if err != nil {
				return err
			}
			r, err := look(cmd, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return ui.WriteJSON(cmd.OutOrStdout(), r)
			}
			return r.write(cmd.OutOrStdout())
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// inspection is what inspect found; what does not apply is empty.
type inspection struct {
	Path      string             `json:"path"`
	Kind      string             `json:"kind"` // model, tensors or config
	Geometry  *estimate.Geometry `json:"geometry,omitempty"`
	StopIDs   []int              `json:"stop_ids,omitempty"`
	Tokenizer *vocabularyInfo    `json:"tokenizer,omitempty"`
	Tensors   *tensorsInfo       `json:"tensors,omitempty"`
	Shards    []shardInfo        `json:"shards,omitempty"`
	Checked   int                `json:"checked_shards,omitempty"` // those with checksums, which every read is compared with
}

type vocabularyInfo struct {
	Ranks int            `json:"ranks"`
	Vocab int            `json:"vocab"`
	BOS   *int           `json:"bos,omitempty"`
	EOS   *int           `json:"eos,omitempty"`
	Added map[string]int `json:"added"` // ids of the tokens that have a name
	Chat  map[string]int `json:"chat"`  // those of them that the chat markup is made of
}

type tensorsInfo struct {
	Count    int          `json:"count"`
	Bytes    int64        `json:"bytes"`
	Parts    []family     `json:"parts,omitempty"` // by what they are for
	Families []family     `json:"families"`        // by name, with * for numbers
	List     []tensorInfo `json:"list,omitempty"`  // each, for a single file
}

// family is some tensors of one type that have something in common.
type family struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape,omitempty"` // if they all have the same
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"`
}

type tensorInfo struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
}

type shardInfo struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Tensors int    `json:"tensors"`
}

// inspect looks at path and decides by what it finds there.
func inspect(cmd *cobra.Command, path string) (described, error) {
	if path == presets.DemoModel {
		return inspectModel(cmd, path)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, noPath(path, err)
	case info.IsDir():
		return inspectModel(cmd, path)
	case !info.Mode().IsRegular():
		return nil, ui.Inputf("inspect %s: neither a directory nor a regular file", path)
	case strings.EqualFold(filepath.Ext(path), ".json"):
		return inspectConfig(path)
	}
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	index, err := checkpoint.ReadFile(disk.Dir(dir), name)
	if err != nil {
		return nil, err
	}
	r := &inspection{Path: path, Kind: "tensors"}
	r.census(index, nil)
	for t := range index.All() {
		r.Tensors.List = append(r.Tensors.List, tensorInfo{t.Name, t.DType.String(), append([]int{}, t.Shape...), t.Bytes})
	}
	return r, nil
}

// noPath says why nothing could be looked at: what has no ending is meant to be a model's directory.
func noPath(path string, err error) error {
	if filepath.Ext(path) == "" || strings.HasPrefix(path, "~") {
		if err := recognise(path, configFile); err != nil {
			return err
		}
	}
	return ui.Inputf("inspect: %w", err)
}

func inspectConfig(path string) (*inspection, error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	data, err := disk.ReadAll(disk.Dir(dir), name, 1<<20)
	if err != nil {
		return nil, ui.Inputf("inspect: %w", err)
	}
	c, err := checkpoint.ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	g := estimate.GeometryOf(c, c.Quantized)
	return &inspection{Path: path, Kind: "config", Geometry: &g}, nil
}

func inspectModel(cmd *cobra.Command, path string) (*inspection, error) {
	files, err := modelFiles(path, configFile)
	if err != nil {
		return nil, err
	}
	m, err := checkpoint.Open(cmd.Context(), files)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	r := &inspection{Path: path, Kind: "model", StopIDs: append([]int{}, m.StopIDs...)}
	g := estimate.GeometryOf(m.Config, m.Quantized)
	r.Geometry = &g
	t, err := tokenizer.Load(files)
	switch {
	case err == nil:
		if r.Tokenizer, err = describeTokenizer(t); err != nil {
			return nil, err
		}
		if id := r.Tokenizer.EOS; id != nil && !slices.Contains(r.StopIDs, *id) {
			r.StopIDs = append(r.StopIDs, *id)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	r.census(m.Index, m.Config)
	r.Checked, _ = m.Checked()
	return r, nil
}

func describeTokenizer(t *tokenizer.Tokenizer) (*vocabularyInfo, error) {
	v := &vocabularyInfo{Ranks: t.Ranks(), Vocab: t.Vocab(), Added: map[string]int{}, Chat: map[string]int{}}
	if id, ok := t.BOS(); ok {
		v.BOS = &id
	}
	if id, ok := t.EOS(); ok {
		v.EOS = &id
	}
	for id := t.Ranks(); id < t.Vocab(); id++ {
		content, err := t.Decode([]int{id})
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(content, []byte("<|reserved_token_")) {
			v.Added[string(content)] = id
		}
	}
	for _, content := range chat.ControlTokens() {
		if id, ok := t.Special(content); ok {
			v.Chat[content] = id
		}
	}
	return v, nil
}

// lines describes the tokenizer in words.
func (v *vocabularyInfo) lines() [][2]string {
	var parts []string
	for _, content := range chat.ControlTokens() {
		id, ok := v.Chat[content]
		if !ok {
			parts = []string{"no: the tokenizer lacks " + content}
			break
		}
		parts = append(parts, fmt.Sprintf("%s %d", content, id))
	}
	return [][2]string{
		{"tokenizer", fmt.Sprintf("%d byte-pair ranks, %d ids, %s", v.Ranks, v.Vocab, ui.Plural(len(v.Added), "added token", "added tokens"))},
		{"chat markup", strings.Join(parts, ", ")},
	}
}

// census counts the tensors of the index; c is the model's configuration or nil.
func (r *inspection) census(index *checkpoint.Index, c *checkpoint.Config) {
	r.Tensors = &tensorsInfo{Count: index.Len()}
	for _, s := range index.Shards() {
		r.Shards = append(r.Shards, shardInfo{Name: s.Name, Size: s.Size})
	}
	var names, parts families
	for t := range index.All() {
		r.Tensors.Bytes += t.Bytes
		r.Shards[t.Shard].Tensors++
		pattern, layer := splitName(t.Name)
		names.add(pattern, t)
		if c != nil {
			parts.add(part(t.Name, layer, c), t)
		}
	}
	r.Tensors.Families = slices.Collect(names.all())
	if c != nil {
		r.Tensors.Parts = slices.SortedFunc(parts.all(), func(a, b family) int { return compareBytes(b, a) })
		for i := range r.Tensors.Parts {
			r.Tensors.Parts[i].Shape = nil
		}
	}
}

func compareBytes(a, b family) int {
	switch {
	case a.Bytes < b.Bytes:
		return -1
	case a.Bytes > b.Bytes:
		return 1
	}
	return strings.Compare(b.Name, a.Name)
}

// families collects tensors by name and type, in the order they come.
type families struct {
	list  []*family
	index map[string]*family
}

func (f *families) add(name string, t checkpoint.Tensor) {
	if f.index == nil {
		f.index = map[string]*family{}
	}
	key := name + "\x00" + t.DType.String()
	m := f.index[key]
	if m == nil {
		m = &family{Name: name, DType: t.DType.String(), Shape: append([]int{}, t.Shape...)}
		f.index[key] = m
		f.list = append(f.list, m)
	}
	if m.Shape != nil && !slices.Equal(m.Shape, t.Shape) {
		m.Shape = nil
	}
	m.Count++
	m.Bytes += t.Bytes
}

func (f *families) all() iter.Seq[family] {
	return func(yield func(family) bool) {
		for _, m := range f.list {
			if !yield(*m) {
				return
			}
		}
	}
}

// splitName returns the name with * for its numbers, and the first number, or -1.
func splitName(name string) (pattern string, first int) {
	parts := strings.Split(name, ".")
	first = -1
	for i, p := range parts {
		if n, err := strconv.Atoi(p); err == nil && n >= 0 {
			parts[i] = "*"
			if first < 0 {
				first = n
			}
		}
	}
	return strings.Join(parts, "."), first
}

// part says what a tensor of the model c is for.
func part(name string, layer int, c *checkpoint.Config) string {
	n, ok := checkpoint.ParseName(name)
	if !ok {
		if strings.HasPrefix(name, "vision_tower.") || strings.HasPrefix(name, "mm_projector.") {
			return "vision (not used)"
		}
		return "other (not used)"
	}
	has := func(s string) bool { return strings.Contains(n.Part, s) }
	switch {
	case name == checkpoint.Embedding:
		return "embedding"
	case name == checkpoint.Head:
		return "output head"
	case n.Expert >= 0:
		return "routed experts"
	case has("shared_experts."):
		return "shared experts"
	case has("block_sparse_moe.gate."):
		return "router"
	case has("block_sparse_moe."):
		return "latent projections"
	case has("self_attn."):
		if layer >= 0 && layer < c.Layers && c.FullAttention[layer] {
			return "MLA"
		}
		return "KDA"
	case has("mlp."):
		return "dense MLP"
	case has("norm") || has("_res_proj"):
		return "norms and residuals"
	}
	return "other (not used)"
}

// write describes it all in words.
func (r *inspection) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if g := r.Geometry; g != nil {
		for _, l := range geometryLines(g) {
			fmt.Fprintf(table, "%s\t%s\n", l[0], l[1])
		}
	}
	if len(r.StopIDs) > 0 {
		fmt.Fprintf(table, "stop ids\t%s\n", formatIDs(r.StopIDs))
	}
	if t := r.Tokenizer; t != nil {
		for _, l := range t.lines() {
			fmt.Fprintf(table, "%s\t%s\n", l[0], l[1])
		}
	} else if r.Kind == "model" {
		fmt.Fprintf(table, "tokenizer\tnone\n")
	}
	if t := r.Tensors; t != nil {
		fmt.Fprintf(table, "tensors\t%d, %s in %s\n", t.Count, ui.Size(t.Bytes), ui.Plural(len(r.Shards), "file", "files"))
	}
	if r.Kind == "model" && r.Path != presets.DemoModel {
		fmt.Fprintf(table, "reads\t%s\n", checkedFiles{Checked: r.Checked, Files: len(r.Shards)}.announce())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if g := r.Geometry; g != nil {
		fmt.Fprintf(w, "\nlayers: K is KDA, M is MLA; a small letter has a dense MLP; a row is a residual block\n")
		for _, row := range layerMap(g) {
			fmt.Fprintln(w, row)
		}
	}
	if t := r.Tensors; t != nil {
		rows, heading := t.Families, "name"
		if t.Parts != nil {
			rows, heading = t.Parts, "part"
		}
		fmt.Fprintf(table, "\n%s\ttype\ttensors\tbytes\n", heading)
		for _, f := range rows {
			shape := ""
			if f.Shape != nil {
				shape = fmt.Sprint("\t", f.Shape)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%d%s\n", f.Name, f.DType, f.Count, f.Bytes, shape)
		}
		fmt.Fprintf(table, "\nfile\ttensors\tbytes\n")
		for _, s := range r.Shards {
			fmt.Fprintf(table, "%s\t%d\t%d\n", s.Name, s.Tensors, s.Size)
		}
	}
	return table.Flush()
}
