package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/speculate"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
)

// runFlags are the flags of k3 run that are not part of the configuration.
type runFlags struct {
	prompt, promptFile, ids string
	replace, chat           bool
	thinkingFlags
	saveSession        string
	loadSession        string
	checkpointEvery    int
	report, dumpLogits string
	trace              string
	printIDs, quiet    bool
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] TEXT | --prompt TEXT | --prompt-file FILE | --ids IDS",
		Short: "Generate text from a prompt",
		Long: "Generate text from a prompt. The text goes to stdout, the report to stderr. The first Ctrl-C ends the text after\n" +
			"the token in flight, the second at once. SIGTERM, SIGHUP and a reader of stdout that goes away end it within a layer; a\n" +
			"session that was asked for is saved with all tokens, and what its state lacks is computed again when it goes on.\n" +
			"Files may be devices and pipes: --trace >(gzip >t.gz). A prompt of - is read from stdin.",
		Example: "  k3 run 'The capital of France is'\n" +
			"  k3 run --preset laptop --temperature 0.7 --seed 1 --prompt-file question.txt --report report.json",
		Args:              onePrompt,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return run(cmd, f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var((*once)(&f.prompt), "prompt", "go on from `TEXT`")
	flags.Var((*once)(&f.promptFile), "prompt-file", "go on from the text in `FILE`, byte for byte; - is stdin")
	flags.Var((*once)(&f.ids), "ids", "go on from the token `IDS`, separated by commas or spaces")
	flags.BoolVar(&f.replace, "replace-invalid", false, "replace what is not UTF-8 by U+FFFD instead of refusing it")
	flags.BoolVar(&f.chat, "chat", false,
		"the prompt is what a user says in a chat; the answer goes to stdout, its reasoning to stderr")
	f.thinkingFlags.add(cmd)
	addConfigFlags(cmd, "model", "trunk", "max-tokens", "temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed", "stop",
		"ignore-eos", "memory", "trunk-memory", "expert-memory", "policy", "context", "prefill-chunk", "speculate", "threads", "backend")
	flags.StringVar(&f.saveSession, "save-session", "", "save the text and the model's state behind it to `FILE`")
	flags.StringVar(&f.loadSession, "load-session", "", "go on from what --save-session wrote to `FILE`, with or without a prompt")
	flags.IntVar(&f.checkpointEvery, "checkpoint-every", 0, "save the session each `N` tokens on the way; 0 is only at the end")
	flags.BoolVar(&f.printIDs, "print-ids", false, "write the generated ids, comma separated, instead of text")
	flags.StringVar(&f.report, "report", "", "write the report to `FILE` as JSON; - is stdout, after the text")
	flags.StringVar(&f.dumpLogits, "dump-logits", "", "write the logits of every position to `FILE` (safetensors)")
	flags.StringVar(&f.trace, "trace", "", "write the experts that were chosen to `FILE` (k3 simulate reads it)")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "write no progress and no report to stderr")
	return cmd
}

