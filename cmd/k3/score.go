package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/score"
	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
)

// scoreFlags are the flags of k3 score.
type scoreFlags struct {
	choices        bool
	window, stride int
	parallel       int
	replace        bool
	json, quiet    bool
}

func scoreCommand() *cobra.Command {
	var f scoreFlags
	cmd := &cobra.Command{
		Use:   "score [flags] FILE...",
		Short: "Say how likely the model finds texts, or which choice it makes",
		Long: "Say how likely the model finds texts: the log-probability of every token after those before it, their sum, the perplexity\n" +
			"per token and the bits per byte. A FILE is a text, or with --choices a list of questions, each a line\n" +
			`{"context": TEXT, "choices": [TEXT, ...], "answer": NUMBER}: how often the model finds the right choice likeliest, by the sum of` + "\n" +
			"its log-probabilities (raw) and by that sum per byte (normalised). - is stdin. It is how to check that an engine is as good as\n" +
			"the original: the figures do not depend on memory, threads or how many texts are scored at once.",
		Example: "  k3 score book.txt\n" +
			"  k3 score --json --window 4096 --stride 2048 book.txt > tokens.jsonl\n" +
			"  k3 score --choices --parallel 16 questions.jsonl",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return ui.Usagef("k3 score takes files, and got none (- is stdin)")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return scoreFiles(cmd, f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.choices, "choices", false, "the files have multiple-choice questions, a line of JSON for each")
	flags.BoolVar(&f.replace, "replace-invalid", false, "replace what is not UTF-8 in a text by U+FFFD instead of refusing it")
	flags.IntVar(&f.window, "window", 2048, "score a longer text in windows of `N` tokens")
	flags.IntVar(&f.stride, "stride", 0, "begin each window `N` tokens after the last; 0 is half a window")
	flags.IntVar(&f.parallel, "parallel", 8, "score `N` windows, or questions, in the same passes")
	addConfigFlags(cmd, "model", "trunk", "memory", "trunk-memory", "expert-memory", "policy", "prefill-chunk", "threads", "backend")
	flags.BoolVar(&f.json, "json", false, "write a line of JSON for each text, with every token, or for each question")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "write no progress to stderr")
	return cmd
}

// scoreFiles is k3 score.
func scoreFiles(cmd *cobra.Command, f scoreFlags, paths []string) (err error) {
	if f.stride == 0 {
		f.stride = f.window / 2
	}
	switch {
	case f.window < 2:
		return ui.Usagef("--window: %d: must be 2 or more", f.window)
	case f.stride < 1 || f.stride >= f.window:
		return ui.Usagef("--stride: %d: must be from 1 to %d, below the window", f.stride, f.window-1)
	case f.parallel < 1:
		return ui.Usagef("--parallel: %d: must be 1 or more", f.parallel)
	}
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	files, err := modelFiles(c.Model, configFile)
	if err != nil {
		return err
	}
	config, err := readConfig(files)
	if err != nil {
		return err
	}
	if limit := config.MaxPositions; limit > 0 && f.window > limit {
		return ui.Usagef("--window: %d: the model was made for at most %d tokens", f.window, limit)
	}
	tok, err := tokenizer.Load(files)
	if err != nil {
		return err
	}
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.quiet)
	defer line.Clear()
	if !f.quiet {
		announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
	}
	ctx, _, stop := interrupts(cmd.Context())
	defer stop()
	line.Opening(c.Model)
	engine, err := core.Open(ctx, scoreOptions(c, f, files, line))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	line.Clear()
	prefixes := engine.NewPrefixes(keptBytes(engine, f))
	defer prefixes.Close()
	scheduler := engine.NewScheduler(core.SchedulerOptions{Prefixes: prefixes})
	defer scheduler.Close()
	s := &scoring{
		scoreFlags: f, cmd: cmd, line: line, out: bufio.NewWriter(cmd.OutOrStdout()),
		Scorer: &score.Scorer{Scheduler: scheduler, Prefixes: prefixes, Tokenizer: tok, Window: f.window, Stride: f.stride},
	}
	for _, path := range paths {
		one := s.text
		if f.choices {
			one = s.questions
		}
		if err := one(ctx, path); err != nil {
			line.Clear()
			s.out.Flush()
			if ctx.Err() != nil {
				return ui.ErrInterrupted
			}
			return err
		}
	}
	line.Clear()
	return s.out.Flush()
}

// scoreOptions are the options to open a model with for scoring: states for all windows that are computed at once, and for questions
// as many again for the contexts that are kept.
func scoreOptions(c presets.Config, f scoreFlags, files disk.Files, line *ui.Progress) core.Options {
	o := engineOptions(c, files, line)
	o.Context, o.Sequences, o.Guesses = f.window, f.parallel, 0
	if f.choices {
		o.Sequences *= 2
	}
	return o
}

