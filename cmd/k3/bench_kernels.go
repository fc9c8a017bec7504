package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/kernel/bench"
)

// newBenchKernelsCommand is `k3 bench kernels`.
func newBenchKernelsCommand() *cobra.Command {
	var o bench.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "kernels",
		Short: "Measure the kernels at released shapes beside the machine's own speed",
		Long: "Measure every kernel at the shapes of the released model, with weights that come from memory, beside the speed at which this\n" +
			"machine reads memory and does arithmetic in the same run. It takes 1.7 GiB of memory and some minutes. The last lines add\n" +
			"up the layers of one token with all weights in memory, and what reading those weights alone would take.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, n := range o.Threads {
				if n < 1 {
					return ui.Usagef("--threads %d: at least 1", n)
				}
			}
			if o.Repeat < 1 {
				return ui.Usagef("--repeat %d: at least 1", o.Repeat)
			}
			o.Progress = func(m bench.Measurement) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s %s, %s, %s, %s: %.3g ms\n", m.Kernel, m.Shape, ui.Plural(m.Vectors, "vector", "vectors"), m.Backend,
					ui.Plural(m.Threads, "thread", "threads"), 1e3*m.Seconds)
			}
			if !slices.ContainsFunc(bench.Cases(), o.Matches) {
				return ui.Usagef("--match: no kernel and no shape has %q in its name", o.Match)
			}
			r, err := bench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return ui.WriteJSON(cmd.OutOrStdout(), r)
			}
			return writeKernels(cmd.OutOrStdout(), r)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.Backends, "backend", nil, "measure only the backends `NAMES` (default: all this machine can run)")
	flags.IntSliceVar(&o.Threads, "threads", nil, "measure with `N` threads, or several numbers (default: 1 and one a core)")
	flags.StringVar(&o.Match, "match", "", "measure only the kernels and shapes with `TEXT` in their names")
	flags.IntVar(&o.Repeat, "repeat", 9, "take the median of `N` times")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// writeKernels writes the measurements as tables.
func writeKernels(out io.Writer, r bench.Result) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "kernel\tshape\tvectors\tbackend\tthreads\tms\tGB/s\tof reading\tGFLOP/s\tof peak\t\n")
	for _, m := range r.Measurements {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%.4g\t%s\t%s\t%s\t%s\t\n", m.Kernel, m.Shape, m.Vectors, m.Backend, m.Threads, 1e3*m.Seconds,
			figure(m.GBps), share(m.GBps, memorySpeed(m)), figure(m.GFLOPS), share(m.GFLOPS, m.PeakGFLOPS))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range r.Tokens {
		if _, err := fmt.Fprintf(out, "one token, all weights in memory, %s, %s: %.2f s (reading them: %.2f s)\n", s.Backend, ui.Plural(s.Threads, "thread", "threads"), s.Seconds, s.Limit); err != nil {
			return err
		}
	}
	return nil
}

// memorySpeed is what a measurement's speed compares with.
func memorySpeed(m bench.Measurement) float64 {
	if m.CopyGBps > 0 {
		return m.CopyGBps
	}
	return m.ReadGBps
}

func figure(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", x)
}

func share(x, of float64) string {
	if x == 0 || of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*x/of)
}
