//go:build unix

package disk

import (
	"errors"
	"syscall"
)

// allocated is how many bytes of the disk a file takes.
func allocated(f *dirFile) (int64, error) {
	st, ok := f.info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return st.Blocks * 512, nil
}
