package checksum

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/k3infer/k3/core/disk"
)

// Open opens one of files. Where there are checksums of it every read is checked, and about is what they say of the file;
// otherwise about is nil. Checksums that are of no use, or of a file of another size, are an error that matches ErrFormat.
func Open(files disk.Files, name string) (f disk.File, about *File, err error) {
	f, err = files.Open(name)
	if err != nil {
		return nil, nil, err
	}
	about, err = Load(files, name)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil, nil
	}
	if err == nil {
		var checked disk.File
		if checked, err = disk.Summed(f, about.Sums); err == nil {
			return checked, about, nil
		}
		err = fmt.Errorf("checksum: open %s: %w: %d bytes are there, the checksums are of %d", f.Name(), ErrFormat, f.Size(), about.Size)
	}
	f.Close()
	return nil, nil, err
}

// Exists tells whether there are checksums of one of files.
func Exists(files disk.Files, file string) bool {
	f, err := files.Open(filepath.FromSlash(name(file)))
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// Ignore returns files without their checksums: Open opens them as they are.
func Ignore(files disk.Files) disk.Files { return ignoring{files} }

type ignoring struct{ disk.Files }

func (i ignoring) Open(name string) (disk.File, error) {
	if strings.HasPrefix(filepath.ToSlash(name), Folder+"/"+subfolder+"/") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return i.Files.Open(name)
}
