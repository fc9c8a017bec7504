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
	"syscall"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checksum"
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

// errSum says that a file of a pack has a checksum and is not what it says.
var errSum = errors.New("is not what its checksum says")

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

// Frames says where the compressed pieces of a matrix are. A frame holds a given number of its rows, compressed
// together and without need of the other frames; Expand turns one back into those rows.
type Frames struct {
	Rows int     // of each frame but the last, which has what is left
	Ends []int64 // where each frame ends, counted from where the tensor begins
}

// Open opens the pack among files and makes sure that it is one of m: by names, types, shapes and sizes of all tensors, and by
// m's fingerprint, which k3 notes beside a pack; where it is not noted, by samples of every tensor. Where a compressed and a
// plain pack are, it is the compressed one, unless only the plain one is of m. Reads of a pack with checksums are checked. The error
// matches ErrNone, ErrFormat or ErrOther unless reading failed. cache is that of checkpoint.Model.Fingerprint.
func Open(ctx context.Context, files disk.Files, m *checkpoint.Model, cache string) (*Pack, error) {
	p, err := open(ctx, files, compressedName, m, cache)
	if none := errors.Is(err, ErrNone); none || errors.Is(err, ErrOther) {
		plain, e := open(ctx, files, plainName, m, cache)
		if none || !errors.Is(e, ErrNone) {
			p, err = plain, e
		}
	}
	if errors.Is(err, syscall.ENOTDIR) {
		err = fmt.Errorf("%w: it is not a directory", ErrNone)
	}
	if err != nil {
		return nil, fmt.Errorf("pack: open %s: %w", files.Name(), err)
	}
	return p, nil
}

func open(ctx context.Context, files disk.Files, name string, m *checkpoint.Model, cache string) (*Pack, error) {
	list, err := readManifest(files, name)
	if err != nil {
		return nil, err
	}
	p := &Pack{tensors: map[string]place{}}
	var about *checksum.File
	if p.file, about, err = checksum.Open(files, name+dataEnding); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %s is missing", ErrFormat, name+dataEnding)
		}
		if errors.Is(err, checksum.ErrFormat) {
			err = fmt.Errorf("%w: %w", ErrFormat, err)
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
		if about != nil && about.Of != nil {
			err = whose(ctx, *about.Of, m, cache)
		} else {
			err = p.sample(ctx, m, list.layers)
		}
	}
	if err != nil {
		p.file.Close()
		return nil, err
	}
	return p, nil
}

// whose compares the fingerprint noted beside a pack with that of the checkpoint.
func whose(ctx context.Context, of checksum.Of, m *checkpoint.Model, cache string) error {
	want, err := m.Fingerprint(ctx, cache)
	if err == nil && !want.Matches(checkpoint.Fingerprint(of)) {
		err = fmt.Errorf("%w: it was made of other weights", ErrOther)
	}
	return err
}

// readManifest reads the list of what the pack of a name has. Where there is a checksum of it, it must be right.
func readManifest(files disk.Files, name string) (*manifest, error) {
	known, err := readSums(files, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	name += listEnding
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
	data := make([]byte, f.Size())
	if err := disk.ReadFull(f, data, 0); err != nil {
		return nil, err
	}
	if want := known[name]; want != "" && hexSum(data) != want {
		return nil, fmt.Errorf("%w: %s %w", ErrFormat, name, errSum)
	}
	r := strictjson.New(data)
	list := parseManifest(r)
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

// Frames is the number of frames in the pack, those of all its tensors together.
func (p *Pack) Frames() (n int) {
	for _, at := range p.tensors {
		if at.frames != nil {
			n += len(at.frames.Ends)
		}
	}
	return n
}

// Checksums is the memory that the pack's checksums take; 0 if it has none.
func (p *Pack) Checksums() int64 {
	if _, sums := disk.Unchecked(p.file); sums != nil {
		return sums.Memory()
	}
	return 0
}

// Changed tells whether the pack is still what it was when it was opened; if not, the error matches disk.ErrChanged.
func (p *Pack) Changed() error { return disk.Changed(p.file) }

// Close closes the pack's file.
func (p *Pack) Close() error { return p.file.Close() }

// What is compared of each tensor to know a model's weights again.
const (
	sampleBytes = 1 << 10
	samples     = 4 // of a tensor that is stored as it is; of a compressed one it is one
)

// sample compares samples of every tensor with the checkpoint.
func (p *Pack) sample(ctx context.Context, m *checkpoint.Model, layers []layer) error {
	want, got := make([]byte, sampleBytes), make([]byte, sampleBytes)
	for _, l := range layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range l.tensors {
			t, _ := m.Index.Lookup(e.name)
			length, count := min(t.Bytes, sampleBytes), int64(samples)
			if p.tensors[e.name].frames != nil || t.Bytes == length {
				count = 1
			}
			for i := range count {
				from := (t.Bytes - length) * (2*i + 1) / (2 * count)
				if err := m.Read(want[:length], t, from); err != nil {
					return err
				}
				if err := p.read(got[:length], t, from); err != nil {
					return err
				}
				if !bytes.Equal(got[:length], want[:length]) {
					return fmt.Errorf("%w: tensor %s has other weights", ErrOther, e.name)
				}
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
