package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

// benchCommand is k3 bench, the measurements. Those of whole runs are made the same way: each in a process of its own, k3 run
// --report, under a hard limit of memory where the system has one, several times over, in an order that changes from round
// to round.
func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure: memory budgets, divisions of memory, noise, disk, kernels",
		Args: func(cmd *cobra.Command, args []string) error {
			return known(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.AddCommand(ladderCommand(), splitCommand(), replicateCommand(), benchDiskCommand(), newBenchKernelsCommand())
	return cmd
}

// benchFlags are the flags that the measurements of whole runs share.
type benchFlags struct {
	prompt, promptFile, ids string
	maxTokens, repeats      int
	limit                   string
	out, compare            string
	force, asJSON, asTSV    bool
}

// leastRepeats is how many times a configuration is measured at least: with fewer there is no telling what is noise.
const leastRepeats = 3

// benchPrompt is the prompt of a model with a tokenizer, benchIDs of one without.
const (
	benchPrompt = "The capital of France is"
	benchIDs    = "1,2,3,4,5"
)

func (f *benchFlags) add(cmd *cobra.Command, repeats int, config ...string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	addConfigFlags(cmd, append([]string{"model", "trunk"}, config...)...)
	flags.StringVar(&f.prompt, "prompt", "", "go on from `TEXT` (default \""+benchPrompt+"\")")
	flags.StringVar(&f.promptFile, "prompt-file", "", "go on from the text in `FILE`")
	flags.StringVar(&f.ids, "ids", "", "go on from the token `IDS`, comma separated")
	flags.IntVar(&f.maxTokens, "max-tokens", 16,
		"generate `N` tokens in each run; the first, which comes with the prompt, does not count for the speed")
	flags.IntVar(&f.repeats, "repeats", repeats, "measure everything `N` times")
	flags.StringVar(&f.limit, "limit", "auto",
		"enforce the memory by `MEANS`: "+strings.Join(limiterNames(), ", ")+"; auto is the first of them that works")
	flags.StringVar(&f.out, "out", "",
		"also write the results as TSV, JSON and SVG, and the machine's description, into `DIR`, as far as they are, after every run")
	flags.BoolVar(&f.force, "force", false, "replace results that are in --out")
	flags.StringVar(&f.compare, "compare", "", "compare with the JSON `FILE` of an earlier measurement, or that in a directory")
	flags.BoolVar(&f.asJSON, "json", false, "write JSON")
	flags.BoolVar(&f.asTSV, "tsv", false, "write tab-separated values")
}

func (f *benchFlags) check(cmd *cobra.Command) error {
	prompts := 0
	for _, name := range []string{"prompt", "prompt-file", "ids"} {
		if cmd.Flags().Changed(name) {
			prompts++
		}
	}
	switch {
	case prompts > 1:
		return ui.Usagef("%s needs at most one of --prompt, --prompt-file and --ids, and got %d", cmd.CommandPath(), prompts)
	case f.asJSON && f.asTSV:
		return ui.Usagef("--json and --tsv: one of them")
	case f.maxTokens < 2 || f.maxTokens > 1<<20:
		return ui.Usagef("--max-tokens: %d: must be from 2 to %d", f.maxTokens, 1<<20)
	case f.repeats < leastRepeats || f.repeats > 1000:
		return ui.Usagef("--repeats: %d: must be from %d, below which nothing can be said about noise, to 1000", f.repeats, leastRepeats)
	case f.promptFile == "-":
		return ui.Usagef("--prompt-file: every run reads it again, which stdin cannot do")
	case f.limit != "auto" && !slices.Contains(limiterNames(), f.limit):
		return ui.Usagef("--limit: %q: must be auto or one of %s", f.limit, strings.Join(limiterNames(), ", "))
	}
	return nil
}

// bencher makes runs.
type bencher struct {
	flags   benchFlags
	config  presets.Config
	files   disk.Files
	program string   // k3 itself
	args    []string // of every run
	limit   limiter
	line    *ui.Progress
	scratch string // directory for reports
	prompt  int    // tokens
	result  benchResult
	earlier *benchResult // to compare with, or nil
}

// newBencher checks what was asked for. close it.
func newBencher(ctx context.Context, cmd *cobra.Command, kind string, f benchFlags) (*bencher, error) {
	if err := f.check(cmd); err != nil {
		return nil, err
	}
	b := &bencher{flags: f, line: ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), false)}
	var err error
	if b.config, err = loadConfig(cmd); err != nil {
		return nil, err
	}
	c := &b.config
	c.Generate.MaxTokens, c.Speculate = f.maxTokens, 0
	if b.files, err = modelFiles(c.Model, configFile); err != nil {
		return nil, err
	}
	prompt, err := b.readPrompt(cmd)
	if err != nil {
		return nil, err
	}
	if f.compare != "" {
		if b.earlier, err = readBench(f.compare, kind); err != nil {
			return nil, err
		}
	}
	if err := b.checkOut(kind); err != nil {
		return nil, err
	}
	if b.program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	auto := func(n int) string {
		if n == 0 {
			return "auto"
		}
		return strconv.Itoa(n)
	}
	// A run finds the same environment and files, so what is not said here is decided there as it was here.
	b.args = append(b.args, "run", prompt, "--quiet", "--print-ids", "--ignore-eos", "--temperature=0", "--repetition-penalty=1",
		"--speculate=0", "--max-tokens="+strconv.Itoa(f.maxTokens), "--context="+strconv.Itoa(c.Context), "--model="+c.Model,
		"--threads="+auto(c.Compute.Threads), "--backend="+c.Compute.Backend, "--policy="+c.Cache.Policy)
	if c.Preset != "" {
		b.args = append(b.args, "--preset="+c.Preset)
	}
	if c.File != "" {
		b.args = append(b.args, "--config="+c.File)
	}
	if c.Trunk != "" && !c.TrunkIfThere {
		b.args = append(b.args, "--trunk="+c.Trunk)
	}
	if b.limit, err = chooseLimiter(ctx, b.program, f.limit); err != nil {
		return nil, err
	}
	if b.scratch, err = os.MkdirTemp("", "k3-bench-*"); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	announceDemo(cmd.ErrOrStderr(), *c, cmd.Flags())
	b.result = benchResult{Kind: kind, Version: version(), Started: time.Now().UTC().Truncate(time.Second), Model: c.Model,
		PromptTokens: b.prompt, MaxTokens: f.maxTokens, Repeats: f.repeats, Limit: b.limit.about, Machine: thisMachine(c.Model)}
	return b, nil
}

