package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/k3infer/k3/core/internal/content"
)

// config is what tokenizer_config.json says about added tokens; the rest of the file does not concern ids.
type config struct {
	contents map[int]string
	bos, eos string   // contents, "" for none
	named    []string // contents of all tokens that are named apart from contents, such as these
}

// parseConfig reads tokenizer_config.json for a vocabulary of that many ranks. Two values for one key, which encoding/json would
// settle silently, are refused, so objects are read token by token.
func parseConfig(data []byte, ranks int) (config, error) {
	c := config{contents: map[int]string{}}
	if !utf8.Valid(data) || !json.Valid(data) {
		return c, fmt.Errorf("%w: %v", ErrFormat, jsonError(data))
	}
	d := json.NewDecoder(bytes.NewReader(data))
	owners := map[string]int{}
	err := object(d, "the file", func(key string) (err error) {
		switch key {
		case "bos_token":
			c.bos, err = contentOf(d, key, true)
		case "eos_token":
			c.eos, err = contentOf(d, key, true)
		case "pad_token", "unk_token", "extra_special_tokens", "additional_special_tokens":
			var value any
			err = d.Decode(&value)
			c.name(value)
		case "added_tokens_decoder":
			return object(d, key, func(name string) error {
				field := fmt.Sprintf("%s[%q]", key, name)
				id, err := strconv.Atoi(name)
				switch {
				case err != nil || strconv.Itoa(id) != name:
					return fmt.Errorf("%w: %s: the key is no id", ErrFormat, field)
				case id < ranks:
					return fmt.Errorf("%w: %s: the id is inside the %d ranks", ErrFormat, field, ranks)
				case id >= math.MaxInt32:
					return fmt.Errorf("%w: %s: the id is too large", ErrFormat, field)
				}
				text, err := contentOf(d, field, false)
				if err != nil {
					return err
				}
				if other, ok := owners[text]; ok {
					return fmt.Errorf("%w: %s: content %q again, id %d has it", ErrFormat, field, text, other)
				}
				owners[text], c.contents[id] = id, text
				return nil
			})
		default:
			return skip(d)
		}
		return err
	})
	c.name([]any{c.bos, c.eos})
	return c, err
}

// name notes the contents in a value: one, a list of them, or an object with them, each a text or an object that has it.
func (c *config) name(value any) {
	switch v := value.(type) {
	case string:
		if v != "" && !slices.Contains(c.named, v) {
			c.named = append(c.named, v)
		}
	case []any:
		for _, x := range v {
			c.name(x)
		}
	case map[string]any:
		if x, ok := v["content"]; ok {
			c.name(x)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			c.name(v[key])
		}
	}
}

// releasedIDs are the ids of named tokens after the ranks of the released vocabulary.
var releasedIDs = map[string]int{
	"[BOS]": 163584, "[EOS]": 163585, "<|end_of_msg|>": 163586, "<|open|>": 163587, "<|close|>": 163588, "<|sep|>": 163589,
	"[start_header_id]": 163590, "[end_header_id]": 163591, "[EOT]": 163593, "<|media_begin|>": 163602, "<|media_content|>": 163603,
	"<|media_end|>": 163604, "<|media_pad|>": 163605, "<osagent_mode>": 163649, "[UNK]": 163838, "[PAD]": 163839,
}

// addedTokens are the added tokens where tokenizer_config.json only names some, as transformers 5 leaves it: tokenizer.json has
// them all. Without one, which is what more being nil says, they are known if they are all of the released vocabulary.
func addedTokens(more *tokenizerJSON, named []string, ranks int) (map[int]string, error) {
	if more != nil {
		for id, text := range more.added {
			if id < ranks {
				return nil, fmt.Errorf("%w: %s: the added token %.40q has the id %d, inside the %d ranks", ErrFormat, jsonFile, text, id, ranks)
			}
		}
		return more.added, nil
	}
	contents := map[int]string{}
	for _, text := range named {
		id, ok := releasedIDs[text]
		if !ok || ranks != releasedIDs["[BOS]"] {
			return nil, nil
		}
		contents[id] = text
	}
	return contents, nil
}

// instead is the error of reading data, or what data is in place of what it should be.
func instead(data []byte, err error) error {
	if what := content.Recognise(data[:min(len(data), content.Head)]); what != "" {
		return fmt.Errorf("%w: this is %s", ErrFormat, what)
	}
	return err
}

// jsonError says where data, which is not valid JSON in UTF-8, goes wrong.
func jsonError(data []byte) error {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	return ErrInvalidUTF8
}

// object reads an object, calling each at the value of each key, which it must read. A key that occurs twice is an error.
func object(d *json.Decoder, field string, each func(key string) error) error {
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return fmt.Errorf("%w: %s: not an object", ErrFormat, field)
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return fmt.Errorf("%w: %s: %v", ErrFormat, field, err)
		}
		key := token.(string)
		if seen[key] {
			return fmt.Errorf("%w: %s: key %q twice", ErrFormat, field, key)
		}
		seen[key] = true
		if err := each(key); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// contentOf reads an added token: an object with its content, or, where the format allows it, just the content or null.
func contentOf(d *json.Decoder, field string, short bool) (string, error) {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return "", fmt.Errorf("%w: %s: %v", ErrFormat, field, err)
	}
	inner := json.NewDecoder(bytes.NewReader(raw))
	text, found := "", false
	read := func(key string) error {
		token, err := inner.Token()
		if text, found = token.(string); err != nil || !found || text == "" {
			return fmt.Errorf("%w: %s: %s is not a string with something in it", ErrFormat, field, key)
		}
		return nil
	}
	switch {
	case short && string(raw) == "null":
		return "", nil
	case short && raw[0] == '"':
		err := read("the value")
		return text, err
	}
	err := object(inner, field, func(key string) error {
		if key == "content" {
			return read(key)
		}
		return skip(inner)
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: %s: no content", ErrFormat, field)
	}
	return text, err
}

// skip reads one value and forgets it.
func skip(d *json.Decoder) error {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return fmt.Errorf("%w: %v", ErrFormat, err)
	}
	return nil
}
