package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// NewFile is a file that appears under its name when it is complete and not before: it is written beside its place under
// another name, and Commit moves it there. Where the name is that of a device, a pipe or an open file, it is written to at once.
type NewFile struct {
	file   *os.File
	path   string      // as asked for
	target string      // what it stands for, links followed; "" where it is written to at once
	old    fs.FileInfo // the file that is replaced; nil: none
}

// Create begins the file that will be called path. Symbolic links are followed, also one to a file that is not there yet. A file
// that is replaced keeps its permissions; a new one has those of the process (umask).
func Create(path string) (*NewFile, error) { return create(path, 0o666) }

// CreatePrivate is Create for what is nobody else's business: a new file is for its owner alone.
func CreatePrivate(path string) (*NewFile, error) { return create(path, 0o600) }

// CanCreate returns the error that Create would have, and leaves nothing.
func CanCreate(path string) error {
	p, err := locate(path)
	if err != nil || p.stream {
		return err // whoever reads from a pipe would take its opening for the beginning and its closing for the end
	}
	f, err := Create(path)
	if err != nil {
		return err
	}
	f.Abandon()
	return nil
}

// IsStream reports whether path names something that is written to at once: a device, a pipe or an open file.
func IsStream(path string) bool {
	p, err := locate(path)
	return err == nil && p.stream
}

func create(path string, mode fs.FileMode) (*NewFile, error) {
	p, err := locate(path)
	if err != nil {
		return nil, err
	}
	f := &NewFile{path: path}
	if p.stream {
		if p.descriptor >= 0 {
			f.file, err = duplicate(p.descriptor)
		} else {
			f.file, err = os.OpenFile(p.target, os.O_WRONLY, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("disk: create %s: %w", path, cause(err))
		}
		return f, nil
	}
	f.target, f.old = p.target, p.info
	dir, name := filepath.Split(p.target)
	Sweep(dir, func(of string) bool { return of == name })
	if f.old != nil {
		mode = 0o600 // until it has the permissions of the other
	}
	if f.file, err = createTemporary(dir, name, mode); err != nil {
		return nil, fmt.Errorf("disk: create %s: %w", path, cause(err))
	}
	return f, nil
}

// place is what the name of a file stands for.
type place struct {
	target     string
	info       fs.FileInfo // of what is there; nil: nothing
	stream     bool
	descriptor int // of a file that is open; -1: none
}

// maxLinks is how many symbolic links may lead to a file.
const maxLinks = 40

// locate follows the links of path. It leaves "..", which goes back from where a link has led to, to the system.
func locate(path string) (place, error) {
	p := place{target: path, descriptor: -1}
	refuse := func(err error) (place, error) { return p, fmt.Errorf("disk: create %s: %w", path, cause(err)) }
	for range maxLinks {
		if n, ok := descriptor(p.target); ok {
			p.stream, p.descriptor = true, n
			return p, nil
		}
		if p.target == "" || os.IsPathSeparator(p.target[len(p.target)-1]) {
			return refuse(syscall.EISDIR)
		}
		info, err := os.Lstat(p.target)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return p, nil
		case err != nil:
			return refuse(err)
		case info.IsDir():
			return refuse(syscall.EISDIR)
		case info.Mode()&fs.ModeSymlink == 0:
			p.info, p.stream = info, !info.Mode().IsRegular()
			return p, nil
		}
		link, err := os.Readlink(p.target)
		if err != nil {
			return refuse(err)
		}
		if !filepath.IsAbs(link) {
			dir, _ := filepath.Split(p.target)
			link = dir + link
		}
		p.target = link
	}
	return refuse(errors.New("too many symbolic links"))
}

// descriptor returns the number of the open file that a name such as /dev/fd/3 stands for. Its name leads to a pipe that has none,
// or to a file that is being written by others.
func descriptor(path string) (n int, ok bool) {
	if runtime.GOOS == "windows" {
		return 0, false
	}
	switch path {
	case "/dev/stdout":
		return 1, true
	case "/dev/stderr":
		return 2, true
	}
	for _, dir := range []string{"/dev/fd/", "/proc/self/fd/"} {
		if digits, found := strings.CutPrefix(path, dir); found {
			n, err := strconv.ParseUint(digits, 10, 31)
			return int(n), err == nil
		}
	}
	return 0, false
}

