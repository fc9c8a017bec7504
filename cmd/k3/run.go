package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
)

// runFlags are the flags of k3 run that are not part of the configuration.
type runFlags struct {
	prompt, promptFile, ids string
	replace, chat           bool
	report, dumpLogits      string
	printIDs, quiet         bool
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] --prompt TEXT | --prompt-file PATH | --ids IDS",
		Short: "Generate text from a prompt",
		Long: "Generate text from a prompt. The text goes to stdout, the report to stderr. The first Ctrl-C ends the text after\n" +
			"the token in flight, the second at once.",
		Example: "  k3 run --prompt 'The capital of France is'\n" +
			"  k3 run --preset laptop --temperature 0.7 --seed 1 --prompt-file question.txt --report report.json",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd, f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.prompt, "prompt", "", "go on from `TEXT`")
	flags.StringVar(&f.promptFile, "prompt-file", "", "go on from the text in `PATH`, byte for byte; - is stdin")
	flags.StringVar(&f.ids, "ids", "", "go on from the token `IDS`, comma separated")
	flags.BoolVar(&f.replace, "replace-invalid", false, "replace what is not UTF-8 by U+FFFD instead of refusing it")
	flags.BoolVar(&f.chat, "chat", false, "the prompt is what a user says in a chat; the answer goes to stdout, its reasoning to stderr")
	addConfigFlags(cmd, "model", "max-tokens", "temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed", "stop",
		"ignore-eos", "context", "prefill-chunk", "threads", "backend")
	flags.BoolVar(&f.printIDs, "print-ids", false, "write the generated ids, comma separated, instead of text")
	flags.StringVar(&f.report, "report", "", "write the report to `FILE` as JSON")
	flags.StringVar(&f.dumpLogits, "dump-logits", "", "write the logits of every position to `FILE` (safetensors)")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "write no progress and no report to stderr")
	return cmd
}

