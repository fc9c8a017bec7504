package main

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func completionCommand() *cobra.Command {
	shells := map[string]func(root *cobra.Command, w io.Writer) error{
		"bash":       func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":        func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
		"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": func(root *cobra.Command, w io.Writer) error { return root.GenPowerShellCompletionWithDesc(w) },
	}
	names := slices.Sorted(maps.Keys(shells))
	return &cobra.Command{
		Use:       "completion SHELL",
		Short:     "Write the completion script of a shell: " + strings.Join(names, ", "),
		Long:      "Write the completion script of a shell. For bash, in ~/.bashrc: source <(k3 completion bash)",
		ValidArgs: names,
		Args:      oneArgument("the shell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := shells[args[0]]
			if !ok {
				return usagef("unknown shell %q%s: there are %s", args[0], suggestion("", args[0], names), strings.Join(names, ", "))
			}
			return write(cmd.Root(), cmd.OutOrStdout())
		},
	}
}
