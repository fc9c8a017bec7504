package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/conversation"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/speculate"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
)

// chatFlags are the flags of k3 chat that are not part of the configuration.
type chatFlags struct {
	thinkingFlags
	system                    string
	save, resume, transcript  string
	prefixDir, prefixDisk     string
	history                   string
	replace, noHistory, quiet bool
}

func chatCommand() *cobra.Command {
	var f chatFlags
	cmd := &cobra.Command{
		Use:   "chat [flags]",
		Short: "Talk to the model",
		Long: "Talk to the model. Each turn computes only what it adds to the conversation; /stats shows how much that was.\n" +
			"At the terminal, /help lists the commands, Ctrl-C stops an answer and Ctrl-D ends the conversation. When stdin is no\n" +
			"terminal, each line of it is a message, as are lines between two \"\"\", and only the answers go to stdout.",
		Example: "  k3 chat --save paris.k3s\n" +
			"  k3 chat --resume paris.k3s --thinking hide\n" +
			"  printf 'What is the capital of France?\\nAnd of Japan?\\n' | k3 chat -q --thinking off",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error { return runChat(cmd, f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.system, "system", "", "`TEXT` that tells the model what it is and does")
	f.thinkingFlags.add(cmd)
	flags.StringVar(&f.resume, "resume", "", "go on with the conversation in `FILE`")
	flags.StringVar(&f.save, "save", "", "keep the conversation in `FILE`, state and all, after each turn; as text, if it ends in .jsonl")
	flags.StringVar(&f.transcript, "transcript", "", "write what was said to `FILE` after each turn (JSON lines); - is stdout")
	flags.StringVar(&f.prefixDir, "prefix-dir", "", "keep states of the conversation in `DIR`, where others that begin alike find them")
	flags.StringVar(&f.prefixDisk, "prefix-disk", "8GiB", "`SIZE` that they may take there")
	addConfigFlags(cmd, "model", "trunk", "max-tokens", "temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed",
		"memory", "trunk-memory", "expert-memory", "policy", "context", "prefill-chunk", "speculate", "threads", "backend")
	flags.BoolVar(&f.replace, "replace-invalid", false, "replace what is not UTF-8 by U+FFFD instead of refusing it")
	flags.StringVar(&f.history, "history", "", "`FILE` of what was typed before; standard is one in the user's configuration directory")
	flags.BoolVar(&f.noHistory, "no-history", false, "remember nothing that is typed")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "write no progress and no notes")
	return cmd
}

// runChat is k3 chat.
func runChat(cmd *cobra.Command, f chatFlags) (err error) {
	if err := f.thinkingFlags.check(cmd); err != nil {
		return err
	}
	size, err := presets.ParseSize(f.prefixDisk)
	if err != nil {
		return ui.Usagef("--prefix-disk: %w", err)
	}
	if f.noHistory && f.history != "" {
		return ui.Usagef("--history and --no-history exclude each other")
	}
	if f.system, err = checkText("--system", f.system, f.replace); err != nil {
		return err
	}
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	files, err := modelFiles(c.Model, configFile)
	if err != nil {
		return err
	}
	if _, err := modelFiles(c.Model, tokenizer.Names...); err != nil {
		return err
	}
	// Files are tried before the work, so that a wrong path does not cost it.
	if err := noStdout("save", f.save); err != nil {
		return err
	}
	if f.save != "" {
		if err := disk.CanCreate(f.save); err != nil {
			return err
		}
	}
	keepPipe()
	stdout := &outlet{Writer: cmd.OutOrStdout()}
	told, err := openTranscript(f.transcript, stdout)
	if err != nil {
		return err
	}
	defer told.close()
	limited, err := presets.Given(cmd.Flags(), os.Environ(), "generate.max_tokens")
	if err != nil {
		return err
	}
	if !f.quiet {
		announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
	}
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.quiet)
	defer line.Clear()
	line.Opening(c.Model)
	options := engineOptions(c, files, line)
	options.Sequences = conversationSequences
	engine, err := openEngine(cmd.Context(), options, f.save != "" || f.prefixDir != "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	generate := core.GenerateOptions{Speculate: speculate.Options{Most: c.Speculate}}
	if generate.Stop, err = engine.StopIDs(); err != nil {
		return err
	}
	plan := engine.Plan()
	prefixes := engine.NewPrefixes((plan.Bytes(memory.State) + plan.Bytes(memory.Latents)) / conversationSequences)
	defer prefixes.Close()
	if f.prefixDir != "" {
		if err := prefixes.OnDisk(f.prefixDir, int64(size)); err != nil {
			return err
		}
	}
	held, err := conversation.New(engine, engine, prefixes, conversation.Settings{
		Generate: generate, Thinking: f.thinking != thinkingOff, Effort: f.effort,
	})
	if err != nil {
		return err
	}
	defer held.Close()
	tok, err := engine.Tokenizer()
	if err != nil {
		return err
	}
	t := &talk{
		Conversation: held, engine: engine, prefixes: prefixes, flags: f, shown: f.thinking,
		longest: int64(engine.Context()) * int64(tok.Longest()), out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), transcript: told,
	}
	if t.shown == thinkingOff {
		t.shown = thinkingShow // once it thinks
	}
	if !limited {
		c.Generate.MaxTokens = 0 // an answer ends where it ends
	}
	t.setGenerate(c.Generate)
	if f.resume != "" {
		if err := t.open(f.resume); err != nil {
			return err
		}
		if f.given(cmd) {
			t.Thinking = f.thinking != thinkingOff
		}
		if cmd.Flags().Changed("effort") {
			t.Effort = f.effort
		}
	}
	if cmd.Flags().Changed("system") {
		t.setSystem(f.system)
	}
	line.Clear()
	in, ok1 := cmd.InOrStdin().(*os.File)
	out, ok2 := t.out.(*os.File)
	if !ok1 || !ok2 || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		t.out = stdout
		err := t.lines(cmd.Context(), cmd.InOrStdin())
		if stdout.closed() {
			return ui.ErrPipe
		}
		return err
	}
	t.style = ui.NewStyle(out)
	t.editor = openEditor(in, out, t.style.Escapes, historyFile(f))
	defer t.editor.lines.Close()
	return t.interactive(cmd.Context())
}

