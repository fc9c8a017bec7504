package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/conversation"
	"github.com/k3infer/k3/presets"
)

// slashCommand is what a line that begins with a slash does.
type slashCommand struct {
	names           []string // the first is the one that is spoken of
	arguments, help string
	do              func(t *talk, ctx context.Context, argument string) error
	text            bool // the argument may have several lines
}

var slashCommands []slashCommand

func init() { // not where it is declared, since /help lists it
	slashCommands = []slashCommand{
		{[]string{"/help", "/?"}, "", "this list", (*talk).help, false},
		{[]string{"/system"}, "[TEXT]", "show or set the system message; - removes it", (*talk).systemCommand, true},
		{[]string{"/set"}, "[NAME [VALUE]]", "show or change how the next answers are made", (*talk).setCommand, false},
		{[]string{"/think"}, "[show|hide|off|low|high|max]", "show or set how it thinks", (*talk).think, false},
		{[]string{"/retry"}, "[TEMPERATURE]", "another answer to the last message", (*talk).retryCommand, false},
		{[]string{"/stats"}, "", "what was computed and what was kept", (*talk).stats, false},
		{[]string{"/save"}, "[FILE]", "keep the conversation; a .jsonl is text only", (*talk).saveCommand, false},
		{[]string{"/load"}, "FILE", "go on with another conversation", (*talk).loadCommand, false},
		{[]string{"/reset", "/clear"}, "", "forget all but the system message", (*talk).resetCommand, false},
		{[]string{"/exit", "/quit", "/bye"}, "", "end the conversation, as Ctrl-D does",
			func(*talk, context.Context, string) error { return errLeave }, false},
	}
}

// cutCommand cuts a line behind its first word.
func cutCommand(line string) (name, argument string) {
	line = strings.TrimSpace(line)
	if end := strings.IndexFunc(line, unicode.IsSpace); end >= 0 {
		return line[:end], strings.TrimSpace(line[end:])
	}
	return line, ""
}

// findCommand returns the command that a line begins with, or nil.
func findCommand(line string) *slashCommand {
	name, _ := cutCommand(line)
	for i, c := range slashCommands {
		if slices.Contains(c.names, name) {
			return &slashCommands[i]
		}
	}
	return nil
}

// completeCommand returns what a line that is being edited may become.
func completeCommand(line string) (lines []string) {
	if line == "" {
		return nil
	}
	var all []string
	for _, c := range slashCommands {
		all = append(all, c.names...)
	}
	for _, s := range chatSettings {
		all = append(all, "/set "+s.name)
	}
	for _, l := range all {
		if strings.HasPrefix(l, line) {
			lines = append(lines, l)
		}
	}
	return lines
}

// command does what a line that begins with a slash says.
func (t *talk) command(ctx context.Context, line string) error {
	name, argument := cutCommand(line)
	c := findCommand(line)
	if c == nil {
		var names []string
		for _, c := range slashCommands {
			names = append(names, c.names...)
		}
		return ui.Usagef("unknown command %s%s (/help lists them; // begins a message with /)", name,
			suggestion("", name, names))
	}
	if c.arguments == "" && argument != "" {
		return ui.Usagef("%s takes nothing, not %q", name, argument)
	}
	return c.do(t, ctx, argument)
}

// aside is where commands write: what they say is no answer.
func (t *talk) aside() io.Writer {
	if t.editor != nil {
		return t.out
	}
	return t.err
}

func (t *talk) help(context.Context, string) error {
	table := tabwriter.NewWriter(t.aside(), 0, 0, 2, ' ', 0)
	for _, c := range slashCommands {
		fmt.Fprintf(table, "%s\t%s\n", strings.TrimSpace(strings.Join(c.names, ", ")+" "+c.arguments), c.help)
	}
	if t.editor != nil {
		fmt.Fprintf(table, "\t\n")
		for _, k := range t.editor.help() {
			fmt.Fprintf(table, "%s\t%s\n", k[0], k[1])
		}
	}
	return table.Flush()
}

func (t *talk) systemCommand(_ context.Context, argument string) error {
	switch argument {
	case "":
		if t.system() == "" {
			t.note("there is no system message")
		} else {
			fmt.Fprintln(t.aside(), t.system())
		}
		return nil
	case "-":
		argument = ""
	}
	t.setSystem(argument)
	return t.again()
}