// run is k3 run.
func run(cmd *cobra.Command, f runFlags) (err error) {
	if f.checkpointEvery < 0 {
		return ui.Usagef("--checkpoint-every: %d: must be 0 or above", f.checkpointEvery)
	}
	if f.checkpointEvery > 0 && f.saveSession == "" {
		return ui.Usagef("--checkpoint-every needs a --save-session")
	}
	if err := f.thinkingFlags.check(cmd); err != nil {
		return err
	}
	for _, name := range []string{"thinking", "no-thinking", "effort"} {
		if cmd.Flags().Changed(name) && !f.chat {
			return ui.Usagef("--%s goes with --chat", name)
		}
	}
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	if f.chat {
		limited, err := presets.Given(cmd.Flags(), os.Environ(), "generate.max_tokens")
		if err != nil {
			return err
		}
		if !limited {
			c.Generate.MaxTokens = longAnswer
		}
	}
	files, err := modelFiles(c.Model, configFile)
	if err != nil {
		return err
	}
	text := cmd.Flags().Changed("prompt") || cmd.Flags().Changed("prompt-file")
	tok, without, err := anyTokenizer(files, text || len(c.Generate.Stop) > 0)
	if err != nil {
		return err
	}
	if tok == nil && len(c.Generate.Stop) > 0 {
		return ui.Inputf("%s, which --stop needs", without)
	}
	config, err := readConfig(files)
	if err != nil {
		return err
	}
	restored := 0
	if f.loadSession != "" {
		var previous savedRun
		if restored, previous, err = readSession(f.loadSession); err != nil {
			return err
		}
		if f.chat {
			if err := f.goOn(cmd, previous); err != nil {
				return err
			}
			restored += replyRoom
		}
	}
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.quiet)
	defer line.Clear()
	options := engineOptions(c, files, line)
	prompt, err := readPrompt(cmd, f, c, options, config, tok, without, restored)
	if err != nil {
		return err
	}
	positions, err := contextFor(config, c, restored+len(prompt))
	if err != nil {
		return err
	}
	if !f.quiet {
		announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
		warnOfName(cmd.ErrOrStderr(), f.prompt)
		if tok == nil && !f.printIDs {
			fmt.Fprintf(cmd.ErrOrStderr(), "k3: %s: writing ids\n", without)
		}
	}
	var o outputs
	defer o.abandon()
	keepPipe()
	stdout := &outlet{Writer: cmd.OutOrStdout()}
	if err := o.open(f, stdout); err != nil {
		return err
	}
	o.loaded = f.loadSession

	ctx, interrupt, stop := interrupts(cmd.Context())
	defer stop()
	line.Interrupt = interrupt
	line.Opening(c.Model)
	options.Context, options.AllLogits = positions, o.logits != nil
	if o.trace != nil {
		options.Routed = o.trace.add
	}
	engine, err := openEngine(ctx, options, f.saveSession != "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	sequence, previous, err := openSequence(engine, f.loadSession)
	if err != nil {
		return err
	}
	defer sequence.Close()
	if f.chat {
		end, err := previous.endReply(tok, sequence.IDs())
		if err != nil {
			return err
		}
		prompt = append(end, prompt...)
	}
	generate := core.GenerateOptions{
		MaxTokens: c.Generate.MaxTokens, Sample: c.Generate.Sample(), Speculate: speculate.Options{Most: c.Speculate},
		Progress: line.Update, Interrupt: interrupt,
	}
	if !c.Generate.IgnoreEOS {
		if generate.Stop, err = engine.StopIDs(); err != nil && tok != nil {
			return err
		}
	}
	if o.logits != nil {
		generate.OnLogits = o.logits.add
	}
	w, err := ui.NewWriter(stdout, line, tok, c.Generate.Stop, f.printIDs)
	if err != nil {
		return err
	}
	goesOn := len(prompt) == 0 // with what was generated before
	if goesOn && previous.Chat {
		_, ended := previous.reply(tok, sequence.IDs())
		previous.Chat = !ended
	}
	o.run = savedRun{Start: len(sequence.IDs()) + len(prompt), Chat: f.chat, Plain: f.chat && f.thinking == thinkingOff}
	if goesOn {
		o.run = savedRun{Start: previous.Start, Chat: previous.Chat, Plain: previous.Plain}
	}
	if o.run.Chat {
		w.Parser = chat.NewParser(tok, !o.run.Plain)
		if !f.quiet && f.thinking != thinkingHide {
			w.ReasoningTo = &outlet{Writer: cmd.ErrOrStderr(), lenient: true}
		}
	}
	if goesOn {
		w.Resume(sequence.IDs()[previous.Start:], previous.Open)
	}
	emit := w.Token
	if f.checkpointEvery > 0 {
		o.checkpoints = &checkpoints{
			path: f.saveSession, every: f.checkpointEvery, run: o.run, sequence: sequence, notice: line.Notice,
		}
		generate.OnPrefill = o.checkpoints.prefill
		emit = func(id int) error {
			err := w.Token(id)
			o.checkpoints.token()
			return err
		}
	}

	before := sequence.Computed()
	out, failed := engine.Generate(ctx, sequence, prompt, generate, emit)
	line.Clear()
	if err := w.End(out.IDs); failed == nil {
		failed = err
	}
	if w.Parser != nil && !w.Ids && failed == nil {
		// Also if quiet: nothing on stdout and no word about it would look like an answer.
		if why := unanswered(w.Parser.Message(), out, false); why != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "k3: %s\n", why)
		}
	}
	var ended error // before its time, but in good order
	switch {
	case stdout.closed():
		ended = ui.ErrPipe
	case failed == nil && out.Reason == core.StopInterrupt,
		terminated(ctx) && (errors.Is(failed, context.Canceled) || stdout.err != nil): // a terminal that has gone takes no text
		ended = ui.ErrInterrupted
	}
	if ended != nil {
		if failed = nil; out.Reason == "" {
			out.Reason = core.StopInterrupt
		}
	}
	r := newReport(c, engine, prompt, out, w, failed)
	if !f.quiet && len(out.IDs) > 0 {
		_ = r.write(cmd.ErrOrStderr()) // whoever does not see it must not lose the files for it
	}
	if isStdout(f.report) && !w.Ids && !line.Shared && !ui.EndsLine(string(w.Text)) {
		fmt.Fprintln(stdout)
	}
	err = o.commit(r, sequence, sequence.IDs()[before:], failed)
	if failed = errors.Join(failed, err); failed == nil {
		failed = ended
	}
	hint := o.saved
	if c := o.checkpoints; hint == "" && c != nil && c.saved > 0 && sequence.Err() != nil {
		hint = fmt.Sprintf("%s has the first %s: --load-session goes on from there", c.path, ui.Plural(c.saved, "token", "tokens"))
	}
	if failed != nil && hint != "" {
		failed = ui.WithHint(failed, hint)
	}
	return failed
}

