//go:build unix

package disk

import (
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// unlockedBeforeRename is how long a temporary file may be without a lock while its writer lives.
const unlockedBeforeRename = 0

// rename gives a file that is written its name, and closes it: as long as it is the temporary one it is locked.
func rename(f *os.File, path string) error {
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return f.Close()
}

// duplicate opens what is open under a number.
func duplicate(descriptor int) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "/dev/fd/"+strconv.Itoa(descriptor)), nil
}

// keepOwner gives a file to whom the one that it replaces belongs, where that is allowed.
func keepOwner(f *os.File, old fs.FileInfo) {
	was, ok1 := old.Sys().(*syscall.Stat_t)
	info, err := f.Stat()
	if err != nil {
		return
	}
	is, ok2 := info.Sys().(*syscall.Stat_t)
	if ok1 && ok2 && (was.Uid != is.Uid || was.Gid != is.Gid) {
		f.Chown(int(was.Uid), int(was.Gid))
	}
}
