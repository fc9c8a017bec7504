package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lock takes the file for this process, or says false when another one has it. The system gives it back when the process ends.
func lock(f *os.File) (bool, error) {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}

// release removes the file once it is closed: before, the system refuses, as it does while somebody else has it open.
func release(f *os.File, path string) {
	f.Close()
	os.Remove(path)
}
