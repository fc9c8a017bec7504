package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// limiters are the means there may be, the strictest first.
var limiters = []limiter{systemdRun("systemd-user", "--user"), systemdRun("systemd"), cgroup("/sys/fs/cgroup", "/proc/self/cgroup"), ulimit, noLimit}

// cgroup puts the program into a control group (version 2) of its own, below or beside that of this process, wherever memory is
// shared out and this user may make one.
func cgroup(root, membership string) limiter {
	return limiter{"cgroup", "cgroup: memory.max is the memory given, 1/256 more and 16 MiB, no swap",
		func(ctx context.Context, memory int64, program string, args []string) (*exec.Cmd, func(), error) {
			dir, err := makeCgroup(root, membership, memory)
			if err != nil {
				return nil, nil, err
			}
			d, err := os.Open(dir)
			if err != nil {
				return nil, nil, errors.Join(err, os.Remove(dir))
			}
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(d.Fd())}
			return cmd, func() {
				d.Close()
				os.Remove(dir)
			}, nil
		}}
}

func makeCgroup(root, membership string, memory int64) (string, error) {
	text, err := os.ReadFile(membership)
	if err != nil {
		return "", err
	}
	err = errors.New("this process is in no cgroup of version 2")
	for line := range strings.Lines(string(text)) {
		own, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		for _, above := range []string{own, filepath.Dir(own)} {
			var dir string
			if dir, err = newCgroup(filepath.Join(root, above), memory); err == nil {
				return dir, nil
			}
		}
	}
	return "", err
}

func newCgroup(above string, memory int64) (string, error) {
	shared, err := os.ReadFile(filepath.Join(above, "cgroup.subtree_control"))
	if err != nil {
		return "", err
	}
	if !slices.Contains(strings.Fields(string(bytes.TrimSpace(shared))), "memory") {
		return "", fmt.Errorf("%s does not share out memory", above)
	}
	dir, err := os.MkdirTemp(above, "k3-bench-*")
	if err != nil {
		return "", err
	}
	err = os.WriteFile(filepath.Join(dir, "memory.max"), []byte(strconv.FormatInt(cgroupBytes(memory), 10)), 0o644)
	if err == nil {
		if err = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0o644); errors.Is(err, fs.ErrNotExist) {
			err = nil // a kernel without swap
		}
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}