func (t *talk) think(_ context.Context, argument string) error {
	shown, thinking, effort := t.shown, t.Thinking, t.Effort
	for _, word := range strings.Fields(argument) {
		if slices.Contains(efforts, word) {
			effort, thinking = word, true
			continue
		}
		way, err := thinkingWay("/think", word, efforts...)
		if err != nil {
			return err
		}
		if thinking = way != thinkingOff; thinking {
			shown = way
		}
	}
	if argument == "" {
		t.note("it %s", t.thinks())
	}
	return t.setThinking(shown, thinking, effort)
}

// setThinking changes how it thinks.
func (t *talk) setThinking(shown string, thinking bool, effort string) error {
	changed := thinking != t.Thinking || thinking && effort != t.Effort
	t.shown, t.Thinking, t.Effort = shown, thinking, effort
	if changed {
		return t.again()
	}
	return nil
}

// thinks says how it thinks.
func (t *talk) thinks() string {
	switch {
	case !t.Thinking:
		return "does not think"
	case t.shown == thinkingHide:
		return fmt.Sprintf("thinks with effort %s, which is not shown", t.Effort)
	}
	return fmt.Sprintf("thinks with effort %s", t.Effort)
}

// chatSetting is what /set shows and changes.
type chatSetting struct {
	name string
	show func(t *talk) string
	set  func(t *talk, value string) error
}

// chatSettings are in the order that they are shown in.
var chatSettings = []chatSetting{
	{"thinking", func(t *talk) string {
		if !t.Thinking {
			return thinkingOff
		}
		return t.shown
	}, func(t *talk, value string) error {
		way, err := thinkingWay("/set thinking", value)
		if err != nil {
			return err
		}
		if way == thinkingOff {
			return t.setThinking(t.shown, false, t.Effort)
		}
		return t.setThinking(way, true, t.Effort)
	}},
	{"effort", func(t *talk) string { return t.Effort }, func(t *talk, value string) error {
		if err := oneOf("/set effort", value, efforts); err != nil {
			return err
		}
		return t.setThinking(t.shown, t.Thinking, value)
	}},
	generateSetting("max-tokens", func(g presets.Generate) any {
		if g.MaxTokens == 0 {
			return anyLength
		}
		return g.MaxTokens
	}),
	generateSetting("temperature", func(g presets.Generate) any { return g.Temperature }),
	generateSetting("top-k", func(g presets.Generate) any { return g.TopK }),
	generateSetting("top-p", func(g presets.Generate) any { return g.TopP }),
	generateSetting("min-p", func(g presets.Generate) any { return g.MinP }),
	generateSetting("repetition-penalty", func(g presets.Generate) any { return g.RepetitionPenalty }),
	generateSetting("seed", func(g presets.Generate) any { return g.Seed }),
}

// anyLength is the limit of an answer that ends where it ends.
const anyLength = "auto"

// generateSetting is a setting that has a flag.
func generateSetting(flag string, value func(presets.Generate) any) chatSetting {
	show := func(t *talk) string { return fmt.Sprint(value(t.generate)) }
	return chatSetting{flag, show, func(t *talk, text string) error {
		g := t.generate
		if flag == "max-tokens" && text == anyLength {
			g.MaxTokens = 0
		} else if err := g.Set(flag, text); err != nil {
			return ui.Usagef("/set %w", err)
		}
		t.setGenerate(g)
		return nil
	}}
}

// setGenerate changes how the next answers are generated.
func (t *talk) setGenerate(g presets.Generate) {
	t.generate = g
	t.Generate.Sample, t.Generate.MaxTokens = g.Sample(), g.MaxTokens
	if g.MaxTokens == 0 {
		t.Generate.MaxTokens = t.engine.Context()
	}
}

func (t *talk) setCommand(_ context.Context, argument string) error {
	name, value := cutCommand(argument)
	var names []string
	table := tabwriter.NewWriter(t.aside(), 0, 0, 2, ' ', 0)
	for _, s := range chatSettings {
		switch {
		case name == "":
			fmt.Fprintf(table, "%s\t%s\n", s.name, s.show(t))
		case s.name != name:
		case value == "":
			fmt.Fprintf(table, "%s\t%s\n", s.name, s.show(t))
			return table.Flush()
		default:
			if err := s.set(t, value); err != nil {
				return err
			}
			t.note("%s is %s from the next answer on", s.name, s.show(t))
			return nil
		}
		names = append(names, s.name)
	}
	if name != "" {
		return ui.Usagef("/set: there is no setting %q%s (/set lists them)", name, suggestion("", name, names))
	}
	return table.Flush()
}

