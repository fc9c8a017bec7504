package chat

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/tokenizer"
)

// EventKind says what an Event is.
type EventKind int

const (
	// ReasoningDelta adds Text to the reasoning.
	ReasoningDelta EventKind = iota
	// ContentDelta adds Text to the content.
	ContentDelta
	// CallStart begins the call with that Index, of the function Name.
	CallStart
	// ArgumentsDelta adds Text to the arguments of the call with that Index. The deltas of a whole call make up a JSON object,
	// unless the model wrote something else in the place of arguments.
	ArgumentsDelta
	// CallEnd says that the call with that Index is whole. A call without it was cut.
	CallEnd
	// Done ends the reply; nothing comes after it.
	Done
)

// Event is one step of a reply.
type Event struct {
	Kind  EventKind
	Text  string
	Name  string
	Index int // of the call, from 0
}

// Parser reads a reply, which begins where Render's generation prompt ends, and tells what each piece of it adds. Control tokens
// never come out as text, whatever the model does with them: an element that is not closed ends where another begins, and a tag
// without its <|sep|> ends where it can no longer be a tag. Text between the sections counts as content.
type Parser struct {
	control map[int]string // the ids of the control tokens, and of EOS
	ranks   int            // ids from here on are no text
	decoder *tokenizer.Decoder
	held    string // text from Write that may be the beginning of a control token

	state state
	tag   string // openToken or closeToken while the inside of such a tag arrives
	inner string // what has arrived of it

	kind    string // type of the argument that is open
	key     string
	literal strings.Builder // its text, unless it is a string, which goes out as it comes
	given   bool            // the call has arguments already
	raw     bool            // they are not JSON

	reasoning, content, arguments strings.Builder // arguments are the last call's
	calls                         []ToolCall
	events                        []Event
}

// state is the innermost element that is open.
type state int

const (
	between state = iota // in a message, between its sections
	inThink
	inResponse
	inTools
	inCall
	inArgument
	inJSON
	done
)

// elements has the tags of the markup; none is the beginning of another.
var elements = map[string]state{"message": between, "think": inThink, "response": inResponse, "tools": inTools, "call": inCall,
	"argument": inArgument, "json": inJSON}

var controlTokens = []string{openToken, closeToken, sepToken, endToken}

// NewParser returns a Parser for the reply to a request with or without thinking. tok may be nil if only Write is used.
func NewParser(tok *tokenizer.Tokenizer, thinking bool) *Parser {
	p := &Parser{state: elements[firstSection(thinking)], decoder: &tokenizer.Decoder{}}
	if tok == nil {
		return p
	}
	p.decoder, p.ranks, p.control = tok.NewDecoder(), tok.Ranks(), map[int]string{}
	if id, ok := tok.EOS(); ok {
		p.control[id] = endToken
	}
	for _, token := range controlTokens {
		if id, ok := tok.Special(token); ok {
			p.control[id] = token
		}
	}
	return p
}

// Push reads one id and returns what it adds. Ordinary tokens are text even where they spell a control token; added tokens that
// have no part in the markup are left out.
func (p *Parser) Push(id int) []Event {
	if token, ok := p.control[id]; ok {
		p.text(p.decoder.Flush())
		p.token(token)
	} else if id < p.ranks {
		p.text(p.decoder.Push(id))
	}
	return p.take()
}

// Write reads a piece of a reply in which control tokens are spelled out, cut anywhere, even inside a character, and returns what
// it adds.
func (p *Parser) Write(piece string) []Event {
	p.held += p.decoder.PushBytes([]byte(piece))
	from := 0
	for {
		i := strings.IndexByte(p.held[from:], '<')
		if i < 0 {
			break
		}
		from += i
		rest := p.held[from:]
		token := slices.IndexFunc(controlTokens, func(t string) bool { return strings.HasPrefix(rest, t) })
		if token >= 0 {
			p.text(p.held[:from])
			p.held = rest[len(controlTokens[token]):]
			p.token(controlTokens[token])
			from = 0
			continue
		}
		if slices.ContainsFunc(controlTokens, func(t string) bool { return strings.HasPrefix(t, rest) }) {
			p.text(p.held[:from])
			p.held = rest
			return p.take()
		}
		from++
	}
	p.text(p.held)
	p.held = ""
	return p.take()
}

// Finish ends a reply that may have been cut and returns what was still held back. A tag that had only begun is left out.
func (p *Parser) Finish() []Event {
	p.text(p.held + p.decoder.Flush())
	p.held = ""
	if name, _, _, _ := p.readTag(); p.tag == closeToken && name != "" {
		p.closed(name)
	}
	p.tag, p.inner = "", ""
	p.end()
	return p.take()
}

