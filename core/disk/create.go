package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// NewFile is a file that appears under its name when it is complete and not before: it is written beside its place under
// another name, and Commit moves it there.
type NewFile struct {
	*os.File
	path string
}

// Create begins the file that will be called path.
func Create(path string) (*NewFile, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.partial")
	if err != nil {
		return nil, fmt.Errorf("disk: create %s: %w", path, err)
	}
	return &NewFile{f, path}, nil
}

// Path is the name the file will have.
func (f *NewFile) Path() string { return f.path }

// Commit makes the file durable and gives it its name, replacing a file that has it.
func (f *NewFile) Commit() error {
	err := f.Chmod(0o644)
	if errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("disk: write %s: %w", f.path, err)
	}
	// The name itself must survive a crash too. Systems that cannot sync a directory keep their names otherwise.
	if d, err := os.Open(filepath.Dir(f.path)); err == nil {
		d.Sync()
		d.Close()
	}
	return nil
}

// Abandon removes the file unless it was committed.
func (f *NewFile) Abandon() {
	if f.Close() == nil {
		os.Remove(f.Name())
	}
}
