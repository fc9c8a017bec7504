package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/estimate"
	"github.com/k3infer/k3/presets"
)

// benchResult is a measurement of whole runs. Sizes are in bytes, times in seconds, shares from 0 to 1.
type benchResult struct {
	Kind         string             `json:"kind"` // ladder, split or replicate
	Version      string             `json:"version"`
	Started      time.Time          `json:"started"`
	Model        string             `json:"model"`
	Geometry     *estimate.Geometry `json:"geometry,omitempty"`
	PromptTokens int                `json:"prompt_tokens"`
	MaxTokens    int                `json:"max_tokens"`
	Repeats      int                `json:"repeats"`
	Backend      string             `json:"backend"`
	Threads      int                `json:"threads"`
	Policy       string             `json:"policy"`
	Limit        string             `json:"limit"` // what enforced the memory
	Machine      machine            `json:"machine"`
	DiskRate     float64            `json:"disk_bytes_per_second,omitempty"` // of the model's disk, read as the engine reads
	DiskDirect   bool               `json:"disk_direct,omitempty"`           // and that was not the page cache's
	IDs          []int              `json:"ids"`                             // of every run
	Different    string             `json:"different,omitempty"`             // the run that gave other ids
	Rungs        []rung             `json:"rungs"`
	ends         string             // labels of the rungs that Overall is about
	Overall      *change            `json:"overall,omitempty"` // of the time per token, from the first rung that fits to the last
	Comparison   *comparison        `json:"comparison,omitempty"`
}

// What became of a rung or a run.
const (
	rungFits   = "fits"
	rungNoFit  = "does not fit"
	rungFailed = "failed"
)

// rung is one setting, measured.
type rung struct {
	setting
	Status   string    `json:"status"`
	Why      string    `json:"why,omitempty"` // it does not fit or failed
	Planned  int64     `json:"planned_rss_bytes,omitempty"`
	Resident residency `json:"residency"`
	figures
	Change *change    `json:"change,omitempty"` // of the time per token, from the rung before
	Runs   []benchRun `json:"runs"`

	damaged bool // it failed because of the model's files
}

// figures are those that differ from run to run.
type figures struct {
	SecondsPerToken estimate.Series `json:"seconds_per_token"` // of the decode
	PromptSeconds   estimate.Series `json:"prompt_seconds"`    // for the prompt and the first token
	HitRate         estimate.Series `json:"expert_hit_rate"`   // of the distinct experts of each pass, those that were in memory
	NaiveHitRate    estimate.Series `json:"expert_hit_rate_naive"`
	TrunkHitRate    estimate.Series `json:"trunk_hit_rate"` // of the bytes of trunk that the decode needed
	Read            estimate.Series `json:"read_bytes"`     // in the whole run
	ReadPerToken    estimate.Series `json:"read_bytes_per_token"`
	PeakRSS         estimate.Series `json:"peak_rss_bytes"`
	WaitShare       estimate.Series `json:"wait_share"` // of the decode's time
}

// benchRun is one run. A hit rate is missing where there was nothing to hit.
type benchRun struct {
	Status          string   `json:"status"`
	Why             string   `json:"why,omitempty"`
	Seconds         float64  `json:"seconds"` // of the process, from start to end
	SecondsPerToken float64  `json:"seconds_per_token,omitempty"`
	PromptSeconds   float64  `json:"prompt_seconds,omitempty"`
	HitRate         *float64 `json:"expert_hit_rate,omitempty"`
	NaiveHitRate    *float64 `json:"expert_hit_rate_naive,omitempty"`
	TrunkHitRate    *float64 `json:"trunk_hit_rate,omitempty"`
	Read            int64    `json:"read_bytes"`
	ReadPerToken    float64  `json:"read_bytes_per_token"`
	PeakRSS         int64    `json:"peak_rss_bytes,omitempty"`
	WaitShare       float64  `json:"wait_share"`
	IDs             []int    `json:"ids,omitempty"`

	damaged bool // it failed because of the model's files
}

