package fabricate

import (
	"fmt"
	"os"

	"golang.org/x/sys/windows"
)

// freeSpace is how many bytes a user may write to the disk that path is on.
func freeSpace(path string) (int64, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &free, nil, nil); err != nil {
		return 0, err
	}
	return int64(free), nil
}

// makeSparse lets a file have holes, which here must be asked for.
func makeSparse(f *os.File) error {
	var n uint32
	if err := windows.DeviceIoControl(windows.Handle(f.Fd()), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &n, nil); err != nil {
		return fmt.Errorf("make %s sparse: %w", f.Name(), err)
	}
	return nil
}
