package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/k3infer/k3/core"
)

// chatCommand is what a line that begins with a slash does.
type slashCommand struct {
	name, arguments, help string
	do                    func(t *talk, ctx context.Context, argument string) error
}

var slashCommands []slashCommand

func init() { // not where it is declared, since /help lists it
	slashCommands = []slashCommand{
		{"/help", "", "this list", (*talk).help},
		{"/system", "[TEXT]", "show or set the system message; - removes it", (*talk).systemCommand},
		{"/think", "[show|hide|off|low|high|max]", "show or set how it thinks", (*talk).think},
		{"/retry", "[TEMPERATURE]", "another answer to the last message", (*talk).retryCommand},
		{"/stats", "", "what was computed and what was kept", (*talk).stats},
		{"/save", "[FILE]", "keep the conversation; a .jsonl is text only", (*talk).saveCommand},
		{"/load", "FILE", "go on with another conversation", (*talk).loadCommand},
		{"/reset", "", "forget all but the system message", (*talk).resetCommand},
		{"/exit", "", "end the conversation, as Ctrl-D does", func(*talk, context.Context, string) error { return errLeave }},
	}
}

// command does what a line that begins with a slash says.
func (t *talk) command(ctx context.Context, line string) error {
	name, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
	var names []string
	for _, c := range slashCommands {
		if c.name == name {
			argument = strings.TrimSpace(argument)
			if c.arguments == "" && argument != "" {
				return usagef("%s takes nothing, not %q", name, argument)
			}
			return c.do(t, ctx, argument)
		}
		names = append(names, c.name)
	}
	return usagef("unknown command %s%s (/help lists them; // begins a message with /)", name, suggestion("", name, names))
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
		fmt.Fprintf(table, "%s\t%s\n", strings.TrimSpace(c.name+" "+c.arguments), c.help)
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
	shown, thinking, effort := t.shown, t.thinking, t.effort
	for _, word := range strings.Fields(argument) {
		switch {
		case word == thinkingOff:
			thinking = false
		case slices.Contains(thinkings, word):
			shown, thinking = word, true
		case slices.Contains(efforts, word):
			effort, thinking = word, true
		default:
			return oneOf("/think", word, slices.Concat(thinkings, efforts))
		}
	}
	changed := thinking != t.thinking || thinking && effort != t.effort
	t.shown, t.thinking, t.effort = shown, thinking, effort
	switch {
	case changed:
		return t.again()
	case argument != "":
	case !thinking:
		t.note("it does not think")
	case shown == thinkingHide:
		t.note("it thinks with effort %s, which is not shown", effort)
	default:
		t.note("it thinks with effort %s", effort)
	}
	return nil
}

// again says what a change at the beginning of the conversation costs.
func (t *talk) again() error {
	ids, err := t.markup(false)
	if err != nil {
		return err
	}
	if len(t.spoken()) > 0 {
		t.note("the next answer computes the conversation again, %s", plural(len(ids), "token", "tokens"))
	}
	return nil
}

func (t *talk) retryCommand(ctx context.Context, argument string) error {
	if argument != "" {
		x, err := strconv.ParseFloat(argument, 64)
		if err != nil || !(x >= 0 && x <= 1e6) {
			return usagef("/retry: %q: must be a temperature, 0 or above", argument)
		}
		before := t.options.Sample.Temperature
		t.options.Sample.Temperature = x
		defer func() { t.options.Sample.Temperature = before }()
	}
	return t.answer(ctx, t.retry)
}

func (t *talk) stats(context.Context, string) error {
	ids, err := t.markup(false)
	if err != nil {
		return err
	}
	answers := 0
	for _, m := range t.messages {
		if m.Role == "assistant" {
			answers++
		}
	}
	table := tabwriter.NewWriter(t.aside(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "conversation\t%s, %s\n", plural(len(ids), "token", "tokens"), plural(answers, "answer", "answers"))
	if l := t.last; l.total > 0 {
		fmt.Fprintf(table, "last turn\tcomputed %s of %d, the other %d were kept\n", plural(l.computed(), "token", "tokens"), l.total, l.kept)
		for _, p := range []struct {
			name  string
			phase core.Phase
		}{{"  prompt", l.Prefill}, {"  answer", l.Decode}} {
			if p.phase.Tokens > 0 {
				x := newPhase(p.phase)
				fmt.Fprintf(table, "%s\t%s in %s, %s, %s a token\n", p.name, plural(x.Tokens, "token", "tokens"),
					plural(x.Passes, "pass", "passes"), seconds(x.Seconds), seconds(x.SecondsPerToken))
			}
		}
	}
	fmt.Fprintf(table, "since the start\tcomputed %s\n", plural(t.computed, "token", "tokens"))
	if g := t.guesses; g.Proposed > 0 {
		fmt.Fprintf(table, "guesses\t%s\n", &guesses{g.Proposed, g.Accepted, g.Saved.Seconds()})
	}
	if n := t.prefixes.Len(); n > 0 {
		fmt.Fprintf(table, "kept states\t%d, %s at most\n", n, inMemory(t.prefixes.Bytes()))
	}
	return table.Flush()
}

func (t *talk) saveCommand(_ context.Context, argument string) error {
	if argument == "" {
		argument = t.flags.save
	}
	if argument == "" {
		return usagef("/save: the name of a file is missing")
	}
	if err := t.saveAs(argument); err != nil {
		return err
	}
	t.note("saved %s", argument)
	return nil
}

func (t *talk) loadCommand(_ context.Context, argument string) error {
	if argument == "" {
		return usagef("/load: the name of a file is missing")
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
			before = prompt
		}
		if text := m.Plain(); text != "" {
			fmt.Fprintln(t.out, t.style.dim(before+printable(text)))
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
