package experts

import (
	"context"
	"fmt"
	"io"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// Resident is a store that holds every expert in memory.
type Resident struct {
	experts map[Key]Expert
	blocks  []*memory.Block
}

// Load reads all experts of a model.
func Load(ctx context.Context, m *checkpoint.Model, account *memory.Account) (*Resident, error) {
	s := &Resident{experts: map[Key]Expert{}}
	c := m.Config
	for layer := c.DenseLayers; layer < c.Layers; layer++ {
		for id := range c.MoE.Experts {
			if err := ctx.Err(); err != nil {
				s.Close()
				return nil, fmt.Errorf("experts: load: %w", err)
			}
			x, err := s.load(m, layer, id, account)
			if err != nil {
				s.Close()
				return nil, fmt.Errorf("experts: load layer %d expert %d: %w", layer, id, err)
			}
			s.experts[Key{int32(layer), int32(id)}] = x
		}
	}
	return s, nil
}

func (s *Resident) load(m *checkpoint.Model, layer, id int, account *memory.Account) (Expert, error) {
	parts := m.Index.Expert(layer, id, nil)
	var data [][]byte
	for _, t := range parts {
		b, err := account.Allocate("experts", int(t.Bytes))
		if err != nil {
			return Expert{}, err
		}
		s.blocks = append(s.blocks, b)
		if err := m.Read(b.Bytes(), t, 0); err != nil {
			return Expert{}, err
		}
		data = append(data, b.Bytes())
	}
	x := Expert{ID: id}
	latent, inner := m.Config.MoE.Latent, m.Config.MoE.Intermediate
	per := len(parts) / 3 // tensors a matrix
	for i, w := range []struct {
		tile       *kernel.Tile
		rows, cols int
	}{{&x.W1, inner, latent}, {&x.W2, latent, inner}, {&x.W3, inner, latent}} {
		*w.tile = kernel.Tile{Rows: w.rows, Cols: w.cols, Stride: w.cols, Data: data[i*per]}
		switch t := parts[i*per]; t.DType {
		case checkpoint.U8:
			w.tile.Format, w.tile.Scale = kernel.MXFP4, data[i*per+1]
		case checkpoint.BF16:
			w.tile.Format = kernel.BF16
		case checkpoint.F16:
			w.tile.Format = kernel.F16
		case checkpoint.F32:
			w.tile.Format = kernel.F32
		}
		w.tile.Check()
	}
	return x, nil
}

// Close frees the experts.
func (s *Resident) Close() error {
	for _, b := range s.blocks {
		b.Free()
	}
	s.blocks = nil
	return nil
}

// Request finds the experts in memory.
func (s *Resident) Request(ctx context.Context, layer int, ids []int) (Batch, error) {
	return &residentBatch{s, ctx, layer, ids}, nil
}

type residentBatch struct {
	store *Resident
	ctx   context.Context
	layer int
	left  []int
}

func (b *residentBatch) Next() (Expert, error) {
	if err := b.ctx.Err(); err != nil {
		return Expert{}, fmt.Errorf("experts: layer %d: %w", b.layer, err)
	}
	if len(b.left) == 0 {
		return Expert{}, fmt.Errorf("experts: layer %d: %w", b.layer, io.EOF)
	}
	x := b.store.experts[Key{int32(b.layer), int32(b.left[0])}]
	b.left = b.left[1:]
	return x, nil
}

func (b *residentBatch) Close() {}
