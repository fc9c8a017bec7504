//go:build !linux && !darwin && !windows

package fabricate

import (
	"errors"
	"os"
)

// freeSpace is how many bytes a user may write to the disk that path is on, if that can be told.
func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }

// makeSparse lets a file have holes, where that must be asked for.
func makeSparse(*os.File) error { return nil }
