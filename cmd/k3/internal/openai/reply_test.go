package openai

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/tokenizer"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

var demo = sync.OnceValue(func() *tokenizer.Tokenizer {
	tok, err := tokenizer.Load(disk.Dir("../../../../presets/demo/checkpoint"))
	if err != nil {
		panic(err)
	}
	return tok
})

var testHead = Head{ID: "0123456789abcdef01234567", Created: 1700000000, Fingerprint: "fp_1"}

// markup spells control tokens out: ‹ › ~ ¶ are <|open|> <|close|> <|sep|> <|end_of_msg|>.
var markup = strings.NewReplacer("‹", "<|open|>", "›", "<|close|>", "~", "<|sep|>", "¶", "<|end_of_msg|>").Replace

func ids(t testing.TB, text string) []int {
	t.Helper()
	ids, err := demo().EncodeSpecial(markup(text))
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// tokens gives ids log-probabilities, from -0.5 down, and one id more beside each.
func tokens(ids []int) []Token {
	var all []Token
	for i, id := range ids {
		p := -0.5 - float64(i%8)/4
		all = append(all, Token{ID: id, Logprob: p, Top: []Logprob{{id, p}, {(id + 1) % demo().Ranks(), p - 1}, {0, math.Inf(-1)}}})
	}
	return all
}

func decode(t testing.TB, endpoint Endpoint, body string) *Request {
	t.Helper()
	r, err := Decode(endpoint, []byte(body), Options{Choices: 4})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// answer generates ids for every choice and returns the stream and the whole object. A reply that ends by itself before its last
// id takes no more.
func answer(t testing.TB, r *Request, generated []int, reason FinishReason, prompt []int) (stream [][]byte, body []byte) {
	t.Helper()
	reply, err := NewReply(r, demo(), testHead)
	if err != nil {
		t.Fatal(err)
	}
	for i := range max(len(r.Prompts), 1) * r.N {
		c := reply.Choice(i)
		stream = append(stream, c.Start()...)
		if r.Echo {
			stream = append(stream, c.Echo(tokens(prompt))...)
		}
		n := 0
		for _, token := range tokens(generated) {
			n++
			chunks, done := c.Push(token)
			stream = append(stream, chunks...)
			if done {
				break
			}
		}
		stream = append(stream, c.Finish(reason, Counts{Prompt: 10, Cached: 4, Completion: n})...)
	}
	if chunk := reply.UsageChunk(); chunk != nil {
		stream = append(stream, chunk)
	}
	return stream, reply.Body()
}

// fold adds the chunks of a stream up as a client does, and holds them to the rules of the stream.
func fold(t testing.TB, r *Request, stream [][]byte) map[string]any {
	t.Helper()
	var whole map[string]any
	choices := map[int]map[string]any{}
	ended := map[int]bool{}
	usage := map[int]any{}
	thoughts := map[int]int{} // boundaries between thinking and the rest
	for n, data := range stream {
		var c map[string]any
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if whole == nil {
			whole = map[string]any{}
			for _, key := range []string{"id", "object", "created", "model", "system_fingerprint"} {
				whole[key] = c[key]
			}
		}
		for key, value := range whole {
			if !reflect.DeepEqual(c[key], value) {
				t.Errorf("%s changes: %s", key, data)
			}
		}
		list := c["choices"].([]any)
		if len(list) != 1 {
			if n != len(stream)-1 || !r.IncludeUsage || c["usage"] == nil {
				t.Errorf("not one choice: %s", data)
			}
			continue
		}
		if c["usage"] != nil {
			t.Errorf("usage beside a choice: %s", data)
		}
		choice := list[0].(map[string]any)
		i := int(choice["index"].(float64))
		if ended[i] {
			t.Errorf("after the end: %s", data)
		}
		first := choices[i] == nil
		if first {
			choices[i] = map[string]any{"index": choice["index"], "logprobs": nil}
		}
		if finish := choice["finish_reason"]; finish != nil {
			choices[i]["finish_reason"], ended[i], usage[i] = finish, true, choice["usage"]
		} else if choice["usage"] != nil {
			t.Errorf("usage before the end: %s", data)
		}
		if l, ok := choice["logprobs"].(map[string]any); ok {
			if choices[i]["logprobs"] == nil {
				choices[i]["logprobs"] = map[string]any{}
			}
			sum := choices[i]["logprobs"].(map[string]any)
			for key, value := range l {
				if value == nil {
					sum[key] = nil
				} else {
					before, _ := sum[key].([]any)
					sum[key] = append(before, value.([]any)...)
				}
			}
		}
		if r.Endpoint == Completions {
			text, _ := choices[i]["text"].(string)
			choices[i]["text"] = text + choice["text"].(string)
			continue
		}
		d := choice["delta"].(map[string]any)
		if first != (d["role"] != nil) {
			t.Errorf("role: %s", data)
		}
		kinds := 0
		for _, key := range []string{"content", "reasoning_content", "tool_calls"} {
			if value, ok := d[key]; ok {
				if kinds++; value == nil {
					t.Errorf("null: %s", data)
				}
			}
		}
		if ended[i] && len(d) != 0 || !ended[i] && kinds != 1 {
			t.Errorf("%d of content, reasoning_content and tool_calls: %s", kinds, data)
		}
		if first {
			choices[i]["message"] = map[string]any{"role": d["role"], "refusal": nil}
			if r.Logprobs {
				choices[i]["logprobs"] = map[string]any{"content": []any{}}
			}
		}
		m := choices[i]["message"].(map[string]any)
		for _, key := range []string{"content", "reasoning_content"} {
			if value, ok := d[key].(string); ok {
				before, _ := m[key].(string)
				m[key] = before + value
				if strings.Contains(value, "\uFFFD") {
					t.Errorf("half a character: %s", data)
				}
				if key == "reasoning_content" && value == "" {
					thoughts[i]++
				} else if value != "" && key == "content" && m["reasoning_content"] != nil && thoughts[i] != 1 {
					t.Errorf("content after %d ends of thinking: %s", thoughts[i], data)
				}
			}
		}
		for _, v := range asList(d["tool_calls"]) {
			v := v.(map[string]any)
			calls := asList(m["tool_calls"])
			at := int(v["index"].(float64))
			if at == len(calls) {
				if v["type"] != "function" || v["id"] == nil || len(v["function"].(map[string]any)) != 2 {
					t.Errorf("the head of a call: %s", data)
				}
				delete(v, "index")
				m["tool_calls"] = append(calls, v)
				continue
			}
			if at != len(calls)-1 || len(v) != 2 {
				t.Errorf("a piece of a call: %s", data)
			}
			f := calls[at].(map[string]any)["function"].(map[string]any)
			f["arguments"] = f["arguments"].(string) + v["function"].(map[string]any)["arguments"].(string)
		}
	}
	var sorted []any
	for i := range len(choices) {
		if !ended[i] {
			t.Errorf("choice %d has no end", i)
		}
		if m, ok := choices[i]["message"].(map[string]any); ok && m["content"] == "" && m["tool_calls"] != nil {
			m["content"] = nil
		}
		sorted = append(sorted, choices[i])
	}
	whole["choices"] = sorted
	whole["object"] = strings.TrimSuffix(whole["object"].(string), ".chunk")
	return whole
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

// checkFold holds the stream to the object.
func checkFold(t testing.TB, r *Request, generated []int, reason FinishReason, prompt []int) (stream [][]byte, body []byte) {
	t.Helper()
	r.Stream = true
	stream, body = answer(t, r, generated, reason, prompt)
	got := fold(t, r, stream)
	var want map[string]any
	if err := json.Unmarshal(body, &want); err != nil {
		t.Fatal(err)
	}
	delete(want, "usage")
	if !reflect.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		t.Errorf("the chunks add up to\n%s\nbut the object is\n%s", a, b)
	}
	r.Stream = false
	if none, same := answer(t, r, generated, reason, prompt); len(none) > 0 || !bytes.Equal(same, body) {
		t.Errorf("without a stream: %d chunks,\n%s, with one\n%s", len(none), same, body)
	}
	return stream, body
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n")); !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

const callTag = `‹call tool="f" index="1"~`

func TestChunksAddUpToTheObject(t *testing.T) {
	const chatBody, textBody = `{"messages":[{"role":"user","content":"Hi"}]`, `{"prompt":"Hi"`
	for _, c := range []struct {
		name, fields string
		generated    string
		reason       FinishReason
	}{
		{"thinking-and-content", `,"stream_options":{"include_usage":true}`, "I think.›think~‹response~The answer is 42.›response~›message~", FinishStop},
		{"content-alone", `,"reasoning_effort":"none"`, "Hello 你好 😀›response~›message~", FinishStop},
		{"two-calls", `,"tools":[]`, "t›think~‹response~Let me see.›response~‹tools~" + callTag + `‹argument key="a" type="string"~x"y›argument~‹argument key="b" type="number"~2›argument~›call~‹call tool="g" index="2"~›call~›tools~›message~`, FinishStop},
		{"calls-straight-from-thinking", "", "t‹tools~" + callTag + `›call~›tools~`, FinishStop},
		{"single-call", `,"parallel_tool_calls":false`, "›think~‹tools~" + callTag + "›call~" + callTag + "›call~›tools~", FinishLength},
		{"call-ended-by-the-stop-id", "", "›think~‹tools~" + callTag + `‹argument key="a" type="number"~1`, FinishStop},
		{"call-cut", "", "›think~‹tools~" + callTag + `‹argument key="a" type="string"~abc`, FinishLength},
		{"cut-in-thinking", "", "I think", FinishLength},
		{"stop-text", `,"stop":["42","never"]`, "42 is 42›think~‹response~It is 4. And 4 42 and more›response~", FinishLength},
		{"stop-text-begun", `,"stop":["never"]`, "›think~‹response~ne ne›response~‹tools~" + callTag + "›call~›tools~", FinishStop},
		{"logprobs", `,"logprobs":true,"top_logprobs":2,"stop":["day"]`, "t›think~‹response~Good 你 day›response~", FinishStop},
		{"internal-content", `,"stream_options":{"include_internal_content":true}`, "t›think~‹response~Good›response~", FinishStop},
		{"two-choices", `,"n":2,"stream_options":{"include_usage":true}`, "t›think~‹response~Good", FinishLength},
		{"text", `,"stream_options":{"include_usage":true}`, " there", FinishLength},
		{"text-logprobs", `,"logprobs":2,"echo":true,"stop":"!"`, " there 你! you", FinishLength},
		{"text-two-prompts", `,"prompt":["a","b"],"n":2,"logprobs":0`, " there", FinishStop},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, endpoint := chatBody, ChatCompletions
			if strings.HasPrefix(c.name, "text") {
				body, endpoint = textBody, Completions
			}
			r := decode(t, endpoint, body+c.fields+"}")
			stream, whole := checkFold(t, r, ids(t, c.generated), c.reason, ids(t, "Hi"))
			golden(t, c.name+".json", append(whole, '\n'))
			golden(t, c.name+".stream", append(bytes.Join(stream, []byte("\n")), '\n'))
		})
	}
}

func TestChunksOfRandomRepliesAddUpToTheObject(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"‹", "›", "~", "think", "response", "tools", "message", "call", callTag, `‹argument key="k" type="string"~`,
		`‹argument key="n" type="number"~`, `‹json type="object"~`, "›argument~", "›call~", "›tools~", "›think~‹response~", "a", " be", "你", "😀", "\n",
		`"`, "1", "stop"}
	for n := range 3000 {
		endpoint, body := ChatCompletions, `{"messages":[{"role":"user","content":"Hi"}],"stop":["stop","a be"],"logprobs":true,"top_logprobs":1,"reasoning_effort":"`+
			[]string{"none", "low"}[random.IntN(2)]+`","stream_options":{"include_internal_content":`+fmt.Sprint(random.IntN(2) == 0)+`}}`
		if n%4 == 0 {
			endpoint, body = Completions, `{"prompt":"Hi","stop":["stop","a be"],"logprobs":1,"echo":true}`
		}
		var text strings.Builder
		for range random.IntN(24) {
			text.WriteString(pieces[random.IntN(len(pieces))])
		}
		generated := ids(t, text.String())
		generated = generated[:random.IntN(len(generated)+1)] // which may cut a character
		checkFold(t, decode(t, endpoint, body), generated, []FinishReason{FinishStop, FinishLength}[random.IntN(2)], ids(t, "Hi 你"))
		if t.Failed() {
			t.Fatalf("%d: %s", n, text.String())
		}
	}
}

