package ui

import "github.com/k3infer/k3/core/chat"

// What stands around the name and the arguments of a call, where an answer has one.
const (
	CallOpens  = "[calls "
	CallCloses = "]"
)

// callText returns what an event of a call adds to the text that shows it, "" for other events.
func callText(e chat.Event) string {
	switch e.Kind {
	case chat.CallStart:
		return CallOpens + e.Name + " "
	case chat.ArgumentsDelta:
		return e.Text
	case chat.CallEnd:
		return CallCloses + "\n"
	}
	return ""
}
