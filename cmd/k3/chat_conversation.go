package main

import (
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/conversation"
)

// conversationSequences is what the plan must have room for: the conversation, and a kept state of it.
const conversationSequences = 2

// reset forgets all but the system message.
func (t *talk) reset() {
	messages := t.Messages()
	t.SetMessages(messages[:len(messages)-len(t.spoken())])
}

// spoken is the messages but for the system message.
func (t *talk) spoken() []chat.Message {
	messages := t.Messages()
	if len(messages) > 0 && messages[0].Role == "system" {
		return messages[1:]
	}
	return messages
}

// system returns the system message, "" if there is none.
func (t *talk) system() string {
	if messages := t.Messages(); len(messages) > len(t.spoken()) {
		return messages[0].Plain()
	}
	return ""
}

// setSystem changes the system message; "" removes it.
func (t *talk) setSystem(text string) {
	messages := t.spoken()
	if text != "" {
		messages = append([]chat.Message{{Role: "system", Content: chat.Text(text)}}, messages...)
	}
	t.SetMessages(messages)
}

// save writes the conversation to a session file.
func (t *talk) save(path string) error {
	s, saved, err := t.Save()
	if err != nil {
		return err
	}
	data, err := json.Marshal(sessionExtra{Chat: &saved})
	if err != nil {
		return err
	}
	return s.Save(path, data)
}

// load replaces the conversation by that of a session file. After an error it is what it was.
func (t *talk) load(path string) error {
	t.prefixes.Close() // there is room for two
	s, data, err := t.engine.LoadSequence(path)
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		return ui.Inputf("%w", err)
	}
	if err != nil {
		return err
	}
	var x sessionExtra
	if len(data) > 0 {
		err = json.Unmarshal(data, &x)
	}
	switch {
	case errors.Is(err, chat.ErrRequest):
	case err != nil || x.Chat == nil:
		err = errors.New("it holds a text, not a conversation: k3 run --load-session goes on with it")
	default:
		err = t.Restore(s, *x.Chat)
	}
	if err != nil {
		s.Close()
		return ui.Inputf("%s: %w: %w", path, core.ErrSession, err)
	}
	t.last = conversation.Turn{}
	return nil
}
