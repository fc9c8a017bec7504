package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

func openDirect(path string) (DirectReader, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	return f, nil
}
