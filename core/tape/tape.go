// Package tape hands out the trunk (every matrix but the routed experts, and lm_head) in the order in which a pass
// consumes it, cut into tiles.
//
// The order never changes, so which tile comes next is always known: some tiles stay in memory, the others stream through
// a ring of buffers that is filled ahead of the pass. Where a tile comes from shows nowhere but in its arrival time.
package tape

import (
	"context"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
)

// Matrix is one matrix of the trunk.
type Matrix struct {
	Tensor     checkpoint.Tensor
	Rows, Cols int
	Format     kernel.Format
	Unit       int     // rows a tile must keep together, such as those of one head in kv_b_proj; Rows is a multiple
	Layer      int     // that the matrix belongs to, for reports; lm_head has the number of layers
	Packed     *Packed // nil: the matrix is stored as it is
}

// Packed is how a matrix lies in a file that holds it compressed: frame behind frame, each some whole rows. In memory it
// stays compressed, too; a tile is expanded when a pass comes to it.
type Packed struct {
	File disk.File
	Off  int64   // of the first frame
	Rows int     // of each frame but the last, which has what is left
	Ends []int64 // where each frame ends, counted from Off
	// TileBytes is the size, expanded, that tiles are cut to, about: small enough that what is expanded is still in the caches
	// of the processor when it is computed with, large enough for every thread to have its part. 0 is 512 KiB.
	TileBytes int
	// Expand fills dst, the rows of a frame, from all the bytes of the frame. Calls may overlap.
	Expand func(dst, frame []byte) error
}

// Tile is a block of consecutive rows of a matrix, lent to the pass until Release.
type Tile struct {
	kernel.Tile
	Matrix int // index into the tape's matrices
	Row    int // first row

	release func()
}

// Release gives the tile back. Its bytes may change from then on.
func (t Tile) Release() {
	if t.release != nil {
		t.release()
	}
}

// Tape is the trunk of one model. One pass at a time plays it.
type Tape interface {
	// Start begins a pass over matrices [0, n) of the tape. Passes that need no logits leave out the last, lm_head.
	Start(ctx context.Context, n int) (Reader, error)
	// Close frees the tape's memory. No reader may be open.
	Close() error
}

// Reader plays the tape once, from its beginning.
type Reader interface {
	// Next returns the next tile, waiting for it if need be. At most one tile may be held at a time. After an error, which
	// names the file, the offset and the tensor, or is the context's, only Close is left.
	Next() (Tile, error)
	// Close ends the pass, wherever it is.
	Close()
}
