package graph

import (
	"fmt"
	"math"

	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/tape"
)

// Score is how likely an id is to follow a row, where that is all that is wanted: its logits are never kept.
type Score struct {
	Next    int     // the id that is asked about, below the vocabulary's size
	LogProb float64 // natural logarithm of its probability: what a pass fills in
	Best    int     // the likeliest id, the lowest among equals; filled in as well
}

// tally adds up a row's logits as they come, id after id, so that its bits do not depend on how they are cut into tiles.
type tally struct {
	most, next float32
	sum        float64 // of e^(logit-most)
	best       int
	finite     bool
	least      float32
}

func (y *tally) add(score *Score, id int, logits []float32) {
	if id == 0 {
		*y = tally{most: float32(math.Inf(-1)), least: float32(math.Inf(1)), finite: true}
	}
	y.finite = y.finite && finite(logits)
	if at := score.Next - id; at >= 0 && at < len(logits) {
		y.next = logits[at]
	}
	for i, v := range logits {
		y.least = min(y.least, v)
		if v > y.most {
			y.sum = float64(y.sum*float64(kernel.Exp(float32(y.most-v)))) + 1
			y.most, y.best = v, id+i
			continue
		}
		y.sum += float64(kernel.Exp(float32(v - y.most)))
	}
}

// end fills the score in.
func (y *tally) end(score *Score) {
	score.LogProb, score.Best = float64(y.next)-float64(y.most)-ln(y.sum), y.best
}

// ln is the natural logarithm of a number above 0, in operations that are the same everywhere: with m between 0.7 and 1.42 and
// s = (m-1)/(m+1),
//
//	ln(m 2^e) = e ln 2 + 2 (s + s^3/3 + s^5/5 + ...)
func ln(x float64) float64 {
	m, e := math.Frexp(x)
	if m < 0.7071067811865476 {
		m *= 2
		e--
	}
	s := (m - 1) / (m + 1)
	square := float64(s * s)
	sum := 0.0
	for n := 21; n >= 1; n -= 2 {
		sum = float64(sum*square) + 1/float64(n)
	}
	return float64(float64(e)*0.6931471805599453) + float64(2*float64(s*sum))
}

// headByTiles multiplies the rows that want logits or scores with lm_head tile by tile, and keeps of it what is wanted.
func (p *pass) headByTiles(rows []Row, logits []float32, wanted int) ([]tally, error) {
	vocab, e, width := p.config.Vocab, p.config.Hidden, max(p.config.DenseIntermediate, p.config.MoE.Shared*p.config.MoE.Intermediate)
	asked := make([]Row, 0, wanted)
	for _, r := range rows {
		if r.wants() {
			asked = append(asked, r)
		}
	}
	place := make([]int, wanted) // of the row's logits among those that are kept
	kept := 0
	for i, r := range asked {
		if place[i] = kept; r.Logits {
			kept++
		}
	}
	tallies := make([]tally, wanted)
	err := p.tiles(p.head, func(t tape.Tile) {
		for from := 0; from < t.Tile.Rows; from += width {
			part := t.Tile.Slice(from, min(from+width, t.Tile.Rows))
			p.pool.Product(p.gate, width, part, p.pack(t.Format, p.x, e, wanted))
			p.run(wanted, func(i int) {
				values := p.gate[i*width:][:part.Rows]
				if asked[i].Logits {
					copy(logits[place[i]*vocab+t.Row+from:], values)
				}
				if asked[i].Score != nil {
					tallies[i].add(asked[i].Score, t.Row+from, values)
				}
			})
		}
	})
	return tallies, err
}

// fillScores fills in the scores, of rows whose numbers are what they should be.
func (p *pass) fillScores(rows []Row, tallies []tally) error {
	n := 0
	for i, r := range rows {
		if !r.wants() {
			continue
		}
		y := &tallies[n]
		n++
		if r.Score == nil || !p.alive(i) {
			continue
		}
		var err error
		switch {
		case !y.finite:
			err = fmt.Errorf("graph: lm_head: %w in the logits of row %d", ErrNumbers, i)
		case p.config.Vocab > 1 && y.least == y.most:
			err = fmt.Errorf("graph: lm_head: row %d: %w", i, errEqual)
		default:
			y.end(r.Score)
			continue
		}
		if err := p.fail(i, err); err != nil {
			return err
		}
	}
	return nil
}
