//go:build !noasm

package arm64_test

const noasm = false
