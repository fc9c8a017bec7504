package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/sample"
	_ "github.com/k3infer/k3/policies"
	"github.com/k3infer/k3/presets/demo"
)

// sequences is what the plan has room for: a conversation, and a kept state of it.
const sequences = 2

// tester is a conversation and whoever has it.
type tester struct {
	*Conversation
	last     Turn
	computed int
}

// talking returns a conversation with the demonstration model.
func talking(t *testing.T, options core.Options, generate core.GenerateOptions, thinking bool) *tester {
	t.Helper()
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, others) })
	options.Files, options.Sequences = demo.Files(), sequences
	e, err := core.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if generate.MaxTokens == 0 {
		generate.MaxTokens = 100
	}
	if generate.Stop, err = e.StopIDs(); err != nil {
		t.Fatal(err)
	}
	plan := e.Plan()
	prefixes := e.NewPrefixes((plan.Bytes(memory.State) + plan.Bytes(memory.Latents)) / sequences)
	c, err := New(e, e, prefixes, Settings{Generate: generate, Thinking: thinking, Effort: chat.DefaultEffort})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		prefixes.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return &tester{Conversation: c}
}

func (c *tester) count(turn Turn, err error) error {
	if turn.Total > 0 {
		c.last = turn
		c.computed += turn.Computed()
	}
	return err
}

func (c *tester) ask(ctx context.Context, text string, interrupt <-chan struct{}, show func(chat.Event) error) error {
	c.Generate.Interrupt = interrupt
	return c.count(c.Ask(ctx, user(text), show))
}

func (c *tester) retry(ctx context.Context, interrupt <-chan struct{}, show func(chat.Event) error) error {
	c.Generate.Interrupt = interrupt
	return c.count(c.Retry(ctx, show))
}

func user(text string) chat.Message { return chat.Message{Role: "user", Content: chat.Text(text)} }

// setSystem puts a system message before what is said by others; "" removes it.
func (c *tester) setSystem(text string) {
	messages := c.Messages()
	if c.system() != "" {
		messages = messages[1:]
	}
	if text != "" {
		messages = append([]chat.Message{{Role: "system", Content: chat.Text(text)}}, messages...)
	}
	c.SetMessages(messages)
}

func (c *tester) system() string {
	if len(c.messages) == 0 || c.messages[0].Role != "system" {
		return ""
	}
	return c.messages[0].Plain()
}

func (c *tester) save(path string) error {
	s, saved, err := c.Save()
	if err != nil {
		return err
	}
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return s.Save(path, data)
}

func (c *tester) load(path string) error {
	s, data, err := c.engine.LoadSequence(path)
	if err != nil {
		return err
	}
	var saved Saved
	if err = json.Unmarshal(data, &saved); err == nil {
		err = c.Restore(s, saved)
	}
	if err != nil {
		s.Close()
	}
	return err
}

