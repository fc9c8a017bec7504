package memory

import (
	"os"

	"golang.org/x/sys/unix"
)

func probe() Machine { return probeProc(os.DirFS("/")) }

// AddressSpace returns how many bytes this process can still map under ulimit -v; false without such a limit.
func AddressSpace() (left int64, limited bool) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &l); err != nil || l.Cur >= most {
		return 0, false
	}
	_, mapped, _ := self(os.DirFS("/"))
	return int64(l.Cur) - mapped, mapped > 0
}
