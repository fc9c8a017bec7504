package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/presets"
)

func presetsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "presets [NAME]",
		Short: "List the presets, or write one as a configuration file",
		Long: "List the presets, or write one, in the form that --config reads:\n\n" +
			"  k3 presets laptop > my.yaml; k3 run --config my.yaml --prompt 'Hello'",
		ValidArgs: presets.Names(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return ui.Usagef("k3 presets takes one name at most, and got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				text, err := presets.Text(args[0])
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, name := range presets.Names() {
				fmt.Fprintf(table, "%s\t%s\n", name, presets.Summary(name))
			}
			return table.Flush()
		},
	}
}
