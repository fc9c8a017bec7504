//go:build unix

package main

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
)

// limited is a command with a limit on its address space, in a process group of its own: a mutant may allocate without
// end, and may leave processes running.
func limited(ctx context.Context, gigabytes int, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	if gigabytes > 0 {
		script := fmt.Sprintf(`ulimit -v %d; exec "$@"`, gigabytes<<20)
		cmd = exec.CommandContext(ctx, "sh", append([]string{"-c", script, "sh", program}, args...)...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// end ends what a command left running.
func end(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}
