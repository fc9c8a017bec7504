// Package pack keeps copies of the trunk: the weights of every layer but those of routed experts, layer after layer in one
// file, so that they can lie on a faster disk than the checkpoint.
//
// A plain pack is the checkpoint's own bytes, in the format of kimi-k3-in-c. docs/packs.md describes both.
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
	// ErrSpace says that the disk has not enough room.
	ErrSpace = errors.New("not enough room on the disk")
)

// Names of the files of a pack.
const (
	plainName = "trunk"
	binary    = ".bin"
	index     = ".json"
)

// Pack is an open pack of the trunk of one checkpoint. It may be used by several goroutines.
type Pack struct {
	file    disk.File
	tensors map[string]place
}

// place is where a tensor lies in the pack's file.
type place struct {
	off, bytes int64
}

// Open opens the pack among files and makes sure that it is one of m: by names, types, shapes and sizes of all tensors, and by
// samples of the weights of each layer. The error matches ErrNone, ErrFormat or ErrOther unless reading failed.
func Open(ctx context.Context, files disk.Files, m *checkpoint.Model) (*Pack, error) {
	p, err := open(ctx, files, plainName, m)
	if err != nil {
		return nil, fmt.Errorf("pack: open %s: %w", files.Name(), err)
	}
	return p, nil
}

func open(ctx context.Context, files disk.Files, name string, m *checkpoint.Model) (*Pack, error) {
	list, err := readManifest(files, name+index)
	if err != nil {
		return nil, err
	}
	p := &Pack{tensors: map[string]place{}}
	if p.file, err = files.Open(name + binary); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %s is missing", ErrFormat, name+binary)
		}
		return nil, err
	}
	if err = list.check(p.file.Size()); err != nil {
		err = fmt.Errorf("%w: %s: %w", ErrFormat, name+index, err)
	} else if err = list.matches(m); err != nil {
		err = fmt.Errorf("%w: %s: %w", ErrOther, name+index, err)
	}
	if err == nil {
		for _, l := range list.layers {
			for _, e := range l.tensors {
				p.tensors[e.name] = place{l.offset + e.off, e.bytes}
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

// Locate is where the bytes of a tensor are, false for one that the pack has not.
func (p *Pack) Locate(t checkpoint.Tensor) (file disk.File, off int64, ok bool) {
	at, ok := p.tensors[t.Name]
	return p.file, at.off, ok
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
			if err := p.read(got, e.name, from); err != nil {
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
func (p *Pack) read(data []byte, name string, from int64) error {
	at := p.tensors[name]
	return disk.ReadFull(p.file, data, at.off+from)
}
