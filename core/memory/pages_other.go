//go:build unix && !linux

package memory

// largePages does nothing: these systems choose by themselves.
func largePages([]byte) {}
