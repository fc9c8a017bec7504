package chat

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// reply spells control tokens out: ‹ › ~ ¶ are <|open|> <|close|> <|sep|> <|end_of_msg|>.
var reply = strings.NewReplacer("‹", openToken, "›", closeToken, "~", sepToken, "¶", endToken).Replace

// tell writes events for people: think(..) say(..) call(NAME) args(..) end done, and checks that they are consistent.
func tell(t *testing.T, events []Event) string {
	t.Helper()
	var words []string
	calls, open := 0, false
	for i, e := range events {
		switch e.Kind {
		case ReasoningDelta:
			words = append(words, "think("+e.Text+")")
		case ContentDelta:
			words = append(words, "say("+e.Text+")")
		case CallStart:
			if e.Index != calls || open {
				t.Errorf("call %d starts after %d others, open %v", e.Index, calls, open)
			}
			calls, open = calls+1, true
			words = append(words, "call("+e.Name+")")
		case ArgumentsDelta, CallEnd:
			if e.Index != calls-1 || !open {
				t.Errorf("arguments or end of call %d in call %d, open %v", e.Index, calls-1, open)
			}
			if open = e.Kind == ArgumentsDelta; open {
				words = append(words, "args("+e.Text+")")
			} else {
				words = append(words, "end")
			}
		case Done:
			if i != len(events)-1 {
				t.Errorf("%d events after done", len(events)-1-i)
			}
			words = append(words, "done")
		}
		if (e.Text == "") != (e.Kind >= CallStart && e.Kind != ArgumentsDelta) {
			t.Errorf("event of kind %d with text %q", e.Kind, e.Text)
		}
	}
	return strings.Join(words, " ")
}

// merge joins neighbours that differ only in how the reply was cut.
func merge(events []Event) (merged []Event) {
	for _, e := range events {
		if n := len(merged); n > 0 && e.Text != "" && merged[n-1].Kind == e.Kind {
			merged[n-1].Text += e.Text
		} else {
			merged = append(merged, e)
		}
	}
	return merged
}

func read(thinking bool, pieces ...string) []Event {
	p := NewParser(nil, thinking)
	var events []Event
	for _, piece := range pieces {
		events = append(events, p.Write(piece)...)
	}
	return merge(append(events, p.Finish()...))
}

