// Package conformance says whether this engine, on this machine, computes what it should: every kernel of a backend
// against the generic backend bit for bit, and whole models against goldens of an independent float64 oracle
// (conformance/oracle, whose output is committed here; none of it comes from this engine).
//
// The author of a backend calls conformancetest.Test with one line; `k3 conformance` runs the same checks for a user.
package conformance

import (
	"context"
	"embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
	_ "github.com/k3infer/k3/policies" // an engine has a cache of experts
	"github.com/k3infer/k3/presets/demo"
)

//go:embed testdata/tiny-mx testdata/tiny-plain testdata/tiny-f16 testdata/demo
var testdata embed.FS

// Tolerance is how far a logit may be from the oracle's, as a share of the largest absolute logit of its position.
const Tolerance = 1e-4

// ErrMismatch is matched by the error of a model that does not compute what the oracle does.
var ErrMismatch = errors.New("differs from the oracle")

// Golden is a checkpoint and what the oracle computed with it.
type Golden struct {
	Name   string
	Files  disk.Files // the checkpoint
	Expect disk.Files // golden.safetensors, and golden.json where the ids are not in it
}

// Goldens are the models that come with this package: three tiny ones of odd sizes that cover every storage format, and
// the demonstration model.
func Goldens() []Golden {
	all := []Golden{{"demo", demo.Files(), embedded("demo")}}
	for _, name := range []string{"tiny-mx", "tiny-plain", "tiny-f16"} {
		all = append(all, Golden{name, embedded(name), embedded(name + "/expect")})
	}
	return all
}

func embedded(path string) disk.Files {
	sub, err := fs.Sub(testdata, "testdata/"+path)
	if err != nil {
		panic(err) // the folders above are embedded
	}
	return disk.FS(sub, path)
}

// Report is the result of a check that passed.
type Report struct {
	Positions int     // positions compared
	Worst     float64 // the largest error of a logit, as a share of the largest absolute logit of its position
}

// Check computes the golden's ids with the given options (Files, Routed and Probe of which are its own) and compares.
// The error of a difference matches ErrMismatch and says where it is.
func (g Golden) Check(ctx context.Context, o core.Options) (Report, error) {
	c := comparison{golden: g, name: g.Name}
	if err := c.run(ctx, o); err != nil {
		return c.report, fmt.Errorf("conformance: %s: %w", g.Name, err)
	}
	return c.report, nil
}

// A comparison is one check of a golden. Those of texts continue prompts and compare what is chosen; those of tables
// compare every position of one text.
type comparison struct {
	golden Golden
	name   string
	expect *checkpoint.Index
	file   disk.File
	report Report
}

func (c *comparison) run(ctx context.Context, o core.Options) error {
	var err error
	if c.expect, err = checkpoint.ReadFile(c.golden.Expect, "golden.safetensors"); err != nil {
		return err
	}
	if c.file, err = c.golden.Expect.Open("golden.safetensors"); err != nil {
		return err
	}
	defer c.file.Close()
	o.Files = c.golden.Files
	if _, ok := c.expect.Lookup("prompt.0.ids"); ok {
		return c.prompts(ctx, o)
	}
	return c.table(ctx, o)
}

// prompts generates from each prompt, greedily, and compares the ids, and the logits after the prompt and at the end.
func (c *comparison) prompts(ctx context.Context, o core.Options) error {
	e, err := core.Open(ctx, o)
	if err != nil {
		return err
	}
	defer e.Close()
	for n := 0; ; n++ {
		name := func(what string) string { return fmt.Sprintf("prompt.%d.%s", n, what) }
		if _, ok := c.expect.Lookup(name("ids")); !ok {
			return nil
		}
		ids, err := c.ints(name("ids"))
		if err != nil {
			return err
		}
		want, err := c.ints(name("generated"))
		if err != nil {
			return err
		}
		golden, err := c.floats(name("logits"))
		if err != nil {
			return err
		}
		s, err := e.NewSequence()
		if err != nil {
			return err
		}
		vocab := e.Config().Vocab
		out, err := e.Generate(ctx, s, ids, core.GenerateOptions{MaxTokens: len(want), OnLogits: func(position int, logits []float32) error {
			switch position {
			case len(ids) - 1:
				return c.logits(name("prompt"), logits, golden[:vocab])
			case len(ids) + len(want) - 2:
				return c.logits(name("end"), logits, golden[vocab:])
			}
			return nil
		}}, nil)
		s.Close()
		if err != nil {
			return err
		}
		for i := range want {
			if out.IDs[i] != want[i] {
				return fmt.Errorf("%w: prompt %d: token %d is id %d, not %d", ErrMismatch, n, i, out.IDs[i], want[i])
			}
		}
	}
}

