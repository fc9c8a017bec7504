// Package disk reads a checkpoint's files: from a directory, from an fs.FS such as the embedded demonstration model, or
// from whatever else implements Files (tests use one that fails on purpose).
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"syscall"
	"time"

	"github.com/k3infer/k3/core/internal/fault"
)

// Files is a flat collection of named files, opened for random access.
type Files interface {
	// Name says where the files are, for messages: a directory path, or "demo".
	Name() string
	// List returns the names of all regular files, sorted. Symbolic links to regular files count (the Hugging Face
	// cache is made of them).
	List() ([]string, error)
	// Open opens one file of the collection. A missing file gives an error that matches fs.ErrNotExist.
	Open(name string) (File, error)
}

// File is one file open for reading at any offset. ReadAt may be called from several goroutines. Its type is comparable: two
// Files are the same only if they are equal.
type File interface {
	io.ReaderAt
	io.Closer
	// Name is the file's path or name as a message should show it.
	Name() string
	// Size is the file's length in bytes when it was opened.
	Size() int64
}

// ErrShort says that a file ended before the bytes it was known to have: it was truncated while it was open.
var ErrShort = errors.New("the file ended early")

// ErrChanged says that a file is no longer the one that was opened: it was written to, replaced or removed.
var ErrChanged = errors.New("the file has changed since it was opened")

// ErrFile says that what has a file's name cannot be that file: it is a directory or a device, or larger than any such
// file.
var ErrFile = errors.New("not the file it should be")

// maxRead bounds a single read call: macOS refuses above 2^31-1 bytes and Linux stops short of it.
const maxRead = 1 << 30

// maxInterrupted is how many interrupted reads in a row are taken for signals and not for a fault.
const maxInterrupted = 1000

// Error is a read that failed.
type Error struct {
	File string // the file's name, as File.Name gives it
	Off  int64  // of the first byte that is missing
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("disk: read %s at %d: %v", e.File, e.Off, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ReadFull fills p from f at off, in pieces below 1 GiB, again after short or interrupted reads. Every error is an *Error;
// the end of the file inside the range is one that matches ErrShort.
func ReadFull(f File, p []byte, off int64) error {
	interrupted := 0
	for len(p) > 0 {
		piece := p[:min(len(p), maxRead)]
		n, err := f.ReadAt(piece, off)
		if n < 0 || n > len(piece) {
			return &Error{f.Name(), off, fmt.Errorf("the reader returned %d of %d bytes", n, len(piece))}
		}
		p, off = p[n:], off+int64(n)
		if n > 0 {
			interrupted = 0
		}
		switch {
		case n == len(piece):
		case errors.Is(err, io.EOF):
			return &Error{f.Name(), off, ErrShort}
		case errors.Is(err, syscall.EINTR) && interrupted < maxInterrupted:
			interrupted++
		case errors.Is(err, ErrChecksum):
			return err // it says where
		case err != nil:
			return &Error{f.Name(), off, err}
		case n == 0:
			return &Error{f.Name(), off, io.ErrNoProgress}
		}
	}
	return nil
}

// ReadAll reads a whole small file, refusing one above limit bytes before anything is allocated.
func ReadAll(fs Files, name string, limit int64) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size() > limit {
		return nil, fault.Errorf(ErrFile, "disk: read %s: %d bytes, more than the %d such a file may have",
			f.Name(), f.Size(), limit)
	}
	p := make([]byte, f.Size())
	return p, ReadFull(f, p, 0)
}

// Dir is the files of one directory.
func Dir(path string) Files { return dir(path) }

type dir string

func (d dir) Name() string { return string(d) }

func (d dir) List() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, fmt.Errorf("disk: list: %w", err)
	}
	var names []string
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(string(d), e.Name())); err == nil && info.Mode().IsRegular() {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

func (d dir) Open(name string) (File, error) {
	f, err := os.Open(filepath.Join(string(d), name))
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.Errorf(ErrFile, "%s: not a regular file", f.Name())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("disk: open: %w", err)
	}
	return &dirFile{file{f, f, f.Name(), info.Size()}, info}, nil
}

// Changed tells whether a file still is what it was when it was opened, by its name, size, time of change and identity. The
// error matches ErrChanged if it is not. Files that are not of a directory do not change.
func Changed(f File) error {
	f, _ = Unchecked(f)
	d, ok := f.(*dirFile)
	if !ok {
		return nil
	}
	info, err := os.Stat(d.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: it is gone", d.name, ErrChanged)
	case err != nil:
		return fmt.Errorf("disk: %w", err)
	case info.Size() != d.size:
		return fmt.Errorf("%s: %w: it had %d bytes, now %d", d.name, ErrChanged, d.size, info.Size())
	case !os.SameFile(info, d.info):
		return fmt.Errorf("%s: %w: another file has taken its name", d.name, ErrChanged)
	case !info.ModTime().Equal(d.info.ModTime()):
		return fmt.Errorf("%s: %w: it was written to at %s", d.name, ErrChanged, info.ModTime().Format(time.DateTime))
	}
	return nil
}

// Stamp is text that tells a file from others of the same name, and from itself before or after a change; "" for a file that
// is not of a directory. A file that was only read has the same stamp for ever.
func Stamp(f File) string {
	f, _ = Unchecked(f)
	d, ok := f.(*dirFile)
	if !ok {
		return ""
	}
	path, err := filepath.Abs(d.name)
	if err != nil {
		path = d.name
	}
	return fmt.Sprintf("%q %d %d %s", path, d.size, d.info.ModTime().UnixNano(), inode(d.info))
}

type file struct {
	io.ReaderAt
	io.Closer
	name string
	size int64
}

type dirFile struct {
	file
	info os.FileInfo
}

// OpenDirect implements Direct. It goes by the file's name once more, so it makes sure that the name still means this file.
func (f *dirFile) OpenDirect() (DirectReader, error) {
	d, err := openDirect(f.name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(f.name)
	if err == nil && !os.SameFile(info, f.info) {
		err = errors.New("another file has taken its name")
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (f *file) Name() string { return f.name }
func (f *file) Size() int64  { return f.size }

// FS is the files at the top of fsys, whose opened files must implement io.ReaderAt (those of embed.FS and os.DirFS do).
func FS(fsys fs.FS, name string) Files { return &fsFiles{fsys, name} }

type fsFiles struct {
	fsys fs.FS
	name string
}

func (f *fsFiles) Name() string { return f.name }

func (f *fsFiles) List() ([]string, error) {
	entries, err := fs.ReadDir(f.fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("disk: list %s: %w", f.name, err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (f *fsFiles) Open(name string) (File, error) {
	g, err := f.fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("disk: open in %s: %w", f.name, err)
	}
	r, ok := g.(io.ReaderAt)
	info, err := g.Stat()
	if err == nil && !ok {
		err = errors.New("no random access")
	}
	if err != nil {
		g.Close()
		return nil, fmt.Errorf("disk: open %s in %s: %w", name, f.name, err)
	}
	return &file{r, g, f.name + "/" + name, info.Size()}, nil
}
