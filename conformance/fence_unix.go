//go:build unix

package conformance

import (
	"os"
	"syscall"
)

// newFence returns size bytes, rounded up to pages, before an unreadable page.
func newFence(size int) (*fence, error) {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	all, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	f := &fence{all[:size:size], func() { syscall.Munmap(all) }}
	if err := syscall.Mprotect(all[size:], syscall.PROT_NONE); err != nil {
		f.close()
		return nil, os.NewSyscallError("mprotect", err)
	}
	return f, nil
}
