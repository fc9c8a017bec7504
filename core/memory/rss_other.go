//go:build !linux && !darwin && !windows

package memory

import (
	"errors"
	"fmt"
)

// PeakRSS is not known on this system.
func PeakRSS() (int64, error) { return 0, fmt.Errorf("memory: peak RSS: %w", errors.ErrUnsupported) }
