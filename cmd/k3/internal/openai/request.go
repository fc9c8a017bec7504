package openai

import (
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/sample"
)

// Endpoint is which of the API's ways to ask for text a body is for, named by its path.
type Endpoint string

// The endpoints that Decode knows.
const (
	ChatCompletions Endpoint = "/v1/chat/completions"
	Completions     Endpoint = "/v1/completions"
)

// Options are what Decode has to know of the model and of whoever serves it. The zero value will do for one text a request.
type Options struct {
	Model    string        // the name of the model in answers; "" is kimi-k3
	Aliases  []string      // further names by which a request may ask for it
	AnyModel bool          // whatever a request calls the model
	Sample   sample.Params // where a request says nothing; Seed is left out
	Effort   string        // of thinking where a request says nothing: none, low, high or max; "" is chat.DefaultEffort
	// MaxTokens is how long a reply of chat completions may become where a request says nothing; 0 leaves Request.MaxTokens 0.
	MaxTokens int
	Choices   int // most texts that one request may ask for with n; 0 is 1
	Vocab     int // ids of prompts must be below it; 0 does not check them
}

// Request is what a body asks for, checked. Nothing in it refers to the body's memory.
type Request struct {
	Endpoint Endpoint
	Model    string // Options.Model

	// Chat is the conversation of chat completions, ready for chat.Render.
	Chat chat.Request
	// Prompts are the texts to continue of completions; there is at least one, and none is empty.
	Prompts []Prompt
	// FirstCall is the number that the id of the reply's first call ends with: calls are counted over the conversation.
	FirstCall int

	Sample sample.Params // Seed is the request's, if Seeded
	Seeded bool
	// MaxTokens is how long each reply may become, in tokens. It is 0 if neither the request nor Options say, and where only
	// the prompt's own log-probabilities are wanted, which then has Echo.
	MaxTokens      int
	MaxTokensField string // the field that said so: "max_tokens", "max_completion_tokens" or ""
	Stop           []string
	N              int // replies to each prompt, at least 1

	Logprobs    bool // of the tokens chosen
	TopLogprobs int  // most probable tokens to list beside each, up to 20
	Echo        bool // completions: the prompt comes first in the text

	// ForcedTool is the function that tool_choice names, which the reply must call; "" for none. Chat.ToolChoice does not have it.
	ForcedTool string
	SingleCall bool // parallel_tool_calls is false: the reply ends after its first call
	Format     Format

	Prediction string // text that the reply probably resembles: a draft
	User       string // who asks, as the client calls them
	Background bool   // nobody waits for it, such as for the titles that clients have made

	Stream bool
	// IncludeUsage, IncludeInternalContent and Progress are the stream_options of these names; the last is k3_progress.
	IncludeUsage, IncludeInternalContent, Progress bool
}

// Prompt is a text to continue: ids, or text if there are none.
type Prompt struct {
	Text string
	IDs  []int
}

// FormatType is a response_format's type.
type FormatType string

// The types of response formats. FormatText is also what there is without one.
const (
	FormatText       FormatType = ""
	FormatJSONObject FormatType = "json_object"
	FormatJSONSchema FormatType = "json_schema"
)

// Format is what a reply's content must be. The model is told by Chat.ResponseFormat; this is for whoever guarantees it.
type Format struct {
	Type   FormatType
	Name   string
	Schema []byte // the JSON Schema of FormatJSONSchema, an object
	Strict bool   // the schema is to be obeyed to the letter; true unless the request says false
}

// PromptTokens returns how many of the ids of a prompt the API counts, as Moonshot's does: all but those of the tag that opens the
// reply's first section.
func (r *Request) PromptTokens(ids int) int {
	if r.Endpoint == ChatCompletions && !r.Chat.Partial {
		const tag = 3 // <|open|>think<|sep|> or <|open|>response<|sep|>
		return ids - tag
	}
	return ids
}