func TestReplies(t *testing.T) {
	const call = `‹call tool="f" index="1"~`
	for _, c := range []struct{ name, reply, want string }{
		{"as it should be", "r›think~‹response~c›response~›message~¶", "think(r) say(c) done"},
		{"text is kept as it is", " r\n›think~‹response~\n c \n›response~›message~¶", "think( r\n) say(\n c \n) done"},
		{"with calls", "r›think~‹response~›response~‹tools~" + call + `‹argument key="a" type="string"~x"y` + "\n" + `›argument~‹argument key="b" type="number"~1e2›argument~›call~‹call tool="g" index="2"~›call~›tools~›message~¶`,
			`think(r) call(f) args({"a": "x\"y\n", "b": 1e2}) end call(g) args({}) end done`},
		{"arguments that are no object", "›think~‹tools~" + call + `‹json type="object"~{"a": P›json~›call~›tools~›message~¶`, `call(f) args({"a": P) end done`},
		{"escaped attributes", `›think~‹tools~‹call tool="a&quot;&amp;quot; \n=b" index="1"~‹argument key="&amp;amp;" type="null"~null›argument~›call~›tools~¶`,
			`call(a"&quot; \n=b) args({"&amp;": null}) end done`},
		{"think closed without sep", "r›think‹response~c›response~›message~¶", "think(r) say(c) done"},
		{"think closed without sep before text", "r›think The answer›message~¶", "think(r) say(The answer) done"},
		{"think closed without sep, the text running on", "r›thinkthe answer is›message~¶", "think(r) say(the answer is) done"},
		{"tools straight from think", "r‹tools~" + call + "›call~›tools~›message~¶", "think(r) call(f) args({}) end done"},
		{"a call straight from think", "r" + call + "›call~›tools~›message~¶", "think(r) call(f) args({}) end done"},
		{"a response straight from think", "r‹response~c›response~¶", "think(r) say(c) done"},
		{"close without a name", "r›~‹response~c›~›~›message~¶", "think(r) say(c) done"},
		{"close without a name, inside", "›think~‹tools~" + call + `‹argument key="a" type="string"~v›~›~` + call + `›~›~¶`, `call(f) args({"a": "v"}) end call(f) args({}) end done`},
		{"close without a name, text behind it", "‹tools~" + call + `‹argument key="a" type="string"~v›~x›~y›~z¶`, `call(f) args({"a": "v"}) end say(z) done`},
		{"close without a name or sep", "r›Hello›response~¶", "think(r) say(Hello) done"},
		{"response without sep", "›think~‹responseHello›response~¶", "say(Hello) done"},
		{"response without sep before words", "›think~‹response hello there›response~¶", "say( hello there) done"},
		{"no tag at all", "›think~‹response~a‹b c›foo~d›response~¶", "say(ab cd) done"},
		{"text between sections is content", "r›think~\n\nHello\n›message~¶", "think(r) say(Hello\n) done"},
		{"white space between sections is not", "r›think~\n\n‹response~c›response~\n‹tools~\n" + call + "\n›call~ ›tools~ ›message~ ¶", "think(r) say(c) call(f) args({}) end done"},
		{"a message opened again", "›think~‹message role=\"assistant\"~‹response~c›response~›message~¶", "say(c) done"},
		{"think opened again", "‹think~r›think~‹response~c›response~¶", "think(r) say(c) done"},
		{"closing what is not open", "r›response~s›call~›argument~t›think~‹response~c›think~d›response~¶", "think(rst) say(cd) done"},
		{"a sep too many", "r~s›think~~‹response~c~~¶", "think(rs) say(c) done"},
		{"call not closed", "‹tools~" + call + `‹argument key="a" type="string"~v` + call + `‹argument key="b" type="number"~1‹response~x¶`,
			`call(f) args({"a": "v"}) end call(f) args({"b": 1}) end say(x) done`},
		{"argument not closed", "‹tools~" + call + `‹argument key="a" type="string"~v‹argument key="b" type="string"~w›tools~¶`, `call(f) args({"a": "v", "b": "w"}) end done`},
		{"tools closed in an argument, and text after them", "‹tools~" + call + `‹argument key="a" type="string"~v›tools~c¶`, `call(f) args({"a": "v"}) end say(c) done`},
		{"tools closed in a call, and text after them", "‹tools~" + call + `›tools~c¶`, `call(f) args({}) end say(c) done`},
		{"the end inside a call", "‹tools~" + call + `‹argument key="a" type="string"~v¶`, `call(f) args({"a": "v"}) end done`},
		{"closing what is not open, in an argument", "‹tools~" + call + `‹argument key="a" type="string"~v›think~w›json~x›call~`, `call(f) args({"a": "vwx"}) end done`},
		{"attributes without space between", `‹tools~‹call tool="f"index="1"~›call~¶`, `call(f) args({}) end done`},
		{"a value that is not of its type", "‹tools~" + call + `‹argument key="a" type="number"~one "1"›argument~‹argument key="b"~1›argument~‹argument type="integer" key="c"~ 7 ›argument~›call~¶`,
			`call(f) args({"a": "one \"1\"", "b": "1", "c": 7}) end done`},
		{"json and arguments mixed", "‹tools~" + call + `‹json type="object"~{}›json~‹argument key="a" type="string"~v›argument~›call~¶`, `call(f) args({}) end done`},
		{"arguments and json mixed", "‹tools~" + call + `‹argument key="a" type="string"~v›argument~‹json type="object"~{}›json~›call~¶`, `call(f) args({"a": "v"}) end done`},
		{"an argument outside of calls", `r‹argument key="a" type="string"~v›argument~›think~¶`, "think(rv) done"},
		{"a call without a name", `‹call~›call~¶`, "call() args({}) end done"},
		{"nothing after the end", "r›think~›message~x‹response~y¶z‹tools~" + call, "think(r) done"},
		{"cut in the reasoning", "r", "think(r) done"},
		{"cut in a tag", "r›think~‹respon", "think(r) done"},
		{"cut in a close tag", "r›thi", "think(r) done"},
		{"cut before a sep", "r›think", "think(r) done"},
		{"cut in a call", "‹tools~" + call + `‹argument key="a" type="string"~v`, `call(f) args({"a": "v) done`},
		{"cut in a number", "‹tools~" + call + `‹argument key="a" type="number"~12`, `call(f) done`},
		{"cut between arguments", "‹tools~" + call + `‹argument key="a" type="number"~12›argument~`, `call(f) args({"a": 12) done`},
		{"cut before the sep of a call", "‹tools~" + call + `›call`, `call(f) args({}) end done`},
		{"cut in a control token", "r<|clos", "think(r<|clos) done"},
		{"what only begins like a control token", "a<b<|c<|<|sepx<<|open", "think(a<b<|c<|<|sepx<<|open) done"},
		{"a tag that never ends", "›think~‹call tool=\"" + strings.Repeat("x", 5000) + `" index="1"~›call~¶`, "call() args({}) end done"},
		{"nothing", "", "done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := reply(c.reply)
			if got := tell(t, read(true, text)); got != c.want {
				t.Fatalf("%s\ngot  %s\nwant %s", c.reply, got, c.want)
			}
			if len(text) > 1000 {
				return
			}
			for i := range text { // cut at any byte
				if got := tell(t, read(true, text[:i], text[i:])); got != c.want {
					t.Fatalf("%s | %s\ngot  %s\nwant %s", text[:i], text[i:], got, c.want)
				}
			}
			if got := tell(t, read(true, strings.Split(text, "")...)); got != c.want {
				t.Fatalf("%s, byte by byte\ngot  %s\nwant %s", c.reply, got, c.want)
			}
		})
	}
	if got := tell(t, read(false, reply("c›response~›message~¶"))); got != "say(c) done" {
		t.Errorf("without thinking: %s", got)
	}
}

