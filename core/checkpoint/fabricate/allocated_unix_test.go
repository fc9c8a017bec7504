//go:build unix

package fabricate_test

import (
	"os"
	"syscall"
)

// allocated is how many bytes of the disk a file takes.
func allocated(info os.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks * 512 }
