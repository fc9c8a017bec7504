package conformance

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// newFence returns size bytes, rounded up to pages, before an unreadable page.
func newFence(size int) (*fence, error) {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	p, err := windows.VirtualAlloc(0, uintptr(size+page), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, os.NewSyscallError("VirtualAlloc", err)
	}
	// The address comes from the system, not from a Go pointer: read it through memory, as vet asks.
	all := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), size+page)
	f := &fence{all[:size:size], func() { windows.VirtualFree(p, 0, windows.MEM_RELEASE) }}
	var before uint32
	if err := windows.VirtualProtect(p+uintptr(size), uintptr(page), windows.PAGE_NOACCESS, &before); err != nil {
		f.close()
		return nil, os.NewSyscallError("VirtualProtect", err)
	}
	return f, nil
}
