//go:build noasm

package amd64_test

const noasm = true
