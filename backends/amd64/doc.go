// Package amd64 has the vector backends of x86-64: "avx2" and "avx512". README.md in this folder explains how the assembly
// is made and why it is as it is. Everywhere else, and with the build tag noasm, the package registers the two names and
// says why they cannot run.
package amd64

//go:generate go run -C ../_gen ./amd64 ../amd64