// says asks and returns the answer; the conversation must hold what it is about to remember.
func says(t *testing.T, c *tester, text string) string {
	t.Helper()
	if err := c.ask(t.Context(), text, nil, func(chat.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	holds(t, c)
	return c.messages[len(c.messages)-1].Plain()
}

// holds checks that the sequence is the markup of the messages.
func holds(t *testing.T, c *tester) {
	t.Helper()
	ids, err := c.markup(false)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ids, c.sequence.IDs()) {
		t.Errorf("the sequence is\n%v\nthe conversation\n%v", c.sequence.IDs(), ids)
	}
}

// rendered checks that the text of the sequence is what Render makes of the messages.
func rendered(t *testing.T, c *tester) {
	t.Helper()
	r := chat.Request{Thinking: c.Thinking, Effort: c.Effort}
	for _, m := range c.messages {
		r.Messages = append(r.Messages, m.Message)
	}
	segments, err := chat.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, s := range segments {
		want += s.Text
	}
	if got, err := c.tok.Decode(c.sequence.IDs()); err != nil || string(got) != want {
		t.Errorf("the sequence is %q, %v; rendered, the conversation is %q", got, err, want)
	}
}

func TestATurnComputesOnlyWhatItAdds(t *testing.T) {
	for _, thinking := range []bool{true, false} {
		c := talking(t, core.Options{}, core.GenerateOptions{}, thinking)
		computed := 0
		for _, turn := range [][2]string{
			{"What is the capital of France?", "The capital of France is Paris."},
			{"What is the capital of Japan?", "The capital of Japan is Tokyo."},
			{"What is the capital of Italy?", "The capital of Italy is Rome."},
		} {
			before := 0
			if c.sequence != nil {
				before = c.sequence.Computed()
			}
			if got := says(t, c, turn[0]); got != turn[1] {
				t.Errorf("%s %q", turn[0], got)
			}
			rendered(t, c)
			computed += c.last.Computed()
			if c.last.Kept != before || before+c.last.Computed() != c.sequence.Computed() || c.last.Total != c.sequence.Computed()+1 {
				t.Errorf("thinking %v: %+v: before there were %d, now %d", thinking, c.last, before, c.sequence.Computed())
			}
		}
		if n := len(c.sequence.IDs()); computed != n-1 || c.computed != computed {
			t.Errorf("%d and %d computed for %d tokens, of which the last waits", computed, c.computed, n)
		}
	}
}

// The state that turns leave is that of the same text computed at once.
func TestTurnsRememberWhatOnePromptWould(t *testing.T) {
	c := talking(t, core.Options{PrefillChunk: 5}, core.GenerateOptions{}, true)
	says(t, c, "Hello!")
	says(t, c, "What is the capital of Peru?")
	ids, err := c.markup(true)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := c.engine.NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	var rows []core.Row
	for i, id := range ids {
		rows = append(rows, core.Row{Sequence: fresh, Token: id, Logits: i == len(ids)-1})
	}
	var want []float32
	for part := range slices.Chunk(rows, c.engine.MaxRows()) {
		logits, err := c.engine.Pass(t.Context(), part)
		if err != nil {
			t.Fatal(err)
		}
		if len(logits) > 0 {
			want = slices.Clone(logits[0])
		}
	}
	if err := c.hold(ids); err != nil {
		t.Fatal(err)
	}
	var got []float32
	o := core.GenerateOptions{MaxTokens: 1, OnLogits: func(position int, logits []float32) error {
		got = slices.Clone(logits)
		return nil
	}}
	if _, err := c.engine.Generate(t.Context(), c.sequence, nil, o, nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Error("the logits after the turns differ from those after one prompt")
	}
}

func TestACutAnswerIsClosedAndGoneOnFrom(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for _, thinking := range []bool{true, false} {
		c := talking(t, core.Options{}, core.GenerateOptions{}, thinking)
		for _, cut := range []int{1, 4, 9, 10, 11, 13, 20, 25} {
			c.SetMessages(nil)
			c.Generate.MaxTokens = cut
			says(t, c, "What is the capital of France?")
			rendered(t, c)
			kept := c.sequence.Computed()
			c.Generate.MaxTokens = 3
			// The model was never shown cut thoughts, so what it says now is its business.
			says(t, c, "What is the capital of Japan?")
			rendered(t, c)
			if c.last.Kept != kept {
				t.Errorf("thinking %v: cut after %d: %d of %d were kept", thinking, cut, c.last.Kept, kept)
			}
		}
	}
}

func TestAnInterruptedAnswerStays(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{}, true)
	interrupt := make(chan struct{})
	events := 0
	err := c.ask(t.Context(), "What is the capital of France?", interrupt, func(chat.Event) error {
		if events++; events == 3 {
			close(interrupt)
		}
		return nil
	})
	if err != nil || c.last.Reason != core.StopInterrupt || len(c.messages) != 2 || c.messages[1].Reasoning == "" {
		t.Fatalf("%v: %v, %+v", err, c.last.Reason, c.messages)
	}
	rendered(t, c)
	kept := c.sequence.Computed()
	says(t, c, "What is the capital of Japan?")
	if c.last.Kept != kept {
		t.Errorf("%d of %d were kept", c.last.Kept, kept)
	}
	// Before the first token nothing is said, but what was computed counts.
	before := slices.Clone(c.messages)
	c.Generate.Progress = nil
	err = c.ask(t.Context(), "Hello!", interrupt, nil)
	if !errors.Is(err, ErrNoAnswer) || len(c.messages) != len(before) {
		t.Errorf("%v, %d messages", err, len(c.messages))
	}
	says(t, c, "Hello!")
}

