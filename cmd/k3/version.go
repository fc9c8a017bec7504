package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/core/kernel"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which k3 this is, and what it can compute with",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "k3 %s\n%s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			for _, d := range kernel.Drivers() {
				state := "available"
				if missing := d.Missing(); missing != "" {
					state = "needs " + missing
				}
				fmt.Fprintf(out, "backend %s: %s\n", d.Name, state)
			}
			return nil
		},
	}
}

// version is the module's version and the commit it was built from, as far as the build knows them.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	parts := []string{info.Main.Version}
	if info.Main.Version == "" {
		parts[0] = "(devel)"
	}
	setting := func(key string) string {
		for _, s := range info.Settings {
			if s.Key == key {
				return s.Value
			}
		}
		return ""
	}
	if revision := setting("vcs.revision"); revision != "" && !strings.Contains(parts[0], revision[:min(12, len(revision))]) {
		parts = append(parts, revision[:min(12, len(revision))])
		if setting("vcs.modified") == "true" {
			parts = append(parts, "modified")
		}
	}
	return strings.Join(parts, " ")
}
