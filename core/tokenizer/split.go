package tokenizer

import (
	"sort"
	"unicode"
	"unicode/utf8"
)

// The classes of a character, in the order classes.go was generated with. han is the Script property; upper and lower are the
// two bracketed sets of the split pattern: {Lu Lt Lm Lo M} and {Ll Lm Lo M}, both without han.
const (
	han = 1 << iota
	upper
	lower
	letter
	number
	space
	newline
)

// asciiClass is the first 128 entries of the class table, spelled out for speed.
var asciiClass = func() (table [utf8.RuneSelf]uint8) {
	for r := range table {
		table[r] = classOf(rune(r))
	}
	return table
}()

func classOf(r rune) uint8 {
	above := sort.Search(len(classRanges), func(i int) bool { return classRanges[i]>>8 > uint32(r) })
	return uint8(classRanges[above-1])
}

// classAt returns the classes and the length in bytes of the character at s[i]. At the end of s both are 0.
func classAt(s string, i int) (class uint8, size int) {
	if i >= len(s) {
		return 0, 0
	}
	if s[i] < utf8.RuneSelf {
		return asciiClass[s[i]], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return classOf(r), size
}

// run returns the end of the stretch of characters from s[i] on that have one of the classes.
func run(s string, i int, classes uint8) int {
	for {
		class, size := classAt(s, i)
		if class&classes == 0 {
			return i
		}
		i += size
	}
}

// pieceEnd returns the length of the first piece of s, which must not be empty: the first alternative of the split pattern that
// matches at the start of s, and as much of it as a backtracking regular expression engine would take.
//
//	[\p{Han}]+
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	\p{N}{1,3}
//	 ?[^\s\p{L}\p{N}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func pieceEnd(s string) int {
	class, size := classAt(s, 0)
	if class&han != 0 {
		return run(s, size, han)
	}
	if end := word(s, class, size); end > 0 {
		return end
	}
	if class&number != 0 {
		end := size
		for range 2 {
			class, size := classAt(s, end)
			if class&number == 0 {
				break
			}
			end += size
		}
		return end
	}
	first := 0
	if s[0] == ' ' {
		first = 1
	}
	if end := symbols(s, first); end > first {
		return run(s, end, newline)
	}
	// Only white space is left: up to its last line break, else all of it at the end of the text, else all but the last
	// character, which goes with what follows.
	end, last, lines := 0, 0, 0
	for {
		class, size := classAt(s, end)
		if class&space == 0 {
			break
		}
		last, end = end, end+size
		if class&newline != 0 {
			lines = end
		}
	}
	switch {
	case lines > 0:
		return lines
	case end == len(s) || last == 0:
		return end
	}
	return last
}

// symbols returns the end of the characters from s[i] on that are neither white space nor letter nor number.
func symbols(s string, i int) int {
	for i < len(s) {
		class, size := classAt(s, i)
		if class&(space|letter|number) != 0 {
			break
		}
		i += size
	}
	return i
}

// word matches the second and third alternatives at the start of s, whose first character is given; 0 is no match. One
// character that is no letter, number or line break may come before the letters. Marks may be that character or count as
// letters, so the order of trying matters: second with it, second without, third with it.
func word(s string, class uint8, size int) int {
	if class&(letter|number|newline) != 0 {
		if class&(upper|lower) == 0 {
			return 0
		}
		end, _ := letters(s, 0)
		return contraction(s, end)
	}
	end, ok := letters(s, size)
	switch {
	case ok:
	case class&lower != 0: // a mark before capitals only
		end = size
	case end == size:
		return 0
	}
	return contraction(s, end)
}

// letters matches upper* lower+ at s[i], or else upper*; ok tells which. A character of both sets ends the first match when
// nothing but capitals follows it.
func letters(s string, i int) (end int, ok bool) {
	both := 0
	for {
		class, size := classAt(s, i)
		if class&upper == 0 {
			break
		}
		i += size
		if class&lower != 0 {
			both = i
		}
	}
	if end := run(s, i, lower); end > i {
		return end, true
	}
	if both > 0 {
		return both, true
	}
	return i, false
}

// contraction returns the end of (?i:'s|'t|'re|'ve|'m|'ll|'d) at s[i], or i. U+017F folds to s.
func contraction(s string, i int) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	next := byte(0)
	if i+2 < len(s) {
		next = s[i+2] | 0x20
	}
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		if next == 'e' {
			return i + 3
		}
	case 'l':
		if next == 'l' {
			return i + 3
		}
	}
	if len(s) >= i+3 && s[i+1:i+3] == "ſ" {
		return i + 3
	}
	return i
}

// limits are the sizes at which the reference cuts text before it looks for pieces, in characters (code points).
type limits struct {
	chars int // of a chunk
	run   int // of consecutive white space, or of consecutive other characters
}

var reference = limits{chars: 400_000, run: 25_000}

// cut calls each with the parts of text one after the other.
func (l limits) cut(text string, each func(string)) {
	start, chars, run, spaces := 0, 0, 0, false
	for i, r := range text {
		if chars == l.chars {
			each(text[start:i])
			start, chars, run = i, 0, 0
		}
		chars++
		if s := isSpace(r); s != spaces {
			run, spaces = 0, s
		}
		if run == l.run {
			each(text[start:i])
			start, run = i, 0
		}
		run++
	}
	if start < len(text) {
		each(text[start:])
	}
}

// isSpace is Python's str.isspace, which the reference cuts by: White_Space, which no longer changes, and four separators.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f
}