// keptBytes is the memory for the contexts of questions, which the plan has as sequences that are not opened.
func keptBytes(e *core.Engine, f scoreFlags) int64 {
	if !f.choices {
		return 0
	}
	state, position := graph.StateBytes(e.Config())
	return int64(f.parallel) * int64(state+f.window*position)
}

// scoring is one k3 score under way.
type scoring struct {
	scoreFlags
	*score.Scorer
	cmd  *cobra.Command
	line *ui.Progress
	out  *bufio.Writer
}

// text scores the text of a file.
func (s *scoring) text(ctx context.Context, path string) error {
	text, err := readInput(s.cmd, path)
	if err != nil {
		return err
	}
	if text, err = checkText(path, text, s.replace); err != nil {
		return err
	}
	ids, err := s.Tokenizer.Encode(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(ids) < 2 {
		return ui.Inputf("%s: a text of %s: nothing comes before the first, so that there is nothing to score", path,
			ui.Plural(len(ids), "token", "tokens"))
	}
	s.say("%s: %d tokens", path, len(ids))
	t, err := s.IDs(ctx, ids)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t.Name = path
	s.line.Clear()
	if s.json {
		return json.NewEncoder(s.out).Encode(t)
	}
	_, err = fmt.Fprintf(s.out, "%s: %d tokens of %d bytes, log-probability %.4f, perplexity %.4f per token, %.4f bits per byte\n",
		path, t.Tokens, t.Bytes, t.LogProb, t.Perplexity, t.BitsPerByte)
	return err
}

// questions scores the questions of a file, some at a time, and writes what was found in their order.
func (s *scoring) questions(ctx context.Context, path string) error {
	in, err := openInput(s.cmd, path)
	if err != nil {
		return err
	}
	defer in.Close()
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	var found tally
	var pending []chan answer // in the order of the lines
	oldest := func() error {
		a := <-pending[0]
		pending = pending[1:]
		if a.err != nil {
			return a.err
		}
		found.add(a.Choice)
		s.say("%s: %s", path, ui.Plural(found.all, "question", "questions"))
		if s.json {
			return json.NewEncoder(s.out).Encode(a.Choice)
		}
		return nil
	}
	lines := bufio.NewReader(in)
	for number, last := 1, false; !last; number++ {
		data, err := lines.ReadBytes('\n')
		if last = errors.Is(err, io.EOF); err != nil && !last {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if number == 1 {
			data = withoutMark(s.cmd, path, data)
		}
		if data = bytes.TrimSpace(data); len(data) == 0 {
			continue
		}
		if len(pending) == s.parallel {
			if err := oldest(); err != nil {
				return err
			}
		}
		a := make(chan answer, 1)
		pending = append(pending, a)
		working.Go(func() { a <- s.question(ctx, path, number, data) })
	}
	for len(pending) > 0 {
		if err := oldest(); err != nil {
			return err
		}
	}
	if found.all == 0 {
		return ui.Inputf("%s: no questions", path)
	}
	s.line.Clear()
	if s.json {
		return nil
	}
	_, err = fmt.Fprintf(s.out, "%s: %s\n", path, found)
	return err
}

// answer is what became of a question.
type answer struct {
	score.Choice
	err error
}

// question scores one line.
func (s *scoring) question(ctx context.Context, path string, number int, line []byte) (a answer) {
	item, err := score.ReadItem(line)
	if err != nil {
		err = ui.WithCode(ui.ExitInput, err)
	} else {
		a.Choice, err = s.Item(ctx, item)
	}
	if a.Line = number; err != nil {
		a.err = fmt.Errorf("%s, line %d: %w", path, number, err)
	}
	return a
}

// tally counts the questions whose right choice was found the likeliest.
type tally struct{ all, raw, normalised int }

func (t *tally) add(c score.Choice) {
	t.all++
	if c.Raw == c.Answer {
		t.raw++
	}
	if c.Normalised == c.Answer {
		t.normalised++
	}
}

func (t tally) String() string {
	share := func(n int) float64 { return 100 * float64(n) / float64(t.all) }
	return fmt.Sprintf("%s, right choice likeliest in %d (%.2f%%), per byte in %d (%.2f%%)", ui.Plural(t.all, "question", "questions"),
		t.raw, share(t.raw), t.normalised, share(t.normalised))
}

// say shows how far it is.
func (s *scoring) say(format string, args ...any) {
	if now := time.Now(); !s.quiet && !s.line.Fresh(now) {
		s.line.Show(now, fmt.Sprintf(format, args...))
	}
}
