//go:build !linux

package bench

// mapArena allocates n bytes.
func mapArena(n int) ([]byte, func(), error) { return make([]byte, n), func() {}, nil }