// Section tells what a piece of plain text is that comes next, or that came last: ReasoningDelta, ContentDelta or
// ArgumentsDelta. It is Done for what is not shown, in the markup and outside of it.
func (p *Parser) Section() EventKind {
	switch {
	case p.tag != "":
	case p.state == inThink:
		return ReasoningDelta
	case p.state == inResponse:
		return ContentDelta
	case p.state == inArgument, p.state == inJSON:
		return ArgumentsDelta
	}
	return Done
}

// Message returns the reply as far as it has been read. A call that was cut has the arguments that its events had.
func (p *Parser) Message() Message {
	m := Message{Role: "assistant", Reasoning: p.reasoning.String(), ToolCalls: slices.Clone(p.calls)}
	if p.content.Len() > 0 {
		m.Content = Text(p.content.String())
	}
	if n := len(m.ToolCalls); n > 0 {
		m.ToolCalls[n-1].Arguments = p.arguments.String()
	}
	return m
}

func (p *Parser) take() []Event {
	events := p.events
	p.events = nil
	return events
}

// emit appends an event, or its text to the last one if that is of the same kind.
func (p *Parser) emit(kind EventKind, text string) {
	index := 0
	switch kind {
	case ReasoningDelta:
		p.reasoning.WriteString(text)
	case ContentDelta:
		p.content.WriteString(text)
	case ArgumentsDelta:
		p.arguments.WriteString(text)
		index = len(p.calls) - 1
	case CallEnd:
		index = len(p.calls) - 1
	}
	if n := len(p.events); n > 0 && text != "" && p.events[n-1].Kind == kind {
		p.events[n-1].Text += text
		return
	}
	p.events = append(p.events, Event{Kind: kind, Text: text, Index: index})
}

// text reads text, which may belong to the inside of a tag.
func (p *Parser) text(text string) {
	if p.tag != "" && text != "" {
		p.inner += text
		if _, _, _, more := p.readTag(); more {
			return
		}
		text = p.endTag()
	}
	if text == "" {
		return
	}
	switch p.state {
	case between:
		if text = strings.TrimLeft(text, whiteSpace); text != "" {
			p.state = inResponse
			p.emit(ContentDelta, text)
		}
	case inThink:
		p.emit(ReasoningDelta, text)
	case inResponse:
		p.emit(ContentDelta, text)
	case inArgument:
		if p.kind == "string" {
			var b strings.Builder
			escape(&b, text)
			p.emit(ArgumentsDelta, b.String())
		} else {
			p.literal.WriteString(text)
		}
	case inJSON:
		p.emit(ArgumentsDelta, text)
	}
}

// token reads a control token.
func (p *Parser) token(token string) {
	if p.tag != "" {
		if token == sepToken {
			name, attributes, _, _ := p.readTag()
			p.act(name, attributes)
		} else {
			p.text(p.endTag())
		}
	}
	switch token {
	case openToken, closeToken:
		p.tag = token
	case endToken:
		p.leave(between)
		p.end()
	}
}

// endTag acts on a tag whose <|sep|> is missing and returns the text that has arrived behind it.
func (p *Parser) endTag() string {
	name, attributes, end, _ := p.readTag()
	rest := p.inner[end:]
	if _, ok := elements[name]; !ok {
		known := ""
		for tag := range elements { // it may run into the text, "thinkthe answer"
			if strings.HasPrefix(name, tag) {
				known = tag
			}
		}
		if known != "" || rest != "" { // or it was no tag at all
			_, rest, _ = strings.Cut(p.inner, known)
			name, attributes = known, nil
		}
	}
	p.act(name, attributes)
	return rest
}

func (p *Parser) act(name string, attributes map[string]string) {
	tag := p.tag
	p.tag, p.inner = "", ""
	if tag == openToken {
		p.opened(name, attributes)
	} else {
		p.closed(name)
	}
}

