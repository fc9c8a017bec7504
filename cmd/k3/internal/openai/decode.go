package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// aliases are the names by which a request may always ask for the model, whatever it is called.
var aliases = []string{"", "kimi-k3", "k3", "moonshotai/kimi-k3"}

const (
	defaultModel            = "kimi-k3"
	defaultCompletionTokens = 16 // of OpenAI's completions

	// maxMessages is more than any prompt has room for, so that more are refused before they take memory: each is a dozen tokens of markup.
	maxMessages = 1 << 16
	maxPrompts  = 2048 // as many as OpenAI takes in a list

	maxStops       = 5
	maxStopBytes   = 1024
	maxTopLogprobs = 20
	maxToolName    = 256
)

// neutral has the fields that would change a text or what an answer has, but that this engine does not know, each with the
// values that change nothing. All other fields that Decode does not read have no effect on a text and are passed over.
var neutral = map[string]struct {
	values []string // as JSON; null is always one
	advice string
}{
	"presence_penalty":           {values: []string{"0"}},
	"frequency_penalty":          {values: []string{"0"}},
	"logit_bias":                 {values: []string{"{}"}},
	"suffix":                     {values: []string{`""`}},
	"best_of":                    {values: []string{"1"}},
	"functions":                  {values: []string{"[]"}, advice: "use tools"},
	"function_call":              {values: []string{`"none"`, `"auto"`}, advice: "use tool_choice"},
	"modalities":                 {values: []string{`["text"]`}},
	"audio":                      {},
	"web_search_options":         {},
	"reasoning":                  {advice: "use reasoning_effort"},
	"thinking_budget":            {advice: "use reasoning_effort"},
	"thinking_budget_tokens":     {values: []string{"-1"}, advice: "use reasoning_effort"},
	"min_tokens":                 {values: []string{"0"}},
	"ignore_eos":                 {values: []string{"false"}},
	"stop_token_ids":             {values: []string{"[]"}},
	"include_stop_str_in_output": {values: []string{"false"}},
	"skip_special_tokens":        {values: []string{"true"}},
	"bad_words":                  {values: []string{"[]"}},
	"allowed_token_ids":          {},
	"logits_processors":          {values: []string{"[]"}},
	"prompt_logprobs":            {values: []string{"0"}, advice: "completions with echo and logprobs give them"},
	"use_beam_search":            {values: []string{"false"}},
	"length_penalty":             {values: []string{"1"}},
	"repeat_penalty":             {values: []string{"1"}, advice: "use repetition_penalty"},
	"typical_p":                  {values: []string{"1"}},
	"tfs_z":                      {values: []string{"1"}},
	"top_a":                      {values: []string{"0"}},
	"mirostat":                   {values: []string{"0"}},
	"dry_multiplier":             {values: []string{"0"}},
	"xtc_probability":            {values: []string{"0"}},
	"dynatemp_range":             {values: []string{"0"}},
	"grammar":                    {values: []string{`""`}, advice: "use response_format"},
	"json_schema":                {advice: "use response_format"},
	"guided_json":                {advice: "use response_format"},
	"guided_regex":               {advice: "use response_format"},
	"guided_choice":              {advice: "use response_format"},
	"guided_grammar":             {advice: "use response_format"},
	"structured_outputs":         {advice: "use response_format"},
	"chat_template":              {},
	"documents":                  {values: []string{"[]"}},
	"add_generation_prompt":      {values: []string{"true"}},
	"continue_final_message":     {values: []string{"false"}, advice: `"partial": true in the last message goes on from it`},
}

// read are the fields that Decode reads, of either endpoint.
var read = func() map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Fields(`model messages prompt stream stream_options max_tokens max_completion_tokens stop seed
		temperature top_p top_k min_p repetition_penalty n logprobs top_logprobs echo tools tool_choice parallel_tool_calls
		response_format reasoning_effort thinking enable_thinking chat_template_kwargs prediction user`) {
		set[name] = true
	}
	return set
}()

