package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
)

// limiter is a means by which the operating system keeps a process below an amount of memory.
type limiter struct {
	name, about string
	// command is the program under the limit, not started yet; release is called when it has ended.
	command func(ctx context.Context, memory int64, program string, args []string) (cmd *exec.Cmd, release func(), err error)
}

// Hard limits count what the promise, which is about resident memory, does not: page tables, and with ulimit also memory
// that is reserved but not used: of that the Go runtime has up to two of its arenas of 64 MiB, some tables, and the stacks of its
// threads, one a processor and some more.
const (
	cgroupSlack = 16 << 20
	ulimitSlack = 96 << 20
)

func cgroupBytes(memory int64) int64 { return memory + memory/256 + cgroupSlack }
func ulimitBytes(memory int64) int64 {
	return memory + memory/256 + ulimitSlack + int64(runtime.NumCPU())<<20
}

// systemdRun puts the program into a scope of its own.
func systemdRun(name string, flags ...string) limiter {
	about := "systemd-run " + strings.Join(append(flags, "--scope"), " ")
	return limiter{name, about + ": MemoryMax is the memory given, 1/256 more and 16 MiB, no swap",
		func(ctx context.Context, memory int64, program string, args []string) (*exec.Cmd, func(), error) {
			all := append(slices.Clone(flags), "--scope", "--quiet", "--collect",
				"-p", "MemoryMax="+strconv.FormatInt(cgroupBytes(memory), 10), "-p", "MemorySwapMax=0", "--", program)
			return exec.CommandContext(ctx, "systemd-run", append(all, args...)...), func() {}, nil
		}}
}

// ulimit sets the resource limit of private memory. That of address space is no use: the Go runtime reserves far more than it uses.
var ulimit = limiter{"ulimit", "ulimit -d (RLIMIT_DATA): " +
	"the memory given, 1/256 more, 96 MiB and 1 MiB a processor for what is reserved and not used",
	func(ctx context.Context, memory int64, program string, args []string) (*exec.Cmd, func(), error) {
		all := append([]string{"-c", `ulimit -s 1024 && ulimit -d "$0" && exec "$@"`, strconv.FormatInt(ulimitBytes(memory)>>10, 10), program}, args...)
		return exec.CommandContext(ctx, "/bin/sh", all...), func() {}, nil
	}}

// noLimit is how it is done where there is none.
var noLimit = limiter{"none", "none: what is promised is checked after the run",
	func(ctx context.Context, memory int64, program string, args []string) (*exec.Cmd, func(), error) {
		return exec.CommandContext(ctx, program, args...), func() {}, nil
	}}

func limiterNames() (names []string) {
	for _, l := range limiters {
		names = append(names, l.name)
	}
	return names
}

// chooseLimiter finds the means called name, or the first that works, by trying.
func chooseLimiter(ctx context.Context, program, name string) (limiter, error) {
	for _, l := range limiters {
		if name != "auto" && name != l.name {
			continue
		}
		err := l.try(ctx, program)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil {
			return limiter{}, ui.ErrInterrupted
		}
		if name != "auto" {
			return limiter{}, fmt.Errorf("bench: limit memory by %s: %w", name, err)
		}
	}
	return noLimit, nil
}

// try runs something that needs little.
func (l limiter) try(ctx context.Context, program string) error {
	cmd, release, err := l.command(ctx, 256<<20, program, []string{"version"})
	if err != nil {
		return err
	}
	defer release()
	var stderr tail
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return errors.Join(err, errors.New(stderr.message()))
	}
	return nil
}
