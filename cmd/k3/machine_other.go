//go:build !linux && !darwin

package main

import "os"

// cpuName is the processor's name as Windows tells it, or "".
func cpuName() string { return os.Getenv("PROCESSOR_IDENTIFIER") }
