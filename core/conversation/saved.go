package conversation

import (
	"encoding/json"
	"errors"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
)

// Saved is what has to be kept of a conversation besides its sequence.
type Saved struct {
	Thinking bool            `json:"thinking"`
	Effort   string          `json:"effort"`
	Tools    json.RawMessage `json:"tools,omitempty"`
	Messages []chat.Message  `json:"messages"`
	Tokens   []int           `json:"tokens"` // of what stands before the messages, then of each
}

// Save returns what Restore makes the conversation from: its sequence, which stays the conversation's, and the rest.
func (c *Conversation) Save() (*core.Sequence, Saved, error) {
	parts, err := c.parts()
	if err != nil {
		return nil, Saved{}, err
	}
	s := Saved{Thinking: c.Thinking, Effort: c.Effort, Tools: c.Tools, Messages: c.Messages()}
	var ids []int
	for _, part := range parts {
		ids = append(ids, part...)
		s.Tokens = append(s.Tokens, len(part))
	}
	if len(ids) == 0 {
		return nil, Saved{}, errors.New("there is nothing to save yet")
	}
	if err := c.hold(ids); err != nil { // the messages may have changed since the last turn
		return nil, Saved{}, err
	}
	return c.sequence, s, nil
}

// ErrUnfit says that the messages and the sequence of a saved conversation do not belong together.
var ErrUnfit = errors.New("its messages do not fit its tokens")

// Restore replaces the conversation by a saved one, whose sequence becomes the conversation's. ErrUnfit leaves both what they were.
func (c *Conversation) Restore(sequence *core.Sequence, s Saved) error {
	if len(s.Tokens) != len(s.Messages)+1 {
		return ErrUnfit
	}
	ids := sequence.IDs()
	messages := make([]message, len(s.Messages))
	for i, n := range s.Tokens {
		if n < 0 || n > len(ids) {
			return ErrUnfit
		}
		if i > 0 {
			m := &messages[i-1]
			*m = message{Message: s.Messages[i-1], thinking: s.Thinking}
			if m.Role == "assistant" {
				m.ids = ids[:n:n]
			}
		}
		ids = ids[n:]
	}
	if len(ids) > 0 {
		return ErrUnfit
	}
	c.Close()
	c.sequence, c.messages, c.tries, c.asked, c.ended = sequence, messages, 0, nil, false
	c.Thinking, c.Effort, c.Tools = s.Thinking, s.Effort, s.Tools
	return nil
}
