package chat

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/tokenizer"
)

const fixtureDir = "../../../shared/fixtures"

var demo = sync.OnceValue(func() *tokenizer.Tokenizer {
	tok, err := tokenizer.Load(disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		panic(err)
	}
	return tok
})

// releasedFiles is the released vocabulary with the added tokens of the markup at their released ids.
type releasedFiles struct{ disk.Files }

func (r releasedFiles) Open(name string) (disk.File, error) {
	if name != "tokenizer_config.json" {
		return r.Files.Open(name)
	}
	const config = `{"eos_token":"[EOS]","added_tokens_decoder":{"163585":{"content":"[EOS]"},"163586":{"content":"<|end_of_msg|>"},
		"163587":{"content":"<|open|>"},"163588":{"content":"<|close|>"},"163589":{"content":"<|sep|>"},
		"163602":{"content":"<|media_begin|>"},"163603":{"content":"<|media_content|>"},"163604":{"content":"<|media_end|>"},
		"163605":{"content":"<|media_pad|>"}}}`
	return disk.FS(fstest.MapFS{name: {Data: []byte(config)}}, "memory").Open(name)
}

func TestReferenceRequests(t *testing.T) {
	f, err := os.Open(filepath.Join(fixtureDir, "chat/chat-a.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no fixtures here")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.Load(releasedFiles{disk.Dir(filepath.Join(fixtureDir, "tokenizer"))})
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<24)
	cases := 0
	for ; lines.Scan(); cases++ {
		var c struct {
			Name     string
			Request  json.RawMessage
			Segments []Segment
			IDs      []int
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		r, err := ParseRequest(c.Request)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		segments, err := Render(r)
		if err != nil || !slices.Equal(segments, c.Segments) {
			t.Errorf("%s: got %s, %v\nwant %s", c.Name, spell(segments), err, spell(c.Segments))
		}
		if ids, err := Encode(tok, segments); err != nil || !slices.Equal(ids, c.IDs) {
			t.Errorf("%s: got %v, %v\nwant %v", c.Name, ids, err, c.IDs)
		}
	}
	if cases == 0 || lines.Err() != nil {
		t.Fatal(cases, lines.Err())
	}
}

// spell writes segments for people: control tokens as ‹ › ~ ¶, the fragments of text apart from each other.
func spell(segments []Segment) string {
	var b strings.Builder
	for i, s := range segments {
		short := map[string]string{openToken: "‹", closeToken: "›", sepToken: "~", endToken: "¶\n"}[s.Text]
		switch {
		case s.Special && short != "":
			b.WriteString(short)
		case s.Special:
			fmt.Fprintf(&b, "«%s»", s.Text)
		default:
			if i > 0 && !segments[i-1].Special {
				b.WriteByte('|')
			}
			b.WriteString(s.Text)
		}
	}
	return b.String()
}

func render(t *testing.T, request string) string {
	t.Helper()
	r, err := ParseRequest([]byte(request))
	if err != nil {
		t.Fatal(err)
	}
	segments, err := Render(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range segments {
		if s.Text == "" {
			t.Error("an empty segment")
		}
	}
	return spell(segments)
}

func TestRender(t *testing.T) {
	const bare = `"thinking":false,"add_generation_prompt":false`
	call := func(arguments string) string {
		return `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":` + arguments + `}}]}],` + bare + `}`
	}
	calls := func(arguments string) string {
		return `‹message| role|="|assistant|"~‹response~›response~‹tools~‹call| tool|="|f|"| index|="|1|"~` + arguments + "›call~›tools~›message~¶\n"
	}
	argument := func(key, kind, value string) string {
		return `‹argument| key|="|` + key + `|"| type|="|` + kind + `|"~` + value + `›argument~`
	}
	system := func(kind, body string) string {
		return `‹message| role|="|system|"| type|="|` + kind + `|"~` + body + "›message~¶\n"
	}
	const two = `{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"b","function":{"name":"g"}}]},`
	const turn = `‹message| role|="|assistant|"~‹response~›response~‹tools~‹call| tool|="|f|"| index|="|1|"~›call~‹call| tool|="|g|"| index|="|2|"~›call~›tools~›message~¶` + "\n"
	result := func(tool string, index int, text string) string {
		return fmt.Sprintf("‹message| role|=\"|tool|\"| tool|=\"|%s|\"| index|=\"|%d|\"~%s›message~¶\n", tool, index, text)
	}
	for _, c := range []struct{ name, request, want string }{
		{"thinking and the prompt are the defaults", `{"messages":[]}`, `‹message| role|="|assistant|"~‹think~`},
		{"the default effort of a conversation can be said", `{"messages":[],"thinking_effort":"max","add_generation_prompt":false}`,
			system("thinking-effort", "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=max`.")},
		{"effort without thinking says nothing", `{"messages":[],"thinking_effort":"medium",` + bare + `}`, ""},
		{"what looks like markup is text", `{"messages":[{"role":"user","content":"<|close|>message<|sep|>&\""}],` + bare + `}`,
			"‹message| role|=\"|user|\"~<|close|>message<|sep|>&\"›message~¶\n"},
		{"attributes escape & before quotes", `{"messages":[{"role":"user","name":"&quot;\"<|sep|>","content":""}],` + bare + `}`,
			"‹message| role|=\"|user|\"| name|=\"|&amp;quot;&quot;<|sep|>|\"~›message~¶\n"},
		{"parts stay apart", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],` + bare + `}`,
			"‹message| role|=\"|user|\"~a|b›message~¶\n"},
		{"an image without a prompt leaves its placeholder", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}],` + bare + `}`,
			"‹message| role|=\"|user|\"~«<|kimi_image_placeholder|>»›message~¶\n"},
		{"placeholders in text stand for images", `{"messages":[{"role":"user","content":"a<|kimi_image_placeholder|>b"}],"image_prompts":["P"],` + bare + `}`,
			"‹message| role|=\"|user|\"~a«P»b›message~¶\n"},
		{"developer is system", `{"messages":[{"role":"developer","content":"x"}],` + bare + `}`, "‹message| role|=\"|system|\"~x›message~¶\n"},
		{"past reasoning is kept while thinking", `{"messages":[{"role":"assistant","content":"c","reasoning_content":" r\n","reasoning":"no"}],"add_generation_prompt":false}`,
			"‹message| role|=\"|assistant|\"~‹think~ r\n›think~‹response~c›response~›message~¶\n"},
		{"and dropped while not", `{"messages":[{"role":"assistant","content":"c","reasoning_content":"r"}],` + bare + `}`,
			"‹message| role|=\"|assistant|\"~‹response~c›response~›message~¶\n"},
		{"arguments have types and keep their order", call(`"{\"z\":\"x\\ny\",\"b\":true,\"c\":null,\"d\":-1,\"e\":{\"q\":1},\"f\":[]}"`),
			calls(argument("z", "string", "x\ny") + argument("b", "boolean", "true") + argument("c", "null", "null") +
				argument("d", "number", "-1") + argument("e", "object", `{"q":1}`) + argument("f", "array", "[]"))},
		{"values that are no strings keep their literal text", call(`"{\"a\": 1e2, \"b\": [1,  2.0], \"c\": 1e999}"`),
			calls(argument("a", "number", "1e2") + argument("b", "array", "[1,  2.0]") + argument("c", "number", "1e999"))},
		{"arguments as an object are written anew", call(`{"a":1e2,"b":[1,{"z":2.50,"y":"é\u2028</"}],"c":1e-5,"d":1E22,"e":12345678901234567890,"f":-0.0,"g":"s"}`),
			calls(argument("a", "number", "100.0") + argument("b", "array", `[1, {"z": 2.5, "y": "é`+"\u2028"+`</"}]`) +
				argument("c", "number", "1e-05") + argument("d", "number", "1e+22") + argument("e", "number", "12345678901234567890") +
				argument("f", "number", "-0.0") + argument("g", "string", "s"))},
		{"empty string values and keys", call(`"{\"\":\"\"}"`), calls(`‹argument| key|="|"| type|="|string|"~›argument~`)},
		{"no arguments", call(`""`), calls("")},
		{"null arguments", call(`null`), calls("")},
		{"an empty object", call(`" { } "`), calls("")},
		{"arguments that are no object", call(`"[1]"`), calls(`‹json| type|="|object|"~[1]›json~`)},
		{"arguments with text behind them", call(`"{\"a\":1} x"`), calls(`‹json| type|="|object|"~{"a":1} x›json~`)},
		{"results are put in the order of the calls", `{"messages":[` + two + `{"role":"tool","tool_call_id":"b","name":"old","content":"2"},{"role":"tool","tool_call_id":"a","content":"1"}],` + bare + `}`,
			turn + result("f", 1, "1") + result("g", 2, "2")},
		{"unless one of them is unknown", `{"messages":[` + two + `{"role":"tool","tool_call_id":"b","content":"2"},{"role":"tool","tool_call_id":"x","content":"1"},{"role":"tool","name":"h","content":"3"}],` + bare + `}`,
			turn + result("f", 1, "2") + result("g", 2, "1") + result("h", 3, "3")},
		{"a message between results ends a run", `{"messages":[` + two + `{"role":"tool","tool_call_id":"b","content":"2"},{"role":"user","content":"u"},{"role":"tool","tool_call_id":"a","content":"1"}],` + bare + `}`,
			turn + result("g", 1, "2") + "‹message| role|=\"|user|\"~u›message~¶\n" + result("f", 2, "1")},
		{"results count from the last assistant message", `{"messages":[` + two + `{"role":"tool","content":"1"},` + two + `{"role":"tool","content":"2"}],` + bare + `}`,
			turn + result("f", 1, "1") + turn + result("f", 1, "2")},
		{"tools are sorted and compact", `{"messages":[],"tools":[{"type":"function","b":{"z":1.50,"é":"<中>\u2028\u001f\t\\"},"a":[]}],` + bare + `}`,
			system("tool-declare", "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"+
				`[{"a":[],"b":{"z":1.5,"é":"<中>`+"\u2028"+`\u001f\t\\"},"type":"function"}]`+"\n```")},
		{"no tools, no declaration", `{"messages":[],"tools":[],` + bare + `}`, ""},
		{"of two values for a key the last counts", `{"messages":[],"tools":[{"a":1,"b":2,"a":3}],` + bare + `}`,
			system("tool-declare", "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n[{\"a\":3,\"b\":2}]\n```")},
		{"tools can be required", `{"messages":[],"tool_choice":"required",` + bare + `}`,
			system("tool-choice", "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.")},
		{"a named tool says nothing", `{"messages":[],"tool_choice":{"type":"function","function":{"name":"f"}},` + bare + `}`, ""},
		{"the schema inside the API's wrapper", `{"messages":[],"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"b":1,"a":2}}},` + bare + `}`,
			system("response-format", "The system is invoked with `response_format=json_schema`.\nYour response must be raw JSON data without markdown code blocks (```json) or any additional formatting.\nThe JSON data must match the following schema:\n```json\n{\"a\":2,\"b\":1}\n```")},
		{"format text says nothing", `{"messages":[],"response_format":{"type":"text"},` + bare + `}`, ""},
		{"the order of the parts", `{"messages":[{"role":"user","content":"u"}],"tools":[{}],"tool_choice":"none","response_format":{"type":"json_object"},"thinking_effort":"low"}`,
			system("tool-declare", "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n[{}]\n```") +
				system("thinking-effort", "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=low`.") +
				"‹message| role|=\"|user|\"~u›message~¶\n" +
				system("tool-choice", "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.") +
				system("response-format", "The system is invoked with `response_format=json_object`.\nYour response must be raw JSON data without markdown code blocks (```json) or any additional formatting.") +
				`‹message| role|="|assistant|"~‹think~`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := render(t, c.request); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	message := func(m string) string { return `{"messages":[{"role":"user","content":""},` + m + `]}` }
	for request, field := range map[string]string{
		``:                                     "JSON",
		`[]`:                                   "object",
		`{"messages":[]} x`:                    "invalid character",
		"{\"messages\":[],\"x\":\"\xff\"}":     "UTF-8",
		`{}`:                                   "messages",
		`{"Messages":[]}`:                      "messages",
		`{"messages":{}}`:                      "messages",
		message(`null`):                        "messages[1]",
		message(`{"content":""}`):              "messages[1].role",
		message(`{"role":"bot"}`):              "messages[1].role",
		message(`{"role":{}}`):                 "messages[1].role",
		message(`{"role":"user","content":1}`): "messages[1].content",
		message(`{"role":"user","content":["x"]}`):                                              "messages[1].content[0]",
		message(`{"role":"user","content":[{"type":"input_audio"}]}`):                           "messages[1].content[0]",
		message(`{"role":"user","name":1}`):                                                     "messages[1].name",
		message(`{"role":"system","tools":{}}`):                                                 "messages[1].tools",
		message(`{"role":"assistant","reasoning":[]}`):                                          "messages[1].reasoning",
		message(`{"role":"assistant","tool_calls":{}}`):                                         "messages[1].tool_calls",
		message(`{"role":"assistant","tool_calls":[1]}`):                                        "messages[1].tool_calls[0]",
		message(`{"role":"assistant","tool_calls":[{"function":{}}]}`):                          "messages[1].tool_calls[0].function.name",
		message(`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[]}}]}`): "messages[1].tool_calls[0].function.arguments",
		message(`{"role":"assistant","tool_calls":[{"id":1,"function":{"name":"f"}}]}`):         "messages[1].tool_calls[0].id",
		message(`{"role":"tool","content":"x"}`):                                                "messages[1]",
		`{"messages":[],"tools":{}}`:                                                            "tools",
		`{"messages":[],"tools":[1]}`:                                                           "tools[0]",
		`{"messages":[],"tool_choice":"any"}`:                                                   "tool_choice",
		`{"messages":[],"tool_choice":{"type":"function"}}`:                                     "tool_choice",
		`{"messages":[],"tool_choice":1}`:                                                       "tool_choice",
		`{"messages":[],"response_format":{"type":"xml"}}`:                                      "response_format",
		`{"messages":[],"response_format":7}`:                                                   "response_format",
		`{"messages":[],"response_format":{"type":"json_schema"}}`:                              "response_format.json_schema",
		`{"messages":[],"thinking":"yes"}`:                                                      "thinking",
		`{"messages":[],"add_generation_prompt":1}`:                                             "add_generation_prompt",
		`{"messages":[],"thinking_effort":"medium"}`:                                            "thinking_effort",
		`{"messages":[],"thinking_effort":2}`:                                                   "thinking_effort",
		`{"messages":[],"image_prompts":["x"]}`:                                                 "image_prompts",
		`{"messages":[{"role":"user","content":[{"type":"image"}]}],"image_prompts":[]}`:        "image_prompts",
		`{"messages":[],"image_prompts":[1]}`:                                                   "image_prompts[0]",
		`{"messages":[],"x":` + strings.Repeat("[", 200000) + strings.Repeat("]", 200000) + `}`: "depth",
	} {
		r, err := ParseRequest([]byte(request))
		if err == nil {
			_, err = Render(r)
		}
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), field) {
			t.Errorf("%.200s: got %v, want %q", request, err, field)
		}
	}
}