// The log-probabilities of content are those of the ids that it is made of, and no others.
func TestLogprobsAreThoseOfTheContent(t *testing.T) {
	r := decode(t, ChatCompletions, `{"messages":[{"role":"user","content":"Hi"}],"logprobs":true}`)
	const want = "The 你 😀 answer"
	_, body := answer(t, r, ids(t, "thinking›think~‹response~"+want+"›response~‹tools~"+callTag+"›call~›tools~"), FinishStop, nil)
	var got struct {
		Choices []struct {
			Logprobs struct{ Content []struct{ Bytes []int } }
		}
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, token := range got.Choices[0].Logprobs.Content {
		for _, b := range token.Bytes {
			text = append(text, byte(b))
		}
	}
	if string(text) != want {
		t.Errorf("got %q", text)
	}
}

func TestACharacterThatIsCutIsLeftOut(t *testing.T) {
	for _, endpoint := range []Endpoint{ChatCompletions, Completions} {
		for _, reason := range []FinishReason{FinishStop, FinishLength} {
			r := decode(t, endpoint, map[Endpoint]string{
				ChatCompletions: `{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"none"}`, Completions: `{"prompt":"Hi"}`,
			}[endpoint])
			whole := ids(t, "ok 𓀀")
			_, body := answer(t, r, whole[:len(whole)-1], reason, nil)
			if bytes.Contains(body, []byte("\uFFFD")) || !bytes.Contains(body, []byte(`"ok `)) {
				t.Errorf("%s, %s: got %s", endpoint, reason, body)
			}
		}
	}
}

func TestIDsOfCallsAreCountedOverTheConversation(t *testing.T) {
	for _, c := range []struct {
		history string // ids of calls before
		want    string
	}{
		{``, "f_0"},
		{`"x","functions.f:0"`, "f_2"},
		{`"f_0"`, "f_1"},
		{`"f_7"`, "f_8"},          // the client has left out what came before
		{`"g_9"`, "f_1"},          // not ours: the call is of f
		{`"f_9999999999"`, "f_1"}, // nor this
	} {
		var calls []string
		if c.history != "" {
			for _, id := range strings.Split(c.history, ",") {
				calls = append(calls, `{"id":`+id+`,"type":"function","function":{"name":"f","arguments":"{}"}}`)
			}
		}
		r := decode(t, ChatCompletions, `{"messages":[{"role":"assistant","tool_calls":[`+strings.Join(calls, ",")+`]}]}`)
		_, body := answer(t, r, ids(t, "›think~‹tools~"+callTag+"›call~›tools~"), FinishStop, nil)
		if !bytes.Contains(body, []byte(`"id":"`+c.want+`"`)) {
			t.Errorf("after %s: got %s, want %s", c.history, body, c.want)
		}
	}
}

func TestNothingIsAddedAfterTheEnd(t *testing.T) {
	r := decode(t, ChatCompletions, `{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"none","stop":"."}`)
	reply, err := NewReply(r, demo(), testHead)
	if err != nil {
		t.Fatal(err)
	}
	c := reply.Choice(0)
	at := -1
	for i, token := range tokens(ids(t, "One. Two.")) {
		if _, done := c.Push(token); done && at < 0 {
			at = i
		} else if done != (at >= 0) {
			t.Error("the end is taken back")
		}
	}
	c.Finish(FinishLength, Counts{})
	if m := c.Message(); m.Plain() != "One" || at < 0 {
		t.Errorf("got %q, ended at %d", m.Plain(), at)
	}
	if !bytes.Contains(reply.Body(), []byte(`"finish_reason":"stop"`)) {
		t.Errorf("got %s", reply.Body())
	}
}

func TestUsageCountsAPromptOnce(t *testing.T) {
	r := decode(t, Completions, `{"prompt":["a","b"],"n":2}`)
	_, body := answer(t, r, ids(t, "x"), FinishLength, nil)
	n := len(ids(t, "x")) * 4
	want := fmt.Sprintf(`"usage":{"prompt_tokens":20,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":8},`+
		`"completion_tokens_details":{"reasoning_tokens":0}}`, n, 20+n)
	if !bytes.Contains(body, []byte(want)) {
		t.Errorf("got %s, want %s", body, want)
	}
}

func TestReasoningTokensAreThoseOfTheThinkSection(t *testing.T) {
	thought := ids(t, "Let me think of it")
	generated := slices.Concat(thought, ids(t, "›think~‹response~Four"))
	_, body := answer(t, decode(t, ChatCompletions, `{"messages":[{"role":"user","content":"Hi"}]}`), generated, FinishStop, nil)
	if want := fmt.Sprintf(`"reasoning_tokens":%d}`, len(thought)); !bytes.Contains(body, []byte(want)) {
		t.Errorf("got %s, want %s", body, want)
	}
}

func TestStatsGoIntoTheAnswer(t *testing.T) {
	r := decode(t, ChatCompletions, `{"messages":[{"role":"user","content":"Hi"}],"stream":true}`)
	reply, err := NewReply(r, demo(), testHead)
	if err != nil {
		t.Fatal(err)
	}
	reply.Stats = &Stats{Passes: 3}
	end := reply.Choice(0).Finish(FinishLength, Counts{})
	const want = `"k3":{"queue_s":0,"prefill_s":0,"s_per_token":0,"passes":3,"gb_read":0,"hit_rate":0,"drafted":0,"accepted":0}`
	if !bytes.Contains(end[len(end)-1], []byte(want)) || !bytes.Contains(reply.Body(), []byte(want)) {
		t.Errorf("got %s, %s", end, reply.Body())
	}
}
