package verify

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
)

// Zeros where weights should be are what a download that never finished leaves, or a disk that lost what was written to
// it: the header is there, and so is the size.

const (
	zeroBlock = 4 << 10 // what is looked at as one: no file system loses less
	// zeroRun is how many bytes in a row are not the weights of a matrix any more. The tables of embeddings and of the
	// output have rows of ids that nobody uses, which may well be zeros.
	zeroRun      = 64 << 10
	zeroRunTable = 16 << 20
)

// zeros is what was found in the matrices of a file.
type zeros struct {
	Matrices int    `json:"matrices"` // looked at
	Experts  int    `json:"experts"`  // of them, those of routed experts
	Empty    int    `json:"empty"`    // of all, those that are nothing but zeros
	EmptyExp int    `json:"empty_experts"`
	First    string `json:"first,omitempty"` // the first of these
	Runs     int    `json:"runs"`            // of zeros in other matrices
	RunBytes int64  `json:"run_bytes"`
	RunIn    string `json:"run_in,omitempty"` // the tensor of the first run
	RunAt    int64  `json:"run_at"`           // its offset in the file
}

// isMatrix tells whether a tensor is one of those that a model cannot do without: norms, biases, decays and the vectors
// of the residual attention may be zeros.
func isMatrix(t checkpoint.Tensor) bool {
	sides := 0
	for _, n := range t.Shape {
		if n > 1 {
			sides++
		}
	}
	text := strings.Contains(t.Name, "layers.") || isTable(t.Name)
	return sides >= 2 && text && !isVision(t.Name)
}

func isTable(name string) bool {
	return strings.HasSuffix(name, "embed_tokens.weight") || strings.HasSuffix(name, "lm_head.weight")
}

func isExpert(name string) bool { return strings.Contains(name, ".experts.") }

// zeroScanner looks for zeros in the tensors of a file, whose bytes it is given in order.
type zeroScanner struct {
	found zeros
	bytes int64 // of the tensor under way, so far
	run   int64 // of zeros up to there
	runs  int   // that ended and were long
	total int64
	first int64 // offset in the tensor of the first of them
}

var noBytes [zeroBlock]byte

// feed takes the next bytes of tensor t.
func (z *zeroScanner) feed(t checkpoint.Tensor, data []byte) {
	for len(data) > 0 {
		n := min(zeroBlock, len(data))
		if data[0] == 0 && bytes.Equal(data[:n], noBytes[:n]) {
			z.run += int64(n)
		} else {
			z.endRun(t)
		}
		z.bytes += int64(n)
		data = data[n:]
	}
}

func (z *zeroScanner) endRun(t checkpoint.Tensor) {
	least := int64(zeroRun)
	if isTable(t.Name) {
		least = zeroRunTable
	}
	if z.run >= least {
		if z.runs++; z.runs == 1 {
			z.first = z.bytes - z.run
		}
		z.total += z.run
	}
	z.run = 0
}

// end adds what was found in tensor t, all of which was fed.
func (z *zeroScanner) end(t checkpoint.Tensor) {
	if isMatrix(t) && t.Bytes > 0 {
		empty := z.run == t.Bytes
		if !empty {
			z.endRun(t)
		}
		z.found.add(t, empty)
		if z.runs > 0 && z.found.Runs == 0 {
			z.found.RunIn, z.found.RunAt = t.Name, t.Offset+z.first
		}
		z.found.Runs += z.runs
		z.found.RunBytes += z.total
	}
	*z = zeroScanner{found: z.found}
}

// add counts a matrix.
func (z *zeros) add(t checkpoint.Tensor, empty bool) {
	z.Matrices++
	expert := isExpert(t.Name)
	if expert {
		z.Experts++
	}
	if !empty {
		return
	}
	if z.Empty++; z.Empty == 1 {
		z.First = t.Name
	}
	if expert {
		z.EmptyExp++
	}
}

