// Package cgroup finds the cgroups of this process on Linux, of both versions.
package cgroup

import (
	"bufio"
	"bytes"
	"io/fs"
	"path"
	"strings"
)

// Visit calls visit for each cgroup that this process is in and that has the controller, up to the top of the tree: with its
// version, its folder below root, and its name, a path. What cannot be seen, such as what is above the top of a namespace, is left out.
func Visit(root fs.FS, controller string, visit func(version int, dir, name string)) error {
	membership, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return err
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(membership)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) < 3 {
			continue
		}
		version := 1
		switch {
		case f[0] == "0" && f[1] == "":
			version = 2
		case !hasWord(f[1], controller):
			continue
		}
		mount, inside, ok := findMount(mounts, version, controller)
		if !ok {
			continue // the controller is not to be seen, so nothing can be looked up
		}
		// The mount may show only a part of the tree, and then the process's path begins with that part's.
		below := f[2]
		if inside != "/" {
			if rest, ok := strings.CutPrefix(below, inside); ok && (rest == "" || rest[0] == '/') {
				below = rest
			} else {
				below = "/"
			}
		}
		// Above the top of a cgroup namespace paths begin with "..": what is there cannot be seen.
		for name := path.Clean("/" + below); ; name = path.Dir(name) {
			visit(version, strings.TrimPrefix(path.Join(mount, name), "/"), name)
			if name == "/" {
				break
			}
		}
	}
	return nil
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// findMount finds where the cgroups of a version that have the controller are mounted, and which part of their tree is.
func findMount(mountinfo []byte, version int, controller string) (mount, inside string, ok bool) {
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /root /mount/point options... - type source superoptions
		before, after, found := strings.Cut(lines.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !found || len(f) < 5 || len(g) < 3 {
			continue
		}
		if version == 2 && g[0] == "cgroup2" || version == 1 && g[0] == "cgroup" && hasWord(g[2], controller) {
			return unescape(f[4]), unescape(f[3]), true
		}
	}
	return "", "", false
}

// unescape undoes mountinfo's octal escapes of blanks and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
