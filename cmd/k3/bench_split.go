package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

// asPlanned is the row of what k3 does of itself.
const asPlanned = "as planned"

func splitCommand() *cobra.Command {
	var f benchFlags
	var ratios []string
	cmd := &cobra.Command{
		Use:   "split",
		Short: "Measure how memory is best divided between trunk and experts",
		Long: "Divide one budget of memory between the trunk and the experts in several ratios, and measure each. 0% leaves the trunk nothing\n" +
			"but the buffers it streams through, 100% leaves the experts what one token needs; the last row is what k3 does of itself. The\n" +
			"ratio expected to be fastest, all for the trunk, is measured first, when nothing is warm.",
		Example: "  k3 bench split --model ~/k3model --memory 32GiB",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			shares, err := parseRatios(ratios)
			if err != nil {
				return err
			}
			return runBench(cmd, "split", f, func(ctx context.Context, b *bencher) ([]setting, error) { return b.splits(ctx, shares) })
		},
	}
	f.add(cmd, leastRepeats, "memory", "policy", "context", "threads", "backend")
	cmd.Flags().StringSliceVar(&ratios, "trunk-share", []string{"0", "25", "50", "75", "100"},
		"give the trunk `PERCENT` of the memory that there is to divide")
	return cmd
}

// parseRatios reads percentages and sorts them.
func parseRatios(texts []string) (shares []float64, err error) {
	for _, t := range texts {
		x, err := strconv.ParseFloat(strings.TrimSuffix(t, "%"), 64)
		if err != nil || !(x >= 0 && x <= 100) {
			return nil, ui.Usagef("--trunk-share: %q: must be from 0 to 100", t)
		}
		shares = append(shares, x/100)
	}
	slices.Sort(shares)
	return slices.Compact(shares), nil
}

// budget is the memory asked for, or one in which half of the weights stay.
func (b *bencher) budget(ctx context.Context) (presets.Size, error) {
	if total := b.config.Memory.Total; total > 0 {
		return total, nil
	}
	least, most, err := b.extremes(ctx)
	if free := memory.Probe().Free().Free / 10 * 9; free < most {
		most = max(free, least)
	}
	return roundUp(least + (most-least)/2), err
}

// splits divides the budget. What is divided is what the plan has for trunk and experts together, less what each side must
// have: a full ring, and the experts of the smallest plan.
func (b *bencher) splits(ctx context.Context, shares []float64) ([]setting, error) {
	total, err := b.budget(ctx)
	if err != nil {
		return nil, err
	}
	p, err := b.plan(ctx, setting{Memory: int64(total)})
	if err != nil {
		return nil, err
	}
	least, _, err := b.extremes(ctx)
	if err != nil {
		return nil, err
	}
	smallest, err := b.plan(ctx, setting{Memory: least})
	if err != nil {
		return nil, err
	}
	trunk, experts := p.Bytes(memory.TrunkRing)+p.Bytes(memory.TrunkTiles), p.Bytes(memory.ExpertSlots)
	leastTrunk, leastExperts := p.Bytes(memory.TrunkRing), smallest.Bytes(memory.ExpertSlots)
	if p.Ring == 0 && smallest.Ring > 0 {
		leastTrunk = 8 * smallest.Bytes(memory.TrunkRing) / int64(smallest.Ring)
	}
	divide := trunk + experts - leastTrunk - leastExperts
	if leastTrunk == 0 || leastExperts == 0 || divide <= 0 {
		return nil, ui.Usagef("in %s there is nothing to divide between trunk and experts", total)
	}
	var settings []setting
	for _, s := range shares {
		t := leastTrunk + int64(s*float64(divide))
		settings = append(settings, setting{fmt.Sprintf("%g%%", 100*s), int64(total), t, trunk + experts - t, p.PrefillRows})
	}
	return append(settings, setting{asPlanned, int64(total), trunk, experts, p.PrefillRows}), nil
}