func (b *bencher) close() {
	b.line.Clear()
	os.RemoveAll(b.scratch)
}

// readPrompt decides the prompt and how long a context it needs, and returns the argument that passes it on.
func (b *bencher) readPrompt(cmd *cobra.Command) (arg string, err error) {
	f, c := &b.flags, &b.config
	tok, without, err := anyTokenizer(b.files, !cmd.Flags().Changed("ids"))
	if err != nil {
		return "", err
	}
	config, err := readConfig(b.files)
	if err != nil {
		return "", err
	}
	var ids []int
	switch {
	case cmd.Flags().Changed("prompt") || cmd.Flags().Changed("prompt-file") || cmd.Flags().Changed("ids"):
		flags := runFlags{prompt: f.prompt, promptFile: f.promptFile, ids: f.ids}
		ids, err = readPrompt(cmd, flags, *c, engineOptions(*c, b.files, b.line), config, tok, without, 0)
	case tok != nil:
		f.prompt = benchPrompt
		ids, err = tok.Encode(benchPrompt)
	default:
		f.ids = benchIDs
		ids, err = parseIDs(benchIDs)
	}
	if err != nil {
		return "", err
	}
	if b.prompt = len(ids); b.prompt == 0 {
		return "", fmt.Errorf("bench: %w", core.ErrPrompt)
	}
	c.Context, err = contextFor(config, *c, b.prompt)
	switch {
	case f.promptFile != "":
		return "--prompt-file=" + f.promptFile, err
	case f.ids != "":
		return "--ids=" + f.ids, err
	}
	return "--prompt=" + f.prompt, err
}

// plan is the plan of a run.
func (b *bencher) plan(ctx context.Context, x setting) (memory.Plan, error) {
	o := engineOptions(b.config, b.files, b.line)
	o.Memory, o.TrunkMemory, o.ExpertMemory, o.Notice = x.Memory, x.Trunk, x.Experts, nil
	if x.Chunk > 0 {
		o.PrefillChunk = x.Chunk
	}
	p, _, err := core.MakePlan(ctx, o)
	return p, err
}

// setting is what differs from one configuration measured to another.
type setting struct {
	Label   string `json:"label"`
	Memory  int64  `json:"memory_bytes"`
	Trunk   int64  `json:"trunk_memory_bytes,omitempty"` // by hand
	Experts int64  `json:"expert_memory_bytes,omitempty"`
	Chunk   int    `json:"prefill_chunk,omitempty"`
}

func (x setting) args() []string {
	args := []string{fmt.Sprintf("--memory=%dB", x.Memory)}
	if x.Trunk > 0 {
		args = append(args, fmt.Sprintf("--trunk-memory=%dB", x.Trunk), fmt.Sprintf("--expert-memory=%dB", x.Experts))
	}
	if x.Chunk > 0 {
		args = append(args, "--prefill-chunk="+strconv.Itoa(x.Chunk))
	}
	return args
}

