package chat

import (
	"slices"
	"testing"
)

// A reply that is cut anywhere, and whose text came in other tokens than Encode's, is closed so that the whole reads as Render
// has the message that was parsed.
func TestACutReplyIsClosedAsRendered(t *testing.T) {
	tok := demo()
	for _, thinking := range []bool{true, false} {
		whole := Message{Role: "assistant", Reasoning: "It asks <|close|>think.", Content: Text("Paris, says \"Eva\".\n")}
		segments, err := Render(Request{Messages: []Message{whole}, Thinking: thinking})
		if err != nil {
			t.Fatal(err)
		}
		opening, err := Render(Request{Thinking: thinking, AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		prompt, err := Encode(tok, opening)
		if err != nil {
			t.Fatal(err)
		}
		ids := slices.Clone(prompt)
		for _, s := range segments[len(opening):] {
			if s.Special {
				id, _ := tok.Special(s.Text)
				ids = append(ids, id)
				continue
			}
			for _, b := range []byte(s.Text) { // a token a byte
				one, err := tok.Encode(string(b))
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, one...)
			}
		}
		for cut := len(prompt); cut <= len(ids); cut++ {
			p := NewParser(tok, thinking)
			for _, id := range ids[len(prompt):cut] {
				p.Push(id)
			}
			p.Finish()
			said, err := Render(Request{Messages: []Message{p.Message()}, Thinking: thinking})
			if err != nil {
				t.Fatal(err)
			}
			rest, ok := Rest(tok, said, ids[:cut])
			if !ok {
				t.Errorf("thinking %v: cut after %d of %d ids: %v does not begin %q", thinking, cut, len(ids), ids[:cut], spell(said))
				continue
			}
			if cut == len(ids) && len(rest) > 0 {
				t.Errorf("a whole reply is closed by %v", rest)
			}
			text, err := tok.Decode(slices.Concat(ids[:cut], rest))
			want := ""
			for _, s := range said {
				want += s.Text
			}
			if err != nil || string(text) != want {
				t.Errorf("thinking %v: cut after %d: %q, %v, want %q", thinking, cut, text, err, want)
			}
		}
	}
}

func TestARestIsOnlyOfWhatBegins(t *testing.T) {
	tok := demo()
	special := func(text string) int { id, _ := tok.Special(text); return id }
	encode := func(text string) []int { ids, _ := tok.Encode(text); return ids }
	segments := []Segment{{openToken, true}, {"think", false}, {" x", false}, {sepToken, true}, {"né", false}}
	start := append([]int{special(openToken)}, encode("think x")...)
	for _, c := range []struct {
		name string
		ids  []int
		rest []int
		ok   bool
	}{
		{"nothing", nil, slices.Concat(start[:1], encode("think"), encode(" x"), []int{special(sepToken)}, encode("né")), true},
		{"over the border of two texts", start, append([]int{special(sepToken)}, encode("né")...), true},
		{"text that spells a control token", slices.Concat(start, encode(sepToken)), nil, false},
		{"a control token for text", []int{special(openToken), special(sepToken)}, nil, false},
		{"another control token", []int{special(closeToken)}, nil, false},
		{"another text", append(start[:1:1], encode("thank")...), nil, false},
		{"a cut character", slices.Concat(start, []int{special(sepToken)}, encode("né")[:2]), nil, false},
		{"all", slices.Concat(start, []int{special(sepToken)}, encode("né")), nil, true},
		{"more", slices.Concat(start, []int{special(sepToken)}, encode("né!")), nil, false},
		{"no such id", []int{1 << 20}, nil, false},
		{"no such id in text", []int{special(openToken), 1 << 20}, nil, false},
	} {
		rest, ok := Rest(tok, segments, c.ids)
		if ok != c.ok || !slices.Equal(rest, c.rest) {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, rest, ok, c.rest, c.ok)
		}
	}
}