// Decode reads the body of a request, or says with an *Error why it is refused: 400, or 404 for a model that is not there.
func Decode(endpoint Endpoint, body []byte, o Options) (*Request, error) {
	v, err := checkJSON(body)
	if err != nil {
		return nil, refuse("", "the body is %v", err)
	}
	if v.kind() != object {
		return nil, refuse("", "the body is not a JSON object")
	}
	if o.Model == "" {
		o.Model = defaultModel
	}
	d := decoder{options: o, fields: v.fields(func(key []byte) bool {
		_, other := neutral[string(key)]
		return other || read[string(key)]
	})}
	r := &Request{Endpoint: endpoint, Model: o.Model, Sample: o.Sample}
	r.Sample.Seed = 0
	d.common(r)
	if endpoint == ChatCompletions {
		d.chat(r)
	} else {
		d.completion(r)
	}
	d.neutral()
	if d.err != nil {
		return nil, d.err
	}
	return r, nil
}

// decoder reads the fields of one body. After the first error it reads on, but keeps that error.
type decoder struct {
	options Options
	fields  map[string]value
	err     *Error
	tools   map[string]bool // declared so far
}

func (d *decoder) refuse(param, format string, args ...any) {
	d.fail(refuse(param, format, args...))
}

func (d *decoder) fail(err *Error) {
	if d.err == nil {
		d.err = err
	}
}

// Readers of one value: an absent one or null gives the last argument or the zero value, one of another kind fails.

func (d *decoder) is(param string, v value, kind byte, what string) bool {
	switch v.kind() {
	case absent:
		return false
	case kind:
		return d.err == nil
	}
	d.refuse(param, "must be %s, not %s", what, sketch(v))
	return false
}

func (d *decoder) text(param string, v value) string {
	if !d.is(param, v, text, "a string") {
		return ""
	}
	return v.text()
}

func (d *decoder) boolean(param string, v value, otherwise bool) bool {
	if !d.is(param, v, boolean, "true or false") {
		return otherwise
	}
	return v[0] == 't'
}

func (d *decoder) integer(param string, v value, least, most, otherwise int64) int64 {
	if !d.is(param, v, number, "a whole number") {
		return otherwise
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		d.refuse(param, "must be a whole number, not %s", sketch(v))
	case err != nil || n < least || n > most:
		if most >= math.MaxInt32 && n < least {
			d.refuse(param, "must be at least %d, not %s", least, sketch(v))
		} else {
			d.refuse(param, "must be from %d to %d, not %s", least, most, sketch(v))
		}
	}
	return n
}

func (d *decoder) number(param string, v value, otherwise float64) float64 {
	if !d.is(param, v, number, "a number") {
		return otherwise
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		d.refuse(param, "%s is out of range", sketch(v))
	}
	return x
}

// members returns the named members of an object.
func (d *decoder) members(param string, v value, names ...string) map[string]value {
	if !d.is(param, v, object, "an object") {
		return nil
	}
	return v.fields(func(key []byte) bool { return slices.Contains(names, string(key)) })
}

// each calls item with the values of a list, as long as all is well.
func (d *decoder) each(param string, v value, item func(param string, i int, v value)) {
	if !d.is(param, v, list, "a list") {
		return
	}
	v.items(func(i int, v value) bool {
		item(fmt.Sprintf("%s[%d]", param, i), i, v)
		return d.err == nil
	})
}

// sketch shows a value in a message.
func sketch(v value) string {
	const most = 40
	switch v.kind() {
	case object:
		return "an object"
	case list:
		return "a list"
	case absent:
		return "null"
	}
	if len(v) <= most {
		return string(v)
	}
	return strings.ToValidUTF8(string(v[:most]), "") + "..."
}

