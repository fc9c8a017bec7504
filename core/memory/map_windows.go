package memory

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

func mapMemory(n int) ([]byte, error) {
	p, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	// The address comes from the system, not from a Go pointer: read it through memory, as vet asks.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n), nil
}

func unmapMemory(p []byte) {
	if err := windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(p))), 0, windows.MEM_RELEASE); err != nil {
		panic("memory: unmap: " + err.Error()) // only a corrupted block can fail
	}
}
