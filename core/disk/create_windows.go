package disk

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// unlockedBeforeRename is how long a temporary file may be without a lock while its writer lives: the system renames no open file.
const unlockedBeforeRename = time.Minute

// rename closes a file that is written and gives it its name.
func rename(f *os.File, path string) error {
	if err := f.Close(); err != nil {
		return err
	}
	err := os.Rename(f.Name(), path)
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func duplicate(int) (*os.File, error) { return nil, errors.ErrUnsupported }

func keepOwner(*os.File, fs.FileInfo) {}
