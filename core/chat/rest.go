package chat

import (
	"strings"

	"github.com/k3infer/k3/core/tokenizer"
)

// Rest returns the ids that complete segments behind ids, if ids are a beginning of them: control tokens where they stand, the
// text between them in whatever tokens. A model may cut its text otherwise than Encode does, so this, and not Encode, tells
// whether a conversation can go on from what the model has generated, and how to close a reply that was cut.
func Rest(tok *tokenizer.Tokenizer, segments []Segment, ids []int) (rest []int, ok bool) {
	for _, id := range ids {
		if len(segments) == 0 {
			return nil, false
		}
		if segments[0].Special {
			if special, ok := tok.Special(segments[0].Text); !ok || special != id {
				return nil, false
			}
			segments = segments[1:]
			continue
		}
		text, err := tok.Decode([]int{id})
		if err != nil || id >= tok.Ranks() {
			return nil, false
		}
		if segments, ok = behind(segments, string(text)); !ok {
			return nil, false
		}
	}
	rest, err := Encode(tok, segments)
	return rest, err == nil // a cut inside a character cannot be encoded
}

// behind returns what follows text in segments, if they begin with it and none of it is special.
func behind(segments []Segment, text string) ([]Segment, bool) {
	for text != "" {
		if len(segments) == 0 || segments[0].Special {
			return nil, false
		}
		if first, ok := strings.CutPrefix(segments[0].Text, text); ok && first != "" {
			return append([]Segment{{first, false}}, segments[1:]...), true
		}
		var ok bool
		if text, ok = strings.CutPrefix(text, segments[0].Text); !ok {
			return nil, false
		}
		segments = segments[1:]
	}
	return segments, true
}
