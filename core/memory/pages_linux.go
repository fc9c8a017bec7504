package memory

import "golang.org/x/sys/unix"

// largePages asks for huge pages; a kernel without them goes on with small ones.
func largePages(p []byte) { _ = unix.Madvise(p, unix.MADV_HUGEPAGE) }
