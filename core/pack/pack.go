// Package pack keeps copies of the trunk: the weights of every layer but those of routed experts, layer after layer in one
// file, so that they can lie on a faster disk than the checkpoint.
//
// A plain pack is the checkpoint's own bytes, in the format of kimi-k3-in-c. A compressed one stores matrices of BF16 in about
// 11.2 bits a weight, without loss. docs/packs.md describes both.
package pack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/strictjson"
)

var (
	// ErrNone says that there is no pack where one was looked for.
	ErrNone = errors.New("no packed trunk")
	// ErrFormat says that a pack is damaged or incomplete.
	ErrFormat = errors.New("damaged or incomplete pack")
	// ErrOther says that a pack is whole but belongs to another checkpoint.
	ErrOther = errors.New("a pack of another checkpoint")
	// ErrExists says that there is something that would be overwritten.
	ErrExists = errors.New("nothing is overwritten unasked")
	// ErrBusy says that another process is writing the same pack.
	ErrBusy = errors.New("another k3 is writing this pack")
	// ErrSpace says that the disk has not enough room.
	ErrSpace = errors.New("not enough room on the disk")
)

// Names of the files of a pack.
const (
	plainName      = "trunk"
	compressedName = "trunk-compressed"
	dataEnding     = ".bin"
	listEnding     = ".json"
	lockEnding     = ".lock" // while it is being written
)

// Pack is an open pack of the trunk of one checkpoint. It may be used by several goroutines.
type Pack struct {
	file    disk.File
	tensors map[string]place
}

// place is where a tensor lies in the pack's file.
type place struct {
	off    int64
	frames *Frames // nil: as in the checkpoint
}

// Frames is how a matrix is compressed: a few rows at a time, each so many a frame that Expand makes rows again.
type Frames struct {
	Rows int     // of each frame but the last, which has what is left
	Ends []int64 // where each frame ends, counted from where the tensor begins
}

// Open opens the pack among files and makes sure that it is one of m: by names, types, shapes and sizes of all tensors, and by
// samples of the weights of each layer. Where a compressed and a plain pack are, it is the compressed one. The error matches ErrNone,
// ErrFormat or ErrOther unless reading failed.
func Open(ctx context.Context, files disk.Files, m *checkpoint.Model) (*Pack, error) {
	p, err := open(ctx, files, compressedName, m)
	if errors.Is(err, ErrNone) {
		p, err = open(ctx, files, plainName, m)
	}
	if err != nil {
		return nil, fmt.Errorf("pack: open %s: %w", files.Name(), err)
	}
	return p, nil
}

func open(ctx context.Context, files disk.Files, name string, m *checkpoint.Model) (*Pack, error) {
	list, err := readManifest(files, name+listEnding)
	if err != nil {
		return nil, err
	}
	p := &Pack{tensors: map[string]place{}}
	if p.file, err = files.Open(name + dataEnding); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %s is missing", ErrFormat, name+dataEnding)
		}
		return nil, err
	}
	if err = list.check(p.file.Size()); err == nil && list.compressed != (name == compressedName) {
		err = fmt.Errorf("it has the name of another sort of pack")
	}
	if err != nil {
		err = fmt.Errorf("%w: %s: %w", ErrFormat, name+listEnding, err)
	} else if err = list.matches(m); err != nil {
		err = fmt.Errorf("%w: %s: %w", ErrOther, name+listEnding, err)
	}
	if err == nil {
		for _, l := range list.layers {
			for _, e := range l.tensors {
				p.tensors[e.name] = place{l.offset + e.off, e.ends()}
			}
		}
		err = p.sample(ctx, m, list.layers)
	}
	if err != nil {
		p.file.Close()
		return nil, err
	}
	return p, nil
}

// readManifest reads the list of what a pack has.
func readManifest(files disk.Files, name string) (*manifest, error) {
	f, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing", ErrNone, name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size() > maxManifest {
		return nil, fmt.Errorf("%w: %s: %d bytes, at most %d are expected", ErrFormat, name, f.Size(), maxManifest)
	}
	var r strictjson.Reader
	r.Reset(func(p []byte, off int64) error { return disk.ReadFull(f, p, off) }, 0, f.Size())
	list := parseManifest(&r)
	var syntax *strictjson.SyntaxError
	if err := r.Err(); errors.As(err, &syntax) {
		return nil, fmt.Errorf("%w: %s: %w", ErrFormat, name, err)
	} else if err != nil {
		return nil, err
	}
	return list, nil
}

// Locate is where the bytes of a tensor are, false for one that the pack has not. Where frames is not nil they are compressed.
func (p *Pack) Locate(t checkpoint.Tensor) (file disk.File, off int64, frames *Frames, ok bool) {
	at, ok := p.tensors[t.Name]
	return p.file, at.off, at.frames, ok
}

// Frames is the number of frames of all tensors.
func (p *Pack) Frames() (n int) {
	for _, at := range p.tensors {
		if at.frames != nil {
			n += len(at.frames.Ends)
		}
	}
	return n
}

// Close closes the pack's file.
func (p *Pack) Close() error { return p.file.Close() }

// sampleBytes is how much of a tensor is compared to know a checkpoint's weights again.
const sampleBytes = 4096

// sampled are the tensors of a layer that samples are taken of: its largest and its smallest.
func sampled[T any](tensors []T, bytes func(T) int64) []T {
	if len(tensors) == 0 {
		return nil
	}
	small, large := tensors[0], tensors[0]
	for _, t := range tensors {
		if bytes(t) < bytes(small) {
			small = t
		}
		if bytes(t) > bytes(large) {
			large = t
		}
	}
	return []T{small, large}
}

// readSample reads a sample of a tensor of the checkpoint, from its middle.
func readSample(m *checkpoint.Model, t checkpoint.Tensor) (sample []byte, from int64, err error) {
	n := min(t.Bytes, sampleBytes)
	from = (t.Bytes - n) / 2
	sample = make([]byte, n)
	return sample, from, m.Read(sample, t, from)
}

// sample compares samples of every layer with the checkpoint.
func (p *Pack) sample(ctx context.Context, m *checkpoint.Model, layers []layer) error {
	for _, l := range layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range sampled(l.tensors, func(e entry) int64 { return e.bytes }) {
			t, _ := m.Index.Lookup(e.name)
			want, from, err := readSample(m, t)
			if err != nil {
				return err
			}
			got := make([]byte, len(want))
			if err := p.read(got, t, from); err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("%w: tensor %s has other weights", ErrOther, e.name)
			}
		}
	}
	return nil
}

// read fills data with the bytes of a tensor, as in the checkpoint, from its byte from on.
func (p *Pack) read(data []byte, t checkpoint.Tensor, from int64) error {
	at := p.tensors[t.Name]
	if at.frames == nil {
		return disk.ReadFull(p.file, data, at.off+from)
	}
	row := t.Bytes / int64(t.Shape[0])
	size := int64(at.frames.Rows) * row
	for n := from / size; len(data) > 0; n++ {
		start := int64(0)
		if n > 0 {
			start = at.frames.Ends[n-1]
		}
		src := make([]byte, at.frames.Ends[n]-start)
		if err := disk.ReadFull(p.file, src, at.off+start); err != nil {
			return err
		}
		rows := make([]byte, min(size, t.Bytes-n*size))
		if err := Expand(rows, src); err != nil {
			return fmt.Errorf("%w: tensor %s: %w", ErrFormat, t, err)
		}
		done := copy(data, rows[from-n*size:])
		data, from = data[done:], from+int64(done)
	}
	return nil
}