// once is the value of a flag that is given once at most: a second prompt does not silently replace the first.
type once string

func (o *once) String() string { return string(*o) }
func (o *once) Type() string   { return "string" }

func (o *once) Set(text string) error {
	if *o != "" {
		return errors.New("given twice")
	}
	*o = once(text)
	return nil
}

// onePrompt checks that exactly one prompt was given, or none to go on with a session. An argument becomes the value of --prompt,
// or - that of --prompt-file.
func onePrompt(cmd *cobra.Command, args []string) error {
	flags, given := cmd.Flags(), []string{}
	for _, name := range []string{"prompt", "prompt-file", "ids"} {
		if flags.Changed(name) {
			given = append(given, "--"+name)
		}
	}
	path := cmd.CommandPath()
	switch {
	case len(args) > 1 && isModel(args[0]):
		return ui.Usagef("%s takes one prompt, and got %d words: --model names a model, as in %s --model %s 'a text in quotes'", path, len(args),
			path, ui.QuoteArgument(args[0]))
	case len(args) > 1:
		text := strings.Join(args, " ")
		if len(text) > 60 {
			text = strings.Join(args[:2], " ") + " ..."
		}
		return ui.Usagef("%s takes one prompt, and got %d words: a text of several words needs quotes, as in %s %s", path, len(args), path,
			ui.QuoteArgument(text))
	case len(args) == 1 && len(given) > 0:
		return ui.Usagef("the prompt is given twice: as %q and by %s", args[0], strings.Join(given, " and "))
	case len(given) > 1:
		return ui.Usagef("the prompt is given twice: by %s", strings.Join(given, " and "))
	case flags.Changed("ids") && flags.Changed("chat"):
		return ui.Usagef("--chat wraps a text: it does not go with --ids")
	case len(args) == 1 && args[0] == "-":
		return flags.Set("prompt-file", "-")
	case len(args) == 1:
		return flags.Set("prompt", args[0])
	case len(given) == 1:
		return nil
	case !flags.Changed("load-session"):
		return ui.Usagef("%s needs a prompt: %[1]s 'a text in quotes', or one of --prompt, --prompt-file and --ids", path)
	case flags.Changed("chat"):
		return ui.Usagef("--chat wraps a text: it needs a prompt")
	}
	return nil
}

// longAnswer is the most tokens of an answer in a chat, unless another limit was given: with what the model thinks
// before it, an answer is long, and ends where it ends.
const longAnswer = core.DefaultContext

// goOn has the model think in a conversation as it did before, which cannot change on the way.
func (f *runFlags) goOn(cmd *cobra.Command, previous savedRun) error {
	if cmd.Flags().Changed("effort") {
		return ui.Usagef("--effort is said at the beginning of a conversation: it does not go with --load-session")
	}
	if !previous.Chat {
		return nil
	}
	if f.given(cmd) && previous.Plain != (f.thinking == thinkingOff) {
		way := thinkingShow
		if previous.Plain {
			way = thinkingOff
		}
		return ui.Usagef("--thinking %s: the conversation of %s began with --thinking %s, and has to go on so",
			f.thinking, f.loadSession, way)
	}
	if previous.Plain {
		f.thinking = thinkingOff
	}
	return nil
}

