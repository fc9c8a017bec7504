package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/memory"
)

// Where ulimit -v leaves next to nothing the program says so before the Go runtime ends it.
func TestTooLittleAddressSpaceIsSaidInALine(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &old); err != nil || old.Max < 1<<45 {
		t.Skip("this test has a limit itself: ", err)
	}
	limit := func(bytes int64) {
		if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: uint64(bytes), Max: old.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer unix.Setrlimit(unix.RLIMIT_AS, &old)
	if err := addressSpace(); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	limit(1 << 45)
	left, limited := memory.AddressSpace()
	if err := addressSpace(); err != nil || !limited {
		t.Fatalf("with a limit of 32 TiB: %v", err)
	}
	limit(1<<45 - left + 64<<20)
	err := addressSpace()
	unix.Setrlimit(unix.RLIMIT_AS, &old)
	if exitCode(err) != ui.ExitNoFit || !strings.Contains(err.Error(), "ulimit -v leaves 6") {
		t.Errorf("with 64 MiB left: %v", err)
	}
}
