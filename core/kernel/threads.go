package kernel

import "runtime"

// DefaultThreads is the number of threads a pool has unless its user says otherwise: one a physical core, as far as the
// process may use them. The threads of one core share its arithmetic and its path to memory, so more of them only wait for
// each other. Affinity, GOMAXPROCS and the limits of containers are respected; what cannot be found out does not count.
func DefaultThreads() int {
	n := runtime.GOMAXPROCS(0) // which the runtime has lowered to affinity and, on Linux, to two CPUs or the cgroup's limit
	if cores := usableCores(); cores > 0 {
		n = min(n, cores)
	}
	return max(1, n)
}