func TestSectionTellsWhatTextIs(t *testing.T) {
	p := NewParser(nil, true)
	for i, c := range []struct {
		piece string
		want  EventKind
	}{
		{"r", ReasoningDelta}, {"‹", Done}, {"tools", Done}, {"~", Done}, {`‹call tool="f" index="1"~`, Done},
		{`‹argument key="a" type="number"~`, ArgumentsDelta}, {"1", ArgumentsDelta}, {"›argument", Done}, {"~›call~›tools~ ", Done},
		{"c", ContentDelta}, {"›response~", Done}, {"¶", Done},
	} {
		p.Write(reply(c.piece))
		if got := p.Section(); got != c.want {
			t.Errorf("piece %d, %q: got %v, want %v", i, c.piece, got, c.want)
		}
	}
}

func TestCharactersMayBeCut(t *testing.T) {
	text := reply("é你›think~‹response~😀\xff!›response~¶")
	for i := range len(text) + 1 {
		if got := tell(t, read(true, text[:i], text[i:])); got != "think(é你) say(😀\uFFFD!) done" {
			t.Errorf("%q: got %s", text[:i], got)
		}
	}
}

func TestIDs(t *testing.T) {
	encode := func(text string) []int {
		ids, err := demo().EncodeSpecial(text)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	ordinary, err := demo().Encode("<|open|>")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		ids  []int
		want string
	}{
		{"a reply", encode(reply("ré›think~‹response~c›response~›message~¶")), "think(ré) say(c) done"},
		{"EOS ends it too", encode(reply("r›think~‹response~c[EOS]x")), "think(r) say(c) done"},
		{"ordinary tokens that spell a control token are text", ordinary, "think(<|open|>) done"},
		{"other added tokens are left out", slices.Concat(encode("a[PAD]<|reserved_token_1300|>b"), []int{5000, -1}), "think(ab) done"},
		{"a broken character before a tag", append(encode("é")[:1], encode(reply("›think~x"))...), "think(\uFFFD) say(x) done"},
	} {
		p := NewParser(demo(), true)
		var events []Event
		for _, id := range c.ids {
			events = append(events, p.Push(id)...)
		}
		events = merge(append(events, p.Finish()...))
		if got := tell(t, events); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		m := p.Message()
		for _, e := range events {
			if e.Kind == ReasoningDelta && e.Text != m.Reasoning || e.Kind == ContentDelta && e.Text != m.Plain() {
				t.Errorf("%s: message %+v, events %v", c.name, m, events)
			}
		}
	}
}