// fill takes the figures from a report.
//
// The naive hit rate counts every choice of every row. Most rows of a prompt choose experts that another row of the same
// pass has chosen, too, and those count as hits whatever the cache does; the true one asks for each expert once a pass.
func (r *benchRun) fill(x *report) {
	rate := func(part, all float64) *float64 {
		if all <= 0 {
			return nil
		}
		share := min(max(part/all, 0), 1)
		return &share
	}
	all := x.Prefill.plus(x.Decode)
	misses := float64(all.ExpertRequests - all.ExpertHits)
	choices := float64((x.Prefill.Tokens + x.Decode.Tokens) * x.Geometry.Experts.Layers * x.Geometry.Experts.TopK)
	r.SecondsPerToken, r.PromptSeconds = x.Decode.SecondsPerToken, x.Prefill.Seconds
	r.HitRate = rate(float64(all.ExpertHits), float64(all.ExpertRequests))
	r.NaiveHitRate = rate(choices-misses, choices)
	needed := float64(x.Residency.TrunkBytes) * float64(x.Decode.Passes)
	r.TrunkHitRate = rate(needed-float64(x.Decode.TrunkRead), needed)
	r.Read, r.ReadPerToken = all.TrunkRead+all.ExpertRead, x.Decode.ReadPerToken
	r.PeakRSS, r.WaitShare, r.IDs = x.PeakRSS, x.Decode.WaitShare, x.IDs
}

// add takes a run of a rung; x is its report, nil if it has none.
func (b *benchResult) add(r *rung, run benchRun, x *report) {
	r.Status, r.Why, r.damaged = run.Status, run.Why, run.damaged
	if x != nil {
		r.Planned, r.Resident = x.PlannedRSS, x.Residency
		b.Geometry, b.Backend, b.Threads, b.Policy = &x.Geometry, x.Backend, x.Threads, x.Policy
		if b.IDs == nil {
			b.IDs = run.IDs
		}
		if !slices.Equal(b.IDs, run.IDs) && b.Different == "" {
			b.Different = fmt.Sprintf("%s, run %d: %s", r.Label, len(r.Runs)+1, formatIDs(run.IDs))
		}
	}
	r.Runs = append(r.Runs, run)
	r.figures = figures{}
	for _, x := range r.Runs {
		if x.Status != rungFits {
			continue
		}
		r.SecondsPerToken.Add(x.SecondsPerToken)
		r.PromptSeconds.Add(x.PromptSeconds)
		r.Read.Add(float64(x.Read))
		r.ReadPerToken.Add(x.ReadPerToken)
		r.PeakRSS.Add(float64(x.PeakRSS))
		r.WaitShare.Add(x.WaitShare)
		for _, y := range []struct {
			to   *estimate.Series
			rate *float64
		}{{&r.HitRate, x.HitRate}, {&r.NaiveHitRate, x.NaiveHitRate}, {&r.TrunkHitRate, x.TrunkHitRate}} {
			if y.rate != nil {
				y.to.Add(*y.rate)
			}
		}
	}
	if b.Kind != "replicate" {
		b.compareRungs()
	}
}

// compareRungs compares each rung with the one before, and the last with the first.
func (b *benchResult) compareRungs() {
	var first, before *rung
	for i := range b.Rungs {
		r := &b.Rungs[i]
		if r.Status != rungFits {
			continue
		}
		if r.Change = nil; before != nil {
			c := compare(r.SecondsPerToken, before.SecondsPerToken)
			r.Change = &c
			if r.Label != asPlanned {
				c := compare(r.SecondsPerToken, first.SecondsPerToken)
				b.Overall, b.ends = &c, first.Label+" to "+r.Label
			}
		} else {
			first = r
		}
		before = r
	}
}

// change is the step from one series to another.
type change struct {
	Share float64 `json:"share"` // of the earlier median; below 0 is less
	Noise float64 `json:"noise"` // the greater spread of the two
	Real  bool    `json:"real"`  // more than noise
}

// compare compares a series with an earlier one. A difference is more than noise if it is larger than the spread of either
// and the values do not overlap; with fewer than three values on each side, nothing is.
func compare(s, x estimate.Series) change {
	if len(s.Values) == 0 || len(x.Values) == 0 || x.Median == 0 {
		return change{}
	}
	c := change{Share: s.Median/x.Median - 1, Noise: max(s.Spread(), x.Spread())}
	apart := s.Max < x.Min || s.Min > x.Max
	c.Real = apart && math.Abs(c.Share) > c.Noise && min(len(s.Values), len(x.Values)) >= leastRepeats
	return c
}

