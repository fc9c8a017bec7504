//go:build unix

package hub

import (
	"fmt"
	"os"
	"syscall"
)

// volume is a name for the disk of an existing path.
func volume(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(st.Dev), nil
	}
	return "", nil
}
