package fabricate

import (
	"fmt"
	"os"

	"golang.org/x/sys/windows"
)

// makeSparse lets a file have holes, which here must be asked for.
func makeSparse(f *os.File) error {
	var n uint32
	if err := windows.DeviceIoControl(windows.Handle(f.Fd()), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &n, nil); err != nil {
		return fmt.Errorf("make %s sparse: %w", f.Name(), err)
	}
	return nil
}
