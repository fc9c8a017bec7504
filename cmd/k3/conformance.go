package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/conformance"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/kernel"
)

// conformanceResult is one check of one backend.
type conformanceResult struct {
	Backend   string  `json:"backend"`
	Check     string  `json:"check"` // "kernels", or a model
	Positions int     `json:"positions,omitempty"`
	Worst     float64 `json:"worst,omitempty"` // largest error of a logit, as a share of the largest logit of its position
	Seconds   float64 `json:"seconds"`
	Missing   string  `json:"missing,omitempty"` // what this machine lacks to run the backend
	Error     string  `json:"error,omitempty"`
}

func conformanceCommand() *cobra.Command {
	var backend string
	var threads int
	var seed uint64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Check that this machine computes what it should, to the last bit",
		Long: "Check every backend this machine can run: its kernels against the generic backend, bit for bit, and whole models against\n" +
			"what an independent implementation in float64 computed. It needs no files and takes seconds.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			if backend != "" {
				if _, err := kernel.Select(backend); err != nil {
					return err
				}
			}
			results := checkBackends(cmd, backend, threads, seed)
			failed := 0
			for _, r := range results {
				if r.Error != "" {
					failed++
				}
			}
			if asJSON {
				if err := ui.WriteJSON(cmd.OutOrStdout(), results); err != nil {
					return err
				}
			} else if err := writeConformance(cmd, results); err != nil {
				return err
			}
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d checks failed: do not trust what this machine computes", failed, len(results))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&backend, "backend", "", "check only the backend `NAME`")
	cmd.Flags().IntVar(&threads, "threads", 0, "compute with `N` threads (default: one a core)")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "draw the shapes and values of the kernel checks from seed `N`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// checkBackends checks the named backend, or all.
func checkBackends(cmd *cobra.Command, only string, threads int, seed uint64) []conformanceResult {
	var results []conformanceResult
	check := func(backend, name string, f func() (conformance.Report, error)) {
		start := time.Now()
		r, err := f()
		result := conformanceResult{Backend: backend, Check: name, Positions: r.Positions, Worst: r.Worst, Seconds: time.Since(start).Seconds()}
		if err != nil {
			result.Error = ui.OneLine(err)
		}
		results = append(results, result)
	}
	for _, d := range kernel.Drivers() {
		if only != "" && only != "auto" && d.Name != only {
			continue
		}
		if missing := d.Missing(); missing != "" {
			results = append(results, conformanceResult{Backend: d.Name, Check: "-", Missing: missing})
			continue
		}
		check(d.Name, "kernels", func() (conformance.Report, error) {
			return conformance.Report{}, conformance.CheckKernels(d.New(), seed)
		})
		for _, g := range conformance.Goldens() {
			if cmd.Context().Err() != nil {
				return results
			}
			check(d.Name, "model "+g.Name, func() (conformance.Report, error) {
				return g.Check(cmd.Context(), core.Options{Backend: d.Name, Threads: threads})
			})
		}
		if only == "auto" {
			break // the first that runs is the one auto takes
		}
	}
	return results
}

func writeConformance(cmd *cobra.Command, results []conformanceResult) error {
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BACKEND\tCHECK\tRESULT")
	for _, r := range results {
		switch {
		case r.Missing != "":
			fmt.Fprintf(table, "%s\t%s\tcannot run here: needs %s\n", r.Backend, r.Check, r.Missing)
		case r.Error != "":
			fmt.Fprintf(table, "%s\t%s\tFAILED: %s\n", r.Backend, r.Check, r.Error)
		case r.Positions > 0:
			fmt.Fprintf(table, "%s\t%s\tok, %d positions within %.1e of the oracle (limit %.0e), in %s\n", r.Backend, r.Check, r.Positions, r.Worst, conformance.Tolerance, ui.Seconds(r.Seconds))
		default:
			fmt.Fprintf(table, "%s\t%s\tok, bit for bit, in %s\n", r.Backend, r.Check, ui.Seconds(r.Seconds))
		}
	}
	return table.Flush()
}
