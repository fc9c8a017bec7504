package memory

import (
	"fmt"
	"os"
	"testing"
)

// addressSpace is what this process has mapped, in bytes.
func addressSpace(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var pages int64
	if _, err := fmt.Sscan(string(text), &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func TestFreedBlocksAreTheSystemsAgain(t *testing.T) {
	const size, times = 64 << 20, 40
	var a Account
	before := addressSpace(t)
	for range times {
		b, err := a.Allocate("test", size)
		if err != nil {
			t.Fatal(err)
		}
		b.Bytes()[0] = 1
		b.Free()
	}
	if more := addressSpace(t) - before; more > times*size/2 {
		t.Errorf("%d blocks of %d MiB were freed, and %d MiB more are mapped", times, size>>20, more>>20)
	}
}
