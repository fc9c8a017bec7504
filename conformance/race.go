//go:build race

package conformance

// every is the share of the sizes that the kernel checks go through: under the race detector, which slows the generic
// backend down many times and has nothing to find in kernels, one in eight.
const every = 8
