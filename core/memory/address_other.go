//go:build !linux

package memory

// AddressSpace returns how many bytes this process can still map under ulimit -v; false without such a limit.
func AddressSpace() (left int64, limited bool) { return 0, false }
