package presets

import (
	"fmt"
	"strings"
)

// Nearest returns the candidate that word was probably meant to be, or "" when none is near: the one with the fewest
// letters inserted, removed, replaced or swapped with their neighbours, a third of them at most, or one of which the word is
// an abbreviation or a longer name: temp for temperature, memory-limit for memory. Of dotted keys the last part alone may match.
func Nearest(word string, candidates []string) string {
	last := func(s string) string { return s[strings.LastIndexByte(s, '.')+1:] }
	best, fewest := "", 1000
	for _, c := range candidates {
		// Equal last parts in the wrong section are one mistake.
		d := min(distance(word, c), distance(last(word), last(c))+1)
		limit := max(1, (len(last(word))+1)/3)
		if related(last(word), last(c)) {
			d = min(d, limit)
		}
		if d <= limit && d < fewest {
			best, fewest = c, d
		}
	}
	return best
}

// related reports whether one of the names is the beginning of the other, or the last word of the candidate is word.
func related(word, candidate string) bool {
	w, c := fold(word), fold(candidate)
	return len(w) >= 3 && strings.HasPrefix(c, w) || strings.HasPrefix(w, c+"_") || w != "" && strings.HasSuffix(c, "_"+w)
}

// suggest returns what follows an error about an unknown word: the nearest that exists, or nothing.
func suggest(word string, candidates []string) string {
	if n := Nearest(word, candidates); n != "" {
		return fmt.Sprintf(", did you mean %q?", n)
	}
	return ""
}

// distance counts the insertions, removals, replacements and swaps of neighbours that make b of a, ignoring case and the
// difference between - and _.
func distance(a, b string) int {
	if a, b = fold(a), fold(b); len(a) > 100 || len(b) > 100 {
		return 1000
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// fold ignores case and the difference between - and _.
func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
