package score

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Each token but the first counts once, in a window that has as many before it as was promised.
func TestEveryTokenCountsOnce(t *testing.T) {
	for range 2000 {
		s := &Scorer{Window: 2 + rand.IntN(40)}
		s.Stride = 1 + rand.IntN(s.Window-1)
		n := rand.IntN(200)
		next := 1
		for i, w := range s.windows(n) {
			if w.first != next || w.to > n || w.to-w.from > s.Window || w.first <= w.from || w.first >= w.to {
				t.Fatalf("window %d, stride %d, %d ids: %+v comes for id %d", s.Window, s.Stride, n, w, next)
			}
			if i > 0 && w.first-w.from < s.Window-s.Stride {
				t.Fatalf("window %d, stride %d: %+v has %d ids before the first", s.Window, s.Stride, w, w.first-w.from)
			}
			next = w.to
		}
		if next != max(n, 1) {
			t.Fatalf("window %d, stride %d: %d of %d ids", s.Window, s.Stride, next, n)
		}
	}
}

func FuzzReadItem(f *testing.F) {
	for _, line := range []string{
		`{"context":"a","choices":["b","c"],"answer":1}`, `{"context":"a","choices":["b",""],"answer":1}`, `{"choices":["b","c"],"answer":0}`,
		`{"context":"a","choices":["b"],"answer":0}`, `{"context":"a","choices":["b","c"]}`, `{"context":"a","choices":["b","c"],"answer":-1}`, `[]`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		item, err := ReadItem(line)
		if err != nil && !errors.Is(err, ErrItem) {
			t.Errorf("%v", err)
		}
		if err == nil && (len(item.Choices) < 2 || item.Answer < 0 || item.Answer >= len(item.Choices)) {
			t.Errorf("%+v", item)
		}
	})
}
