package main

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/presets"
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
		Use:   "completion SHELL",
		Short: "Write the completion script of a shell: " + strings.Join(names, ", "),
		Long: "Write the completion script of a shell. It completes commands, flags and their values.\n\n" +
			"  bash, in ~/.bashrc:      source <(k3 completion bash)   (needs the package bash-completion)\n" +
			"  zsh, in ~/.zshrc:        source <(k3 completion zsh)\n" +
			"  fish:                    k3 completion fish > ~/.config/fish/completions/k3.fish\n" +
			"  PowerShell, in $PROFILE: k3 completion powershell | Out-String | Invoke-Expression",
		ValidArgs: names,
		Args:      oneArgument("the shell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := shells[args[0]]
			if !ok {
				return ui.Usagef("unknown shell %q%s: there are %s", args[0], suggestion("", args[0], names), strings.Join(names, ", "))
			}
			return write(cmd.Root(), cmd.OutOrStdout())
		},
	}
}

// flagValues are the values of flags that have few, by the flag's name.
var flagValues = map[string]func() []string{
	"preset": presets.Names,
	"backend": func() (names []string) {
		for _, d := range kernel.Drivers() {
			names = append(names, d.Name)
		}
		return names
	},
	"policy": func() []string {
		return slices.DeleteFunc(experts.Policies(), func(name string) bool { return experts.CheckPolicy(name) != nil })
	},
	"policies":  experts.Policies,
	"limit":     func() []string { return append(limiterNames(), "auto") },
	"geometry":  fabricate.Geometries,
	"format":    func() []string { return []string{"mxfp4", "bf16", "f16", "f32"} },
	"roundtrip": func() []string { return []string{"int8", "int6", "int4", "int3", "int2"} },
	"thinking":  func() []string { return thinkings },
	"effort":    func() []string { return efforts },
}

// addCompletions says for every flag and argument of cmd and the commands below it what completes it: one of its values, or a
// file or directory, where the help calls it that.
func addCompletions(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, there := cmd.GetFlagCompletionFunc(f.Name); there {
			return
		}
		complete := completeAs(placeholder(f))
		if values := flagValues[f.Name]; values != nil {
			complete = completeList(values())
		}
		if f.Name == "config" {
			complete = cobra.FixedCompletions([]string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt)
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic(err) // the flag is there, and has none
		}
	})
	if cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil && !cmd.HasSubCommands() {
		words := strings.Fields(strings.NewReplacer("[", "", "]", "", "...", "").Replace(cmd.Use))
		cmd.ValidArgsFunction = completeAs(words[len(words)-1])
	}
	for _, c := range cmd.Commands() {
		addCompletions(c)
	}
}

// placeholder is what the help calls the value of a flag, "" for one that has none.
func placeholder(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	return name
}

// completeAs completes what the help calls name.
func completeAs(name string) cobra.CompletionFunc {
	switch name {
	case "DIR", "DIRS":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	case "FILE", "PATH", "TRACE":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	}
	return cobra.NoFileCompletions
}

// completeList completes a value, or the last of several with commas between them.
func completeList(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, text string) (all []string, _ cobra.ShellCompDirective) {
		before := text[:strings.LastIndexByte(text, ',')+1]
		for _, v := range values {
			all = append(all, before+v)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}
