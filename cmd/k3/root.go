package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/presets"
)

// commands are the program's, in the order of the help.
var commands = []func() *cobra.Command{
	runCommand, scoreCommand, chatCommand, tokenizeCommand, detokenizeCommand, doctorCommand, planCommand, inspectCommand, fabricateCommand, conformanceCommand,
	downloadCommand, verifyCommand, packCommand, simulateCommand, benchCommand, presetsCommand, versionCommand, completionCommand,
}

// rootCommand is k3 itself.
func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "k3",
		Short: "Run Kimi K3 on the machine you have",
		Long: "k3 runs Moonshot's Kimi K3, and models of its architecture, on the machine you have, with the memory you give it.\n" +
			"Without a checkpoint it runs the built-in demonstration model: k3 run 'The capital of France is'",
		Version:           version(),
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	cobra.EnableCommandSorting = false
	for _, c := range commands {
		root.AddCommand(c())
	}
	root.Flags().Bool("version", false, "say which k3 this is")
	root.SetVersionTemplate("k3 {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, c := range root.Commands() {
				if len(args) == 0 && c.IsAvailableCommand() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := known(root, args); err != nil {
				return err
			}
			c, _, err := root.Find(args)
			if err != nil {
				return err
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	})
	return root
}

// execute runs the command line args.
func execute(args []string) error {
	root := rootCommand()
	root.SetArgs(args)
	root.InitDefaultHelpCmd()
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		addCompletions(root)
	} else if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if err := known(root, args[:1]); err != nil {
			return err
		}
	}
	return root.Execute()
}

// known refuses the name of a command that does not exist and suggests the nearest.
func known(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range root.Commands() {
		if c.Name() == args[0] {
			return nil
		}
		names = append(names, c.Name())
	}
	return ui.Usagef("unknown command %q%s (k3 help lists them)", args[0], suggestion("", args[0], names))
}

// suggestion is ", did you mean ...?" with the nearest of the names, or nothing.
func suggestion(prefix, word string, names []string) string {
	if n := presets.Nearest(word, names); n != "" {
		return ", did you mean " + prefix + n + "?"
	}
	return ""
}

// habits are names that other programs of this kind have for flags of ours.
var habits = map[string]string{
	"m": "model", "p": "prompt", "f": "prompt-file", "file": "prompt-file", "n": "max-tokens", "n-predict": "max-tokens",
	"num-predict": "max-tokens", "max-length": "max-tokens", "c": "context", "ctx-size": "context", "num-ctx": "context", "n-ctx": "context",
	"t": "threads", "s": "seed", "b": "prefill-chunk", "batch-size": "prefill-chunk", "ubatch-size": "prefill-chunk",
	"repeat-penalty": "repetition-penalty", "ram": "memory", "draft": "speculate", "draft-max": "speculate", "silent": "quiet",
	"sys": "system", "v": "version", "V": "version",
}

// flagSuggestion is ", did you mean ...?" with the flag of the command that another program calls name, or the nearest.
func flagSuggestion(cmd *cobra.Command, name string) string {
	if habit := habits[strings.ReplaceAll(name, "_", "-")]; cmd.Flags().Lookup(habit) != nil {
		return ", did you mean --" + habit + "?"
	}
	if len(name) == 1 {
		return ""
	}
	if name == "version" {
		return ", did you mean k3 version?"
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return suggestion("--", name, names)
}

// flagError says what is wrong with a flag: the nearest for an unknown one, the range for a value.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		dashes := "--"
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			dashes = "-"
			if long, _, _ := strings.Cut(short, "="); len(long) > 2 && flagSuggestion(cmd, long) != "" {
				name = long // as in -temp: other programs have long names with one dash
			}
		}
		return ui.Usagef("unknown flag %s%s%s (%s --help lists them)", dashes, name, flagSuggestion(cmd, name), cmd.CommandPath())
	case errors.As(err, &value):
		if must := mustBe(value.GetFlag().Value.Type()); must != "" {
			return ui.Usagef("--%s: %q: must be %s", value.GetFlag().Name, value.GetValue(), must)
		}
		return ui.Usagef("--%s: %w", value.GetFlag().Name, value.Unwrap())
	case errors.As(err, &missing):
		return ui.Usagef("--%s: a value is missing", missing.GetFlag().Name)
	}
	return ui.Usagef("%w", err)
}

// mustBe says what the values of a flag of that type are, "" for a type that says so itself.
func mustBe(flagType string) string {
	switch flagType {
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	case "uint64":
		return "a whole number from 0 to 18446744073709551615"
	case "float32", "float64":
		return "a number"
	case "duration":
		return "a time such as 2s or 500ms"
	case "intSlice":
		return "whole numbers, separated by commas"
	}
	return ""
}

// noArguments refuses arguments that are no flags.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return ui.Usagef("%s takes flags only, not %q (%s --help lists them)", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

// oneArgument wants exactly one argument, called what in the message.
func oneArgument(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return ui.Usagef("%s takes one argument, %s, and got %d", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}
