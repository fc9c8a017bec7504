// Package disktest has files that fail on purpose, and files in memory, for tests of all that reads a checkpoint.
package disktest

import (
	"bytes"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/k3infer/k3/core/disk"
)

// Memory is files held in memory, by name.
type Memory map[string][]byte

// Name implements disk.Files.
func (m Memory) Name() string { return "memory" }

// List implements disk.Files.
func (m Memory) List() ([]string, error) {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// Open implements disk.Files.
func (m Memory) Open(name string) (disk.File, error) {
	p, ok := m[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &memoryFile{bytes.NewReader(p), name}, nil
}

type memoryFile struct {
	*bytes.Reader
	name string
}

func (f *memoryFile) Name() string { return f.name }
func (f *memoryFile) Close() error { return nil }

// Fault stands between a reader and a file: it is called in place of r.ReadAt(p, off), and usually calls that.
type Fault func(r io.ReaderAt, name string, p []byte, off int64) (int, error)

// Direct is how the files of a Faulty collection answer to direct reads.
type Direct int

// The answers. In all but NoDirect and RefuseAtOpen the fault is in the way of direct reads too.
const (
	NoDirect          Direct = iota // they do not know of direct reads
	RefuseAtOpen                    // they cannot be opened for them, like those of a tmpfs
	RefuseAtFirstRead               // they can be opened, and then no read works, like those of some FUSE file systems
	AllowDirect                     // direct reads work, when offset, length and address are multiples of disk.Block
)

// Faulty is a collection whose files have a fault.
type Faulty struct {
	disk.Files
	Direct Direct

	fault atomic.Pointer[Fault]
	open  atomic.Int64
}

// Wrap puts a fault in the way of all reads of files. A nil fault is none.
func Wrap(files disk.Files, fault Fault) *Faulty {
	f := &Faulty{Files: files}
	f.Set(fault)
	return f
}

// Set changes the fault, also for files that are open.
func (f *Faulty) Set(fault Fault) {
	if fault == nil {
		fault = func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) { return r.ReadAt(p, off) }
	}
	f.fault.Store(&fault)
}

// OpenFiles is the number of files and direct readers that were opened and not closed.
func (f *Faulty) OpenFiles() int { return int(f.open.Load()) }

// Open implements disk.Files.
func (f *Faulty) Open(name string) (disk.File, error) {
	g, err := f.Files.Open(name)
	if err != nil {
		return nil, err
	}
	f.open.Add(1)
	file := &faultyFile{g, f}
	if f.Direct == NoDirect {
		return file, nil
	}
	return &directFile{faultyFile: *file}, nil
}

type faultyFile struct {
	disk.File
	owner *Faulty
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	return (*f.owner.fault.Load())(f.File, f.Name(), p, off)
}

func (f *faultyFile) Close() error {
	f.owner.open.Add(-1)
	return f.File.Close()
}

type directFile struct{ faultyFile }

func (f *directFile) OpenDirect() (disk.DirectReader, error) {
	if f.owner.Direct == RefuseAtOpen {
		return nil, syscall.EINVAL
	}
	f.owner.open.Add(1)
	return &directReader{f}, nil
}

type directReader struct{ f *directFile }

func (d *directReader) ReadAt(p []byte, off int64) (int, error) {
	if d.f.owner.Direct == RefuseAtFirstRead || off%disk.Block != 0 || len(p)%disk.Block != 0 || !disk.Aligned(p) {
		return 0, syscall.EINVAL
	}
	return d.f.ReadAt(p, off)
}

func (d *directReader) Close() error {
	d.f.owner.open.Add(-1)
	return nil
}

// FailAt makes every read that touches byte off of the named file deliver what is before it and fail with err.
func FailAt(file string, off int64, err error) Fault {
	return func(r io.ReaderAt, name string, p []byte, at int64) (int, error) {
		if name != file || off < at || off >= at+int64(len(p)) {
			return r.ReadAt(p, at)
		}
		n, readErr := r.ReadAt(p[:off-at], at)
		if readErr != nil {
			return n, readErr
		}
		return n, err
	}
}

// Truncate makes the named file end at size.
func Truncate(file string, size int64) Fault { return FailAt(file, size, io.EOF) }

// OneByte delivers one byte a read.
func OneByte(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
	return r.ReadAt(p[:min(len(p), 1)], off)
}

// ShortByOne leaves out the last byte of every read of more than one.
func ShortByOne(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
	return r.ReadAt(p[:max(len(p)-1, min(len(p), 1))], off)
}

// Interrupt fails every second read with EINTR.
func Interrupt() Fault {
	var n atomic.Int64
	return func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		if n.Add(1)%2 == 1 {
			return 0, syscall.EINTR
		}
		return r.ReadAt(p, off)
	}
}

// Slow lets every read take d longer.
func Slow(d time.Duration) Fault {
	return func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		time.Sleep(d)
		return r.ReadAt(p, off)
	}
}
