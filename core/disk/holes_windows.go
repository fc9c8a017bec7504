package disk

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var getCompressedFileSize = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetCompressedFileSizeW")

// allocated is how many bytes of the disk a file takes.
func allocated(f *dirFile) (int64, error) {
	name, err := windows.UTF16PtrFromString(f.name)
	if err != nil {
		return 0, err
	}
	var high uint32
	low, _, err := getCompressedFileSize.Call(uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&high)))
	if uint32(low) == 0xffffffff && err != windows.ERROR_SUCCESS {
		return 0, err
	}
	return int64(high)<<32 | int64(uint32(low)), nil
}