// opened acts on an open tag. Tags that are unknown, or inside of what cannot hold them, are passed over.
func (p *Parser) opened(name string, attributes map[string]string) {
	if p.state == done {
		return
	}
	switch name {
	case "message", "think", "response", "tools":
		p.leave(between)
		p.state = elements[name]
	case "call":
		p.leave(inTools)
		p.state, p.given, p.raw = inCall, false, false
		if n := len(p.calls); n > 0 {
			p.calls[n-1].Arguments = p.arguments.String()
		}
		p.arguments.Reset()
		p.calls = append(p.calls, ToolCall{Name: attributes["tool"]})
		p.events = append(p.events, Event{Kind: CallStart, Name: attributes["tool"], Index: len(p.calls) - 1})
	case "argument":
		if p.state < inCall || p.raw {
			return
		}
		p.leave(inCall)
		p.state, p.key, p.kind = inArgument, attributes["key"], attributes["type"]
		if p.kind == "" {
			p.kind = "string"
		}
		if p.kind == "string" {
			p.emit(ArgumentsDelta, p.argumentKey()+`"`)
		}
	case "json":
		if p.state < inCall || p.given {
			return
		}
		p.leave(inCall)
		p.state, p.given, p.raw = inJSON, true, true
	}
}

// argumentKey returns the JSON before an argument's value.
func (p *Parser) argumentKey() string {
	var b strings.Builder
	if p.given {
		b.WriteString(", ")
	} else {
		b.WriteString("{")
	}
	p.given = true
	quote(&b, p.key)
	b.WriteString(": ")
	return b.String()
}

// closed acts on a close tag; without a name it closes the innermost element. What is not open is passed over.
func (p *Parser) closed(name string) {
	if name == "" {
		switch p.state {
		case inThink, inResponse, inTools:
			p.leave(between)
		case inCall:
			p.leave(inTools)
		case inArgument, inJSON:
			p.leave(inCall)
		}
		return
	}
	element, ok := elements[name]
	switch {
	case !ok:
	case element == between: // the message
		p.leave(between)
		p.end()
	case p.state == element && element >= inArgument:
		p.leave(inCall)
	case p.state >= inCall && element == inCall:
		p.leave(inTools)
	case p.state == element || p.state >= inTools && element == inTools:
		p.leave(between)
	}
}

// leave closes what is open until outer, one of between, inTools and inCall, is the innermost element.
func (p *Parser) leave(outer state) {
	if p.state == done {
		return
	}
	if p.state == inArgument {
		if text := strings.Trim(p.literal.String(), whiteSpace); p.kind == "string" {
			p.emit(ArgumentsDelta, `"`)
		} else if json.Valid([]byte(text)) {
			p.emit(ArgumentsDelta, p.argumentKey()+text)
		} else {
			var b strings.Builder
			quote(&b, p.literal.String())
			p.emit(ArgumentsDelta, p.argumentKey()+b.String())
		}
		p.literal.Reset()
	}
	if p.state >= inCall && outer != inCall {
		switch {
		case p.raw:
		case p.given:
			p.emit(ArgumentsDelta, "}")
		default:
			p.emit(ArgumentsDelta, "{}")
		}
		p.emit(CallEnd, "")
	}
	p.state = outer
}

func (p *Parser) end() {
	if p.state != done {
		p.state = done
		p.emit(Done, "")
	}
}

const whiteSpace = " \t\r\n"

// readTag reads the inside of a tag as far as it has arrived: a name and, in an open tag, attributes. end is behind the last of
// them that is whole, more says whether all that comes behind it may still be a part of the tag.
func (p *Parser) readTag() (name string, attributes map[string]string, end int, more bool) {
	const longest = 4096 // tags above are given up
	s := p.inner[:min(len(p.inner), longest)]
	start := skip(s, 0, whiteSpace)
	end = skip(s, start, letters)
	name = s[start:end]
	for {
		more = len(p.inner) < longest
		at := skip(s, end, whiteSpace)
		if at == len(s) {
			return name, attributes, end, more
		}
		key := skip(s, at, letters)
		if p.tag == closeToken || name == "" || key == at {
			return name, attributes, end, false
		}
		const before = `="`
		if len(s)-key < len(before) {
			return name, attributes, end, more && strings.HasPrefix(before, s[key:])
		}
		value, _, ok := strings.Cut(s[min(key+len(before), len(s)):], `"`)
		if !strings.HasPrefix(s[key:], before) || !ok {
			return name, attributes, end, more && !ok && strings.HasPrefix(s[key:], before)
		}
		if attributes == nil {
			attributes = map[string]string{}
		}
		attributes[s[at:key]] = attributeUnescapes.Replace(value)
		end = key + len(before) + len(value) + 1
	}
}

const letters = "abcdefghijklmnopqrstuvwxyz_"

var attributeUnescapes = strings.NewReplacer("&quot;", `"`, "&amp;", "&")

// skip returns the end of the bytes of s from i on that are in set.
func skip(s string, i int, set string) int {
	for i < len(s) && strings.IndexByte(set, s[i]) >= 0 {
		i++
	}
	return i
}