func TestAFailureLosesLittle(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{}, true)
	says(t, c, "What is the capital of France?")
	kept := c.sequence.Computed()
	ctx, cancel := context.WithCancel(t.Context())
	err := c.ask(ctx, "What is the capital of Japan?", nil, func(chat.Event) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || len(c.messages) != 4 {
		t.Fatalf("%v, %d messages", err, len(c.messages))
	}
	holds(t, c)
	rendered(t, c)
	says(t, c, "What is the capital of Italy?")
	if c.last.Kept != kept {
		t.Errorf("%d of %d were kept", c.last.Kept, kept)
	}
	// Too long a message costs nothing and changes nothing.
	before := c.computed
	err = c.ask(t.Context(), strings.Repeat("word ", 10000), nil, nil)
	if !errors.Is(err, core.ErrContext) || len(c.messages) != 6 || c.computed != before {
		t.Errorf("%v, %d messages, %d computed", err, len(c.messages), c.computed-before)
	}
	if err := c.ask(t.Context(), "a\xffb", nil, nil); err == nil || len(c.messages) != 6 {
		t.Errorf("what is not UTF-8: %v, %d messages", err, len(c.messages))
	}
	// Nor does output that fails spoil anything.
	broken := errors.New("broken pipe")
	if err := c.ask(t.Context(), "Hello!", nil, func(chat.Event) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	says(t, c, "Hello!")
}

func TestAnotherTryGoesOnFromTheMessageBefore(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{}, false)
	none := func(chat.Event) error { return nil }
	if err := c.retry(t.Context(), nil, none); err == nil {
		t.Error("an answer to nothing")
	}
	says(t, c, "What is the capital of France?")
	first := c.sequence.Computed()
	says(t, c, "What is the capital of Japan?")
	if err := c.retry(t.Context(), nil, none); !errors.Is(err, ErrSame) || len(c.messages) != 4 {
		t.Errorf("%v, %d messages", err, len(c.messages))
	}
	c.Generate.Sample = sample.Params{Temperature: 1.5, Seed: 3}
	answers := map[string]bool{}
	for range 4 {
		if err := c.retry(t.Context(), nil, none); err != nil {
			t.Fatal(err)
		}
		if c.last.Kept != first || len(c.messages) != 4 {
			t.Errorf("%d of %d were kept, %d messages", c.last.Kept, first, len(c.messages))
		}
		holds(t, c)
		answers[c.messages[3].Plain()] = true
	}
	if len(answers) < 2 {
		t.Errorf("four tries gave %v", answers)
	}
	interrupt := make(chan struct{})
	close(interrupt)
	was := c.messages[3].Plain()
	if err := c.retry(t.Context(), interrupt, none); !errors.Is(err, ErrNoAnswer) || c.messages[3].Plain() != was {
		t.Errorf("%v: the answer is %q, not %q", err, c.messages[3].Plain(), was)
	}
	says(t, c, "Hello!")
}

func TestAnotherTryAtALongMessageRepeatsItsLastPass(t *testing.T) {
	c := talking(t, core.Options{PrefillChunk: 8}, core.GenerateOptions{Sample: sample.Params{Temperature: 1}}, false)
	says(t, c, "What is the capital of France? "+strings.Repeat("Please. ", 20))
	prompt := c.last.Prefill.Tokens
	if err := c.retry(t.Context(), nil, func(chat.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := c.last.Prefill.Tokens; prompt < 20 || got > 8 || c.last.Kept != prompt-got {
		t.Errorf("%d tokens of a prompt of %d were computed again", got, prompt)
	}
}

// Whatever changes in the conversation, the answer is that of a new one.
func TestAChangedConversationAnswersAsANewOne(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for _, change := range []struct {
		name string
		do   func(c *tester)
	}{
		{"system message", func(c *tester) { c.setSystem("Be brief.") }},
		{"system message removed", func(c *tester) { c.setSystem("x"); c.setSystem("") }},
		{"no thinking", func(c *tester) { c.Thinking = false }},
		{"effort", func(c *tester) { c.Effort = "low" }},
		{"forgotten", func(c *tester) { c.SetMessages(nil) }},
		{"thinking and back", func(c *tester) { c.Thinking = false; c.markup(true); c.Thinking = true }},
	} {
		c := talking(t, core.Options{}, core.GenerateOptions{}, true)
		says(t, c, "What is the capital of France?")
		says(t, c, "Hello!")
		change.do(c)
		fresh := talking(t, core.Options{}, core.GenerateOptions{}, c.Thinking)
		fresh.Effort = c.Effort
		for _, m := range c.messages {
			fresh.messages = append(fresh.messages, message{Message: m.Message})
		}
		if got, want := says(t, c, "What is the capital of Japan?"), says(t, fresh, "What is the capital of Japan?"); got != want {
			t.Errorf("%s: %q, a new conversation says %q", change.name, got, want)
		}
		rendered(t, c)
	}
}

func TestASavedConversationGoesOnElsewhere(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	path := filepath.Join(t.TempDir(), "talk.k3s")
	c := talking(t, core.Options{}, core.GenerateOptions{MaxTokens: 9}, true)
	if err := c.save(path); err == nil {
		c.setSystem("You know capitals.")
	}
	c.setSystem("You know capitals.")
	says(t, c, "What is the capital of France?")
	says(t, c, "What is the capital of Japan?")
	if err := c.save(path); err != nil {
		t.Fatal(err)
	}
	d := talking(t, core.Options{Backend: "generic", Threads: 1, PrefillChunk: 7}, core.GenerateOptions{MaxTokens: 9}, false)
	says(t, d, "Hello!")
	if err := d.load(path); err != nil {
		t.Fatal(err)
	}
	if d.system() != "You know capitals." || len(d.messages) != 5 || !d.Thinking {
		t.Errorf("%+v", d)
	}
	holds(t, d)
	kept := d.sequence.Computed()
	if got, want := says(t, d, "And of Italy?"), says(t, c, "And of Italy?"); got != want || d.last.Kept != kept {
		t.Errorf("it says %q, not %q; %d of %d were kept", got, want, d.last.Kept, kept)
	}
	for i := range c.messages {
		if c.messages[i].Plain() != d.messages[i].Plain() || c.messages[i].Reasoning != d.messages[i].Reasoning {
			t.Errorf("message %d: %+v, not %+v", i, d.messages[i], c.messages[i])
		}
	}
	// After a change that no turn has computed, too.
	c.setSystem("Say nothing.")
	if err := c.save(path); err != nil {
		t.Fatal(err)
	}
	if err := d.load(path); err != nil || d.system() != "Say nothing." {
		t.Errorf("%v, %q", err, d.system())
	}
}

func TestSavedPartsThatDoNotFitChangeNothing(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{}, false)
	says(t, c, "What is the capital of France?")
	s, saved, err := c.Save()
	if err != nil {
		t.Fatal(err)
	}
	for _, tokens := range [][]int{nil, {0}, {0, 5, 1}, {-1, 1000, 0}, append(slices.Clone(saved.Tokens), 0)} {
		wrong := saved
		wrong.Tokens = tokens
		if err := c.Restore(s, wrong); !errors.Is(err, ErrUnfit) || len(c.messages) != 2 || c.sequence != s {
			t.Errorf("%v: %v, %d messages", tokens, err, len(c.messages))
		}
	}
	says(t, c, "What is the capital of Japan?")
}

func TestAReleasedConversationGoesOnFromItsState(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{}, true)
	if err := c.Release(); err != nil {
		t.Error(err)
	}
	says(t, c, "What is the capital of France?")
	kept := c.sequence.Computed()
	if err := c.Release(); err != nil || c.sequence != nil {
		t.Errorf("%v: the sequence is still there: %v", err, c.sequence != nil)
	}
	if got := says(t, c, "What is the capital of Japan?"); got != "The capital of Japan is Tokyo." || c.last.Kept != kept {
		t.Errorf("%q, %d of %d were kept", got, c.last.Kept, kept)
	}
}

