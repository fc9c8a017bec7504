package memory

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// PeakRSS returns the most memory, in bytes, that this process has had resident so far.
func PeakRSS() (int64, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("memory: peak RSS: %w", err)
	}
	return usage.Maxrss, nil // bytes here, not the KiB of other systems
}
