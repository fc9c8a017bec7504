// Package tokenizer turns text into token ids and back: Kimi's split pattern, byte-pair merging over a tiktoken.model, and the
// added tokens of tokenizer_config.json.
package tokenizer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/k3infer/k3/core/disk"
)

var (
	// ErrFormat says that a tokenizer file is damaged; the message names the file and the line or field.
	ErrFormat = errors.New("not a valid tokenizer file")
	// ErrInvalidUTF8 says that text to encode is no UTF-8; the message has the offset of the first bad byte.
	ErrInvalidUTF8 = errors.New("not valid UTF-8")
	// ErrUnknownID says that an id is not in the vocabulary.
	ErrUnknownID = errors.New("no such token id")
)

// reserved is how many ids after the ranks belong to the tokenizer, whether tokenizer_config.json names them or not.
const reserved = 256

// Tokenizer encodes and decodes text. It does not change after Load and may be used by several goroutines.
type Tokenizer struct {
	vocabulary *vocabulary
	contents   map[int]string // added tokens
	ids        map[string]int // their contents, back to ids
	byFirst    [256][]string  // the contents by their first byte, longest first
	vocab      int
	bos, eos   int // -1 if there is none
	limits     limits
}

// FileError says which file an error of Load is about.
type FileError struct {
	File string
	Err  error
}

func (e *FileError) Error() string { return e.Err.Error() }

// Unwrap gives the error.
func (e *FileError) Unwrap() error { return e.Err }

const ranksFile, jsonFile, configFile = "tiktoken.model", "tokenizer.json", "tokenizer_config.json"

// Names are the files that have the ranks, of which Load needs one.
var Names = []string{ranksFile, jsonFile}

// Load reads tiktoken.model and tokenizer_config.json. Without the latter, which a directory with nothing but ranks may lack,
// all ids after the ranks are reserved ones and there is no EOS. What they do not have, the ranks or the added tokens, comes
// from tokenizer.json, where it can be had exactly. Damaged files give an error that matches ErrFormat and names the file and
// the line or field; without ranks it matches fs.ErrNotExist. Any other error is a *FileError.
func Load(files disk.Files) (*Tokenizer, error) {
	fail := func(file string, err error) (*Tokenizer, error) {
		return nil, &FileError{file, fmt.Errorf("tokenizer: load %s in %s: %w", file, files.Name(), err)}
	}
	t := &Tokenizer{bos: -1, eos: -1, limits: reference}
	var more *tokenizerJSON // nil as long as nothing of it is needed
	data, err := disk.ReadAll(files, ranksFile, 256<<20)
	switch {
	case err == nil:
		if t.vocabulary, err = parseVocabulary(data); err != nil {
			return fail(ranksFile, instead(data, err))
		}
	case errors.Is(err, fs.ErrNotExist):
		more, err = loadJSON(files, true)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("tokenizer: load: neither %s nor %s: %w", ranksFile, jsonFile, err)
		}
		if err != nil {
			return fail(jsonFile, err)
		}
		t.vocabulary = more.vocabulary
	default:
		return nil, &FileError{ranksFile, fmt.Errorf("tokenizer: load: %w", err)}
	}
	var c config
	switch data, err = disk.ReadAll(files, configFile, 64<<20); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, &FileError{configFile, fmt.Errorf("tokenizer: load: %w", err)}
	default:
		if c, err = parseConfig(data, t.vocabulary.size()); err != nil {
			return fail(configFile, instead(data, err))
		}
	}
	if len(c.contents) == 0 && len(c.named) > 0 || more != nil && len(c.contents) == 0 {
		if more == nil {
			more, err = loadJSON(files, false)
		}
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist):
		default:
			return fail(jsonFile, err)
		}
		if c.contents, err = addedTokens(more, c.named, t.vocabulary.size()); err != nil {
			return fail(configFile, err)
		}
	}
	t.contents, t.ids = c.contents, make(map[string]int, len(c.contents))
	t.vocab = t.vocabulary.size() + reserved
	for id, content := range c.contents {
		t.ids[content] = id
		t.vocab = max(t.vocab, id+1)
		t.byFirst[content[0]] = append(t.byFirst[content[0]], content)
	}
	for _, contents := range t.byFirst {
		sort.Slice(contents, func(i, j int) bool { return len(contents[i]) > len(contents[j]) })
	}
	for _, named := range []struct {
		field, content string
		id             *int
	}{{"bos_token", c.bos, &t.bos}, {"eos_token", c.eos, &t.eos}} {
		if named.content == "" {
			continue
		}
		id, ok := t.Special(named.content)
		if !ok {
			among := "among the added tokens"
			if len(c.contents) == 0 {
				among = "an added token: there is neither an added_tokens_decoder nor a " + jsonFile + " that has any"
			}
			return fail(configFile, fmt.Errorf("%w: %s: %q is not %s", ErrFormat, named.field, named.content, among))
		}
		*named.id = id
	}
	return t, nil
}

