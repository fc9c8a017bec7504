package memory

import "golang.org/x/sys/unix"

func probe() (m Machine) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		m.warn("memory of the host: hw.memsize: %v", err)
		return m
	}
	// What is free, or given up at once when somebody asks: cached files and purgeable memory.
	var pages uint64
	for _, name := range []string{"vm.page_free_count", "vm.page_pageable_external_count", "vm.page_purgeable_count"} {
		n, err := unix.SysctlUint32(name)
		if err != nil {
			m.warn("free memory of the host: %s: %v; half of all is assumed", name, err)
			pages = total / 2 / uint64(unix.Getpagesize())
			break
		}
		pages += uint64(n)
	}
	m.add("host", total, clip(total)-clip(pages*uint64(unix.Getpagesize())))
	for source, resource := range map[string]int{"ulimit -v": unix.RLIMIT_AS, "ulimit -d": unix.RLIMIT_DATA} {
		var r unix.Rlimit
		if err := unix.Getrlimit(resource, &r); err != nil {
			m.warn("resource limits: %s: %v", source, err)
			continue
		}
		m.add(source, r.Cur, 0)
	}
	return m
}
