package disk

import (
	"fmt"
	"os"
	"path/filepath"
)

// Existing is the nearest directory at or above path that is there.
func Existing(path string) string {
	for {
		info, err := os.Stat(path)
		parent := filepath.Dir(path)
		if err == nil && info.IsDir() || parent == path {
			return path
		}
		path = parent
	}
}

// FreeSpace is how many bytes a user may write to the disk that path is on, or will be once it is made. Where that cannot be
// told it is an error; writing will tell then.
func FreeSpace(path string) (int64, error) {
	path = Existing(path)
	free, err := freeSpace(path)
	if err != nil {
		return 0, fmt.Errorf("disk: free space of %s: %w", path, err)
	}
	return free, nil
}