// Vocab returns the number of ids the tokenizer knows: ranks, then 256 added or reserved ids, more if the configuration names
// higher ones. A model may have rows beyond them.
func (t *Tokenizer) Vocab() int { return t.vocab }

// Ranks returns the number of ordinary tokens; ids from there on are added or reserved ones.
func (t *Tokenizer) Ranks() int { return t.vocabulary.size() }

// EOS returns the id of tokenizer_config.json's eos_token.
func (t *Tokenizer) EOS() (id int, ok bool) { return t.eos, t.eos >= 0 }

// BOS returns the id of tokenizer_config.json's bos_token. The chat markup does not use it.
func (t *Tokenizer) BOS() (id int, ok bool) { return t.bos, t.bos >= 0 }

// Special returns the id of the added token with that content, "<|open|>" for one, or of a reserved one by its
// "<|reserved_token_ID|>".
func (t *Tokenizer) Special(content string) (id int, ok bool) {
	if id, ok := t.ids[content]; ok {
		return id, true
	}
	if id, size := t.reservedAt(content); size > 0 && size == len(content) {
		return id, true
	}
	return 0, false
}

const reservedPrefix, reservedSuffix = "<|reserved_token_", "|>"

// reservedAt returns the id and length of the reserved token's content at the start of s; the length is 0 if there is none.
func (t *Tokenizer) reservedAt(s string) (id, size int) {
	rest, ok := strings.CutPrefix(s, reservedPrefix)
	if !ok {
		return 0, 0
	}
	digits, _, ok := strings.Cut(rest[:min(len(rest), 24)], reservedSuffix)
	id, err := strconv.Atoi(digits)
	if !ok || err != nil || strconv.Itoa(id) != digits || id < t.Ranks() || id >= t.vocab || t.contents[id] != "" {
		return 0, 0
	}
	return id, len(reservedPrefix) + len(digits) + len(reservedSuffix)
}

// specialAt returns the id and length of the longest added or reserved token's content at the start of s, length 0 for none.
func (t *Tokenizer) specialAt(s string) (id, size int) {
	for _, content := range t.byFirst[s[0]] {
		if strings.HasPrefix(s, content) {
			return t.ids[content], len(content)
		}
	}
	return t.reservedAt(s)
}

// Encode returns the ids of text. The contents of added tokens are ordinary text: nothing a user types becomes one. Text that
// is not UTF-8 gives an error that matches ErrInvalidUTF8 and has the byte offset.
func (t *Tokenizer) Encode(text string) ([]int, error) {
	var ids []int
	var m merger
	err := t.pieces("encode", text, func(piece string) { ids = m.appendIDs(ids, t.vocabulary, piece) })
	return ids, err
}