// again says what a change at the beginning of the conversation costs.
func (t *talk) again() error {
	tokens, err := t.Tokens()
	if err != nil {
		return err
	}
	if len(t.spoken()) > 0 {
		t.note("the next answer computes the conversation again, %s", ui.Plural(tokens, "token", "tokens"))
	}
	return nil
}

func (t *talk) retryCommand(ctx context.Context, argument string) error {
	if argument != "" {
		g := t.generate
		if err := g.Set("temperature", argument); err != nil {
			return ui.Usagef("/retry: %w", err)
		}
		defer t.setGenerate(t.generate)
		t.setGenerate(g)
	}
	return t.answer(ctx, func(ctx context.Context, show func(chat.Event) error) (conversation.Turn, error) {
		turn, err := t.Retry(ctx, show)
		if errors.Is(err, conversation.ErrSame) {
			err = fmt.Errorf("%w; /retry 0.7 draws another one", err)
		}
		return turn, err
	})
}

func (t *talk) stats(context.Context, string) error {
	tokens, err := t.Tokens()
	if err != nil {
		return err
	}
	answers := 0
	for _, m := range t.Messages() {
		if m.Role == "assistant" {
			answers++
		}
	}
	table := tabwriter.NewWriter(t.aside(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "conversation\t%s, %s\n", ui.Plural(tokens, "token", "tokens"), ui.Plural(answers, "answer", "answers"))
	if l := t.last; l.Total > 0 {
		fmt.Fprintf(table, "last turn\tcomputed %s of %d, the other %d were kept\n", ui.Plural(l.Computed(), "token", "tokens"), l.Total, l.Kept)
		for _, p := range []struct {
			name  string
			phase core.Phase
		}{{"  prompt", l.Prefill}, {"  answer", l.Decode}} {
			if p.phase.Tokens > 0 {
				x := newPhase(p.phase)
				fmt.Fprintf(table, "%s\t%s in %s, %s, %s a token\n", p.name, ui.Plural(x.Tokens, "token", "tokens"),
					ui.Plural(x.Passes, "pass", "passes"), ui.Seconds(x.Seconds), ui.Seconds(x.SecondsPerToken))
			}
		}
	}
	fmt.Fprintf(table, "since the start\tcomputed %s\n", ui.Plural(t.computed, "token", "tokens"))
	if g := t.guesses; g.Proposed > 0 {
		fmt.Fprintf(table, "guesses\t%s\n", &guesses{g.Proposed, g.Accepted, g.Saved.Seconds()})
	}
	if n := t.prefixes.Len(); n > 0 {
		fmt.Fprintf(table, "kept states\t%d, %s at most\n", n, ui.InMemory(t.prefixes.Bytes()))
	}
	return table.Flush()
}

func (t *talk) saveCommand(_ context.Context, argument string) error {
	if argument == "" {
		argument = t.flags.save
	}
	if argument == "" {
		return ui.Usagef("/save: the name of a file is missing")
	}
	if err := t.saveAs(argument); err != nil {
		return err
	}
	t.note("saved %s", argument)
	return nil
}

func (t *talk) loadCommand(_ context.Context, argument string) error {
	if argument == "" {
		return ui.Usagef("/load: the name of a file is missing")
	}
	if err := t.open(argument); err != nil {
		return err
	}
	t.recall()
	return nil
}

// recall shows the last exchange of a conversation that goes on.
func (t *talk) recall() {
	if t.editor == nil {
		return
	}
	for _, m := range t.spoken()[max(0, len(t.spoken())-2):] {
		before := ""
		if m.Role == "user" {
			before = ui.Prompt
		}
		if text := m.Plain(); text != "" {
			fmt.Fprintln(t.out, t.style.Dim(before+ui.Printable(text)))
		}
		for _, call := range m.ToolCalls {
			fmt.Fprintln(t.out, t.style.Dim(ui.Printable(ui.CallOpens+call.Name+" "+call.Arguments+ui.CallCloses)))
		}
	}
	if len(t.spoken()) > 0 {
		fmt.Fprintln(t.out)
	}
}

func (t *talk) resetCommand(context.Context, string) error {
	t.reset()
	t.note("forgotten")
	return nil
}
