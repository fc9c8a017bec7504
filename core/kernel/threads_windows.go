package kernel

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// logicalProcessor is SYSTEM_LOGICAL_PROCESSOR_INFORMATION.
type logicalProcessor struct {
	mask         uintptr
	relationship uint32
	_            [2]uint64
}

// usableCores counts the cores of the process's processor group.
func usableCores() int {
	get := windows.NewLazySystemDLL("kernel32.dll").NewProc("GetLogicalProcessorInformation")
	if get.Find() != nil {
		return 0
	}
	const most = 1024
	all := make([]logicalProcessor, most)
	size := uint32(most * unsafe.Sizeof(all[0]))
	if ok, _, _ := get.Call(uintptr(unsafe.Pointer(&all[0])), uintptr(unsafe.Pointer(&size))); ok == 0 {
		return 0
	}
	n := 0
	for _, p := range all[:size/uint32(unsafe.Sizeof(all[0]))] {
		if p.relationship == 0 { // a core
			n++
		}
	}
	return n
}
