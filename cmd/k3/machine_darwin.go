package main

import "golang.org/x/sys/unix"

// cpuName is the processor's name, or "".
func cpuName() string {
	name, err := unix.Sysctl("machdep.cpu.brand_string")
	if err != nil {
		return ""
	}
	return name
}

// diskName is the device that holds a path; this system does not tell.
func diskName(string) string { return "" }