func (c *change) String() string {
	switch {
	case c == nil:
		return "-"
	case c.Real:
		return fmt.Sprintf("%+.1f%%", 100*c.Share)
	}
	return fmt.Sprintf("noise (%+.1f%%)", 100*c.Share)
}

// comparison is a measurement beside an earlier one.
type comparison struct {
	Started time.Time  `json:"started"` // the earlier
	Version string     `json:"version"`
	Notes   []string   `json:"notes,omitempty"` // what differs apart from the speed
	Rungs   []compared `json:"rungs"`
}

type compared struct {
	Label           string          `json:"label"`
	Earlier         estimate.Series `json:"earlier_seconds_per_token"`
	SecondsPerToken change          `json:"seconds_per_token"` // noise is that of all rungs here
	ReadPerToken    change          `json:"read_bytes_per_token"`
	PeakRSS         change          `json:"peak_rss_bytes"`
}

// against compares with an earlier measurement, rung by rung where both have the same.
func (b *benchResult) against(x *benchResult) *comparison {
	c := &comparison{Started: x.Started, Version: x.Version}
	note := func(different bool, format string, args ...any) {
		if different {
			c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
		}
	}
	same := b.Geometry != nil && x.Geometry != nil && b.Geometry.Parameters == x.Geometry.Parameters && b.Geometry.LayerMap == x.Geometry.LayerMap
	note(!same, "the earlier model was another: %s", x.Model)
	note(b.Machine != x.Machine, "the earlier machine was another: %s", x.Machine.line())
	sameRun := b.PromptTokens == x.PromptTokens && b.MaxTokens == x.MaxTokens
	note(!sameRun, "the earlier runs had %s of prompt and generated %d", ui.Plural(x.PromptTokens, "token", "tokens"), x.MaxTokens)
	note(same && sameRun && !slices.Equal(b.IDs, x.IDs), "the ids are others: another prompt, other weights, or a defect")
	note(b.Backend != x.Backend || b.Threads != x.Threads, "the earlier runs were computed by %s with %s", x.Backend, ui.Plural(x.Threads, "thread", "threads"))
	note(b.Policy != x.Policy, "the earlier policy was %s", x.Policy)
	for _, r := range b.Rungs {
		i := slices.IndexFunc(x.Rungs, func(e rung) bool { return e.setting == r.setting && e.Status == rungFits })
		if i < 0 || r.Status != rungFits {
			continue
		}
		e := x.Rungs[i]
		y := compared{r.Label, e.SecondsPerToken, compare(r.SecondsPerToken, e.SecondsPerToken),
			compare(r.ReadPerToken, e.ReadPerToken), compare(r.PeakRSS, e.PeakRSS)}
		// Between two measurements a machine changes in ways that the repeats of one rung do not show.
		y.SecondsPerToken.Noise = max(y.SecondsPerToken.Noise, b.noise(), x.noise())
		y.SecondsPerToken.Real = y.SecondsPerToken.Real && math.Abs(y.SecondsPerToken.Share) > y.SecondsPerToken.Noise
		c.Rungs = append(c.Rungs, y)
	}
	return c
}

// noise is the greatest spread of all rungs.
func (b *benchResult) noise() (most float64) {
	for _, r := range b.Rungs {
		most = max(most, r.SecondsPerToken.Spread())
	}
	return most
}

// readBench reads an earlier measurement of a kind from a JSON file, or from the directory it was written to.
func readBench(path, kind string) (*benchResult, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, kind+".json")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, ui.Inputf("--compare: %w", err)
	}
	r := new(benchResult)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, ui.Inputf("--compare %s: %w", path, err)
	}
	if r.Kind != kind {
		return nil, ui.Inputf("--compare %s: not a measurement by k3 bench %s", path, kind)
	}
	return r, nil
}

// outNames are the names of the files in --out.
func outNames(kind string) []string {
	return []string{kind + ".tsv", kind + ".json", kind + ".svg", kind + "-machine.txt"}
}

