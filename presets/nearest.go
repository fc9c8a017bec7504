package presets

import (
	"fmt"
	"strings"
)

// Nearest returns the candidate that word was probably meant to be, or "" when none is near: the one with the fewest
// letters inserted, removed, replaced or swapped with their neighbours, two or a third of them at most. Of dotted keys the
// last part alone may match.
func Nearest(word string, candidates []string) string {
	last := func(s string) string { return s[strings.LastIndexByte(s, '.')+1:] }
	best, fewest := "", 1000
	for _, c := range candidates {
		// Equal last parts in the wrong section are one mistake.
		d := min(distance(word, c), distance(last(word), last(c))+1)
		if limit := max(2, (len(last(word))+1)/3); d <= limit && d < fewest {
			best, fewest = c, d
		}
	}
	return best
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
	fold := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
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
