//go:build !linux && !darwin && !windows

package main

// cpuName is the processor's name; this system does not tell.
func cpuName() string { return "" }

// diskName is the device that holds a path; this system does not tell.
func diskName(string) string { return "" }
