package memory

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/k3infer/k3/core/internal/cgroup"
)

// probeProc reads Linux's files under root: the host's memory, the limits of every cgroup this process is in, of both
// versions, up to the top, and its resource limits.
func probeProc(root fs.FS) (m Machine) {
	resident, mapped, data := self(root)
	if err := m.meminfo(root, resident); err != nil {
		m.warn("memory of the host: %v", err)
	}
	if err := m.cgroups(root, resident); err != nil {
		m.warn("memory of the cgroup: %v; a limit there, if any, is not respected", err)
	}
	if err := m.rlimits(root, resident, mapped, data); err != nil {
		m.warn("resource limits: %v; those there may be are not respected", err)
	}
	return m
}

// fields gives the numbers of a file of lines "name: value kB" or "name value", in bytes.
func fields(root fs.FS, name string) (map[string]int64, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	values := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 64); err == nil && n >= 0 && n < most {
			if len(f) > 2 && f[2] == "kB" {
				n <<= 10
			}
			values[strings.TrimSuffix(f[0], ":")] = n
		}
	}
	return values, nil
}

// self is this process's memory: in RAM, address space, and private data.
func self(root fs.FS) (resident, mapped, data int64) {
	v, _ := fields(root, "proc/self/status")
	return v["VmRSS"], v["VmSize"], v["VmData"]
}

func (m *Machine) meminfo(root fs.FS, resident int64) error {
	v, err := fields(root, "proc/meminfo")
	if err != nil {
		return err
	}
	total, ok := v["MemTotal"]
	if !ok {
		return fmt.Errorf("/proc/meminfo has no MemTotal")
	}
	available, ok := v["MemAvailable"]
	if !ok { // before Linux 3.14
		available = v["MemFree"] + v["Cached"]
	}
	m.add("host", uint64(total), total-available-resident)
	return nil
}

// cgroups adds the limits of the cgroups above this process.
func (m *Machine) cgroups(root fs.FS, resident int64) error {
	return cgroup.Visit(root, "memory", func(version int, dir, name string) {
		if err := m.cgroup(root, version, dir, name, resident); err != nil {
			m.warn("memory of cgroup %s: %v; a limit there, if any, is not respected", name, err)
		}
	})
}

// cgroup adds the limits of one cgroup. Memory that caches files does not count as used: it is given up on demand.
func (m *Machine) cgroup(root fs.FS, version int, dir, name string, resident int64) error {
	limits, usage, cache := []string{"memory.max", "memory.high"}, "memory.current", []string{"inactive_file", "active_file"}
	if version == 1 {
		limits, usage = []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes"
		cache = []string{"total_inactive_file", "total_active_file"}
	}
	for _, file := range limits {
		n, err := number(root, path.Join(dir, file))
		if err != nil {
			return err
		}
		if n >= most {
			continue
		}
		used, err := number(root, path.Join(dir, usage))
		if err != nil {
			return err
		}
		stat, _ := fields(root, path.Join(dir, "memory.stat"))
		others := clip(used) - resident
		for _, c := range cache {
			others -= stat[c]
		}
		m.add("cgroup "+name, n, others)
	}
	return nil
}

// number reads a limit. "max" is none, and so is a file that is not there: the top of the tree has none, nor has a cgroup
// without a memory controller.
func number(root fs.FS, name string) (uint64, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		if _, statErr := fs.Stat(root, name); statErr != nil {
			return most, nil
		}
		return 0, err
	}
	s := strings.TrimSpace(string(text))
	if s == "max" {
		return most, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/%s has %.40q, which is no size", name, s)
	}
	return n, nil
}

// rlimits adds this process's own limits.
func (m *Machine) rlimits(root fs.FS, resident, mapped, data int64) error {
	text, err := fs.ReadFile(root, "proc/self/limits")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		for _, l := range []struct {
			name, source string
			used         int64 // counted against it, but not in RAM
		}{{"Max address space", "ulimit -v", mapped - resident}, {"Max data size", "ulimit -d", data - resident}} {
			rest, ok := strings.CutPrefix(line, l.name)
			f := strings.Fields(rest)
			if !ok || len(f) == 0 || f[0] == "unlimited" {
				continue
			}
			n, err := strconv.ParseUint(f[0], 10, 64)
			if err != nil {
				return fmt.Errorf("/proc/self/limits has %.40q for %s", f[0], l.name)
			}
			m.add(l.source, n, l.used)
		}
	}
	return nil
}
