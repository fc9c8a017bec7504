//go:build !linux

package main

// limiters are the means there may be: macOS does not enforce its resource limits of memory.
var limiters = []limiter{noLimit}
