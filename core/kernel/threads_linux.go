package kernel

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/k3infer/k3/core/internal/cgroup"
)

func usableCores() int {
	root := os.DirFS("/")
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0
	}
	n := coresOf(root, set.IsSet, 8*int(unsafe.Sizeof(set)))
	if quota := cpuQuota(root); quota > 0 {
		n = min(n, max(1, int(math.Ceil(quota))))
	}
	return n
}

// coresOf counts the cores that have a processor below limit that may be used.
func coresOf(root fs.FS, usable func(cpu int) bool, limit int) int {
	cores := map[string]bool{}
	for cpu := range limit {
		if !usable(cpu) {
			continue
		}
		// Processors of one core list each other; a kernel that does not say is taken to have one a core.
		name := strconv.Itoa(cpu)
		siblings, err := fs.ReadFile(root, "sys/devices/system/cpu/cpu"+name+"/topology/thread_siblings_list")
		if err == nil {
			name = strings.TrimSpace(string(siblings))
		}
		cores[name] = true
	}
	return len(cores)
}

// cpuQuota is how many CPUs' time the cgroups of this process, and those above them, allow it; 0 is no limit that can be seen.
func cpuQuota(root fs.FS) float64 {
	quota := math.Inf(1)
	err := cgroup.Visit(root, "cpu", func(_ int, dir, _ string) { quota = min(quota, cgroupQuota(root, dir)) })
	if err != nil || math.IsInf(quota, 1) {
		return 0
	}
	return quota
}

// cgroupQuota reads the limit of one directory: "quota period" in version 2, a file each in version 1.
func cgroupQuota(root fs.FS, dir string) float64 {
	text, err := fs.ReadFile(root, path.Join(dir, "cpu.max"))
	if err != nil {
		quota, err1 := fs.ReadFile(root, path.Join(dir, "cpu.cfs_quota_us"))
		period, err2 := fs.ReadFile(root, path.Join(dir, "cpu.cfs_period_us"))
		if err1 != nil || err2 != nil {
			return math.Inf(1)
		}
		text = []byte(string(quota) + " " + string(period))
	}
	f := strings.Fields(string(text))
	if len(f) != 2 {
		return math.Inf(1)
	}
	quota, err1 := strconv.ParseFloat(f[0], 64) // "max" and -1 are no limit
	period, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil || !(quota > 0 && period > 0) {
		return math.Inf(1)
	}
	return quota / period
}
