// Package arm64 has the vector backend of ARM processors, "neon".
package arm64