// run is k3 run.
func run(cmd *cobra.Command, f runFlags) (err error) {
	if err := onePrompt(cmd); err != nil {
		return err
	}
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	files, err := modelFiles(c.Model, "config.json")
	if err != nil {
		return err
	}
	tok, err := tokenizer.Load(files)
	if errors.Is(err, fs.ErrNotExist) {
		tok, err = nil, nil
	}
	if err != nil {
		return err
	}
	if tok == nil && len(c.Generate.Stop) > 0 {
		return inputf("model %s has no tokenizer (tiktoken.model), which --stop needs", c.Model)
	}
	prompt, err := readPrompt(cmd, f, c.Model, tok)
	if err != nil {
		return err
	}
	if !f.quiet {
		announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
		if tok == nil && !f.printIDs {
			fmt.Fprintf(cmd.ErrOrStderr(), "k3: model %s has no tokenizer (tiktoken.model): writing ids\n", c.Model)
		}
	}

	// Files are begun before the work, so that a wrong path does not cost it.
	outputs := outputs{}
	defer outputs.abandon()
	if err := outputs.open(f); err != nil {
		return err
	}
	positions, err := contextFor(files, c, len(prompt))
	if err != nil {
		return err
	}
	ctx, interrupt, stop := interrupts(cmd.Context())
	defer stop()
	line := newProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.quiet)
	defer line.clear()
	line.opening(c.Model)
	engine, err := core.Open(ctx, core.Options{
		Files: files, Backend: c.Compute.Backend, Threads: c.Compute.Threads, Context: positions, PrefillChunk: c.PrefillChunk,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	sequence, err := engine.NewSequence()
	if err != nil {
		return err
	}
	defer sequence.Close()
	options := core.GenerateOptions{
		MaxTokens: c.Generate.MaxTokens, Sample: c.Generate.Sample(), Progress: line.update, Interrupt: interrupt,
	}
	if !c.Generate.IgnoreEOS {
		if options.Stop, err = engine.StopIDs(); err != nil {
			return err
		}
	}
	if outputs.logits != nil {
		options.OnLogits = outputs.logits.add
	}
	w, err := newWriter(cmd.OutOrStdout(), line, tok, c.Generate.Stop, f.printIDs)
	if err != nil {
		return err
	}
	if f.chat {
		w.parser = chat.NewParser(tok, true)
		if !f.quiet {
			w.reasoningTo = cmd.ErrOrStderr()
		}
	}
	out, runErr := engine.Generate(ctx, sequence, prompt, options, w.token)
	line.clear()
	if err := w.end(out.IDs); runErr == nil {
		runErr = err
	}
	r := newReport(c, engine, prompt, out, w, runErr)
	if !f.quiet && len(out.IDs) > 0 {
		if err := r.write(cmd.ErrOrStderr()); err != nil {
			return err
		}
	}
	if err := outputs.commit(r, sequence.IDs(), runErr); err != nil {
		return errors.Join(runErr, err)
	}
	if runErr == nil && out.Reason == core.StopInterrupt {
		return errInterrupted
	}
	return runErr
}

// onePrompt checks that exactly one prompt was given.
func onePrompt(cmd *cobra.Command) error {
	given := 0
	for _, name := range []string{"prompt", "prompt-file", "ids"} {
		if cmd.Flags().Changed(name) {
			given++
		}
	}
	if cmd.Flags().Changed("ids") && cmd.Flags().Changed("chat") {
		return usagef("--chat wraps a text: it does not go with --ids")
	}
	if given != 1 {
		return usagef("%s needs exactly one of --prompt, --prompt-file and --ids, and got %d", cmd.CommandPath(), given)
	}
	return nil
}

// readPrompt returns the prompt's ids; tok is nil if the model has no tokenizer.
func readPrompt(cmd *cobra.Command, f runFlags, model string, tok *tokenizer.Tokenizer) ([]int, error) {
	if cmd.Flags().Changed("ids") {
		ids, err := parseIDs(f.ids)
		if err != nil {
			return nil, usagef("--ids: %w", err)
		}
		return ids, nil
	}
	if tok == nil {
		return nil, inputf("model %s has no tokenizer (tiktoken.model): give the prompt as --ids", model)
	}
	what, text := "--prompt", f.prompt
	if cmd.Flags().Changed("prompt-file") {
		what = f.promptFile
		var err error
		if text, err = readInput(cmd, f.promptFile); err != nil {
			return nil, err
		}
	}
	text, err := checkText(what, text, f.replace)
	if err != nil {
		if cmd.Flags().Changed("prompt-file") {
			err = inputf("%w", err)
		}
		return nil, err
	}
	if !f.chat {
		return tok.Encode(text)
	}
	segments, err := chat.Render(chat.User(text, true))
	if err != nil {
		return nil, err
	}
	return chat.Encode(tok, segments)
}

// contextFor returns the number of positions to make room for: what was asked for, or what the request needs within the
// limit of the model.
func contextFor(files disk.Files, c presets.Config, prompt int) (int, error) {
	if c.Context > 0 {
		return c.Context, nil
	}
	data, err := disk.ReadAll(files, "config.json", 1<<20)
	if err != nil {
		return 0, inputf("%w", err)
	}
	config, err := checkpoint.ParseConfig(data)
	if err != nil {
		return 0, err
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

// writer writes generated tokens as they come: as text, as the answer in a chat, or as ids.
type writer struct {
	out         io.Writer
	line        *progress
	ids         bool
	written     int                // ids
	decoder     *tokenizer.Decoder // nil without a tokenizer
	parser      *chat.Parser       // nil unless in a chat
	reasoningTo io.Writer          // nil: nowhere
	stopper     *sample.Stopper
	text        []byte // all text so far; in a chat, the answer's
	reasoning   []byte
	thinking    bool // the last that was written is reasoning
}

func newWriter(out io.Writer, line *progress, tok *tokenizer.Tokenizer, stops []string, ids bool) (*writer, error) {
	w := &writer{out: out, line: line, ids: ids || tok == nil}
	var err error
	if tok != nil {
		w.decoder = tok.NewDecoder()
		w.stopper, err = sample.NewStopper(stops)
	}
	return w, err
}

// token takes the next id; core.ErrStop says that a stop text is complete.
func (w *writer) token(id int) error {
	w.line.clear()
	if w.ids {
		if err := w.writeID(id); err != nil {
			return err
		}
	}
	switch {
	case w.decoder == nil:
		return nil
	case w.parser != nil:
		return w.events(w.parser.Push(id))
	}
	return w.feed(w.decoder.Push(id))
}

func (w *writer) writeID(id int) error {
	separator := ","
	if w.written == 0 {
		separator = ""
	}
	w.written++
	_, err := fmt.Fprintf(w.out, "%s%d", separator, id)
	return err
}

// events takes what the parser found in the reply.
func (w *writer) events(events []chat.Event) error {
	for _, e := range events {
		var err error
		switch e.Kind {
		case chat.ReasoningDelta:
			w.reasoning = append(w.reasoning, e.Text...)
			if w.reasoningTo != nil {
				w.thinking = true
				_, err = io.WriteString(w.reasoningTo, e.Text)
			}
		case chat.ContentDelta:
			err = w.feed(e.Text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// feed takes text in which stop texts end the text.
func (w *writer) feed(text string) error {
	text, stopped := w.stopper.Feed(text)
	if err := w.show(text); err != nil {
		return err
	}
	if stopped {
		return core.ErrStop
	}
	return nil
}

func (w *writer) show(text string) error {
	w.text = append(w.text, text...)
	if text == "" {
		return nil
	}
	if err := w.endReasoning(); err != nil || w.ids {
		return err
	}
	_, err := io.WriteString(w.out, text)
	return err
}

// endReasoning begins a new line after reasoning.
func (w *writer) endReasoning() error {
	if !w.thinking {
		return nil
	}
	w.thinking = false
	_, err := fmt.Fprintln(w.reasoningTo)
	return err
}

// end writes what was held back, and the ids that were not shown because they end the text.
func (w *writer) end(ids []int) error {
	if w.decoder != nil {
		var err error
		if w.parser != nil {
			err = w.events(w.parser.Finish())
		} else {
			err = w.feed(w.decoder.Flush())
		}
		if err == nil {
			err = w.show(w.stopper.Flush())
		}
		if err == nil || errors.Is(err, core.ErrStop) {
			err = w.endReasoning()
		}
		if err != nil {
			return err
		}
	}
	newline := w.line.shared && !endsLine(string(w.text)) // so that the report begins on a line of its own
	if w.ids {
		for _, id := range ids[min(w.written, len(ids)):] {
			if err := w.writeID(id); err != nil {
				return err
			}
		}
		newline = w.written > 0
	}
	if newline {
		_, err := fmt.Fprintln(w.out)
		return err
	}
	return nil
}

// outputs are the files a run writes.
type outputs struct {
	report *newFile
	logits *logitsFile
}

func (o *outputs) open(f runFlags) (err error) {
	if f.report != "" {
		if o.report, err = createFile(f.report); err != nil {
			return err
		}
	}
	if f.dumpLogits != "" {
		o.logits, err = createLogits(f.dumpLogits)
	}
	return err
}

// commit completes the files: the report always, the logits unless the run failed.
func (o *outputs) commit(r *report, ids []int, failed error) error {
	if o.logits != nil && failed == nil {
		if err := o.logits.commit(ids); err != nil {
			return err
		}
	}
	if o.report != nil {
		if err := writeJSON(o.report, r); err != nil {
			return fmt.Errorf("write %s: %w", o.report.path, err)
		}
		return o.report.commit()
	}
	return nil
}

func (o *outputs) abandon() {
	if o.report != nil {
		o.report.abandon()
	}
	if o.logits != nil {
		o.logits.abandon()
	}
}

// logitsFile collects the logits of a run in a file beside the one they will end in, since the header, which comes first,
// says how many there are.
type logitsFile struct {
	out, rows *newFile
	positions int
	vocab     int
	buffer    []byte
}

func createLogits(path string) (*logitsFile, error) {
	out, err := createFile(path)
	if err != nil {
		return nil, err
	}
	rows, err := createFile(path)
	if err != nil {
		out.abandon()
		return nil, err
	}
	return &logitsFile{out: out, rows: rows}, nil
}

// add takes the logits of the next position.
func (l *logitsFile) add(_ int, logits []float32) error {
	l.buffer = l.buffer[:0]
	for _, x := range logits {
		l.buffer = binary.LittleEndian.AppendUint32(l.buffer, math.Float32bits(x))
	}
	l.positions++
	l.vocab = len(logits)
	if _, err := l.rows.Write(l.buffer); err != nil {
		return fmt.Errorf("write %s: %w", l.out.path, err)
	}
	return nil
}

// commit writes the tensors logits [positions, vocab] and ids [prompt + generated].
func (l *logitsFile) commit(ids []int) error {
	if _, err := l.rows.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("write %s: %w", l.out.path, err)
	}
	data := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		data = binary.LittleEndian.AppendUint32(data, uint32(id))
	}
	err := checkpoint.WriteFile(l.out, []checkpoint.Named{
		{Name: "logits", DType: checkpoint.F32, Shape: []int{l.positions, l.vocab}, Data: func(w io.Writer) error {
			_, err := io.Copy(w, l.rows)
			return err
		}},
		{Name: "ids", DType: checkpoint.I32, Shape: []int{len(ids)}, Data: checkpoint.Bytes(data)},
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", l.out.path, err)
	}
	return l.out.commit()
}

func (l *logitsFile) abandon() {
	l.out.abandon()
	l.rows.abandon()
}
