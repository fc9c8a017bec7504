package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuName is the processor's name, or "".
func cpuName() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name", "Model", "Hardware":
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// diskName is the device that holds a path, with its model where the system tells one, or "".
func diskName(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	device, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return ""
	}
	name := filepath.Base(device)
	for _, dir := range []string{device, filepath.Dir(device)} { // a partition's model is its disk's
		if model, err := os.ReadFile(filepath.Join(dir, "device", "model")); err == nil {
			return name + " (" + strings.TrimSpace(string(model)) + ")"
		}
	}
	return name
}
