package hub

import (
	"fmt"
	"strings"

	"golang.org/x/sys/windows"
)

// volume is a name for the disk of an existing path.
func volume(path string) (string, error) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return "", fmt.Errorf("volume of %s: %w", path, err)
	}
	name := make([]uint16, windows.MAX_PATH+1)
	if err := windows.GetVolumePathName(p, &name[0], uint32(len(name))); err != nil {
		return "", fmt.Errorf("volume of %s: %w", path, err)
	}
	return strings.ToLower(windows.UTF16ToString(name)), nil
}
