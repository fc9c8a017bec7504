package kernel

import "runtime"

// DefaultThreads is the number of threads a pool has unless its user says otherwise.
func DefaultThreads() int { return runtime.GOMAXPROCS(0) }
