//go:build !linux && !darwin && !windows

package kernel

// usableCores is not known here.
func usableCores() int { return 0 }
