package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// config is what tokenizer_config.json says about added tokens; the rest of the file does not concern ids.
type config struct {
	contents map[int]string
	bos, eos string // contents, "" for none
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
			c.bos, err = content(d, key, true)
		case "eos_token":
			c.eos, err = content(d, key, true)
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
				text, err := content(d, field, false)
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
	return c, err
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

// content reads an added token: an object with its content, or, where the format allows it, just the content or null.
func content(d *json.Decoder, field string, short bool) (string, error) {
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
