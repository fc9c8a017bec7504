//go:build linux || darwin

package disk

import (
	"fmt"
	"os"
	"syscall"
)

// inode is the number of a file on its disk and the time of the last change of any sort, which no program can set back.
func inode(info os.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(s.Dev, s.Ino, changeTime(s))
	}
	return ""
}
