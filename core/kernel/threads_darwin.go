package kernel

import "golang.org/x/sys/unix"

// usableCores is the number of fast cores, where there are two kinds: the slow ones would hold the others up.
func usableCores() int {
	for _, name := range []string{"hw.perflevel0.physicalcpu", "hw.physicalcpu"} {
		if n, err := unix.SysctlUint32(name); err == nil && n > 0 {
			return int(n)
		}
	}
	return 0
}