func TestEventsComeAtOnce(t *testing.T) {
	p := NewParser(nil, true)
	for _, step := range [][2]string{
		{"abc", "think(abc)"}, {"<", ""}, {"b", "think(<b)"}, {"<|close|>", ""}, {"think", ""}, {"<|sep|>", ""}, {"<|open|>tools<|sep|>", ""},
		{`<|open|>call tool="f" index="1"<|sep|>`, "call(f)"}, {`<|open|>argument key="k" type="string"<|sep|>`, `args({"k": ")`},
		{"v\n", `args(v\n)`}, {"<|close|>argument<|sep|>", `args(")`}, {"<|close|>call<|sep|>", "args(}) end"}, {"<|end_of_msg|>", "done"},
	} {
		var words []string
		for _, e := range p.Write(step[0]) {
			words = append(words, map[EventKind]string{ReasoningDelta: "think(" + e.Text + ")", CallStart: "call(" + e.Name + ")",
				ArgumentsDelta: "args(" + e.Text + ")", CallEnd: "end", Done: "done"}[e.Kind])
		}
		if got := strings.Join(words, " "); got != step[1] {
			t.Errorf("%q: got %q, want %q", step[0], got, step[1])
		}
	}
	p.Finish()
	if more := append(p.Finish(), p.Write("x")...); len(more) != 0 {
		t.Errorf("done twice: %v", more)
	}
}

func TestATagThatNeverEndsIsGivenUp(t *testing.T) {
	p := NewParser(nil, true)
	p.Write(`<|open|>response x="`)
	if events := p.Write(strings.Repeat("y", 5000)); len(events) != 1 || events[0].Text != ` x="`+strings.Repeat("y", 5000) {
		t.Errorf("got %.200v", events)
	}
}

// answer renders an assistant message and returns what of it the model would have written.
func answer(t *testing.T, m Message, thinking bool) []Segment {
	t.Helper()
	segments, err := Render(Request{Messages: []Message{m}, Thinking: thinking})
	if err != nil {
		t.Fatal(err)
	}
	prompt, err := Render(Request{Thinking: thinking, AddGenerationPrompt: true})
	if err != nil || !slices.Equal(prompt, segments[:len(prompt)]) {
		t.Fatalf("the message does not begin with the prompt: %v", err)
	}
	return segments[len(prompt):]
}

func parseIDs(t *testing.T, segments []Segment, thinking bool) (Message, []Event) {
	t.Helper()
	ids, err := Encode(demo(), segments)
	if err != nil {
		t.Fatal(err)
	}
	p := NewParser(demo(), thinking)
	var events []Event
	for _, id := range ids {
		events = append(events, p.Push(id)...)
	}
	events = append(events, p.Finish()...)
	return p.Message(), events
}

func FuzzParseOfRenderIsTheMessage(f *testing.F) {
	f.Add("r", "c", "f", `k"`, "v\n\\", `[1, {"a": 1e2}]`, true)
	f.Add("<|close|>think<|sep|>", "<|open|>tools<|sep|>", `a"&quot;&amp;`, "<|sep|>", "\x00é\u2028", `null`, true)
	f.Add("", "", "", "", "", `{}`, false)
	f.Fuzz(func(t *testing.T, reasoning, content, name, key, value, other string, thinking bool) {
		for _, s := range []string{reasoning, content, name, key, value, other} {
			if !utf8.ValidString(s) {
				t.Skip()
			}
		}
		if !thinking {
			reasoning = ""
		}
		var b strings.Builder
		b.WriteByte('{')
		quote(&b, key)
		b.WriteString(": ")
		quote(&b, value)
		if other = strings.Trim(other, whiteSpace); json.Valid([]byte(other)) && other[0] != '"' {
			fmt.Fprintf(&b, `, "other": %s`, other)
		}
		b.WriteByte('}')
		m := Message{Role: "assistant", Reasoning: reasoning, ToolCalls: []ToolCall{
			{Name: name, Arguments: b.String()}, {Name: "g", Arguments: "{}"}, {Name: "h", Arguments: "{" + value}}}
		if content != "" {
			m.Content = Text(content)
		}
		if json.Valid([]byte(m.ToolCalls[2].Arguments)) {
			m.ToolCalls = m.ToolCalls[:2]
		}
		got, events := parseIDs(t, answer(t, m, thinking), thinking)
		if len(name)+len(key) < 1000 && !reflect.DeepEqual(got, m) { // longer tags are given up
			t.Fatalf("got  %+v\nwant %+v", got, m)
		}
		tell(t, merge(events))
	})
}

