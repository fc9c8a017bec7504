package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/content"
	"github.com/k3infer/k3/core/internal/strictjson"
)

// maxJSON is the size above which a tokenizer.json cannot be one: with all merges, the released vocabulary makes 20 MB.
const maxJSON = 256 << 20

const notRanks = "the ids are not ranks, which cannot be recovered"

// tokenizerJSON is what a tokenizer.json has that concerns ids.
type tokenizerJSON struct {
	vocabulary *vocabulary    // nil if it was not asked for
	added      map[int]string // contents of the added tokens
}

// loadJSON reads a tokenizer.json. Its model, if that is asked for, must be a byte-level BPE made from ranks: then the
// ids are the ranks, and the merges come in the order of the tokens they make.
func loadJSON(files disk.Files, withRanks bool) (*tokenizerJSON, error) {
	f, err := files.Open(jsonFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size() > maxJSON {
		return nil, fmt.Errorf("%w: %d bytes, more than such a file may have", ErrFormat, f.Size())
	}
	t := &tokenizerJSON{added: map[int]string{}}
	var all jsonTokens
	t.read(f, func(r *strictjson.Reader, key string) {
		switch {
		case key == "added_tokens":
			t.readAdded(r)
		case key == "model" && withRanks:
			all.read(r)
		case key == "pre_tokenizer" && withRanks:
			readPattern(r)
		default:
			r.Skip()
		}
	}, &err)
	if err != nil || !withRanks {
		return t, err
	}
	if t.vocabulary, err = all.vocabulary(t.added); err != nil {
		return nil, err
	}
	// The merges, which may come before the vocabulary, are read once more: nothing of them needs to be kept.
	merges, last := 0, uint32(0)
	t.read(f, func(r *strictjson.Reader, key string) {
		if key != "model" {
			r.Skip()
			return
		}
		r.Object(func(key []byte) {
			if string(key) != "merges" {
				r.Skip()
				return
			}
			r.Array(func() {
				merges++
				made := readMerge(r)
				rank := t.vocabulary.rank(string(made))
				switch {
				case r.Err() != nil:
				case rank == none:
					r.Fail("merge %d makes %.40q, which is no token", merges, made)
				case rank < last:
					r.Fail("merge %d makes token %d after one that makes token %d: %s", merges, rank, last, notRanks)
				}
				last = rank
			})
		})
	}, &err)
	if err == nil && merges == 0 {
		err = fmt.Errorf("%w: model.merges has no merges", ErrFormat)
	}
	return t, err
}

// read gives each the values of the file, one by one.
func (t *tokenizerJSON) read(f disk.File, each func(r *strictjson.Reader, key string), err *error) {
	var r strictjson.Reader
	r.Reset(func(p []byte, off int64) error { return disk.ReadFull(f, p, off) }, 0, f.Size())
	var seen []string
	r.Object(func(key []byte) {
		name := string(key)
		if slices.Contains(seen, name) {
			r.Fail("the key %.40q a second time", name)
			return
		}
		seen = append(seen, name[:min(len(name), 64)])
		each(&r, name)
	})
	r.End()
	*err = r.Err()
	if syntax := (*strictjson.SyntaxError)(nil); errors.As(*err, &syntax) {
		*err = fmt.Errorf("%w: %v", ErrFormat, syntax)
		head := make([]byte, min(f.Size(), content.Head))
		if e := disk.ReadFull(f, head, 0); e == nil {
			if what := content.Recognise(head); what != "" {
				*err = fmt.Errorf("%w: this is %s", ErrFormat, what)
			}
		}
	}
}

func (t *tokenizerJSON) readAdded(r *strictjson.Reader) {
	owners := map[string]bool{}
	r.Array(func() {
		id, text := int64(-1), ""
		r.Object(func(key []byte) {
			switch string(key) {
			case "id":
				id = r.Size()
			case "content":
				text = string(r.Str())
			default:
				r.Skip()
			}
		})
		_, twice := t.added[int(id)]
		switch {
		case r.Err() != nil:
		case id < 0 || id >= math.MaxInt32 || text == "":
			r.Fail("an added token without an id or a content")
		case twice || owners[text]:
			r.Fail("added token %d, %.40q, a second time", id, text)
		}
		t.added[int(id)], owners[text] = text, true
	})
}

// readPattern refuses a pattern for splitting that is not Kimi's: the same ranks would give other ids. It goes by what
// all patterns of Kimi's have and no others do, since the pattern is spelled in several ways.
func readPattern(r *strictjson.Reader) {
	var look func()
	look = func() {
		switch r.Kind() {
		case strictjson.Object:
			r.Object(func(key []byte) {
				if string(key) == "Regex" && r.Kind() == strictjson.String {
					if pattern := r.Str(); !bytes.Contains(pattern, []byte(`\p{Han}`)) {
						r.Fail("the pattern of the pre_tokenizer, %.40q, is not Kimi's", pattern)
					}
					return
				}
				look()
			})
		case strictjson.Array:
			r.Array(look)
		default:
			r.Skip()
		}
	}
	look()
}

// readMerge gives the token that a merge makes, as bytes: it is written "a b" or ["a", "b"].
func readMerge(r *strictjson.Reader) []byte {
	var made []byte
	parts := 0
	part := func(text string) {
		parts++
		var ok bool
		if made, ok = appendBytes(made, text); !ok || text == "" {
			r.Fail("a merge of %.40q, which is not byte-level BPE", text)
		}
	}
	if r.Kind() == strictjson.String {
		for text := range strings.SplitSeq(string(r.Str()), " ") {
			part(text)
		}
	} else {
		r.Array(func() { part(string(r.Str())) })
	}
	if parts != 2 {
		r.Fail("a merge of %d tokens, not 2", parts)
	}
	return made
}

// jsonTokens are the tokens of model.vocab, in the order of the file.
type jsonTokens struct {
	arena []byte
	list  []jsonToken
	kind  string
}

type jsonToken struct {
	id, start, end uint32
	text           string // of one that is not byte-level BPE, as added tokens are
}

// read reads the model.
func (all *jsonTokens) read(r *strictjson.Reader) {
	all.kind = "BPE"
	r.Object(func(key []byte) {
		switch string(key) {
		case "type":
			if all.kind = string(r.Str()); all.kind != "BPE" {
				r.Fail("a model of the type %.40q, not BPE", all.kind)
			}
		case "vocab":
			r.Object(func(name []byte) {
				text := string(name)
				id := r.Size()
				t := jsonToken{id: uint32(id), start: uint32(len(all.arena))}
				var ok bool
				if all.arena, ok = appendBytes(all.arena, text); !ok {
					all.arena, t.text = all.arena[:t.start], text
				}
				t.end = uint32(len(all.arena))
				if id >= math.MaxInt32 || text == "" {
					r.Fail("token %.40q has the id %d", text, id)
				}
				all.list = append(all.list, t)
			})
		default:
			r.Skip()
		}
	})
}

// vocabulary puts the tokens, without the added ones among them, in the order of their ids, which must be all from 0
// on.
func (all *jsonTokens) vocabulary(added map[int]string) (*vocabulary, error) {
	list := slices.DeleteFunc(all.list, func(t jsonToken) bool {
		text, ok := added[int(t.id)]
		if encoded := string(all.arena[t.start:t.end]); t.text == "" {
			return ok && encoded == text
		}
		return ok && t.text == text
	})
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: model.vocab has no tokens", ErrFormat)
	}
	slices.SortFunc(list, func(a, b jsonToken) int { return int(a.id) - int(b.id) })
	v := newVocabulary(len(list), len(all.arena))
	for rank, t := range list {
		switch {
		case t.text != "":
			return nil, fmt.Errorf("%w: token %d, %.40q, is not byte-level BPE", ErrFormat, t.id, t.text)
		case int(t.id) != rank:
			return nil, fmt.Errorf("%w: token %d is in the place of %d: %s", ErrFormat, t.id, rank, notRanks)
		}
		if token := all.arena[t.start:t.end]; !v.add(token) {
			other := v.rank(string(token))
			return nil, fmt.Errorf("%w: token %d, %.40q, again: token %d has it", ErrFormat, rank, token, other)
		}
	}
	return v, v.finish()
}

// byteOf gives the byte that a character of byte-level BPE stands for: printable ones stand for themselves, the others,
// in order, are the characters from U+0100 on.
var byteOf = func() (table [0x144]int16) {
	next := 0x100
	for i := range table {
		table[i] = -1
	}
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			table[b] = int16(b)
		} else {
			table[next] = int16(b)
			next++
		}
	}
	return table
}()

// appendBytes appends the bytes that text stands for; it reports false for a text that is not byte-level BPE.
func appendBytes(dst []byte, text string) ([]byte, bool) {
	for _, c := range text {
		if int(c) >= len(byteOf) || byteOf[c] < 0 {
			return dst, false
		}
		dst = append(dst, byte(byteOf[c]))
	}
	return dst, true
}