func TestATurnTakenBackCostsNothing(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{}, true)
	says(t, c, "What is the capital of France?")
	kept := c.sequence.Computed()
	says(t, c, "What is the capital of Japan?")
	c.SetMessages(c.Messages()[:2])
	says(t, c, "What is the capital of Italy?")
	if c.last.Kept != kept || len(c.messages) != 4 {
		t.Errorf("%d of %d were kept, %d messages", c.last.Kept, kept, len(c.messages))
	}
	rendered(t, c)
}

// Messages that depend on those before them, such as results of tools, have the markup that Render gives them.
func TestResultsOfToolsAreRenderedAfterTheirCalls(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{MaxTokens: 3}, true)
	c.Tools = json.RawMessage(`[{"type":"function","function":{"name":"f"}}]`)
	c.SetMessages([]chat.Message{
		{Role: "system", Tools: json.RawMessage(`[]`)}, // has no markup
		user("Hello!"),
		{Role: "assistant", ToolCalls: []chat.ToolCall{{ID: "1", Name: "f", Arguments: "{}"}, {ID: "2", Name: "g", Arguments: "{}"}}},
		{Role: "tool", ToolCallID: "2", Content: chat.Text("two")},
		{Role: "tool", ToolCallID: "1", Content: chat.Text("one")},
	})
	if err := c.count(c.Answer(t.Context(), func(chat.Event) error { return nil })); err != nil {
		t.Fatal(err)
	}
	if len(c.messages) != 6 || c.messages[5].ids == nil {
		t.Errorf("%d messages", len(c.messages))
	}
	holds(t, c)
	segments, err := chat.Render(chat.Request{Tools: c.Tools, Thinking: true, Effort: c.Effort, Messages: c.Messages()})
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, s := range segments {
		want += s.Text
	}
	if got, err := c.tok.Decode(c.sequence.IDs()); err != nil || string(got) != want {
		t.Errorf("the sequence is\n%s, %v\nrendered, the conversation is\n%s", got, err, want)
	}
}

// What is told to the model for one answer only is not there for the next.
func TestAResponseFormatIsForOneAnswer(t *testing.T) {
	c := talking(t, core.Options{}, core.GenerateOptions{MaxTokens: 3}, false)
	c.ToolChoice = "none"
	says(t, c, "Hello!")
	without := c.asked
	c.ToolChoice = ""
	says(t, c, "Hello!")
	rendered(t, c)
	text, err := c.tok.Decode(without)
	if err != nil || !strings.Contains(string(text), "MUST NOT call") {
		t.Errorf("%q, %v", text, err)
	}
}
