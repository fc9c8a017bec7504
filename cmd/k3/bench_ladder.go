package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

func ladderCommand() *cobra.Command {
	var f benchFlags
	var budgets []string
	cmd := &cobra.Command{
		Use:   "ladder",
		Short: "Measure the speed at several budgets of memory",
		Long: "Measure the speed at several budgets of memory, and that the text is the same at all of them. Each run is a process of its own\n" +
			"under a hard limit, where the system has one. What does not fit is a row of the table and no failure.",
		Example: "  k3 bench ladder\n  k3 bench ladder --model ~/k3model --memory 3GiB,8GiB,32GiB --max-tokens 4 --out results",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			sizes, err := parseBudgets(budgets)
			if err != nil {
				return err
			}
			return runBench(cmd, "ladder", f, func(ctx context.Context, b *bencher) ([]setting, error) {
				if len(sizes) == 0 {
					if sizes, err = b.usualBudgets(ctx); err != nil {
						return nil, err
					}
				}
				var settings []setting
				for _, s := range sizes {
					settings = append(settings, setting{Label: s.String(), Memory: int64(s)})
				}
				return settings, nil
			})
		},
	}
	f.add(cmd, leastRepeats, "policy", "context", "threads", "backend")
	cmd.Flags().StringSliceVar(&budgets, "memory", nil,
		"the `SIZES` to measure (default: from the least that works to what the model or the machine has)")
	return cmd
}

// parseBudgets reads sizes and sorts them.
func parseBudgets(texts []string) ([]presets.Size, error) {
	var sizes []presets.Size
	for _, t := range texts {
		s, err := presets.ParseSize(t)
		if err != nil {
			return nil, ui.Usagef("--memory: %w", err)
		}
		sizes = append(sizes, s)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes), nil
}

// usualBudgets are the least that works, what holds all weights, or what is free if that is less, and four between, in which
// a sixteenth, an eighth, a quarter and a half of the difference is there.
func (b *bencher) usualBudgets(ctx context.Context) ([]presets.Size, error) {
	least, most, err := b.extremes(ctx)
	if err != nil {
		return nil, err
	}
	if free := memory.Probe().Free().Free / 10 * 9; free < most {
		most = max(free, least)
	}
	var sizes []presets.Size
	for _, part := range []float64{0, 1. / 16, 1. / 8, 1. / 4, 1. / 2, 1} {
		sizes = append(sizes, roundUp(least+int64(part*float64(most-least))))
	}
	return slices.Compact(sizes), nil
}

// extremes are the least memory that works, nearly, and the least in which all weights stay.
func (b *bencher) extremes(ctx context.Context) (least, most int64, err error) {
	b.line.Show(time.Now(), "planning")
	all, err := b.plan(ctx, setting{Memory: 1 << 52})
	if err != nil {
		return 0, 0, err
	}
	low, high := int64(0), all.Total-all.Unused // too little, enough
	most = high
	for high-low > granule(high) {
		middle := low + (high-low)/2
		switch _, err := b.plan(ctx, setting{Memory: middle}); {
		case err == nil:
			high = middle
		case errors.Is(err, core.ErrNoFit):
			low = middle
		default:
			return 0, 0, err
		}
	}
	return high, most, nil
}

// granule is what sizes of about n bytes are multiples of.
func granule(n int64) int64 {
	switch {
	case n < 1<<30:
		return 1 << 20
	case n < 16<<30:
		return 64 << 20
	}
	return 1 << 30
}

func roundUp(n int64) presets.Size {
	g := granule(n)
	return presets.Size((n + g - 1) / g * g)
}
