package disk

import (
	"errors"
	"io"
	"runtime"
	"unsafe"
)

// Block is what direct reads are aligned to: file offsets, lengths and memory addresses are multiples of it. It is the
// sector size of the disks that need the most.
const Block = 4096

// ErrNoDirect says that a file, its file system or the operating system has no reads around the page cache.
var ErrNoDirect = errors.New("no direct reads here")

// Direct is implemented by files that can be read around the page cache, which keeps the memory of a machine for those who
// planned with it.
type Direct interface {
	// OpenDirect opens the file once more, for direct reads. Failure is no harm: the file is then read as usual.
	OpenDirect() (DirectReader, error)
}

// DirectReader reads at offsets and into addresses that are multiples of Block, whole blocks at a time; only at the end of
// the file does it return fewer. It may be used from several goroutines.
type DirectReader interface {
	io.ReaderAt
	io.Closer
}

func roundDown(n int64) int64 { return n &^ (Block - 1) }
func roundUp(n int64) int64   { return (n + Block - 1) &^ (Block - 1) }

// Aligned tells whether direct reads can go to p.
func Aligned(p []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%Block == 0 }

const onWindows = runtime.GOOS == "windows"
