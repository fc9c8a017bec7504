//go:build unix

package memory

import "golang.org/x/sys/unix"

func mapMemory(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapMemory(p []byte) {
	if err := unix.Munmap(p); err != nil {
		panic("memory: unmap: " + err.Error()) // only a corrupted block can fail
	}
}
