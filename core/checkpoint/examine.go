package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
)

// Problem is one thing that is wrong with a checkpoint.
type Problem struct {
	File    string // the file at fault, "" if no single one is
	Tensor  string // "" if it is not about one
	Missing bool   // the file is not there
	Err     error  // matches ErrConfig or ErrFormat unless reading failed
}

// maxProblems bounds what Examine lists; a model of the released size has 497,220 tensors that could each be wrong.
const maxProblems = 10_000

// Examination is the result of Examine: a checkpoint as far as it can be read, sound or damaged, and the list of its
// problems. Open instead refuses a checkpoint that has any.
type Examination struct {
	Config   *Config   // nil if config.json is unusable
	Index    *Index    // the tensors of every shard whose header can be read
	Problems []Problem // at most 10,000, and then one that says how many more there are
	Sound    []bool    // by shard of the index: its header and size are right, so its tensors can be read
	Layers   int       // of which all shards are there, by the index file; -1 without one

	model Model
	more  int
}

// Examine checks all that Open checks and goes on where Open stops, to tell everything that is wrong. Whatever is wrong with the
// checkpoint is no error of Examine.
func Examine(ctx context.Context, files disk.Files) (*Examination, error) {
	x := &Examination{model: Model{Files: files}, Layers: -1}
	if err := x.examine(ctx); err != nil {
		x.Close()
		return nil, err
	}
	if x.more > 0 {
		x.Problems = append(x.Problems, Problem{Err: fault.Errorf(ErrFormat, "and %d more problems", x.more)})
	}
	return x, nil
}

// Shard is the open file of shard i of Index.Shards, nil if it could not be opened. It belongs to the examination.
func (x *Examination) Shard(i int) disk.File { return x.model.shards[i] }

// Quantized reports whether the routed experts are MXFP4.
func (x *Examination) Quantized() bool { return x.model.Quantized }

// Close closes the shard files.
func (x *Examination) Close() error { return x.model.Close() }

func (x *Examination) add(p Problem) {
	if len(x.Problems) == maxProblems {
		x.more++
		return
	}
	x.Problems = append(x.Problems, p)
}

// file adds the problems of a whole file: each of a list, or the one.
func (x *Examination) file(name string, err error) {
	if list := (*problems)(nil); errors.As(err, &list) {
		for _, err := range list.list {
			x.add(Problem{File: name, Err: err})
		}
		return
	}
	if notExist(err) {
		x.add(Problem{File: name, Missing: true, Err: fault.Errorf(ErrFormat, "it is missing")})
		return
	}
	x.add(Problem{File: name, Err: err})
}

func (x *Examination) examine(ctx context.Context) error {
	m := &x.model
	missing := func(name string) {
		x.add(Problem{File: name, Missing: true, Err: fault.Errorf(ErrFormat, "it is missing")})
	}
	unread := false // tensors may be where nobody could look
	sound := func(n int) *bool {
		for len(x.Sound) <= n {
			x.Sound = append(x.Sound, true)
		}
		return &x.Sound[n]
	}
	p, err := m.walk(ctx, visitor{
		where: "checkpoint: examine " + m.Files.Name(),
		open:  m.Files.Open,
		file: func(name string, err error) error {
			x.file(name, err)
			return nil
		},
		list: func(names []string, err error) error {
			unread = err != nil
			if names == nil {
				x.add(Problem{Err: err})
			} else if _, err := eachMissing(names, missing); err != nil {
				x.add(Problem{Err: err})
			}
			return nil
		},
		absent: func(n int, name string, err error) {
			x.file(name, err)
			*sound(n), unread = false, true
		},
		each: func(n int, name, tensor string, err error) {
			x.add(Problem{File: name, Tensor: tensor, Err: err})
			*sound(n) = false
		},
		read: func(n int, name string, err error, some bool) {
			if s := sound(n); err != nil {
				x.file(name, err)
				*s, unread = false, unread || !some
			}
		},
	})
	x.Config, x.Index = m.Config, m.Index
	if err != nil {
		return err
	}
	if p != nil {
		x.Layers = m.layersHere(p)
		for i, seen := range p.seen {
			if shard := int(p.shard[i]); !seen && x.Sound[shard] {
				x.add(Problem{File: p.shards[shard], Tensor: p.names.show(p.table.keys[i]),
					Err: fault.Errorf(ErrFormat, "tensor %s: %s puts it here", p.names.show(p.table.keys[i]), indexFile)})
			}
		}
	}
	if x.Config != nil {
		x.fit(p, unread)
	}
	return nil
}

