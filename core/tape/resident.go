package tape

import (
	"context"
	"fmt"
	"io"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// tileBytes is the size of a tile, about.
const tileBytes = 16 << 20

// Resident is a tape that holds every matrix in memory.
type Resident struct {
	matrices []Matrix
	blocks   []*memory.Block
}

// Load reads all matrices.
func Load(ctx context.Context, m *checkpoint.Model, matrices []Matrix, account *memory.Account) (*Resident, error) {
	t := &Resident{matrices: matrices}
	for _, x := range matrices {
		b, err := account.Allocate("trunk", int(x.Tensor.Bytes))
		if err == nil {
			t.blocks = append(t.blocks, b)
			if err = ctx.Err(); err == nil {
				err = m.Read(b.Bytes(), x.Tensor, 0)
			}
		}
		if err != nil {
			t.Close()
			return nil, fmt.Errorf("tape: load %s: %w", x.Tensor.Name, err)
		}
	}
	return t, nil
}

// Close frees the matrices.
func (t *Resident) Close() error {
	for _, b := range t.blocks {
		b.Free()
	}
	t.blocks = nil
	return nil
}

// Start begins a pass.
func (t *Resident) Start(ctx context.Context, n int) (Reader, error) {
	return &residentReader{tape: t, ctx: ctx, n: n}, nil
}

type residentReader struct {
	tape        *Resident
	ctx         context.Context
	n           int
	matrix, row int
}

func (r *residentReader) Next() (Tile, error) {
	if err := r.ctx.Err(); err != nil {
		return Tile{}, fmt.Errorf("tape: %w", err)
	}
	if r.matrix == r.n {
		return Tile{}, fmt.Errorf("tape: read on: %w", io.EOF)
	}
	m := r.tape.matrices[r.matrix]
	whole := kernel.Tile{Format: m.Format, Rows: m.Rows, Cols: m.Cols, Stride: m.Cols, Data: r.tape.blocks[r.matrix].Bytes()}
	n := max(1, tileBytes/(m.Format.RowBytes(m.Cols)*m.Unit)) * m.Unit
	to := min(r.row+n, m.Rows)
	out := Tile{Tile: whole.Slice(r.row, to), Matrix: r.matrix, Row: r.row}
	out.Check()
	if r.row = to; to == m.Rows {
		r.matrix, r.row = r.matrix+1, 0
	}
	return out, nil
}

func (r *residentReader) Close() {}