// isModel reports whether the name is one that --model may have.
func isModel(name string) bool {
	info, err := os.Stat(name)
	return name == presets.DemoModel || err == nil && info.IsDir()
}

// warnOfName says on w that a prompt is read as text although a file has that name.
func warnOfName(w io.Writer, prompt string) {
	if info, err := os.Stat(prompt); err == nil && !info.IsDir() {
		fmt.Fprintf(w, "k3: the prompt is the text %q, which is also the name of a file: --prompt-file reads a file\n", prompt)
	} else if prompt != "" && isModel(prompt) {
		fmt.Fprintf(w, "k3: the prompt is the text %q, which is also the name of a model: --model names a model\n", prompt)
	}
}

// readPrompt returns the prompt's ids, none if it was not given; tok is nil if the model has no tokenizer, and without says
// so. A text for which there is no room beside so many restored tokens is refused before it is read.
func readPrompt(cmd *cobra.Command, f runFlags, c presets.Config, options core.Options, config *checkpoint.Config,
	tok *tokenizer.Tokenizer, without string, restored int) ([]int, error) {
	if cmd.Flags().Changed("ids") {
		ids, err := parseIDs(f.ids)
		if err != nil {
			return nil, ui.Usagef("--ids: %w", err)
		}
		return ids, nil
	}
	file := cmd.Flags().Changed("prompt-file")
	if !cmd.Flags().Changed("prompt") && !file {
		return nil, nil
	}
	if tok == nil {
		return nil, ui.Inputf("%s: give the prompt as --ids", without)
	}
	room, err := newRoom(c, options, config, tok, restored)
	if err != nil {
		return nil, err
	}
	what, size := "--prompt", int64(len(f.prompt))
	in := io.NopCloser(strings.NewReader(f.prompt))
	if file {
		what = f.promptFile
		if in, err = openInput(cmd, f.promptFile); err != nil {
			return nil, err
		}
		defer in.Close()
		size = sizeOf(in)
	}
	buffered := bufio.NewReader(in)
	start, _ := buffered.Peek(len("\ufeff")) // an error comes again
	if err := refuseUTF16(what, string(start)); err != nil {
		return nil, err
	}
	if file {
		mark := len(start) - len(withoutMark(cmd, what, start))
		if _, err := buffered.Discard(mark); err != nil {
			return nil, fmt.Errorf("read %s: %w", what, err)
		}
		size -= int64(mark)
	}
	var text strings.Builder
	var keep *strings.Builder
	if f.chat {
		keep = &text
	}
	ids, err := room.encode(what, buffered, size, tok, f.replace, keep)
	if file && errors.Is(err, tokenizer.ErrInvalidUTF8) {
		err = ui.Inputf("%w", err)
	}
	if err != nil || !f.chat {
		return ids, err
	}
	request := chat.User(text.String(), f.thinking != thinkingOff)
	request.Effort = f.effort
	if f.loadSession != "" {
		request.Effort = "" // the conversation has begun
	}
	segments, err := chat.Render(request)
	if err != nil {
		return nil, err
	}
	return chat.Encode(tok, segments)
}

// readConfig reads the model's config.json.
func readConfig(files disk.Files) (*checkpoint.Config, error) {
	data, err := disk.ReadAll(files, "config.json", 1<<20)
	if err != nil {
		return nil, ui.Inputf("%w", err)
	}
	config, err := checkpoint.ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", files.Name(), err)
	}
	return config, nil
}

// contextFor returns the number of positions to make room for: what was asked for, or what the request needs within the
// limit of the model.
func contextFor(config *checkpoint.Config, c presets.Config, prompt int) (int, error) {
	if c.Context > 0 {
		return c.Context, nil
	}
	need := prompt + c.Generate.MaxTokens
	if limit := config.MaxPositions; limit > 0 && need > limit {
		if prompt > limit {
			return 0, fmt.Errorf("%w: the prompt has %d tokens, the model was made for at most %d", core.ErrContext, prompt, limit)
		}
		need = limit
	}
	return need, nil
}
