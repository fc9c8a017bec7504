package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/k3infer/k3/core/chat"
)

// efforts maps what clients send to what the model knows.
var efforts = map[string]string{"none": "none", "minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}

const effortNames = "none, minimal, low, medium, high, xhigh, max"

// chat reads the fields of chat completions.
func (d *decoder) chat(r *Request) {
	f := d.fields
	r.Chat.AddGenerationPrompt = true
	d.thinking(r)
	d.tools = map[string]bool{}
	r.Chat.Tools = d.declarations("tools", f["tools"])
	d.messages(r, f["messages"])
	d.toolChoice(r, f["tool_choice"])
	r.SingleCall = !d.boolean("parallel_tool_calls", f["parallel_tool_calls"], true)
	d.format(r, f["response_format"])
	if f["prompt"].kind() != absent {
		d.refuse("prompt", "chat completions take messages; %s takes a prompt", Completions)
	}

	r.Logprobs = d.boolean("logprobs", f["logprobs"], false)
	r.TopLogprobs = int(d.integer("top_logprobs", f["top_logprobs"], 0, maxTopLogprobs, 0))
	if r.TopLogprobs > 0 && !r.Logprobs {
		d.refuse("top_logprobs", "goes with logprobs: true")
	}
	const prediction = "prediction.content"
	for _, p := range d.content(prediction, d.members("prediction", f["prediction"], "content")["content"]) {
		r.Prediction += p.Text
	}
}

// thinking reads the many ways in which clients say whether and how much the model thinks. The last one that says it counts.
func (d *decoder) thinking(r *Request) {
	r.Chat.Thinking, r.Chat.Effort = true, chat.DefaultEffort
	set := func(param string, v value) {
		name := d.text(param, v)
		if v.kind() == absent || d.err != nil {
			return
		}
		effort, ok := efforts[name]
		switch {
		case !ok:
			d.refuse(param, "must be one of %s, not %s", effortNames, sketch(v))
		case effort == "none":
			r.Chat.Thinking = false
		default:
			r.Chat.Thinking, r.Chat.Effort = true, effort
		}
	}
	if d.options.Effort != "" {
		set("effort", value(strconv.Quote(d.options.Effort)))
	}
	f := d.fields
	set("reasoning_effort", f["reasoning_effort"])
	r.Chat.Thinking = d.boolean("enable_thinking", f["enable_thinking"], r.Chat.Thinking)

	const arguments = "chat_template_kwargs"
	if d.is(arguments, f[arguments], object, "an object") {
		unknown := ""
		k := f[arguments].fields(func(key []byte) bool {
			switch string(key) {
			case "thinking", "enable_thinking", "thinking_effort":
				return true
			}
			unknown = strings.ToValidUTF8(string(key[:min(len(key), maxToolName)]), "")
			return false
		})
		if unknown != "" {
			d.refuse(arguments+"."+unknown, "not supported; thinking, enable_thinking and thinking_effort are")
		}
		set(arguments+".thinking_effort", k["thinking_effort"])
		for _, name := range []string{"enable_thinking", "thinking"} {
			r.Chat.Thinking = d.boolean(arguments+"."+name, k[name], r.Chat.Thinking)
		}
	}

	thinking := f["thinking"]
	switch thinking.kind() {
	case absent:
	case boolean:
		r.Chat.Thinking = thinking[0] == 't'
	case object:
		o := d.members("thinking", thinking, "type", "effort")
		set("thinking.effort", o["effort"])
		switch kind := d.text("thinking.type", o["type"]); kind {
		case "disabled":
			r.Chat.Thinking = false
		case "enabled", "adaptive":
			r.Chat.Thinking = true
		default:
			if o["type"].kind() != absent {
				d.refuse("thinking.type", "must be one of enabled, disabled, adaptive, not %s", sketch(o["type"]))
			}
		}
	default:
		d.refuse("thinking", "must be true, false or an object with a type, not %s", sketch(thinking))
	}
}

// declarations checks a list of tools and returns its JSON, nil if there are none.
func (d *decoder) declarations(param string, v value) json.RawMessage {
	n := 0
	d.each(param, v, func(param string, _ int, v value) {
		n++
		if v.kind() != object {
			d.refuse(param, "must be an object, not %s", sketch(v))
			return
		}
		tool := d.members(param, v, "type", "function")
		switch kind := d.text(param+".type", tool["type"]); {
		case tool["type"].kind() == absent:
			d.refuse(param+".type", "missing")
		case kind != "function":
			d.refuse(param+".type", `must be "function", not %s`, sketch(tool["type"]))
		}
		param += ".function"
		if tool["function"].kind() == absent {
			d.refuse(param, "missing")
		}
		function := d.members(param, tool["function"], "name", "description", "parameters")
		d.text(param+".description", function["description"])
		d.is(param+".parameters", function["parameters"], object, "a JSON Schema, which is an object")
		param += ".name"
		if function["name"].kind() == absent {
			d.refuse(param, "missing")
		}
		name := d.text(param, function["name"])
		if d.err != nil {
			return
		}
		if why := badName(name); why != "" {
			d.refuse(param, "%s %s", sketch(function["name"]), why)
		} else if d.tools[name] {
			d.refuse(param, "%s is declared twice", sketch(function["name"]))
		}
		d.tools[name] = true
	})
	if n == 0 || d.err != nil {
		return nil
	}
	return json.RawMessage(bytes.Clone(v))
}

// badName says what is wrong with a function's name, "" for nothing.
func badName(name string) string {
	switch {
	case name == "":
		return "is no name: it is empty"
	case len(name) > maxToolName:
		return "is too long: a name has at most " + strconv.Itoa(maxToolName) + " characters"
	case '0' <= name[0] && name[0] <= '9':
		return "begins with a digit, which a name must not"
	}
	for _, c := range name {
		if !(c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return "has " + strconv.QuoteRune(c) + " in it: a name has letters, digits, _ and - only"
		}
	}
	return ""
}

// history is what the messages before one have said about calls.
type history struct {
	names   map[string]string // of called functions, by the call's id
	calls   int               // of the last assistant message
	results int               // since then
	all     int               // calls of all messages
	next    int               // number that follows the largest of ids like ours
}

func (d *decoder) messages(r *Request, v value) {
	const param = "messages"
	switch n := 0; v.kind() {
	case absent:
		d.refuse(param, "missing")
	case list:
		n = v.count()
		if n == 0 {
			d.refuse(param, "must not be empty")
		} else if n > maxMessages {
			d.refuse(param, "must be at most %d, not %d", maxMessages, n)
		}
		if d.err != nil {
			return
		}
		r.Chat.Messages = make([]chat.Message, 0, n)
		h := history{names: map[string]string{}}
		d.each(param, v, func(param string, i int, v value) {
			m, partial := d.message(param, v, &h)
			if partial {
				if i < n-1 || m.Role != "assistant" {
					d.refuse(param+".partial", "only the last message, if it is the assistant's, can be gone on from")
				} else if len(m.ToolCalls) > 0 {
					d.refuse(param+".tool_calls", "a message to go on from must not have calls")
				}
			}
			r.Chat.Partial = partial
			r.Chat.Messages = append(r.Chat.Messages, m)
		})
		r.FirstCall = max(h.all, h.next)
		r.Background = background(r.Chat.Messages)
	default:
		d.refuse(param, "must be a list, not %s", sketch(v))
	}
}

// background recognises the requests that Open WebUI makes beside a conversation, for titles, tags and questions to ask next.
func background(messages []chat.Message) bool {
	last := messages[max(len(messages)-1, 0):]
	return len(last) > 0 && last[0].Role == "user" && strings.HasPrefix(last[0].Plain(), "### Task:")
}

func (d *decoder) message(param string, v value, h *history) (m chat.Message, partial bool) {
	if v.kind() != object {
		d.refuse(param, "must be an object, not %s", sketch(v))
		return
	}
	f := d.members(param, v, "role", "name", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "tools",
		"partial", "function_call")
	switch role := d.text(param+".role", f["role"]); role {
	case "developer": // the newer name for system
		m.Role = "system"
	case "system", "user", "assistant", "tool":
		m.Role = role
	default:
		d.refuse(param+".role", "must be one of system, developer, user, assistant, tool, not %s", sketch(f["role"]))
		return
	}
	m.Name = d.text(param+".name", f["name"])
	m.Content = d.content(param+".content", f["content"])
	if f["function_call"].kind() != absent {
		d.refuse(param+".function_call", "not supported; use tool_calls")
	}
	if v := f["tools"]; v.kind() != absent {
		if m.Role != "system" {
			d.refuse(param+".tools", "only a system message can have tools")
		}
		if m.Tools = d.declarations(param+".tools", v); m.Tools != nil && m.Plain() != "" {
			d.refuse(param, "a system message has either text or tools")
		}
	}
	switch m.Role {
	case "assistant":
		m.Reasoning = d.text(param+".reasoning_content", f["reasoning_content"])
		if other := d.text(param+".reasoning", f["reasoning"]); m.Reasoning == "" {
			m.Reasoning = other
		}
		m.ToolCalls = d.calls(param+".tool_calls", f["tool_calls"], h)
		h.calls, h.results = len(m.ToolCalls), 0
	case "tool":
		m.ToolCallID, m.Tool = d.text(param+".tool_call_id", f["tool_call_id"]), m.Name
		h.results++
		if m.ToolCallID != "" {
			name, ok := h.names[m.ToolCallID]
			if !ok {
				d.refuse(param+".tool_call_id", "no call before it has the id %s", sketch(f["tool_call_id"]))
			}
			m.Tool = name
		} else if m.Tool == "" && h.results > h.calls {
			d.refuse(param+".tool_call_id", "missing, and there is no call that this could be the result of")
		}
	}
	return m, d.boolean(param+".partial", f["partial"], false)
}

func (d *decoder) content(param string, v value) (parts []chat.Part) {
	switch v.kind() {
	case absent:
	case text:
		return chat.Text(v.text())
	case list:
		d.each(param, v, func(param string, _ int, v value) {
			if v.kind() != object {
				d.refuse(param, "must be an object, not %s", sketch(v))
				return
			}
			part := d.members(param, v, "type", "text")
			kind := d.text(param+".type", part["type"])
			if kind != "text" && part["type"].kind() != absent {
				d.refuse(param+".type", `only parts of type "text" are supported, not %s`, sketch(part["type"]))
			}
			if part["text"].kind() == absent {
				d.refuse(param+".text", "missing")
			}
			if text := d.text(param+".text", part["text"]); text != "" {
				parts = append(parts, chat.Part{Text: text})
			}
		})
	default:
		d.refuse(param, "must be a string or a list of parts, not %s", sketch(v))
	}
	return parts
}

// calls reads the calls of a message of the assistant. What their arguments are is the model's business: it may have written
// anything.
func (d *decoder) calls(param string, v value, h *history) (calls []chat.ToolCall) {
	d.each(param, v, func(param string, _ int, v value) {
		if v.kind() != object {
			d.refuse(param, "must be an object, not %s", sketch(v))
			return
		}
		f := d.members(param, v, "id", "type", "function", "name", "arguments")
		call := chat.ToolCall{ID: d.text(param+".id", f["id"])}
		if kind := d.text(param+".type", f["type"]); kind != "function" && f["type"].kind() != absent {
			d.refuse(param+".type", `must be "function", not %s`, sketch(f["type"]))
		}
		if f["function"].kind() != absent { // otherwise name and arguments are here, as some clients have it
			param += ".function"
			f = d.members(param, f["function"], "name", "arguments")
		}
		if f["name"].kind() == absent {
			d.refuse(param+".name", "missing")
		}
		call.Name = d.text(param+".name", f["name"])
		switch arguments := f["arguments"]; arguments.kind() {
		case absent:
		case text:
			call.Arguments = arguments.text()
		default:
			var err error
			if call.Arguments, err = chat.FormatArguments(json.RawMessage(arguments)); err != nil {
				d.refuse(param+".arguments", "%v", err)
			}
		}
		if call.ID != "" {
			h.names[call.ID] = call.Name
		}
		if digits, ok := strings.CutPrefix(call.ID, call.Name+"_"); ok && len(digits) < 10 {
			if n, err := strconv.ParseUint(digits, 10, 31); err == nil {
				h.next = max(h.next, int(n)+1)
			}
		}
		h.all++
		calls = append(calls, call)
	})
	return calls
}

func (d *decoder) toolChoice(r *Request, v value) {
	const param = "tool_choice"
	switch v.kind() {
	case absent:
	case text:
		switch choice := v.text(); choice {
		case "auto", "none", "required":
			if choice == "required" && len(d.tools) == 0 {
				d.refuse(param, "a call is required, but there are no tools")
			}
			if choice != "auto" {
				r.Chat.ToolChoice = choice
			}
		default:
			d.refuse(param, "must be none, auto, required or an object that names a function, not %s", sketch(v))
		}
	case object:
		f := d.members(param, v, "type", "function")
		if kind := d.text(param+".type", f["type"]); kind != "function" {
			d.refuse(param+".type", `must be "function", not %s`, sketch(f["type"]))
		}
		const function = param + ".function"
		name := d.members(function, f["function"], "name")["name"]
		if r.ForcedTool = d.text(function+".name", name); r.ForcedTool == "" {
			d.refuse(function+".name", "missing")
		} else if !d.tools[r.ForcedTool] {
			d.refuse(function+".name", "%s is not one of the tools", sketch(name))
		}
	default:
		d.refuse(param, "must be a string or an object, not %s", sketch(v))
	}
}

func (d *decoder) format(r *Request, v value) {
	const param = "response_format"
	f := d.members(param, v, "type", "json_schema")
	if f == nil {
		return
	}
	switch kind := d.text(param+".type", f["type"]); kind {
	case "text":
		return
	case string(FormatJSONObject):
		r.Format.Type = FormatJSONObject
	case string(FormatJSONSchema):
		const param = param + ".json_schema"
		if f["json_schema"].kind() == absent {
			d.refuse(param, "missing")
		}
		s := d.members(param, f["json_schema"], "name", "schema", "strict")
		for _, field := range []string{"name", "schema"} {
			if s[field].kind() == absent {
				d.refuse(param+"."+field, "missing")
			}
		}
		r.Format = Format{Type: FormatJSONSchema, Name: d.text(param+".name", s["name"]),
			Strict: d.boolean(param+".strict", s["strict"], true)}
		if d.is(param+".schema", s["schema"], object, "an object") {
			r.Format.Schema = slices.Clone(s["schema"])
		}
	default:
		d.refuse(param+".type", "must be one of text, json_object, json_schema, not %s", sketch(f["type"]))
	}
	r.Chat.ResponseFormat = json.RawMessage(slices.Clone(v))
}

// completion reads the fields of completions.
func (d *decoder) completion(r *Request) {
	f := d.fields
	d.prompts(r, f["prompt"])
	if f["messages"].kind() != absent {
		d.refuse("messages", "completions take a prompt; %s takes messages", ChatCompletions)
	}
	// Here logprobs is the number of tokens to list beside the one that was chosen.
	if n := d.integer("logprobs", f["logprobs"], 0, maxTopLogprobs, -1); n >= 0 {
		r.Logprobs, r.TopLogprobs = true, int(n)
	}
}

func (d *decoder) prompts(r *Request, v value) {
	const param = "prompt"
	add := func(param string, p Prompt) {
		if p.Text == "" && len(p.IDs) == 0 {
			d.refuse(param, "must not be empty")
		}
		r.Prompts = append(r.Prompts, p)
	}
	switch v.kind() {
	case absent:
		d.refuse(param, "missing")
	case text:
		add(param, Prompt{Text: v.text()})
	case list:
		first := byte(absent)
		v.items(func(_ int, item value) bool { first = item.kind(); return false })
		if first == number {
			add(param, Prompt{IDs: d.ids(param, v)})
			return
		}
		if n := v.count(); n == 0 || n > maxPrompts {
			d.refuse(param, "must have from 1 to %d texts, not %d", maxPrompts, n)
			return
		}
		d.each(param, v, func(param string, _ int, v value) {
			switch {
			case v.kind() == text && first == text:
				add(param, Prompt{Text: v.text()})
			case v.kind() == list && first == list:
				add(param, Prompt{IDs: d.ids(param, v)})
			default:
				d.refuse(param, "must be what the others are, a string or a list of ids, not %s", sketch(v))
			}
		})
	default:
		d.refuse(param, "must be a string, a list of strings, a list of ids or a list of lists of ids, not %s", sketch(v))
	}
}

// ids reads a list of ids.
func (d *decoder) ids(param string, v value) []int {
	ids := make([]int, 0, v.count())
	most := int64(1<<31 - 1)
	if d.options.Vocab > 0 {
		most = int64(d.options.Vocab) - 1
	}
	v.items(func(i int, item value) bool {
		id := int64(-1)
		if item.kind() == number {
			if n, err := strconv.ParseInt(string(item), 10, 64); err == nil {
				id = n
			}
		}
		if id < 0 || id > most {
			d.refuse(param+"["+strconv.Itoa(i)+"]", "must be an id from 0 to %d, not %s", most, sketch(item))
			return false
		}
		ids = append(ids, int(id))
		return true
	})
	return ids
}