// EncodeSpecial is Encode, but the contents of added and reserved tokens become their ids. As in the reference, text is cut into
// chunks first, so a content across the border of two chunks is ordinary text.
func (t *Tokenizer) EncodeSpecial(text string) ([]int, error) {
	if err := checkUTF8("encode", text); err != nil {
		return nil, err
	}
	var ids []int
	var m merger
	t.limits.cut(text, func(part string) {
		start := 0
		ordinary := func(end int) {
			split(part[start:end], func(piece string) { ids = m.appendIDs(ids, t.vocabulary, piece) })
		}
		for i := 0; i < len(part); {
			id, size := t.specialAt(part[i:])
			if size == 0 {
				i++
				continue
			}
			ordinary(i)
			ids = append(ids, id)
			i += size
			start = i
		}
		ordinary(len(part))
	})
	return ids, nil
}

// Longest returns how many bytes of text a token stands for at most.
func (t *Tokenizer) Longest() int { return t.vocabulary.longest }

// Chunks reads a text and calls each with its parts, none of them long, whose ids after each other are those of the whole: Encode
// cuts a text there. It ends at the first error of r or of each. Text that is not UTF-8 gives an error that matches ErrInvalidUTF8.
func (t *Tokenizer) Chunks(r io.Reader, each func(part string) error) error {
	in := bufio.NewReaderSize(r, 1<<16)
	var part []byte
	chars, off := 0, 0
	flush := func() error {
		text := string(part)
		part, chars = part[:0], 0
		return each(text)
	}
	for {
		c, size, err := in.ReadRune()
		if err == io.EOF {
			if chars == 0 {
				return nil
			}
			return flush()
		}
		if err != nil {
			return err
		}
		if c == utf8.RuneError && size == 1 {
			in.UnreadRune()
			b, _ := in.ReadByte()
			return fmt.Errorf("%w: byte %d is 0x%02X", ErrInvalidUTF8, off, b)
		}
		if chars == t.limits.chars {
			if err := flush(); err != nil {
				return err
			}
		}
		part = utf8.AppendRune(part, c)
		chars, off = chars+1, off+size
	}
}

// Pieces returns the pieces that text is split into before merging; together they are the text.
func (t *Tokenizer) Pieces(text string) ([]string, error) {
	var pieces []string
	err := t.pieces("split", text, func(piece string) { pieces = append(pieces, piece) })
	return pieces, err
}

func (t *Tokenizer) pieces(verb, text string, each func(string)) error {
	if err := checkUTF8(verb, text); err != nil {
		return err
	}
	t.limits.cut(text, func(part string) { split(part, each) })
	return nil
}

func split(s string, each func(string)) {
	for len(s) > 0 {
		end := pieceEnd(s)
		each(s[:end])
		s = s[end:]
	}
}

func checkUTF8(verb, text string) error {
	if utf8.ValidString(text) {
		return nil
	}
	for i, r := range text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				return fmt.Errorf("tokenizer: %s text: %w at byte %d", verb, ErrInvalidUTF8, i)
			}
		}
	}
	panic("unreachable")
}

// bytesOf returns what an id stands for, nil below 0. Every id from the ranks on that has no content of its own is a reserved one.
func (t *Tokenizer) bytesOf(id int) []byte {
	if id < 0 {
		return nil
	}
	if id < t.Ranks() {
		return t.vocabulary.token(id)
	}
	if content := t.contents[id]; content != "" {
		return []byte(content)
	}
	return fmt.Appendf(nil, "%s%d%s", reservedPrefix, id, reservedSuffix)
}

// Decode returns the bytes of ids, which are UTF-8 only if the ids end at the end of a character. An id outside the vocabulary
// gives an error that matches ErrUnknownID.
func (t *Tokenizer) Decode(ids []int) ([]byte, error) {
	var out []byte
	for i, id := range ids {
		if id < 0 || id >= t.vocab {
			return nil, fmt.Errorf("tokenizer: decode id %d at position %d: %w: the vocabulary has %d", id, i, ErrUnknownID, t.vocab)
		}
		out = append(out, t.bytesOf(id)...)
	}
	return out, nil
}