// temporaryEnding ends the names of temporary files, .NAME.DIGITS.partial. Whoever writes one holds it locked.
const temporaryEnding = ".partial"

func createTemporary(dir, name string, mode fs.FileMode) (*os.File, error) {
	for {
		path := dir + "." + name + "." + strconv.FormatUint(uint64(rand.Uint32()), 10) + temporaryEnding
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ok, err := lock(f)
		if errors.Is(err, errors.ErrUnsupported) {
			return f, nil
		}
		if err == nil && ok && stands(f, path) {
			return f, nil
		}
		// Sweep has come between, or it went wrong.
		f.Close()
		os.Remove(path)
		if err != nil {
			return nil, err
		}
	}
}

// stands reports whether the open file is still the one of that name.
func stands(f *os.File, path string) bool {
	mine, err1 := f.Stat()
	there, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(mine, there)
}

// Sweep removes the temporary files that processes which were killed have left in a directory, of files whose names are ours, and
// returns how many bytes those have that are being written.
func Sweep(dir string, ours func(name string) bool) (busy int64) {
	if dir == "" {
		dir = "."
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0 // creating a file there will say it
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), temporaryEnding)
		dot := strings.LastIndexByte(name, '.')
		if !ok || dot < 2 || name[0] != '.' || !ours(name[1:dot]) {
			continue
		}
		if _, err := strconv.ParseUint(name[dot+1:], 10, 64); err != nil {
			continue
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && !sweep(filepath.Join(dir, e.Name()), info) {
			busy += info.Size()
		}
	}
	return busy
}

// sweep removes a temporary file unless somebody writes it.
func sweep(path string, info fs.FileInfo) bool {
	if time.Since(info.ModTime()) < unlockedBeforeRename {
		return false
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	ok, err := lock(f)
	if err != nil || !ok {
		return false // where nothing can be locked, nobody knows whose it is
	}
	if stands(f, path) {
		release(f, path)
	}
	return true
}

// cause is the error without the name of the file, which may be a temporary one.
func cause(err error) error {
	var file *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &file):
		return file.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

// Path is the name the file will have.
func (f *NewFile) Path() string { return f.path }

// Write appends to the file.
func (f *NewFile) Write(p []byte) (int, error) {
	n, err := f.file.Write(p)
	return n, cause(err)
}

// Read and Seek go back to what was written. Streams have no way back.
func (f *NewFile) Read(p []byte) (int, error) {
	n, err := f.file.Read(p)
	if err != io.EOF {
		err = cause(err)
	}
	return n, err
}

// Seek goes to a place of the file.
func (f *NewFile) Seek(offset int64, whence int) (int64, error) {
	n, err := f.file.Seek(offset, whence)
	return n, cause(err)
}

// Commit makes the file durable and gives it its name, replacing a file that has it.
func (f *NewFile) Commit() error {
	if err := f.commit(); err != nil {
		return fmt.Errorf("disk: write %s: %w", f.path, cause(err))
	}
	return nil
}

func (f *NewFile) commit() error {
	if f.target == "" {
		return f.file.Close()
	}
	var err error
	if f.old != nil {
		keepOwner(f.file, f.old)
		if err = f.file.Chmod(f.old.Mode().Perm()); errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
	}
	if err = errors.Join(err, f.file.Sync()); err == nil {
		err = rename(f.file, f.target)
	}
	if err != nil {
		f.Abandon()
		return err
	}
	// The name itself must survive a crash too. filepath.Dir would take ".." for the way back from a link's place.
	dir, _ := filepath.Split(f.target)
	SyncDir(cmp.Or(dir, "."))
	return nil
}

// SyncDir makes the names in a directory durable. Systems that cannot sync a directory keep names otherwise.
func SyncDir(path string) {
	if d, err := os.Open(path); err == nil {
		d.Sync()
		d.Close()
	}
}

// Abandon gives the file up: what was written is removed and the name keeps the file it had. After Commit it does
// nothing, so it can be deferred as soon as the file is created. What was written to a device or a pipe stays.
func (f *NewFile) Abandon() {
	if f.target == "" || !stands(f.file, f.file.Name()) {
		f.file.Close()
		return
	}
	release(f.file, f.file.Name())
}
