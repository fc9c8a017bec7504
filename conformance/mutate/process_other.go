//go:build !unix

package main

import (
	"context"
	"os/exec"
)

// limited is the command as it is: this system has no limit on address space that a program is started with.
func limited(ctx context.Context, _ int, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, program, args...)
}

func end(*exec.Cmd) {}