// measure runs every setting as often as was asked for. The settings are given in the order in which each is expected to be
// faster than the one before: the first round goes through them backwards, so that whatever gets warm on the way (files in
// the page cache, a disk's own memory) works against the expectation; each further round turns the order around, so that
// what drifts does not favour an end. An error is the context's; what failed is in the result.
func (b *bencher) measure(ctx context.Context, settings []setting) error {
	for _, x := range settings {
		b.result.Rungs = append(b.result.Rungs, rung{setting: x})
	}
	order := make([]int, len(settings))
	for i := range order {
		order[i] = len(order) - 1 - i
	}
	start, done, all := time.Now(), 0, b.flags.repeats*len(settings)
	for round := range b.flags.repeats {
		for _, i := range order {
			r := &b.result.Rungs[i]
			if done++; r.Status != "" && r.Status != rungFits {
				continue
			}
			left := ""
			if round > 0 {
				left = fmt.Sprintf(", about %s left", ui.LongTime(time.Since(start)/time.Duration(done-1)*time.Duration(all-done+1)))
			}
			b.line.Show(time.Now(), fmt.Sprintf("run %d of %d: %s%s", done, all, r.Label, left))
			run, report := b.run(ctx, r.setting)
			if ctx.Err() != nil {
				return ui.ErrInterrupted
			}
			b.result.add(r, run, report)
			if err := b.save(); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	return nil
}

// run makes one run in a process of its own.
func (b *bencher) run(ctx context.Context, x setting) (benchRun, *report) {
	path := filepath.Join(b.scratch, "report.json")
	os.Remove(path)
	args := slices.Concat(b.args, x.args(), []string{"--report=" + path})
	cmd, release, err := b.limit.command(ctx, x.Memory, b.program, args)
	if err != nil {
		return benchRun{Status: rungFailed, Why: ui.OneLine(err)}, nil
	}
	defer release()
	var stderr tail
	cmd.Stderr, cmd.WaitDelay = &stderr, 5*time.Second
	start := time.Now()
	err = cmd.Run()
	run := benchRun{Status: rungFits, Seconds: time.Since(start).Seconds()}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() == ui.ExitNoFit:
		run.Status, run.Why = rungNoFit, stderr.message()
		return run, nil
	default:
		run.Status, run.Why = rungFailed, fmt.Sprintf("%v: %s", err, stderr.message())
		run.damaged = exit != nil && exit.ExitCode() == ui.ExitInput
		if b.limit.name != noLimit.name && !stderr.hasReason() {
			run.Why += " (perhaps for want of memory; the hard limit is " + b.limit.about + ")"
		}
		return run, nil
	}
	data, err := os.ReadFile(path)
	r := new(report)
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		return benchRun{Status: rungFailed, Why: "the report: " + ui.OneLine(err)}, nil
	}
	run.fill(r)
	if r.PeakRSS > x.Memory {
		run.Status = rungFailed
		run.Why = fmt.Sprintf("%d bytes of memory were promised, %d were in use", x.Memory, r.PeakRSS)
	}
	return run, r
}

// tail keeps the last of what is written to it.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	const most = 1 << 16
	if n := len(t.data) - most; n > 0 {
		t.data = append(t.data[:0], t.data[n:]...)
	}
	return len(p), nil
}

// message is what a program ended with: k3's own line, or the first of a crash.
func (t *tail) message() string {
	lines := strings.Split(strings.TrimSpace(string(t.data)), "\n")
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, "k3: "); ok {
			return rest
		}
	}
	return lines[0]
}

// hasReason tells whether k3 itself has said why it failed, and that was not want of memory.
func (t *tail) hasReason() bool {
	return bytes.HasPrefix(t.data, []byte("k3: ")) && !bytes.Contains(t.data, []byte("cannot allocate memory"))
}

// finish writes what was measured and says in the error what is wrong with it; failed is the error that ended the measuring.
func (b *bencher) finish(cmd *cobra.Command, failed error) error {
	b.line.Clear()
	r := &b.result
	if b.earlier != nil {
		r.Comparison = r.against(b.earlier)
	}
	err := b.save()
	out := cmd.OutOrStdout()
	switch {
	case err != nil:
	case b.flags.asJSON:
		err = ui.WriteJSON(out, r)
	case b.flags.asTSV:
		err = r.writeTSV(out)
	default:
		err = r.write(out)
	}
	if err != nil || failed != nil {
		return errors.Join(failed, err)
	}
	return r.verdict()
}

// describeMachine adds to the result what takes a moment to find out: the speed of the disk.
func (b *bencher) describeMachine(ctx context.Context) error {
	if b.config.Model == presets.DemoModel {
		return nil
	}
	b.line.Show(time.Now(), "measuring the disk")
	rows, err := measureModel(ctx, b.config, b.files, b.line)
	if err != nil {
		return err
	}
	b.result.DiskRate, b.result.DiskDirect = rows.Rows[0].Rate.Median, rows.Direct
	return nil
}

// runBench makes a measurement of whole runs from beginning to end; settings decides on what to measure.
func runBench(cmd *cobra.Command, kind string, f benchFlags, settings func(context.Context, *bencher) ([]setting, error)) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	b, err := newBencher(ctx, cmd, kind, f)
	if err != nil {
		return err
	}
	defer b.close()
	list, err := settings(ctx, b)
	if err == nil {
		err = b.describeMachine(ctx)
	}
	if ctx.Err() != nil {
		return ui.ErrInterrupted
	}
	if err != nil {
		return err
	}
	return b.finish(cmd, b.measure(ctx, list))
}
