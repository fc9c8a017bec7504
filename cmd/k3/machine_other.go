//go:build !linux && !darwin

package main

import "os"

// cpuName is the processor's name as Windows tells it, or "".
func cpuName() string { return os.Getenv("PROCESSOR_IDENTIFIER") }

// diskName is the device that holds a path; this system does not tell.
func diskName(string) string { return "" }
