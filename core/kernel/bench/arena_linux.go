package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mapArena maps n bytes, on pages as large as the system gives.
func mapArena(n int) ([]byte, func(), error) {
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("bench: map %d bytes: %w", n, err)
	}
	_ = unix.Madvise(p, unix.MADV_HUGEPAGE) // a kernel without huge pages measures with small ones
	return p, func() { _ = unix.Munmap(p) }, nil
}
