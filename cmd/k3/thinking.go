package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
)

// Ways to show what the model thinks.
const (
	thinkingShow = "show"
	thinkingHide = "hide"
	thinkingOff  = "off" // it does not think
)

var (
	thinkings = []string{thinkingShow, thinkingHide, thinkingOff}
	efforts   = []string{"low", "high", "max"}
)

// thinkingFlags are the flags that say how the model thinks in a chat.
type thinkingFlags struct {
	thinking, effort string
	none             bool
}

func (f *thinkingFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.thinking, "thinking", thinkingShow,
		"`WAY`: show what the model thinks, hide it, or off: it does not think")
	flags.BoolVar(&f.none, "no-thinking", false, "the same as --thinking off")
	flags.StringVar(&f.effort, "effort", chat.DefaultEffort, "`HOW` much it thinks: low, high or max")
}

// check reads the flags.
func (f *thinkingFlags) check(cmd *cobra.Command) (err error) {
	if f.thinking, err = thinkingWay("--thinking", f.thinking); err != nil {
		return err
	}
	if f.none {
		if cmd.Flags().Changed("thinking") && f.thinking != thinkingOff {
			return ui.Usagef("--thinking %s and --no-thinking exclude each other", f.thinking)
		}
		f.thinking = thinkingOff
	}
	return oneOf("--effort", f.effort, efforts)
}

// given reports whether the flags say if the model thinks; they have defaults.
func (f *thinkingFlags) given(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("thinking") || f.none
}

// thinkingWay reads a way to think, which may be called on as well; others are what else may stand there.
func thinkingWay(what, word string, others ...string) (string, error) {
	if word == "on" {
		word = thinkingShow
	}
	return word, oneOf(what, word, slices.Concat(thinkings, others))
}

// oneOf refuses a value that is none of the words.
func oneOf(what, value string, words []string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return ui.Usagef("%s: %q: must be one of %s", what, value, strings.Join(words, ", "))
}

// unanswered says why a reply has no answer, and what to do about it with flags or with commands; "" if there is
// nothing to say.
func unanswered(m chat.Message, o core.Outcome, commands bool) string {
	if m.Plain() != "" || len(m.ToolCalls) > 0 {
		return ""
	}
	tokens := ui.Plural(len(o.IDs), "token", "tokens")
	more, less := "--max-tokens", "--effort low and --thinking off"
	if commands {
		more, less = "/set max-tokens", "/think low and /think off"
	}
	switch o.Reason {
	case core.StopID:
		return "no answer: the model ended after " + tokens + " without one"
	case core.StopContext:
		more = "--context"
	case core.StopLength:
	default:
		return ""
	}
	if m.Reasoning == "" {
		return "no answer within " + tokens
	}
	return fmt.Sprintf("no answer: all %s went into thinking (a larger %s gives more; %s think less)", tokens, more, less)
}