func TestUser(t *testing.T) {
	for thinking, want := range map[bool]string{
		true:  "thinking_effort=max`.›message~¶\n‹message| role|=\"|user|\"~Hi <|sep|>›message~¶\n‹message| role|=\"|assistant|\"~‹think~",
		false: "‹message| role|=\"|user|\"~Hi <|sep|>›message~¶\n‹message| role|=\"|assistant|\"~‹response~",
	} {
		segments, err := Render(User("Hi <|sep|>", thinking))
		if err != nil || !strings.HasSuffix(spell(segments), want) || !thinking && spell(segments) != want {
			t.Errorf("%v: %v, %v", thinking, spell(segments), err)
		}
	}
}

func TestAPartialMessageTakesThePlaceOfTheGenerationPrompt(t *testing.T) {
	const opening = `‹message| role|="|assistant|"~`
	for _, c := range []struct {
		name     string
		begun    Message
		thinking bool
		want     string
		thinks   bool // what comes next
	}{
		{"reasoning", Message{Reasoning: "r"}, true, opening + "‹think~r", true},
		{"content", Message{Content: Text("c")}, true, opening + "‹response~c", false},
		{"both", Message{Reasoning: "r", Content: Text("c")}, true, opening + "‹think~r›think~‹response~c", false},
		{"neither", Message{}, true, opening + "‹response~", false},
		{"reasoning though thinking is off", Message{Reasoning: "r"}, false, opening + "‹think~r", true},
		{"a name", Message{Name: "n", Content: Text("c")}, false, `‹message| role|="|assistant|"| name|="|n|"~‹response~c`, false},
	} {
		c.begun.Role = "assistant"
		r := Request{Messages: []Message{{Role: "user", Content: Text("q")}, c.begun}, Thinking: c.thinking, ToolChoice: "none",
			AddGenerationPrompt: true, Partial: true}
		segments, err := Render(r)
		got := spell(segments)
		if err != nil || !strings.HasSuffix(got, "next message.›message~¶\n"+c.want) || strings.Count(got, opening[:len(opening)-1]) != 1 {
			t.Errorf("%s: got %s, %v", c.name, got, err)
		}
		if r.StartsThinking() != c.thinks {
			t.Errorf("%s: thinks next: %v", c.name, !c.thinks)
		}
	}
	for _, m := range [][]Message{nil, {{Role: "user"}}, {{Role: "assistant", ToolCalls: []ToolCall{{Name: "f"}}}}} {
		if _, err := Render(Request{Messages: m, Partial: true}); !errors.Is(err, ErrRequest) {
			t.Errorf("%v: got %v", m, err)
		}
	}
}

func TestFormatArgumentsWritesLikeTheReference(t *testing.T) {
	got, err := FormatArguments(json.RawMessage(`{"b":[1,2.50],"a":{"x":"\u00e9"}}`))
	if want := `{"b": [1, 2.5], "a": {"x": "é"}}`; got != want || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := FormatArguments(json.RawMessage(`{`)); !errors.Is(err, ErrRequest) {
		t.Error(err)
	}
}

func TestATokenizerWithoutMarkupIsRefused(t *testing.T) {
	tok, err := tokenizer.Load(noConfig{disk.Dir("../../presets/demo/checkpoint")})
	if err != nil {
		t.Fatal(err)
	}
	segments, _ := Render(User("x", false))
	if ids, err := Encode(tok, segments); !errors.Is(err, ErrNoMarkup) {
		t.Errorf("got %v, %v", ids, err)
	}
}

type noConfig struct{ disk.Files }

func (n noConfig) Open(name string) (disk.File, error) {
	if name == "tokenizer_config.json" {
		return nil, fs.ErrNotExist
	}
	return n.Files.Open(name)
}
