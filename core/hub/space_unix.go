//go:build unix

package hub

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// freeSpace is what this user may still write on the disk of an existing path, and a name for that disk.
func freeSpace(path string) (bytes int64, volume string, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, "", fmt.Errorf("free space of %s: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, "", err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		volume = fmt.Sprint(st.Dev)
	}
	return int64(s.Bavail) * int64(s.Bsize), volume, nil
}
