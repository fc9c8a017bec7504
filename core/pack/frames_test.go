package pack

import (
	"testing"

	"github.com/k3infer/k3/core/checkpoint"
)

func TestFramesAreOfWholeRowsAndAtLeastOne(t *testing.T) {
	w := &writer{o: Options{Compress: true}}
	for _, c := range []struct {
		rows, cols int
		want       int64
	}{
		{2000, 128, frameBytes / 256}, {10, 128, 10}, {1, 2, 0}, {100, 512, 100}, {2, 3 << 20, 1}, {5, frameBytes, 1}, {5, frameBytes / 4, 2},
	} {
		x := checkpoint.Tensor{DType: checkpoint.BF16, Shape: []int{c.rows, c.cols}, Bytes: int64(2 * c.rows * c.cols)}
		if x.Bytes < 2*chunkWeights {
			c.want = 0
		}
		if got := w.frameRows(x); got != c.want {
			t.Errorf("%d rows of %d: frames of %d rows, want %d", c.rows, c.cols, got, c.want)
		}
	}
}

func TestFramesThatCannotBeWhatAShapeNeedsAreRefused(t *testing.T) {
	good := entry{dtype: "BF16", shape: []int{4, 8}, bytes: 30, frameRows: 2, frames: []uint32{10, 20}}
	if err := good.check(true); err != nil {
		t.Fatal(err)
	}
	if err := good.check(false); err == nil {
		t.Error("frames in a pack that is not compressed")
	}
	for what, edit := range map[string]func(*entry){
		"another type":        func(e *entry) { e.dtype = "F32" },
		"no rows":             func(e *entry) { e.shape = []int{0, 8} },
		"no columns":          func(e *entry) { e.shape = []int{4, 0} },
		"three dimensions":    func(e *entry) { e.shape = []int{4, 8, 1} },
		"more than there is":  func(e *entry) { e.shape = []int{1 << 40, 1 << 40} },
		"frames of no rows":   func(e *entry) { e.frameRows = 0 },
		"rows beyond the end": func(e *entry) { e.frameRows = 5 },
		"a frame too many":    func(e *entry) { e.frames = []uint32{10, 10, 10} },
		"a byte less":         func(e *entry) { e.bytes = 29 },
	} {
		e := good
		edit(&e)
		if err := e.check(true); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}