// common reads what both endpoints have.
func (d *decoder) common(r *Request) {
	f := d.fields
	if model := d.text("model", f["model"]); !d.options.AnyModel && model != d.options.Model &&
		!slices.Contains(aliases, model) && !slices.Contains(d.options.Aliases, model) {
		d.fail(NewError(http.StatusNotFound, "model", "model_not_found", "the model %s does not exist here; this is %s",
			sketch(f["model"]), d.options.Model))
	}
	r.Stream = d.boolean("stream", f["stream"], false)
	options := d.members("stream_options", f["stream_options"], "include_usage", "include_internal_content", "k3_progress")
	r.IncludeUsage = d.boolean("stream_options.include_usage", options["include_usage"], false)
	r.IncludeInternalContent = d.boolean("stream_options.include_internal_content", options["include_internal_content"], false)
	r.Progress = d.boolean("stream_options.k3_progress", options["k3_progress"], false)

	r.Sample.Temperature = d.number("temperature", f["temperature"], r.Sample.Temperature)
	if t := r.Sample.Temperature; !(t >= 0 && t <= 2) {
		d.refuse("temperature", "must be from 0 to 2, not %s", sketch(f["temperature"]))
	}
	r.Sample.TopP = d.number("top_p", f["top_p"], r.Sample.TopP)
	if p := r.Sample.TopP; f["top_p"].kind() != absent && !(p > 0 && p <= 1) {
		d.refuse("top_p", "must be above 0 and at most 1, not %s", sketch(f["top_p"]))
	}
	top := d.integer("top_k", f["top_k"], -1, math.MaxInt32, int64(r.Sample.TopK))
	r.Sample.TopK = int(max(top, 0)) // -1 keeps all in vLLM, 0 elsewhere
	r.Sample.MinP = d.number("min_p", f["min_p"], r.Sample.MinP)
	if p := r.Sample.MinP; !(p >= 0 && p <= 1) {
		d.refuse("min_p", "must be from 0 to 1, not %s", sketch(f["min_p"]))
	}
	r.Sample.RepetitionPenalty = d.number("repetition_penalty", f["repetition_penalty"], r.Sample.RepetitionPenalty)
	if err := r.Sample.Validate(); err != nil && f["repetition_penalty"].kind() != absent {
		d.refuse("repetition_penalty", "must be from 0.01 to 100, not %s", sketch(f["repetition_penalty"]))
	}
	if seed := f["seed"]; seed.kind() != absent {
		r.Seeded = true
		if n, err := strconv.ParseUint(string(seed), 10, 64); err == nil {
			r.Sample.Seed = n
		} else {
			r.Sample.Seed = uint64(d.integer("seed", seed, math.MinInt64, math.MaxInt64, 0))
		}
	}
	r.N = int(d.integer("n", f["n"], 1, int64(max(d.options.Choices, 1)), 1))
	r.User = d.text("user", f["user"])
	d.stop(r, f["stop"])

	r.MaxTokens = d.options.MaxTokens
	least := int64(1)
	if r.Endpoint == Completions {
		r.MaxTokens = defaultCompletionTokens
		if r.Echo = d.boolean("echo", f["echo"], false); r.Echo {
			least = 0
		}
	}
	for _, name := range []string{"max_tokens", "max_completion_tokens"} { // the second wins
		if n := d.integer(name, f[name], least, math.MaxInt32, -1); n >= 0 {
			r.MaxTokens, r.MaxTokensField = int(n), name
		}
	}
}

func (d *decoder) stop(r *Request, v value) {
	add := func(param string, v value) {
		if v.kind() != text {
			d.refuse(param, "must be a string, not %s", sketch(v))
			return
		}
		switch s := v.text(); {
		case s == "":
			d.refuse(param, "must not be empty")
		case len(s) > maxStopBytes:
			d.refuse(param, "must have at most %d bytes, not %d", maxStopBytes, len(s))
		default:
			r.Stop = append(r.Stop, s)
		}
	}
	switch v.kind() {
	case absent:
	case text:
		add("stop", v)
	case list:
		if n := v.count(); n > maxStops {
			d.refuse("stop", "must have at most %d texts, not %d", maxStops, n)
			return
		}
		d.each("stop", v, func(param string, _ int, v value) { add(param, v) })
	default:
		d.refuse("stop", "must be a string or a list of strings, not %s", sketch(v))
	}
}

// neutral refuses fields that would have to change the text, and do not.
func (d *decoder) neutral() {
	for _, name := range slices.Sorted(maps.Keys(d.fields)) {
		rule, ok := neutral[name]
		v := d.fields[name]
		if !ok || v.kind() == absent || slices.ContainsFunc(rule.values, func(s string) bool { return same(v, s) }) {
			continue
		}
		why := "not supported"
		if len(rule.values) > 0 {
			why = "only " + strings.Join(rule.values, " or ") + " is supported, which changes nothing"
		}
		if rule.advice != "" {
			why += "; " + rule.advice
		}
		d.refuse(name, "%s", why)
	}
}

// same reports whether a value is what the JSON in s says. Numbers are compared as such.
func same(v value, s string) bool {
	if v.kind() == number {
		x, err := strconv.ParseFloat(string(v), 64)
		y, none := strconv.ParseFloat(s, 64)
		return err == nil && none == nil && x == y
	}
	var b bytes.Buffer
	const most = 64 // white space is seldom more
	return len(v) <= most && json.Compact(&b, v) == nil && b.String() == s
}
