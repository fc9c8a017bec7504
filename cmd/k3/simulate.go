package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/experts/replay"
	"github.com/k3infer/k3/presets"
)

// releasedExpertBytes is one routed expert of the released model.
const releasedExpertBytes = 17_547_264

type simulateFlags struct {
	policies    []string
	capacities  []string
	expertBytes string
	disk        string
	tokens      int
	seed        uint64
	asJSON      bool
	plot        string
}

// simulation is what k3 simulate says. Sizes are in bytes, times in seconds.
type simulation struct {
	Trace       string         `json:"trace"`
	Requests    int            `json:"requests"`
	Passes      int            `json:"passes"`
	Tokens      int            `json:"tokens"`
	Touched     int            `json:"experts_touched"`
	ExpertsAll  int            `json:"experts_nameable"` // layers asked for, times the highest expert number
	Compulsory  int            `json:"compulsory_misses"`
	ExpertBytes int64          `json:"expert_bytes"`
	DiskRate    int64          `json:"disk_bytes_per_second"`
	Hottest     []hotExpert    `json:"hottest"`
	Reuse       []int          `json:"reuse_distances"` // by powers of two: requests in between
	Results     []simulated    `json:"results"`
	capacities  []presets.Size // of the columns
	policies    []string
}

type hotExpert struct {
	Layer    int32 `json:"layer"`
	Expert   int32 `json:"expert"`
	Requests int   `json:"requests"`
}

type simulated struct {
	Policy          string  `json:"policy"`
	Online          bool    `json:"online"` // does not need to know the future
	Capacity        int64   `json:"capacity_bytes"`
	Slots           int     `json:"slots"`
	Hits            int     `json:"hits"`
	HitRate         float64 `json:"hit_rate"`
	BytesPerToken   float64 `json:"bytes_per_token"`
	SecondsPerToken float64 `json:"seconds_per_token"` // of reading experts
}

