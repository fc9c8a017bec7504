package memory

import (
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
)

// tree makes the files of a Linux machine: 16 GiB, 12 of them available, and 1 GiB of it this process's.
func tree(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range map[string]string{
		"proc/meminfo":        "MemTotal:       16777216 kB\nMemFree:         1 kB\nMemAvailable:   12582912 kB\n",
		"proc/self/status":    "Name:\tk3\nVmSize:\t 3145728 kB\nVmRSS:\t 1048576 kB\nVmData:\t 2097152 kB\n",
		"proc/self/cgroup":    "0::/\n",
		"proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units     \n" +
			"Max data size             unlimited            unlimited            bytes     \n" +
			"Max address space         unlimited            unlimited            bytes     \n",
	} {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
		if text == "-" {
			delete(m, name)
		}
	}
	return m
}

func TestTheSmallestOfHostCgroupsAndLimitsCounts(t *testing.T) {
	const g = 1 << 30
	v1 := "36 35 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n37 35 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	tests := []struct {
		name        string
		files       map[string]string
		limit, free int64
		source      string
		warnings    int
	}{
		{"no cgroup limit", map[string]string{"sys/fs/cgroup/memory.stat": "file 1\n"}, 16 * g, 13 * g, "host", 0},
		{"no cgroups at all", map[string]string{"proc/self/cgroup": "", "proc/self/mountinfo": ""}, 16 * g, 13 * g, "host", 0},
		{"version 2", map[string]string{
			"proc/self/cgroup":                 "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":     "4294967296\n",
			"sys/fs/cgroup/a/b/memory.current": "3221225472\n",
			"sys/fs/cgroup/a/b/memory.stat":    "anon 5\ninactive_file 536870912\nactive_file 536870912\n",
		}, 4 * g, 3 * g, "cgroup /a/b", 0}, // of 3 GiB in use 1 is ours and 1 is cache
		{"an ancestor's", map[string]string{
			"proc/self/cgroup":                 "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":     "max\n",
			"sys/fs/cgroup/a/memory.max":       "8589934592\n",
			"sys/fs/cgroup/a/memory.current":   "1073741824\n",
			"sys/fs/cgroup/a/b/memory.current": "0\n",
		}, 8 * g, 8 * g, "cgroup /a", 0},
		{"memory.high", map[string]string{
			"proc/self/cgroup":               "0::/a\n",
			"sys/fs/cgroup/a/memory.max":     "8589934592\n",
			"sys/fs/cgroup/a/memory.high":    "2147483648\n",
			"sys/fs/cgroup/a/memory.current": "1073741824\n",
		}, 2 * g, 2 * g, "cgroup /a", 0},
		{"a container sees its part as the whole", map[string]string{
			"proc/self/cgroup":             "0::/docker/x\n",
			"proc/self/mountinfo":          "35 31 0:32 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory.max":     "3221225472\n",
			"sys/fs/cgroup/memory.current": "1073741824\n",
		}, 3 * g, 3 * g, "cgroup /", 0},
		{"a path outside the namespace", map[string]string{
			"proc/self/cgroup":             "0::/../../y\n",
			"sys/fs/cgroup/memory.max":     "3221225472\n",
			"sys/fs/cgroup/memory.current": "1073741824\n",
		}, 3 * g, 3 * g, "cgroup /", 0},
		{"version 1", map[string]string{
			"proc/self/cgroup":                               "5:cpu,cpuacct:/\n4:memory:/p/q\n",
			"proc/self/mountinfo":                            v1,
			"sys/fs/cgroup/memory/p/q/memory.limit_in_bytes": "5368709120\n",
			"sys/fs/cgroup/memory/p/q/memory.usage_in_bytes": "3221225472\n",
			"sys/fs/cgroup/memory/p/q/memory.stat":           "inactive_file 7\ntotal_inactive_file 1073741824\ntotal_active_file 0\n",
			"sys/fs/cgroup/memory/p/memory.limit_in_bytes":   "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":     "1\n",
		}, 5 * g, 4 * g, "cgroup /p/q", 0},
		{"version 1 of a container", map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/x\n",
			"proc/self/mountinfo":                        "36 35 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "5368709120\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824\n",
		}, 5 * g, 5 * g, "cgroup /", 0},
		{"a path outside what is mounted", map[string]string{
			"proc/self/cgroup":                   "0::/other/x\n",
			"proc/self/mountinfo":                "35 31 0:32 /docker /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/other/x/memory.max":   "1073741824\n",
			"sys/fs/cgroup/memory.max":           "3221225472\n",
			"sys/fs/cgroup/memory.current":       "1073741824\n",
			"sys/fs/cgroup/docker/x/memory.max":  "2147483648\n",
			"sys/fs/cgroup/other/memory.current": "0\n",
		}, 3 * g, 3 * g, "cgroup /", 0},
		{"version 1, of which memory is not the first and has another device", map[string]string{
			"proc/self/cgroup":                           "4:memory:/\n",
			"proc/self/mountinfo":                        "37 35 0:33 / /sys/fs/cgroup/cpu rw - cgroup none rw,cpu\n36 35 0:32 / /sys/fs/cgroup/memory rw - cgroup none rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "5368709120\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824\n",
		}, 5 * g, 5 * g, "cgroup /", 0},
		{"above 8 PiB is none", map[string]string{
			"proc/self/cgroup":           "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "9007199254740993\n",
		}, 16 * g, 13 * g, "host", 0},
		{"a limit that is no number", map[string]string{
			"proc/self/cgroup":               "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":   "lots\n",
			"sys/fs/cgroup/a/memory.max":     "3221225472\n",
			"sys/fs/cgroup/a/memory.current": "1073741824\n",
		}, 3 * g, 3 * g, "cgroup /a", 1},
		{"ulimit -v", map[string]string{
			"proc/self/limits": "Max address space         6442450944           unlimited            bytes     \n",
		}, 6 * g, 4 * g, "ulimit -v", 0},
		{"ulimit -d", map[string]string{
			"proc/self/limits": "Max data size             2147483648           unlimited            bytes     \n",
		}, 2 * g, 1 * g, "ulimit -d", 0},
		{"nothing can be read", map[string]string{"proc/meminfo": "-", "proc/self/cgroup": "-", "proc/self/limits": "-"}, assumed, assumed, "host", 4},
		{"nonsense", map[string]string{"proc/meminfo": "MemTotal: many kB\n"}, assumed, assumed, "host", 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := complete(probeProc(tree(test.files)))
			if l := m.Limit(); l.Bytes != test.limit || l.Source != test.source {
				t.Errorf("limit %+v, want %d of %s", l, test.limit, test.source)
			}
			if l := m.Free(); l.Free != test.free {
				t.Errorf("free %+v, want %d", l, test.free)
			}
			if len(m.Warnings) != test.warnings {
				t.Errorf("warnings %q, want %d", m.Warnings, test.warnings)
			}
		})
	}
}

func TestTheMachineOfTheTestIsKnown(t *testing.T) {
	m := Probe()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" && runtime.GOOS != "windows" {
		t.Skip("no probe")
	}
	if len(m.Warnings) != 0 {
		t.Errorf("warnings: %s", strings.Join(m.Warnings, "; "))
	}
	if l := m.Free(); l.Free < 1<<20 || l.Free > l.Bytes {
		t.Errorf("%+v", m)
	}
}