// checkOut makes the directory --out and sees that nothing in it would be overwritten.
func (b *bencher) checkOut(kind string) error {
	if b.flags.out == "" {
		return nil
	}
	if err := mayBeDirectory(b.flags.out); err != nil {
		return err
	}
	if err := os.MkdirAll(b.flags.out, 0o777); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, name := range outNames(kind) {
		path := filepath.Join(b.flags.out, name)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) && !b.flags.force {
			if err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			return ui.Usagef("--out: %s is there already (--force replaces it)", path)
		}
	}
	return nil
}

// save writes what is known so far into --out.
func (b *bencher) save() error {
	if b.flags.out == "" {
		return nil
	}
	r := &b.result
	for i, write := range []func(io.Writer) error{
		r.writeTSV,
		func(w io.Writer) error { return ui.WriteJSON(w, r) },
		func(w io.Writer) error { return r.chart().writeSVG(w) },
		func(w io.Writer) error { return r.writeMachine(w) },
	} {
		f, err := disk.Create(filepath.Join(b.flags.out, outNames(r.Kind)[i]))
		if err != nil {
			return err
		}
		if err := write(f); err != nil {
			f.Abandon()
			return fmt.Errorf("write %s: %w", f.Path(), err)
		}
		if err := f.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// writeTSV writes the medians, and how far the times per token lie apart. GB are 10^9 bytes.
func (b *benchResult) writeTSV(w io.Writer) error {
	if _, err := fmt.Fprintln(w, "label\ttotal_gb\tpinned_tiles\tpinned_gb\texpert_slots\ts_per_token\ts_per_token_min\ts_per_token_max\t"+
		"prompt_s\texpert_hit\texpert_hit_naive\ttrunk_hit\tread_gb\tread_gb_per_token\tpeak_rss_gb\twait_share\truns\tstatus\tids"); err != nil {
		return err
	}
	gb := func(bytes float64) string { return fmt.Sprintf("%.6g", bytes/1e9) }
	of := func(s estimate.Series, write func(float64) string) string {
		if len(s.Values) == 0 {
			return ""
		}
		return write(s.Median)
	}
	plain := func(x float64) string { return fmt.Sprintf("%.4g", x) }
	for _, r := range b.Rungs {
		columns := []string{r.Label, gb(float64(r.Memory)), "", "", "", "", "", "", "", "", "", "", "", "", "", "",
			fmt.Sprint(len(r.SecondsPerToken.Values)), r.Status, ""}
		if t := r.SecondsPerToken; len(t.Values) > 0 {
			copy(columns[2:], []string{fmt.Sprint(r.Resident.KeptTiles), gb(float64(r.Resident.KeptTrunkBytes)), fmt.Sprint(r.Resident.ExpertSlots),
				plain(t.Median), plain(t.Min), plain(t.Max), of(r.PromptSeconds, plain), of(r.HitRate, plain), of(r.NaiveHitRate, plain),
				of(r.TrunkHitRate, plain), of(r.Read, gb), of(r.ReadPerToken, gb), of(r.PeakRSS, gb), of(r.WaitShare, plain)})
			columns[len(columns)-1] = formatIDs(b.IDs)
		}
		if _, err := fmt.Fprintln(w, strings.Join(columns, "\t")); err != nil {
			return err
		}
	}
	return nil
}

// write writes the result as a table.
func (b *benchResult) write(out io.Writer) error {
	if err := b.writeMachine(out); err != nil {
		return err
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := map[string]string{"ladder": "MEMORY", "split": "TRUNK GETS", "replicate": "MEMORY"}[b.Kind]
	before := "VS BEFORE\t"
	if b.Kind == "replicate" {
		before = ""
	}
	fmt.Fprintf(w, "%s\tPINNED\tEXPERTS\tS/TOKEN\tSPREAD\t%sEXPERT HIT\tNAIVE\tTRUNK HIT\tREAD/TOKEN\tWAITED\tPEAK RSS\t\n", head, before)
	percent := func(s estimate.Series) string {
		if len(s.Values) == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f%%", 100*s.Median)
	}
	for i := range b.Rungs {
		r := &b.Rungs[i]
		if len(r.SecondsPerToken.Values) == 0 {
			status := cmp.Or(r.Status, "not measured")
			columns := 11
			if before == "" {
				columns--
			}
			fmt.Fprintf(w, "%s\t%s  %s\n", r.Label, strings.Repeat("-\t", columns), status)
			continue
		}
		if before != "" {
			before = r.Change.String() + "\t"
		}
		note := ""
		if r.Status != rungFits {
			note = "  " + r.Status + " later"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%.1f%%\t%s%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Label, ui.Size(r.Resident.KeptTrunkBytes), r.Resident.ExpertSlots,
			ui.Seconds(r.SecondsPerToken.Median), 100*r.SecondsPerToken.Spread(), before, percent(r.HitRate), percent(r.NaiveHitRate), percent(r.TrunkHitRate),
			ui.Size(int64(r.ReadPerToken.Median)), percent(r.WaitShare), ui.InMemory(int64(r.PeakRSS.Max)), note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, r := range b.Rungs {
		if r.Why != "" {
			fmt.Fprintf(out, "%s %s: %s\n", r.Label, r.Status, r.Why)
		}
	}
	if runs := b.good(); runs > 0 && b.Different == "" {
		fmt.Fprintf(out, "all %d runs gave the same %s\n", runs, ui.Plural(len(b.IDs), "id", "ids"))
	}
	if c := b.Overall; c != nil {
		verdict := "which is within the noise"
		if c.Real {
			verdict = "which is more than noise"
		}
		fmt.Fprintf(out, "%s: %+.1f%% of time a token, %s (%.1f%%)\n", b.ends, 100*c.Share, verdict, 100*c.Noise)
	}
	if b.Kind == "replicate" && len(b.Rungs) == 1 && len(b.Rungs[0].SecondsPerToken.Values) > 1 {
		b.Rungs[0].writeNoise(out)
	}
	return b.Comparison.write(out)
}

// writeNoise says what the runs of one setting tell about those of others.
func (r *rung) writeNoise(out io.Writer) {
	for _, x := range []struct {
		what  string
		s     estimate.Series
		write func(float64) string
	}{
		{"time a token", r.SecondsPerToken, ui.Seconds}, {"time of the prompt", r.PromptSeconds, ui.Seconds},
		{"read a token", r.ReadPerToken, func(x float64) string { return ui.Size(int64(x)) }},
		{"peak memory", r.PeakRSS, func(x float64) string { return ui.InMemory(int64(x)) }},
	} {
		fmt.Fprintf(out, "%-18s  median %s, from %s to %s: they lie %.1f%% apart\n",
			x.what, x.write(x.s.Median), x.write(x.s.Min), x.write(x.s.Max), 100*x.s.Spread())
	}
	fmt.Fprintf(out, "a single run that is less than %.1f%% faster or slower than another says nothing on this machine\n",
		100*r.SecondsPerToken.Spread())
}

func (c *comparison) write(out io.Writer) error {
	if c == nil {
		return nil
	}
	fmt.Fprintf(out, "\ncompared with k3 %s on %s:\n", c.Version, c.Started.Format(time.DateTime))
	for _, n := range c.Notes {
		fmt.Fprintf(out, "  note: %s\n", n)
	}
	if len(c.Rungs) == 0 {
		_, err := fmt.Fprintln(out, "  no rung is the same in both")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tEARLIER S/TOKEN\tNOW\tREAD/TOKEN\tPEAK RSS\t")
	for i := range c.Rungs {
		r := &c.Rungs[i]
		now := "within the noise"
		switch x := r.SecondsPerToken; {
		case x.Real && x.Share < 0:
			now = "faster"
		case x.Real:
			now = "slower"
		}
		fmt.Fprintf(w, "%s\t%s\t%+.1f%%: %s (noise %.1f%%)\t%+.1f%%\t%+.1f%%\t\n", r.Label, ui.Seconds(r.Earlier.Median), 100*r.SecondsPerToken.Share, now,
			100*r.SecondsPerToken.Noise, 100*r.ReadPerToken.Share, 100*r.PeakRSS.Share)
	}
	return w.Flush()
}

// good is the number of runs that went well.
func (b *benchResult) good() (n int) {
	for _, r := range b.Rungs {
		n += len(r.SecondsPerToken.Values)
	}
	return n
}

// verdict is the error that a complete measurement ends with, if something in it is wrong.
func (b *benchResult) verdict() error {
	fits := false
	for _, r := range b.Rungs {
		switch {
		case r.damaged:
			return ui.Inputf("bench: %s failed: %s", r.Label, r.Why)
		case r.Status == rungFailed:
			return fmt.Errorf("bench: %s failed: %s", r.Label, r.Why)
		case r.Status == rungNoFit && b.Kind != "ladder":
			return fmt.Errorf("bench: %s does not fit, though it was divided so that it would: a fault of this measurement: %s", r.Label, r.Why)
		}
		fits = fits || r.Status == rungFits
	}
	switch {
	case b.Different != "":
		return fmt.Errorf("bench: not all runs gave the same ids, which is a defect of k3: %s", b.Different)
	case !fits && len(b.Rungs) > 0:
		return ui.WithCode(ui.ExitNoFit, fmt.Errorf("bench: nothing fits: %s", b.Rungs[len(b.Rungs)-1].Why))
	}
	return nil
}

// line describes a machine in one line.
func (m machine) line() string {
	cpu := m.CPU
	if cpu == "" {
		cpu = "unknown processor"
	}
	s := fmt.Sprintf("%s, %s, %s of memory, %s/%s", cpu, ui.Plural(m.Processors, "processor", "processors"), ui.InMemory(m.Memory), m.OS, m.Arch)
	if m.Disk != "" {
		s += ", disk " + m.Disk
	}
	return s
}

// writeMachine says on what was measured, and how.
func (b *benchResult) writeMachine(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "machine\t%s\n", b.Machine.line())
	if b.DiskRate > 0 {
		direct := ""
		if !b.DiskDirect {
			direct = " (through the page cache)"
		}
		fmt.Fprintf(w, "disk\t%s/s before the first run%s\n", ui.Size(int64(b.DiskRate)), direct)
	}
	fmt.Fprintf(w, "model\t%s\n", b.Model)
	if b.Geometry != nil {
		fmt.Fprintf(w, "computed\tby k3 %s, %s, %s, policy %s\n", b.Version, b.Backend, ui.Plural(b.Threads, "thread", "threads"), b.Policy)
	}
	fmt.Fprintf(w, "runs\t%d of each, one process each: %s of prompt, %s generated\n", b.Repeats,
		ui.Plural(b.PromptTokens, "token", "tokens"), ui.Plural(b.MaxTokens, "token", "tokens"))
	fmt.Fprintf(w, "hard limit\t%s\n", b.Limit)
	fmt.Fprintf(w, "started\t%s\n", b.Started.Format(time.RFC3339))
	return w.Flush()
}

// chart draws the times per token.
func (b *benchResult) chart() chart {
	c := chart{y: "seconds a token", note: b.Machine.line()}
	line := chartLine{}
	for i, r := range b.Rungs {
		t := r.SecondsPerToken
		if len(t.Values) == 0 {
			continue
		}
		switch b.Kind {
		case "ladder":
			line.points = append(line.points, chartPoint{float64(r.Memory) / 1e9, t.Median, t.Min, t.Max})
		case "split":
			share := 100 * float64(r.Trunk) / float64(r.Trunk+r.Experts)
			line.points = append(line.points, chartPoint{share, t.Median, t.Min, t.Max})
		default:
			for n, v := range t.Values {
				line.points = append(line.points, chartPoint{float64(i + n + 1), v, v, v})
			}
		}
	}
	model := filepath.Base(b.Model)
	switch b.Kind {
	case "ladder":
		c.title, c.x, c.logX = "Time a token by memory, "+model, "memory of the whole process, GB", true
	case "split":
		total := ""
		if len(b.Rungs) > 0 {
			total = presets.Size(b.Rungs[0].Memory).String()
		}
		c.title, c.x = fmt.Sprintf("Time a token by division of %s, %s", total, model), "share of the divisible memory that the trunk gets, %"
	default:
		c.title, c.x = "Time a token in identical runs, "+model, "run"
	}
	c.lines = []chartLine{line}
	return c
}
