package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCgroupsAreMadeWhereMemoryIsSharedOut works on directories that look like control groups.
func TestCgroupsAreMadeWhereMemoryIsSharedOut(t *testing.T) {
	for _, x := range []struct {
		name, membership string
		controls         map[string]string // cgroup.subtree_control by directory
		want             string            // directory above the new one, "" for an error
		err              string
	}{
		{"below its own", "0::/a/b\n", map[string]string{"a": "cpu", "a/b": "cpu memory\n"}, "a/b", ""},
		{"beside its own", "1:name=systemd:/\n0::/a/b\n", map[string]string{"a": "memory pids\n", "a/b": "\n"}, "a", ""},
		{"not where memory is not shared out", "0::/a/b\n", map[string]string{"a": "cpu", "a/b": "cpu memories"}, "", "a does not share out memory"},
		{"version 1", "4:memory:/a\n", nil, "", "no cgroup of version 2"},
		{"hidden", "0::/../..\n", nil, "", "no such file"},
	} {
		root := t.TempDir()
		for dir, text := range x.controls {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, dir, "cgroup.subtree_control"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		membership := filepath.Join(root, "membership")
		if err := os.WriteFile(membership, []byte(x.membership), 0o600); err != nil {
			t.Fatal(err)
		}
		dir, err := makeCgroup(root, membership, 1<<30)
		if x.want == "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: %q, %v", x.name, dir, err)
			}
			continue
		}
		if err != nil || filepath.Dir(dir) != filepath.Join(root, x.want) {
			t.Errorf("%s: %q, %v", x.name, dir, err)
			continue
		}
		limit, err := os.ReadFile(filepath.Join(dir, "memory.max"))
		if err != nil || string(limit) != "1094713344" { // 1 GiB, 4 MiB, 16 MiB
			t.Errorf("%s: memory.max is %q, %v", x.name, limit, err)
		}
	}
}
