//go:build unix

package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock takes the file for this process, or says false when another one has it. The system gives it back when the process ends.
// On a file system without locks the error is errors.ErrUnsupported.
func lock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.ENOLCK) {
		return false, errors.ErrUnsupported
	}
	return err == nil, err
}

// release removes the file while it is still held, so that nobody holds a file that the next one does not find.
func release(f *os.File, path string) {
	os.Remove(path)
	f.Close()
}
