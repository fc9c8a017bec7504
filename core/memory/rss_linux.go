package memory

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// PeakRSS returns the most memory, in bytes, that this process has had resident so far.
func PeakRSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("memory: peak RSS: %w", err)
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("memory: peak RSS: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("memory: peak RSS: /proc/self/status has no VmHWM")
}
