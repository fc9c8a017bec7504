//go:build unix

package memory

import "golang.org/x/sys/unix"

func mapMemory(n int) ([]byte, error) {
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil && n >= largeBlock {
		largePages(p)
	}
	return p, err
}

// largeBlock is the size from which on a block is worth asking for huge pages: streaming through weights in small ones costs a
// fifth of the memory's speed. What a huge page takes beyond what is used is part of the block, and so of the plan.
const largeBlock = 8 << 20

func unmapMemory(p []byte) {
	if err := unix.Munmap(p); err != nil {
		panic("memory: unmap: " + err.Error()) // only a corrupted block can fail
	}
}