// talk is a conversation and whoever has it.
type talk struct {
	*conversation.Conversation
	engine     *core.Engine
	prefixes   *core.Prefixes
	longest    int64 // bytes of text that the context can hold
	flags      chatFlags
	generate   presets.Generate // of each answer; MaxTokens may be 0: as many as the context has room for
	shown      string           // thinkingShow or thinkingHide
	out, err   io.Writer
	editor     *editor // nil unless someone is at the terminal
	told       bool    // that states cannot be kept
	transcript *transcript
	style      ui.Style

	last     conversation.Turn // in which something was computed
	computed int               // tokens, since the start
	guesses  core.Guesses      // since the start
}

// errLeave ends the conversation as it was asked to.
var errLeave = errors.New("leave")

// lines takes each line of in as a message or a command, and ends at the first that fails.
func (t *talk) lines(ctx context.Context, in io.Reader) error {
	lines, number := ui.NewLineReader(in, t.longest), 0
	read := entries{line: func(bool) (string, error) {
		text, err := lines.Next()
		if err != nil {
			return "", err
		}
		number++
		return checkText(fmt.Sprintf("line %d", number), text, t.flags.replace)
	}}
	for {
		begins := number + 1
		e, err := read.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, errUnclosed) {
			return ui.Usagef("line %d: %w", begins, err)
		}
		if errors.Is(err, ui.ErrLongLine) {
			return fmt.Errorf("line %d: %w: %w, and there is room for %d tokens", number+1, core.ErrContext, err, t.engine.Context())
		}
		if err == nil {
			err = t.take(ctx, e)
		}
		if errors.Is(err, errLeave) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// interactive talks with someone at the terminal until they leave.
func (t *talk) interactive(ctx context.Context) error {
	if !t.flags.quiet {
		t.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends it all")
		t.recall()
	}
	warned := false // that the next Ctrl-C ends it
	for {
		e, err := t.editor.next()
		switch {
		case errors.Is(err, io.EOF):
			fmt.Fprintln(t.out)
			return nil
		case errors.Is(err, ui.ErrAborted) && warned && !t.editor.lines.Typed():
			return ui.ErrInterrupted
		case errors.Is(err, ui.ErrAborted):
			warned = true
			t.say("Ctrl-C again ends the conversation, and so do Ctrl-D and /exit")
			continue
		case err == nil:
			err = t.take(ctx, e)
		case !errors.Is(err, errUnclosed):
			return err
		}
		warned = false
		switch {
		case errors.Is(err, errLeave):
			return nil
		case errors.Is(err, ui.ErrInterrupted):
			return err
		case err != nil:
			t.editor.held = "" // what was pasted after a command may count on it
			fmt.Fprintf(t.err, "k3: %s\n", ui.OneLine(err))
		}
	}
}

// take takes a message, or a command if it begins with a slash; a message that begins with one doubles it, or is
// quoted.
func (t *talk) take(ctx context.Context, e entry) error {
	text := e.text
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if strings.HasPrefix(text, "/") && !e.quoted {
		switch {
		case findCommand(text) != nil:
			return t.command(ctx, text)
		case strings.Contains(text, "\n"): // code, or what a program printed
		case strings.HasPrefix(text, "//"):
			text = text[1:]
		default:
			return t.command(ctx, text)
		}
	}
	return t.answer(ctx, func(ctx context.Context, show func(chat.Event) error) (conversation.Turn, error) {
		return t.Ask(ctx, chat.Message{Role: "user", Content: chat.Text(text)}, show)
	})
}

// answer shows the answer that generate makes, and saves what is to be saved after a turn.
func (t *talk) answer(parent context.Context,
	generate func(ctx context.Context, show func(chat.Event) error) (conversation.Turn, error)) error {
	ctx, interrupt, stop := interrupts(parent, t.restoreTerminal)
	view := t.newView()
	view.Line.Interrupt = interrupt
	t.Generate.Progress, t.Generate.Interrupt = view.Line.Update, interrupt
	turn, err := generate(ctx, view.Show)
	if turn.Total > 0 {
		t.last = turn
		t.computed += turn.Computed()
		t.guesses.Proposed += turn.Guesses.Proposed
		t.guesses.Accepted += turn.Guesses.Accepted
		t.guesses.Saved += turn.Guesses.Saved
	}
	if errors.Is(err, core.ErrContext) {
		err = fmt.Errorf("%w (--context)", err)
	}
	if e := view.End(err == nil); err == nil {
		err = e
	}
	if ctx.Err() != nil {
		err = ui.ErrInterrupted
	}
	stop()
	// What is to be saved may take longer than the patience with a pass.
	_, _, stop = interrupts(parent, t.restoreTerminal)
	defer stop()
	if turn.Unkept != nil && !t.told {
		t.told = true
		t.note("states are not kept: %v", turn.Unkept)
	}
	if len(turn.IDs) > 0 {
		if e := t.saveTurn(); e != nil {
			err = errors.Join(err, e)
		} else if terminated(ctx) && t.flags.save != "" {
			err = ui.WithHint(ui.ErrInterrupted, t.flags.save+" has the conversation, with what there is of the last answer; --resume goes on from there")
		}
	}
	if err != nil {
		if t.editor == nil && errors.Is(err, conversation.ErrNoAnswer) {
			return ui.ErrInterrupted
		}
		return err
	}
	if turn.Reason == core.StopInterrupt {
		if t.editor == nil {
			return ui.ErrInterrupted
		}
		t.note(ui.Interrupted)
		return nil
	}
	said := t.Messages()
	if why := unanswered(said[len(said)-1], turn.Outcome, t.editor != nil); why != "" {
		t.say("%s", why)
		return nil
	}
	switch turn.Reason {
	case core.StopLength:
		t.note("cut after %s", ui.Plural(len(turn.IDs), "token", "tokens"))
	case core.StopContext:
		t.note("cut: the context of %s is full (/reset, or begin with a larger --context)", ui.Plural(t.engine.Context(), "token", "tokens"))
	}
	return nil
}

// saveTurn writes the files that follow the conversation.
func (t *talk) saveTurn() error {
	if t.flags.save != "" {
		if err := t.saveAs(t.flags.save); err != nil {
			return err
		}
	}
	return t.transcript.write(t.Messages())
}

// saveAs writes the conversation to a file of the kind that its name asks for.
func (t *talk) saveAs(path string) error {
	if isTranscript(path) {
		return writeTranscript(path, t.Messages())
	}
	if err := noStdout("save", path); err != nil {
		return err
	}
	return t.save(path)
}

// open replaces the conversation by that in a file.
func (t *talk) open(path string) error {
	if !isTranscript(path) {
		return t.load(path)
	}
	const escaped = 6 // bytes in JSON for one
	messages, err := readTranscript(path, escaped*t.longest+1<<16)
	if err != nil {
		return err
	}
	t.SetMessages(messages)
	return nil
}

// restoreTerminal puts the terminal back as it was before the conversation.
func (t *talk) restoreTerminal() {
	if t.editor != nil {
		t.editor.lines.Close()
	}
}

// note says something that is no answer, unless there are to be no notes.
func (t *talk) note(format string, args ...any) {
	if !t.flags.quiet {
		t.say(format, args...)
	}
}

// say says something that is no answer.
func (t *talk) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.editor != nil {
		fmt.Fprintln(t.out, t.style.Dim("("+text+")"))
	} else {
		fmt.Fprintln(t.err, "k3: "+text)
	}
}

// newView shows the next answer.
func (t *talk) newView() *ui.View {
	terminal := t.editor != nil
	var aside io.Writer
	switch {
	case t.shown == thinkingHide || !terminal && t.flags.quiet:
	case terminal:
		aside = t.out
	default:
		aside = t.err
	}
	return ui.NewView(t.out, aside, ui.NewProgress(t.out, t.err, t.flags.quiet), t.style, terminal)
}