// table runs one text and compares logits, layer outputs, expert choices and weights at every position.
func (c *comparison) table(ctx context.Context, o core.Options) error {
	ids, err := c.ids()
	if err != nil {
		return err
	}
	var outputs, weights, chosen []float32 // [layer][position][width], as they come
	experts := func(_ int, ids []int) {
		for _, id := range ids {
			chosen = append(chosen, float32(id))
		}
	}
	o.PrefillChunk, o.Context = len(ids), len(ids)
	o.Routed = experts
	o.Probe = func(_ int, what string, values []float32, _ int) {
		switch what {
		case "output":
			outputs = append(outputs, values...)
		case "expert_weights":
			weights = append(weights, values...)
		}
	}
	e, err := core.Open(ctx, o)
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := e.NewSequence()
	if err != nil {
		return err
	}
	defer s.Close()
	rows := make([]core.Row, len(ids))
	for i, id := range ids {
		rows[i] = core.Row{Sequence: s, Token: id, Logits: true}
	}
	logits, err := e.Pass(ctx, rows)
	if err != nil {
		return err
	}
	want, err := c.floats("logits")
	if err != nil {
		return err
	}
	vocab := e.Config().Vocab
	for i, l := range logits {
		if err := c.logits(fmt.Sprintf("position %d", i), l, want[i*vocab:][:vocab]); err != nil {
			return err
		}
	}
	for _, p := range []struct {
		what  string
		got   []float32
		width int
	}{{"layer_output", outputs, e.Config().Hidden}, {"expert_ids", chosen, 1}, {"expert_weights", weights, e.Config().MoE.TopK}} {
		want, err := c.floats(p.what)
		if err != nil {
			return err
		}
		if len(want) != len(p.got) {
			return fmt.Errorf("%w: %d values of %s, not %d", ErrMismatch, len(p.got), p.what, len(want))
		}
		for at := 0; at < len(want); at += p.width {
			if _, err := compare(fmt.Sprintf("%s value %d", p.what, at), p.got[at:][:p.width], want[at:][:p.width]); err != nil {
				return err
			}
		}
	}
	return nil
}

// logits compares the logits of one position, and their largest.
func (c *comparison) logits(where string, got, want []float32) error {
	share, err := compare(where, got, want)
	if err != nil {
		return err
	}
	c.report.Positions++
	c.report.Worst = max(c.report.Worst, share)
	if g, w := argmax(got), argmax(want); g != w {
		return fmt.Errorf("%w: %s: the largest logit is %d's, not %d's", ErrMismatch, where, g, w)
	}
	return nil
}

// compare returns the largest difference as a share of the largest absolute value wanted.
func compare(where string, got, want []float32) (float64, error) {
	largest, diff, at := 0.0, 0.0, 0
	for i, w := range want {
		largest = max(largest, math.Abs(float64(w)))
		if d := math.Abs(float64(got[i]) - float64(w)); !(d <= diff) {
			diff, at = d, i
		}
	}
	if !(diff <= Tolerance*largest) {
		return diff / largest, fmt.Errorf("%w: %s: value %d is %g, not %g", ErrMismatch, where, at, got[at], want[at])
	}
	if largest == 0 {
		return 0, nil
	}
	return diff / largest, nil
}

func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

// ids is the text of a table: a tensor, or in golden.json.
func (c *comparison) ids() ([]int, error) {
	if _, ok := c.expect.Lookup("ids"); ok {
		return c.ints("ids")
	}
	data, err := disk.ReadAll(c.golden.Expect, "../golden.json", 1<<20)
	if err != nil {
		return nil, err
	}
	var g struct{ IDs []int }
	err = json.Unmarshal(data, &g)
	return g.IDs, err
}

func (c *comparison) raw(name string) ([]byte, checkpoint.DType, error) {
	t, ok := c.expect.Lookup(name)
	if !ok {
		return nil, 0, fmt.Errorf("%w: golden.safetensors has no %s", checkpoint.ErrFormat, name)
	}
	p := make([]byte, t.Bytes)
	return p, t.DType, disk.ReadFull(c.file, p, t.Offset)
}

func (c *comparison) ints(name string) ([]int, error) {
	f, err := c.floats(name)
	out := make([]int, len(f))
	for i, v := range f {
		out[i] = int(v)
	}
	return out, err
}

// floats reads a tensor of float32 or of integers below 2^24.
func (c *comparison) floats(name string) ([]float32, error) {
	p, dtype, err := c.raw(name)
	if err != nil {
		return nil, err
	}
	var out []float32
	switch dtype {
	case checkpoint.F32:
		return kernel.Widen(nil, kernel.F32, p, nil), nil
	case checkpoint.I32:
		for ; len(p) >= 4; p = p[4:] {
			out = append(out, float32(int32(binary.LittleEndian.Uint32(p))))
		}
	case checkpoint.I64:
		for ; len(p) >= 8; p = p[8:] {
			out = append(out, float32(int64(binary.LittleEndian.Uint64(p))))
		}
	default:
		return nil, fmt.Errorf("%w: golden %s is %v", checkpoint.ErrFormat, name, dtype)
	}
	return out, nil
}
