package tokenizer

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"strconv"
)

// vocabulary maps the byte strings of the ordinary tokens to their ranks and back. The 163,584 of the released one take under
// 3 MB: all bytes in one arena, and an open-addressing table of 4-byte entries instead of a map of strings.
type vocabulary struct {
	arena   []byte
	ends    []uint32 // ends[rank] is the end in arena of the token, which begins at the end of the one before
	longest int      // bytes
	seed    maphash.Seed
	table   []uint32 // a power of two; rank+1 in the low rankBits bits, above them bits of the hash; 0 is free
	// rankBits is chosen so that what is left of an entry tells most foreign strings apart without looking at the arena.
	rankBits int
}

const none = ^uint32(0) // no rank

func (v *vocabulary) size() int { return len(v.ends) }

func (v *vocabulary) token(rank int) []byte {
	start := uint32(0)
	if rank > 0 {
		start = v.ends[rank-1]
	}
	return v.arena[start:v.ends[rank]:v.ends[rank]]
}

// rank returns the rank of s, or none.
func (v *vocabulary) rank(s string) uint32 {
	if len(s) > v.longest {
		return none
	}
	rank, _, _ := v.find(s)
	return rank
}

// insert enters the token of rank into the table, unless its bytes are there already.
func (v *vocabulary) insert(rank int) bool {
	found, slot, tag := v.find(string(v.token(rank)))
	if found != none {
		return false
	}
	v.table[slot] = tag | uint32(rank+1)
	return true
}

// find returns the rank of s; or none, the slot of the table where it belongs and the hash bits of its entry.
func (v *vocabulary) find(s string) (rank uint32, slot int, tag uint32) {
	hash := maphash.String(v.seed, s)
	mask := uint32(len(v.table) - 1)
	tag = uint32(hash>>32) >> v.rankBits << v.rankBits
	for i := uint32(hash) & mask; ; i = (i + 1) & mask {
		entry := v.table[i]
		if entry == 0 {
			return none, int(i), tag
		}
		if entry>>v.rankBits<<v.rankBits == tag {
			if rank := entry - tag - 1; string(v.token(int(rank))) == s {
				return rank, int(i), tag
			}
		}
	}
}

// parseVocabulary reads tiktoken.model: lines of base64(bytes), space, rank, in any order; blank lines and CRLF are fine. The
// ranks must be 0..n-1 and the tokens distinct, all single bytes among them.
func parseVocabulary(data []byte) (*vocabulary, error) {
	at := func(line int, format string, args ...any) error {
		return fmt.Errorf("%w: line %d: %s", ErrFormat, line, fmt.Sprintf(format, args...))
	}
	// First the ranks: which line has which. A rank costs a line of at least 7 bytes ("IQ== 0\n").
	type place struct{ start, end, line uint32 }
	places := make([]place, 0, bytes.Count(data, []byte("\n"))+1)
	ranks := make([]uint32, 0, cap(places))
	for start, line := 0, 1; start < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[start:], '\n'); i >= 0 {
			end = start + i
		}
		text := bytes.TrimRight(data[start:end], " \t\r")
		if len(text) > 0 {
			token, digits, ok := bytes.Cut(text, []byte(" "))
			rank, err := strconv.ParseUint(string(digits), 10, 32)
			if !ok || err != nil {
				return nil, at(line, "not base64, a space and a rank: %.40q", text)
			}
			places = append(places, place{uint32(start), uint32(start + len(token)), uint32(line)})
			ranks = append(ranks, uint32(rank))
		}
		start = end + 1
	}
	n := len(ranks)
	if n == 0 {
		return nil, fmt.Errorf("%w: no tokens", ErrFormat)
	}
	order := make([]uint32, n) // rank to index of its line, plus one
	for i, rank := range ranks {
		if int(rank) >= n {
			return nil, at(int(places[i].line), "rank %d of only %d tokens (too large, or another is missing)", rank, n)
		}
		if other := order[rank]; other > 0 {
			return nil, at(int(places[i].line), "rank %d again, line %d has it", rank, places[other-1].line)
		}
		order[rank] = uint32(i) + 1
	}
	// n different ranks below n: none is missing.

	v := newVocabulary(n, len(data)*3/4)
	var token []byte
	for _, i := range order {
		p := places[i-1]
		encoded := data[p.start:p.end]
		var err error
		if bytes.IndexByte(encoded, '\r') >= 0 { // the decoder skips these
			err = errors.New("carriage return inside")
		} else {
			token, err = base64.StdEncoding.Strict().AppendDecode(token[:0], encoded)
		}
		switch {
		case err != nil:
			return nil, at(int(p.line), "bad base64: %v", err)
		case len(token) == 0:
			return nil, at(int(p.line), "empty token")
		}
		if !v.add(token) {
			return nil, at(int(p.line), "token %.40q again, line %d has it", token, places[order[v.rank(string(token))]-1].line)
		}
	}
	return v, v.finish()
}

// newVocabulary has room for n tokens of so many bytes together, which add takes in the order of their ranks.
func newVocabulary(n, size int) *vocabulary {
	return &vocabulary{
		arena:    make([]byte, 0, size),
		ends:     make([]uint32, 0, n),
		seed:     maphash.MakeSeed(),
		table:    make([]uint32, 1<<bits.Len(uint(n+n/4))),
		rankBits: bits.Len(uint(n)),
	}
}

// add gives a token the next rank, unless it has one already.
func (v *vocabulary) add(token []byte) bool {
	v.arena = append(v.arena, token...)
	v.ends = append(v.ends, uint32(len(v.arena)))
	if !v.insert(len(v.ends) - 1) {
		return false
	}
	v.longest = max(v.longest, len(token))
	return true
}

// finish checks that there is a token for each single byte.
func (v *vocabulary) finish() error {
	v.arena = bytes.Clone(v.arena)
	for b := range 256 {
		if v.rank(string([]byte{byte(b)})) == none {
			return fmt.Errorf("%w: the single byte 0x%02x has no token", ErrFormat, b)
		}
	}
	return nil
}
