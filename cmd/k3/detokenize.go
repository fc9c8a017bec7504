package main

import (
	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
)

func detokenizeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "detokenize [flags] IDS | -",
		Short:   "Turn token ids into text",
		Long:    "Turn token ids, separated by commas or spaces, into the bytes of their text; - reads the ids from stdin.",
		Example: "  k3 detokenize 39,85",
		Args:    oneArgument("the ids, comma separated, or -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			text := args[0]
			if text == "-" {
				if text, err = readInput(cmd, "-"); err != nil {
					return err
				}
			}
			ids, err := parseIDs(text)
			if err != nil {
				return ui.Usagef("%w", err)
			}
			t, err := loadTokenizer(c.Model)
			if err != nil {
				return err
			}
			announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
			data, err := t.Decode(ids)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	}
	addConfigFlags(cmd, "model")
	return cmd
}
