package sample

import (
	"fmt"
	"strings"
)

// Stopper ends a stream of text in front of the first stop string that is complete in it, across the borders of the pieces
// it arrives in, and never lets the beginning of what may become one through.
//
// The stop string that ends first counts, so the result does not depend on where the pieces were cut; of several that end
// at the same byte, the longest.
type Stopper struct {
	stops   []string
	held    string // may be the beginning of a stop string
	stopped bool
}

// NewStopper returns a stopper for any number of stop strings. An empty one is refused with an error that matches
// ErrParams: it would stop everything.
func NewStopper(stops []string) (*Stopper, error) {
	for _, s := range stops {
		if s == "" {
			return nil, fmt.Errorf("sample: %w: a stop string must not be empty", ErrParams)
		}
	}
	return &Stopper{stops: stops}, nil
}

// Feed takes the next piece of text and returns what may be shown of all that was fed so far and not yet shown, and
// whether a stop string was reached. After that it returns nothing but true.
func (s *Stopper) Feed(text string) (emit string, stopped bool) {
	if s.stopped {
		return "", true
	}
	all := s.held + text
	for end := len(s.held) + 1; end <= len(all); end++ {
		longest := 0
		for _, stop := range s.stops {
			if len(stop) > longest && strings.HasSuffix(all[:end], stop) {
				longest = len(stop)
			}
		}
		if longest > 0 {
			s.held, s.stopped = "", true
			return all[:end-longest], true
		}
	}
	hold := s.hold(all)
	s.held = all[hold:]
	return all[:hold], false
}

// Flush returns the text that is still held back, to be shown when the stream has ended without a stop string.
func (s *Stopper) Flush() string {
	held := s.held
	s.held = ""
	return held
}

// hold returns where in text the longest ending starts that begins a stop string.
func (s *Stopper) hold(text string) int {
	longest := 0
	for _, stop := range s.stops {
		longest = max(longest, len(stop)-1)
	}
	for i := max(0, len(text)-longest); i < len(text); i++ {
		for _, stop := range s.stops {
			if strings.HasPrefix(stop, text[i:]) {
				return i
			}
		}
	}
	return len(text)
}