// fit compares the tensors with what the geometry needs. Those that may be in a file nobody could read are not called missing.
func (x *Examination) fit(p *placement, unread bool) {
	m := &x.model
	m.Quantized = m.quantized()
	if m.Quantized && (m.Config.MoE.Latent%mxfp4Group != 0 || m.Config.MoE.Intermediate%mxfp4Group != 0) {
		x.add(Problem{File: "config.json", Err: fault.Errorf(ErrConfig, "%s", unevenGroups(m.Config))})
		return
	}
	if x.fits() {
		return
	}
	text, shapes, places := x.disagreements(p, unread)
	if text != "" {
		x.add(Problem{File: "config.json", Err: fault.Errorf(ErrConfig, "it disagrees with all shards: %s", text)})
	}
	var t Tensor
	var ok bool
	for s := range Required(m.Config, m.Quantized) {
		switch t, ok = m.Index.at(s, t); {
		case ok && shapes || !ok && places:
		case ok && !s.Accepts(t.DType, t.Shape):
			x.add(Problem{File: m.Index.shards[t.Shard].Name, Tensor: s.Name(),
				Err: fault.Errorf(ErrFormat, "tensor %s is %s %v, where config.json asks for %s %v", s.Name(), t.DType, t.Shape, s.DType, s.Shape)})
		case ok || unread && p == nil:
		case p != nil:
			if m.placed(p, s) {
				continue // its shard is at fault, which has been said
			}
			x.add(Problem{File: indexFile, Tensor: s.Name(), Err: fault.Errorf(ErrFormat, "tensor %s, which config.json asks for, is in no shard", s.Name())})
		default:
			x.add(Problem{Tensor: s.Name(), Err: fault.Errorf(ErrFormat, "tensor %s, which config.json asks for, is in no shard", s.Name())})
		}
	}
}

// fits reports whether every tensor is there and has its shape.
func (x *Examination) fits() bool {
	var t Tensor
	var ok bool
	for s := range Required(x.Config, x.model.Quantized) {
		if t, ok = x.Index.at(s, t); !ok || !s.Accepts(t.DType, t.Shape) {
			return false
		}
	}
	return true
}

// placed reports whether the index file says where a tensor is.
func (m *Model) placed(p *placement, s Spec) bool {
	k, known := m.Index.names.lookup(s.Name())
	if known && p != nil {
		_, known = p.table.find(k)
	}
	return known && p != nil
}

// disagreements tells in what all shards are at odds with config.json: then it is what is wrong, and not each of them.
// A shard of another checkpoint disagrees alone; a wrong number in config.json shows in every tensor whose shape it is
// part of, or in whole layers or experts that are nowhere. shapes and places tell which of these is said with the text;
// "" is none.
func (x *Examination) disagreements(p *placement, unread bool) (text string, shapes, places bool) {
	m := &x.model
	type row struct { // the tensors of one pattern and shape
		pattern string
		shape   *int
	}
	type group struct { // what is missing together if config.json is wrong: an expert of all layers, or a part of one
		expert, layer int
		part          string
	}
	type count struct{ all, odd, wrong int }
	rows, groups := map[row]*count{}, map[group]*count{}
	odd, fit := map[int]bool{}, map[int]int{} // shards with tensors that do not fit, and how many do
	wrong, missing, spread := 0, 0, true
	var firstWrong, firstMissing string
	see := func(c *count, isOdd bool) *count {
		if c == nil {
			c = new(count)
		}
		if c.all++; isOdd {
			c.odd++
		}
		return c
	}
	var t Tensor
	var ok bool
	for s := range Required(m.Config, m.Quantized) {
		t, ok = m.Index.at(s, t)
		bad := ok && !s.Accepts(t.DType, t.Shape)
		if ok {
			r := row{pattern: s.pattern}
			if len(s.Shape) > 0 {
				r.shape = &s.Shape[0]
			}
			rows[r] = see(rows[r], bad)
			if !bad {
				fit[t.Shard]++
			} else {
				if wrong++; wrong == 1 {
					firstWrong = fmt.Sprintf("tensor %s is %s %v, not %s %v", s.Name(), t.DType, t.Shape, s.DType, s.Shape)
				}
				odd[t.Shard] = true
			}
		}
		lost := !ok && !m.placed(p, s)
		if lost {
			if missing++; missing == 1 {
				firstMissing = s.Name()
			}
			spread = spread && s.Layer >= 0
		}
		g := group{expert: s.Expert, layer: s.Layer}
		if s.Expert >= 0 {
			g.layer = -1
		} else {
			_, g.part, _ = strings.Cut(s.pattern, layers)
			g.part, _, _ = strings.Cut(g.part, ".")
			if !slices.Contains([]string{"self_attn", "mlp", "block_sparse_moe"}, g.part) {
				g.part = ""
			}
		}
		groups[g] = see(groups[g], lost)
		if bad {
			groups[g].wrong++
		}
	}

	present := 0
	for _, f := range m.shards {
		if f != nil {
			present++
		}
	}
	fits := 0
	for shard := range odd {
		fits += fit[shard]
	}
	all := wrong > 1 && (len(odd) > 1 || present == 1 || fits >= wrong)
	for _, c := range rows {
		all = all && (c.odd == 0 || c.odd == c.all)
	}
	var texts []string
	if shapes = all; shapes {
		texts = append(texts, fmt.Sprintf("%d tensors do not have the shapes it gives them (%s)", wrong, firstWrong))
	}
	places = missing > 1 && spread && (p != nil || !unread)
	for i, f := range m.shards {
		places = places && (f == nil || x.Sound[i])
	}
	within := true // what does not fit is in places that are another's, too
	for g, c := range groups {
		places = places && (c.odd == 0 || 2*c.odd >= c.all && (g.layer >= 0 || g.expert >= 0))
		within = within && (c.odd > 0 || c.wrong == 0)
	}
	if places {
		texts = append(texts, fmt.Sprintf("none of them has %d tensors it asks for (the first is %s)",
			missing, firstMissing))
	}
	return strings.Join(texts, ", and "), shapes || places && within, places
}
