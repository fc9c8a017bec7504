// Package score measures how likely a model finds texts: token by token, in windows where a text is longer than those, and among
// choices of which one is right.
package score

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"math"
	"slices"
	"sync"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/tokenizer"
)

// Scorer scores texts with a model. Its methods may be called from several goroutines.
type Scorer struct {
	Scheduler *core.Scheduler
	Prefixes  *core.Prefixes // the scheduler's
	Tokenizer *tokenizer.Tokenizer
	// A text longer than Window tokens is scored in windows of that many, each Stride tokens further than the last. A token counts in
	// the first window that has it, so that all but those of the first have at least Window-Stride tokens before them.
	Window, Stride int
}

// Text is what a text was found to be like. The first token has no probability: nothing comes before it.
type Text struct {
	Name        string     `json:"name,omitempty"`
	Tokens      int        `json:"tokens"` // that were scored
	Bytes       int        `json:"bytes"`  // of those
	LogProb     float64    `json:"log_prob"`
	Perplexity  float64    `json:"perplexity"`
	BitsPerByte float64    `json:"bits_per_byte"`
	Window      int        `json:"window"`
	Stride      int        `json:"stride"`
	IDs         []int      `json:"ids,omitempty"`
	LogProbs    []*float64 `json:"log_probs,omitempty"` // natural logarithms, by id; the first is null
}

// window is a part of a text that is computed at once.
type window struct {
	from, to int // ids
	first    int // id whose score counts first
}

// windows divides a text of n ids.
func (s *Scorer) windows(n int) (all []window) {
	for from, first := 0, 1; first < n; from += s.Stride {
		to := min(from+s.Window, n)
		all = append(all, window{from, to, first})
		first = to
	}
	return all
}

// IDs scores the ids of a text; parts are computed beside each other.
func (s *Scorer) IDs(ctx context.Context, ids []int) (Text, error) {
	t := Text{Window: s.Window, Stride: s.Stride, IDs: ids, LogProbs: make([]*float64, len(ids))}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, w := range s.windows(len(ids)) {
		// Opened here, one after the other, so that a long text does not begin a thousand goroutines.
		q, err := s.Scheduler.Sequence(ctx, core.Background, ids[w.from:w.to], w.to-w.from)
		if err != nil {
			cancel(err)
			break
		}
		all.Go(func() {
			defer q.Close()
			known := q.Computed() // of a state that is kept
			scores, err := s.Scheduler.Score(ctx, core.Background, q)
			if err != nil {
				cancel(err)
				return
			}
			for i, score := range scores {
				if at := w.from + known + i + 1; at >= w.first {
					t.LogProbs[at] = &score.LogProb
				}
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return t, err
	}
	for i, p := range t.LogProbs {
		if p == nil {
			continue
		}
		word, err := s.Tokenizer.Decode(ids[i : i+1])
		if err != nil {
			return t, err
		}
		t.Tokens++
		t.Bytes += len(word)
		t.LogProb += *p
	}
	if t.Tokens > 0 {
		t.Perplexity = math.Exp(-t.LogProb / float64(t.Tokens))
	}
	if t.Bytes > 0 {
		t.BitsPerByte = -t.LogProb / math.Ln2 / float64(t.Bytes)
	}
	return t, nil
}

// Item is a question with choices, of which Answer, counted from 0, is right.
type Item struct {
	Context string
	Choices []string
	Answer  int
}

// ErrItem is matched by the errors of lines that are no items.
var ErrItem = errors.New("not a multiple-choice item")

// ReadItem reads {"context": TEXT, "choices": [TEXT, ...], "answer": NUMBER} and ignores other fields.
func ReadItem(line []byte) (item Item, err error) {
	var in struct {
		Context *string  `json:"context"`
		Choices []string `json:"choices"`
		Answer  *int     `json:"answer"`
	}
	if err := json.Unmarshal(line, &in); err != nil {
		return item, fmt.Errorf("%w: %w", ErrItem, err)
	}
	switch {
	case in.Context == nil:
		return item, fmt.Errorf("%w: context: missing", ErrItem)
	case len(in.Choices) < 2:
		return item, fmt.Errorf("%w: choices: %d, and a choice is between two at least", ErrItem, len(in.Choices))
	case slices.Contains(in.Choices, ""):
		return item, fmt.Errorf("%w: choices: one is empty", ErrItem)
	case in.Answer == nil:
		return item, fmt.Errorf("%w: answer: missing", ErrItem)
	case *in.Answer < 0 || *in.Answer >= len(in.Choices):
		return item, fmt.Errorf("%w: answer: %d: must be from 0 to %d", ErrItem, *in.Answer, len(in.Choices)-1)
	}
	return Item{*in.Context, in.Choices, *in.Answer}, nil
}

// Choice is what was found about an item.
type Choice struct {
	Line       int       `json:"line"`
	Answer     int       `json:"answer"`
	Raw        int       `json:"raw"`        // the choice with the largest log-probability
	Normalised int       `json:"normalised"` // and that with the largest log-probability per byte
	LogProbs   []float64 `json:"log_probs"`  // of each choice after the context
	Tokens     []int     `json:"tokens"`     // of each choice
}

// Item scores the choices of an item, each after its context, which is computed once. A choice begins where the ids of context and
// choice together part from those of the context.
func (s *Scorer) Item(ctx context.Context, item Item) (Choice, error) {
	c := Choice{Answer: item.Answer, LogProbs: make([]float64, len(item.Choices)), Tokens: make([]int, len(item.Choices))}
	before, err := s.Tokenizer.Encode(item.Context)
	if err != nil {
		return c, fmt.Errorf("context: %w", err)
	}
	texts := make([][]int, len(item.Choices))
	common := len(before)
	for i, choice := range item.Choices {
		if texts[i], err = s.Tokenizer.Encode(item.Context + choice); err != nil {
			return c, fmt.Errorf("choices: number %d: %w", i, err)
		}
		if n := len(texts[i]); n > s.Window {
			return c, fmt.Errorf("choices: number %d: %w: %d tokens with the context, and the window has %d", i, core.ErrContext, n, s.Window)
		}
		n := 0
		for n < len(before) && n < len(texts[i])-1 && before[n] == texts[i][n] {
			n++
		}
		common = min(common, n)
		c.Tokens[i] = len(texts[i]) - n
	}
	if common > 1 {
		q, err := s.Scheduler.Sequence(ctx, core.Background, texts[0][:common], common)
		if err != nil {
			return c, err
		}
		_, err = s.Scheduler.Score(ctx, core.Background, q)
		if err == nil {
			err = s.Prefixes.Keep(q)
		}
		q.Close()
		if err != nil {
			return c, err
		}
	}
	for i, ids := range texts {
		q, err := s.Scheduler.Sequence(ctx, core.Background, ids, len(ids))
		if err != nil {
			return c, err
		}
		scores, err := s.Scheduler.Score(ctx, core.Background, q)
		q.Close()
		if err != nil {
			return c, err
		}
		if len(ids) == c.Tokens[i] {
			c.Tokens[i]-- // with no context the first token has no probability
		}
		for _, score := range scores[len(scores)-c.Tokens[i]:] {
			c.LogProbs[i] += score.LogProb
		}
	}
	per := func(i int) float64 { return c.LogProbs[i] / float64(len(item.Choices[i])) }
	for i := range c.LogProbs {
		if c.LogProbs[i] > c.LogProbs[c.Raw] {
			c.Raw = i
		}
		if per(i) > per(c.Normalised) {
			c.Normalised = i
		}
	}
	return c, nil
}