func simulateCommand() *cobra.Command {
	f := simulateFlags{}
	cmd := &cobra.Command{
		Use:   "simulate TRACE",
		Short: "Replay an expert trace under any cache policy at any capacity",
		Long: "Replay the requests that k3 run --trace recorded, through the very policies the engine runs, at any capacity. Policies that\n" +
			"know the future (belady, pinned-lru) are there for comparison: no engine can run them.",
		Example: "  k3 run --prompt 'Once upon a time' --trace story.trace && k3 simulate story.trace --expert-bytes 13056\n" +
			"  k3 simulate released.trace --capacities 8GB,32GB,128GB --policies adaptive,lru,belady --plot hits.svg",
		Args: oneArgument("a trace file"),
		RunE: func(cmd *cobra.Command, args []string) error { return simulate(cmd, args[0], f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&f.policies, "policies", nil, "compare these `POLICIES` (default: all)")
	flags.StringSliceVar(&f.capacities, "capacities", nil, "memory for experts, as `SIZES` (default: 12 from a hundredth of what the trace touches to all of it)")
	flags.StringVar(&f.expertBytes, "expert-bytes", fmt.Sprint(releasedExpertBytes), "`SIZE` of one expert")
	flags.StringVar(&f.disk, "disk", "3GB", "what the disk reads in a second, as `SIZE`")
	flags.IntVar(&f.tokens, "tokens", 0, "`N` tokens were generated (default: one a pass)")
	flags.Uint64Var(&f.seed, "seed", 1, "`N` that chooses the draws of policies that draw lots")
	flags.BoolVar(&f.asJSON, "json", false, "write JSON")
	flags.StringVar(&f.plot, "plot", "", "draw hit rates over capacities to `FILE`, .svg or .html")
	return cmd
}

func simulate(cmd *cobra.Command, path string, f simulateFlags) error {
	s := simulation{Trace: path, policies: f.policies}
	size, err := presets.ParseSize(f.expertBytes)
	if err != nil || size < 1 {
		return ui.Usagef("--expert-bytes: %q is not a size above 0", f.expertBytes)
	}
	rate, err := presets.ParseSize(f.disk)
	if err != nil || rate < 1 {
		return ui.Usagef("--disk: %q is not a size above 0", f.disk)
	}
	s.ExpertBytes, s.DiskRate = int64(size), int64(rate)
	if f.tokens < 0 {
		return ui.Usagef("--tokens: %d: must be 1 or more, or left out", f.tokens)
	}
	if ext := filepath.Ext(f.plot); f.plot != "" && ext != ".svg" && ext != ".html" {
		return ui.Usagef("--plot: %s: the name must end in .svg or .html", f.plot)
	}
	if len(s.policies) == 0 {
		s.policies = experts.Policies()
	}
	for _, name := range s.policies {
		if err := experts.CheckPolicy(name); err != nil && !errors.Is(err, experts.ErrOffline) {
			return ui.Usagef("--policies: %q is not one of %s%s", name, strings.Join(experts.Policies(), ", "), suggestion("", name, experts.Policies()))
		}
	}
	for _, text := range f.capacities {
		c, err := presets.ParseSize(text)
		if err != nil {
			return ui.Usagef("--capacities: %w", err)
		}
		if int64(c) < s.ExpertBytes {
			return ui.Usagef("--capacities: %s holds no expert of %d bytes", text, s.ExpertBytes)
		}
		s.capacities = append(s.capacities, c)
	}

	trace, err := replay.Open(path)
	if err != nil {
		return ui.Inputf("%w", err)
	}
	profile := replay.NewProfile(trace, 10)
	s.Requests, s.Passes, s.Touched, s.Reuse = profile.Requests, profile.Passes, profile.Touched, profile.Reuse
	s.ExpertsAll = profile.Layers * trace.Experts
	if s.Tokens = f.tokens; s.Tokens == 0 {
		s.Tokens = profile.Passes
	}
	for _, h := range profile.Hottest {
		s.Hottest = append(s.Hottest, hotExpert{h.Key.Layer, h.Key.Expert, h.Requests})
	}
	if len(s.capacities) == 0 {
		s.capacities = defaultCapacities(profile.Touched, s.ExpertBytes)
	}
	if err := s.run(cmd, trace, f.seed); err != nil {
		return err
	}
	if f.plot != "" {
		if err := s.draw(f.plot); err != nil {
			return err
		}
	}
	if f.asJSON {
		return ui.WriteJSON(cmd.OutOrStdout(), s)
	}
	return s.write(cmd.OutOrStdout())
}

// defaultCapacities are 12 from a hundredth of the experts touched to all of them, each as much more than the one before.
func defaultCapacities(touched int, expertBytes int64) (all []presets.Size) {
	last := 0
	for i := range 12 {
		slots := touched
		for range 11 - i {
			slots = slots * 2 / 3
		}
		if slots = max(slots, 1); slots > last {
			all = append(all, presets.Size(int64(slots)*expertBytes))
			last = slots
		}
	}
	return all
}

func (s *simulation) run(cmd *cobra.Command, trace *replay.Trace, seed uint64) error {
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)
	defer line.Clear()
	line.Show(time.Now(), "replaying "+ui.Plural(len(trace.Keys), "request", "requests"))
	ctx, _, stop := interrupts(cmd.Context())
	defer stop()
	slots := make([]int, len(s.capacities))
	for i, c := range s.capacities {
		slots[i] = int(int64(c) / s.ExpertBytes)
	}
	results, err := replay.Sweep(ctx, trace, s.policies, slots, seed)
	if err != nil {
		return err
	}
	for i, policy := range s.policies {
		online := experts.CheckPolicy(policy) == nil
		for j, r := range results[i] {
			s.Compulsory = r.Compulsory
			bytes := float64(r.Misses()) * float64(s.ExpertBytes) / float64(s.Tokens)
			s.Results = append(s.Results, simulated{policy, online, int64(s.capacities[j]), slots[j], r.Hits, r.HitRate(),
				bytes, bytes / float64(s.DiskRate)})
		}
	}
	return nil
}

// result is that of policy i at capacity j.
func (s *simulation) result(i, j int) simulated { return s.Results[i*len(s.capacities)+j] }

func (s *simulation) write(out io.Writer) error {
	fmt.Fprintf(out, "%s: %d requests in %s, %s\n", s.Trace, s.Requests, ui.Plural(s.Passes, "pass", "passes"), ui.Plural(s.Tokens, "token", "tokens"))
	fmt.Fprintf(out, "%d of %d experts touched (%.1f%%); %d misses (%.2f%%) are first requests, which no cache holds\n",
		s.Touched, s.ExpertsAll, 100*float64(s.Touched)/float64(s.ExpertsAll), s.Compulsory, 100*float64(s.Compulsory)/float64(s.Requests))
	for _, table := range []struct {
		title string
		cell  func(simulated) string
	}{
		{"hits, % of requests", func(r simulated) string { return fmt.Sprintf("%.2f", 100*r.HitRate) }},
		{"read for a token", func(r simulated) string { return ui.Size(int64(r.BytesPerToken)) }},
		{fmt.Sprintf("time a token at %s/s", ui.Size(s.DiskRate)), func(r simulated) string { return ui.Seconds(r.SecondsPerToken) }},
	} {
		fmt.Fprintf(out, "\n%s\n", table.title)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(w, "memory\t")
		for _, c := range s.capacities {
			fmt.Fprintf(w, "%s\t", ui.Size(int64(c)))
		}
		fmt.Fprintln(w)
		for i, policy := range s.policies {
			mark := ""
			if !s.result(i, 0).Online {
				mark = " *"
			}
			fmt.Fprintf(w, "%s%s\t", policy, mark)
			for j := range s.capacities {
				fmt.Fprintf(w, "%s\t", table.cell(s.result(i, j)))
			}
			fmt.Fprintln(w)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\n* knows the future\n\nhottest: ")
	for i, h := range s.Hottest {
		if i > 0 {
			fmt.Fprint(out, ", ")
		}
		fmt.Fprintf(out, "%d/%d (%d)", h.Layer, h.Expert, h.Requests)
	}
	fmt.Fprintf(out, " as layer/expert (requests)\nasked for again after so many other requests:\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, n := range s.Reuse {
		from, to := 1<<i, 2<<i-1
		if i == 0 {
			from = 0
		}
		fmt.Fprintf(w, "%d to %d\t%.2f%%\t\n", from, to, 100*float64(n)/float64(s.Requests))
	}
	return w.Flush()
}

// draw writes the chart of hit rates.
func (s *simulation) draw(path string) error {
	unit, name := 1.0, "bytes" // that fits the largest capacity
	for _, u := range []struct {
		bytes float64
		name  string
	}{{1e3, "KB"}, {1e6, "MB"}, {1e9, "GB"}} {
		if float64(slices.Max(s.capacities)) >= u.bytes {
			unit, name = u.bytes, u.name
		}
	}
	c := chart{title: "Expert requests served from memory", x: "memory for experts, " + name, y: "% of requests", logX: true, top: 100,
		note: fmt.Sprintf("%s: %d requests, %d experts touched; policies with * know the future", filepath.Base(s.Trace), s.Requests, s.Touched)}
	for i, policy := range s.policies {
		line := chartLine{name: policy}
		if !s.result(i, 0).Online {
			line.name += " *"
		}
		for j := range s.capacities {
			r := s.result(i, j)
			y := 100 * r.HitRate
			line.points = append(line.points, chartPoint{float64(r.Capacity) / unit, y, y, y})
		}
		c.lines = append(c.lines, line)
	}
	f, err := disk.Create(path)
	if err != nil {
		return err
	}
	defer f.Abandon()
	if filepath.Ext(path) == ".html" {
		fmt.Fprintf(f, "<!doctype html>\n<meta charset=\"utf-8\">\n<title>%s</title>\n", c.title)
	}
	if err := c.writeSVG(f); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Commit()
}
