package memory_test

import (
	"os"
	"testing"

	_ "github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// The sizes that the other tests take for granted must be those of the graph.
func TestTheReleasedModelReallyFitsIn2GiB(t *testing.T) {
	text, err := os.ReadFile("../checkpoint/testdata/released-size.json")
	if err != nil {
		t.Skip(err)
	}
	c, err := checkpoint.ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	backend, err := kernel.Select("generic")
	if err != nil {
		t.Fatal(err)
	}
	r := released(2 * gib)
	var trunk, expert, vectors int64
	for s := range checkpoint.Required(c, true) {
		n := int64(1)
		for _, d := range s.Shape {
			n *= int64(d)
		}
		size := map[checkpoint.DType]int64{checkpoint.BF16: 2, checkpoint.F32: 4, checkpoint.U8: 1}[s.DType]
		switch {
		case s.Expert == 0 && s.Layer == 1:
			expert += n * size
		case s.Expert < 0 && len(s.Shape) == 2 && s.Shape[0] > 1:
			trunk += n * size
		case s.Expert < 0:
			vectors += 4 * n
		}
	}
	trunk -= 2 * int64(c.Vocab) * int64(c.Hidden) // embeddings are read row by row
	if d := trunk - r.TrunkBytes; d < -1e8 || d > 1e8 {
		t.Errorf("the trunk is %d bytes, the tests take %d", trunk, r.TrunkBytes)
	}
	if expert+8192 < r.ExpertSlot || expert > r.ExpertSlot {
		t.Errorf("an expert is %d bytes, the tests take %d", expert, r.ExpertSlot)
	}
	if vectors > r.Vectors {
		t.Errorf("vectors are %d bytes, the tests take %d", vectors, r.Vectors)
	}
	fixed, position := graph.StateBytes(c)
	if int64(fixed) != r.State || int64(position) != r.Position {
		t.Errorf("a sequence takes %d + %d a token, the tests take %d + %d", fixed, position, r.State, r.Position)
	}
	r.Workspace = func(rows, context int) int64 { return int64(graph.WorkspaceBytes(c, backend, rows, context, 8)) }
	p, err := memory.Make(r)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r, p)
	if p.Ring < 8 || p.Pinned < 200*mib || p.PrefillRows < 64 {
		t.Errorf("%+v", p)
	}
}
