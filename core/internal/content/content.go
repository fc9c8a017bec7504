// Package content recognises what is in a file in place of what ought to be there: downloads leave pointers, pages and
// messages under the names of models' files.
package content

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Head is how many bytes of a file's beginning are enough for Recognise.
const Head = 512

// kinds are beginnings of files, after white space and in small letters, and what they tell.
var kinds = []struct{ begin, what string }{
	{"version https://git-lfs.github.com/", "a git-lfs pointer, not the file itself (git lfs pull fetches that)"},
	{"gguf", "GGUF, which k3 does not read"},
	{"<!doctype", "a web page, not the file itself"},
	{"<html", "a web page, not the file itself"},
	{"<?xml", "an XML message, not the file itself"},
	{"pk\x03\x04", "a zip archive or a PyTorch file, which k3 does not read"},
	{"\x80\x02", "a Python pickle, which k3 does not read"},
	{"\x1f\x8b", "compressed by gzip: unpack it"},
	{"\xef\xbb\xbf", "text with a byte order mark (BOM): save it as UTF-8 without one"},
	{"\xff\xfe", "UTF-16 text: save it as UTF-8"},
	{"\xfe\xff", "UTF-16 text: save it as UTF-8"},
	{"{\x00", "UTF-16 text: save it as UTF-8"},
	{"\x00{", "UTF-16 text: save it as UTF-8"},
}

// messages are beginnings of what hubs answer in place of a file, in small letters.
var messages = []string{
	"entry not found", "not found", "repository not found", "revision not found", "access to model", "access denied",
	"forbidden", "unauthorized", "invalid username", "invalid credentials", "404", "403", "401", "internal server error",
	"bad gateway", "service unavailable", "too many requests", "rate limit",
}

// Recognise says what begins with head, the first Head bytes of a file or all of a shorter one: words that go on after
// "this is". It gives "" for what it does not know.
func Recognise(head []byte) string {
	text := bytes.TrimLeft(head, " \t\r\n")
	small := lower(text[:min(len(text), 64)])
	for _, k := range kinds {
		if strings.HasPrefix(small, k.begin) {
			return k.what
		}
	}
	for _, m := range messages {
		if strings.HasPrefix(small, m) && utf8.Valid(text) {
			return message(string(text))
		}
	}
	if strings.HasPrefix(small, `{`) {
		var answer struct {
			Error any `json:"error"`
		}
		if json.Unmarshal(text, &answer) == nil {
			if said, ok := answer.Error.(string); ok && said != "" {
				return message(said)
			}
		}
	}
	return ""
}

// lower makes letters of ASCII small and leaves all other bytes alone, UTF-8 or not.
func lower(text []byte) string {
	small := bytes.Clone(text)
	for i, c := range small {
		if 'A' <= c && c <= 'Z' {
			small[i] = c + 'a' - 'A'
		}
	}
	return string(small)
}

// message quotes what a hub said.
func message(said string) string {
	const most = 120
	said, _, _ = strings.Cut(strings.TrimSpace(said), "\n")
	if len(said) > most {
		said = strings.ToValidUTF8(said[:most], "") + "..."
	}
	return "a message of the hub, not the file itself: " + strconv.Quote(said)
}
