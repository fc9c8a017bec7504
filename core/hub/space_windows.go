package hub

import (
	"fmt"
	"strings"

	"golang.org/x/sys/windows"
)

// freeSpace is what this user may still write on the disk of an existing path, and a name for that disk.
func freeSpace(path string) (bytes int64, volume string, err error) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, "", fmt.Errorf("free space of %s: %w", path, err)
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(p, &free, nil, nil); err != nil {
		return 0, "", fmt.Errorf("free space of %s: %w", path, err)
	}
	name := make([]uint16, windows.MAX_PATH+1)
	if err := windows.GetVolumePathName(p, &name[0], uint32(len(name))); err != nil {
		return 0, "", fmt.Errorf("free space of %s: %w", path, err)
	}
	return int64(min(free, 1<<62)), strings.ToLower(windows.UTF16ToString(name)), nil
}
