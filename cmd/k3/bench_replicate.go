package main

import (
	"context"

	"github.com/spf13/cobra"
)

func replicateCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "replicate",
		Short: "Measure how far identical runs lie apart",
		Long: "Measure the same configuration again and again. How far the runs lie apart is the noise floor of this machine: what differs\n" +
			"by less, in any measurement, is no difference.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBench(cmd, "replicate", f, func(ctx context.Context, b *bencher) ([]setting, error) {
				total, err := b.budget(ctx)
				return []setting{{Label: total.String(), Memory: int64(total)}}, err
			})
		},
	}
	f.add(cmd, 5, "memory", "policy", "context", "threads", "backend")
	return cmd
}