// text says what was found, "" if it was nothing; sampled, that not all was read.
func (z *zeros) text(sampled bool) string {
	var texts []string
	switch {
	case z.Empty > 0 && sampled:
		texts = append(texts, fmt.Sprintf("of %s that were sampled %d seem to be nothing but zeros, the first tensor %s: "+
			"--deep reads them all", matrices(z.Matrices), z.Empty, z.First))
	case z.Empty > 0:
		texts = append(texts, fmt.Sprintf("of %s %d are nothing but zeros, the first tensor %s",
			matrices(z.Matrices), z.Empty, z.First))
	}
	if z.Runs > 0 {
		texts = append(texts, fmt.Sprintf("%s of zeros, %d bytes together, the first at byte %d in tensor %s",
			count(z.Runs, "long run"), z.RunBytes, z.RunAt, z.RunIn))
	}
	return strings.Join(texts, "; ")
}

func matrices(n int) string {
	if n == 1 {
		return "1 weight matrix"
	}
	return fmt.Sprintf("%d weight matrices", n)
}

// samples are how often a matrix is looked at that begins to look empty.
const samples = 4

// sample looks at a few bytes of the matrices of every sound shard: of all outside the routed experts, and of some
// experts.
func (c *check) sample(ctx context.Context, x *checkpoint.Examination) error {
	every, n := 1, 0
	if x.Config != nil {
		every = max(1, x.Config.MoE.Experts/8)
	}
	broken := map[int]bool{}
	var data [zeroBlock]byte
	empty := func(t checkpoint.Tensor, at int64) (bool, error) {
		part := data[:min(zeroBlock, t.Bytes-at)]
		err := disk.ReadFull(x.Shard(t.Shard), part, t.Offset+at)
		return bytes.Equal(part, noBytes[:len(part)]), err
	}
	for t := range x.Index.All() {
		if !x.Sound[t.Shard] || broken[t.Shard] || !isMatrix(t) || t.Bytes == 0 {
			continue
		}
		if isExpert(t.Name) {
			if !strings.HasSuffix(t.Name, ".w1.weight_packed") && !strings.HasSuffix(t.Name, ".w1.weight") {
				continue
			}
			if n++; n%every != 0 {
				continue
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		most := max(t.Bytes-zeroBlock, 0)
		zero, err := empty(t, most/2)
		for i := int64(0); i <= samples && zero && err == nil; i++ {
			zero, err = empty(t, most*i/samples)
		}
		name := x.Index.Shards()[t.Shard].Name
		if err != nil {
			c.fault(name, err)
			broken[t.Shard] = true
			continue
		}
		z := c.zeros[name]
		z.add(t, zero)
		c.zeros[name] = z
	}
	return nil
}

// judge decides what zeros mean: nothing in a file that is as published, and nothing where all experts are zeros, since
// that is a checkpoint made to have a shape and no weights.
func (c *check) judge() {
	results := map[string]Result{}
	for _, f := range c.report.Files {
		results[f.Name] = f.Result
	}
	var all zeros
	for _, z := range c.zeros {
		all.Matrices += z.Matrices
		all.Experts += z.Experts
		all.Empty += z.Empty
		all.EmptyExp += z.EmptyExp
	}
	hollow := all.Experts > 0 && all.EmptyExp == all.Experts
	published := 0
	for _, name := range sorted(c.zeros) {
		z := c.zeros[name]
		switch text := z.text(!c.options.Deep); {
		case text == "" || hollow:
		case results[name] == Right || c.unchanged(name):
			published++
		default:
			c.problem(Problem{File: name, Text: text})
		}
	}
	if hollow {
		c.note(fmt.Sprintf("all %s of experts that were read are zeros: k3 fabricate --sparse makes such checkpoints, "+
			"and they compute nothing", matrices(all.Experts)))
	}
	if published > 0 {
		c.note(fmt.Sprintf("there are zeros in place of weights in %s as published", count(published, "file")))
	}
}

// unchanged reports whether a file is as it was when its checksum was last found right.
func (c *check) unchanged(name string) bool {
	e := c.manifest.Find(name)
	if e == nil || c.dir == "" {
		return false
	}
	return e.Unchanged(filepath.Join(c.dir, filepath.FromSlash(name)))
}
