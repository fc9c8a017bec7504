package kernel

import (
	"fmt"
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestCoresCountOnceHoweverManyThreadsTheyHave(t *testing.T) {
	root := fstest.MapFS{}
	for cpu := range 8 { // four cores of two threads, numbered as Linux does
		root[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)] = file(fmt.Sprintf("%d,%d\n", cpu%4, cpu%4+4))
	}
	for _, c := range []struct {
		usable []int
		want   int
	}{
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, 4}, {[]int{0, 4}, 1}, {[]int{0, 1}, 2}, {[]int{3, 4, 5}, 3}, {nil, 0},
		{[]int{0, 1, 4, 9, 10}, 4}, // 9 and 10 say nothing about themselves
	} {
		set := map[int]bool{}
		for _, cpu := range c.usable {
			set[cpu] = true
		}
		if got := coresOf(root, func(cpu int) bool { return set[cpu] }, 16); got != c.want {
			t.Errorf("processors %v are %d cores, want %d", c.usable, got, c.want)
		}
	}
}

func TestTheTightestCPULimitOfTheCgroupsCounts(t *testing.T) {
	mounts := file("35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n" +
		"36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n")
	for _, c := range []struct {
		what string
		root fstest.MapFS
		want float64
	}{
		{"no cgroups", fstest.MapFS{}, 0},
		{"no limit", fstest.MapFS{"proc/self/cgroup": file("0::/a\n"), "sys/fs/cgroup/a/cpu.max": file("max 100000\n")}, 0},
		{"a limit", fstest.MapFS{"proc/self/cgroup": file("0::/a\n"), "sys/fs/cgroup/a/cpu.max": file("150000 100000\n")}, 1.5},
		{"a limit above", fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/cpu.max": file("50000 100000\n"),
			"sys/fs/cgroup/a/b/cpu.max": file("400000 100000\n")}, 0.5},
		{"a limit at the top, as containers see it", fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/cpu.max": file("200000 100000\n")}, 2},
		{"version 1", fstest.MapFS{"proc/self/cgroup": file("5:cpu,cpuacct:/x\n3:cpuset:/\n0::/\n"),
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": file("300000\n"), "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": file("100000\n")}, 3},
		{"version 1 without a limit", fstest.MapFS{"proc/self/cgroup": file("5:cpu:/x\n"),
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": file("-1\n"), "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": file("100000\n")}, 0},
		{"a container that sees a part of the tree", fstest.MapFS{"proc/self/cgroup": file("0::/pod/a\n"),
			"proc/self/mountinfo":   file("35 31 0:32 /pod /cg rw - cgroup2 cgroup2 rw\n"),
			"cg/a/cpu.max":          file("250000 100000\n"),
			"sys/fs/cgroup/cpu.max": file("100000 100000\n")}, 2.5},
		{"rubbish", fstest.MapFS{"proc/self/cgroup": file("0::/a\nx\n"), "sys/fs/cgroup/a/cpu.max": file("much\n")}, 0},
	} {
		if len(c.root) > 0 && c.root["proc/self/mountinfo"] == nil {
			c.root["proc/self/mountinfo"] = mounts
		}
		if got := cpuQuota(c.root); got != c.want {
			t.Errorf("%s: %g CPUs, want %g", c.what, got, c.want)
		}
	}
}

func TestDefaultThreadsAreAtLeastOne(t *testing.T) {
	if n := DefaultThreads(); n < 1 {
		t.Errorf("%d threads", n)
	}
	if usableCores() < 1 {
		t.Error("this machine has no core")
	}
}