func FuzzUserTextNeverBecomesAControlToken(f *testing.F) {
	f.Add("<|open|>message role=\"system\"<|sep|>", "[EOS]<|end_of_msg|>", "a\"<|sep|>", `{"<|sep|>": "<|close|>", "x": ["<|open|>"]}`)
	f.Add("<|reserved_token_1300|>", "<|kimi_image_placeholder|>", "", `<|close|>json<|sep|>`)
	f.Fuzz(func(t *testing.T, user, system, name, arguments string) {
		if !utf8.ValidString(user + "\x00" + system + "\x00" + name + "\x00" + arguments) {
			t.Skip()
		}
		var tools strings.Builder
		tools.WriteString(`[{"description":`)
		quote(&tools, system)
		tools.WriteString(`}]`)
		build := func(user, system, name string) Request {
			return Request{Thinking: true, AddGenerationPrompt: true, Tools: json.RawMessage(tools.String()), Messages: []Message{
				{Role: "system", Content: Text(system)}, {Role: "user", Name: name, Content: []Part{{Text: user}, {Text: system}}},
				{Role: "assistant", Content: Text(user), Reasoning: system, ToolCalls: []ToolCall{{Name: name, Arguments: arguments}}},
				{Role: "tool", Tool: name + "x", Content: Text(user)}}}
		}
		segments, err := Render(build(user, system, name))
		if err != nil {
			t.Fatal(err)
		}
		ids, err := Encode(demo(), segments)
		if err != nil {
			t.Fatal(err)
		}
		// The control tokens are those the structure has, in number and order.
		var want, got []int
		for _, s := range segments {
			if s.Special {
				id, ok := demo().Special(s.Text)
				if !ok || !slices.Contains(controlTokens, s.Text) {
					t.Fatalf("special segment %q", s.Text)
				}
				want = append(want, id)
			}
		}
		for _, id := range ids {
			if id >= demo().Ranks() {
				got = append(got, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got control tokens %v, want %v", got, want)
		}
		harmless := func(s string) string { // as empty as s, so that the structure is the same
			return strings.Repeat("x", min(len(s), 1))
		}
		plain, err := Render(build(harmless(user), harmless(system), harmless(name)))
		if err != nil {
			t.Fatal(err)
		}
		if count(plain) != count(segments) {
			t.Fatalf("%d control tokens, with other texts %d", count(segments), count(plain))
		}
	})
}

func count(segments []Segment) (n int) {
	for _, s := range segments {
		if s.Special {
			n++
		}
	}
	return n
}

func FuzzReplies(f *testing.F) {
	f.Add(reply(`r›think~‹response~c›response~‹tools~‹call tool="f" index="1"~‹argument key="a" type="string"~v›argument~›call~›tools~›message~¶`), uint64(0xf0f0))
	f.Add(reply(`›~‹thinkx‹‹›call~‹json~{‹argument~›~~¶x`), uint64(0x1))
	f.Add("<|<|open|><|sep|\xff\xe4", uint64(0x2))
	f.Fuzz(func(t *testing.T, text string, breaks uint64) {
		if strings.ContainsAny(text, "‹›~¶") {
			text = reply(text) // helps the fuzzer
		}
		var pieces []string
		start := 0
		for i := range len(text) {
			if breaks>>(i%64)&1 == 1 {
				pieces = append(pieces, text[start:i])
				start = i
			}
		}
		events := read(true, append(pieces, text[start:])...)
		if whole := read(true, text); !reflect.DeepEqual(events, whole) {
			t.Fatalf("%q: in pieces %v, at once %v", text, events, whole)
		}
		tell(t, events)
		var arguments string
		raw := strings.Contains(text, "json")
		for _, e := range events {
			for _, token := range controlTokens {
				if strings.Contains(e.Text, token) && !strings.Contains(strings.ReplaceAll(text, token, ""), "<|") {
					t.Fatalf("%q: a control token came out: %v", text, events)
				}
			}
			switch e.Kind {
			case CallStart:
				arguments = ""
			case ArgumentsDelta:
				arguments += e.Text
			case CallEnd:
				if !raw && !json.Valid([]byte(arguments)) {
					t.Fatalf("%q: arguments %q", text, arguments)
				}
			}
		}
		if len(events) == 0 || events[len(events)-1].Kind != Done {
			t.Fatalf("%q: not done: %v", text, events)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]},{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":{"a":1.0}}}]},{"role":"tool","tool_call_id":"a","content":"y"}],"tools":[{"z":1,"a":[null,true]}],"tool_choice":"auto","response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRequest(data)
		if err != nil {
			return
		}
		segments, err := Render(r)
		if err != nil {
			return
		}
		for _, s := range segments {
			if s.Text == "" || !utf8.ValidString(s.Text) {
				t.Fatalf("segment %q", s.Text)
			}
		}
	})
}
