// Package speculate guesses the tokens to come, so that one pass over the weights can check several of them, and decides
// how many guesses are worth their time.
//
// Guesses never change a text: each token is still chosen from the model's own logits, and a guess only saves the pass that
// would have computed it. So the guesser may be anything; the one here looks for the end of the text earlier in the text.
package speculate

// Drafter guesses how a text goes on.
type Drafter interface {
	// Draft appends to dst up to n ids that may follow history, the likeliest continuation first, or nothing.
	Draft(dst, history []int, n int) []int
}

// Options says whether and how to guess.
type Options struct {
	Most    int     // most guesses in a pass; 0 is off
	Drafter Drafter // nil: NGram
	// Always guesses whatever it costs. Otherwise Pacer decides.
	Always bool
}

// NGram finds the longest stretch before the end of the text that is the end of the text, the latest of several, and
// guesses that what followed it follows again.
type NGram struct {
	Shortest int // shortest stretch that counts; 0 means 2
}

// longest is where a match is long enough.
const longest = 32

// Draft implements Drafter. It looks through the whole history, which costs microseconds where a pass costs seconds.
func (g NGram) Draft(dst, history []int, n int) []int {
	least := g.Shortest
	if least <= 0 {
		least = 2
	}
	end := len(history)
	best, at := least-1, -1
	for i := end - 1; i > 0 && best < longest; i-- { // history[i] would be the first guess
		k := 0
		for k < longest && k < i && history[i-1-k] == history[end-1-k] {
			k++
		}
		if k > best {
			best, at = k, i
		}
	}
	if at < 0 {
		return dst
	}
	// A match that overlaps the end repeats: what it guesses continues in its own guesses.
	from := len(dst)
	for i := range n {
		if at+i < end {
			dst = append(dst, history[at+i])
		} else {
			dst = append(dst, dst[from+at+i-end])
		}
	}
	return dst
}

// Pacer decides how many guesses a pass should carry, from what passes have cost and how guesses have fared. It keeps the
// time lost to wrong guesses below a twenty-fifth of all time.
type Pacer struct {
	single  float64 // seconds of a pass without guesses; 0 before the first
	row     float64 // seconds that a guess adds to a pass
	rows    bool    // row was measured
	right   float64 // share of guesses that were right, lately
	elapsed float64 // seconds of all passes
	balance float64 // seconds won less seconds lost
}

const (
	lossShare = 0.04
	forget    = 0.2 // weight of the newest observation
)

// Allow returns how many of n guesses to take along.
func (p *Pacer) Allow(n int) int {
	if p.single == 0 || n <= 0 {
		return 0
	}
	row := p.row
	if !p.rows {
		row = p.single / 2 // until one was tried: a guess costs at most a pass of its own
	}
	best, gain, win, chance := 0, 0.0, 0.0, 1.0
	for g := 1; g <= n; g++ {
		if p.balance-float64(g)*row < -lossShare*p.elapsed {
			break // all wrong, they would cost more than may be lost
		}
		chance *= p.chance()
		win += chance * p.single
		if v := win - float64(g)*row; v > gain {
			best, gain = g, v
		}
	}
	return best
}

func (p *Pacer) chance() float64 { return min(max(p.right, 0.01), 0.99) }

// Observe tells the pacer of a pass that is done: how many guesses it carried, how many of them, from the first on,
// were accepted, and how many seconds it took. Allow decides by what it has observed.
func (p *Pacer) Observe(guesses, accepted int, seconds float64) {
	p.elapsed += seconds
	if guesses == 0 {
		p.single = blend(p.single, seconds, p.single == 0)
		return
	}
	extra := seconds - p.single
	p.balance += float64(accepted)*p.single - extra
	p.row = blend(p.row, max(0, extra)/float64(guesses), !p.rows)
	p.rows = true
}

// Fared reports whether the first guess for a place was right, also when it was not taken along: watching is free.
func (p *Pacer) Fared(right bool) {
	x := 0.0
	if right {
		x = 1
	}
	p.right = blend(p.right, x, false)
}

// Saved is the seconds that guessing has saved so far, by its own reckoning.
func (p *Pacer) Saved() float64 { return p.balance }

func blend(old, x float64, first bool) float64 {
	if first {
		return x
	}
	return float64((1-forget)*old) + float64(forget*x)
}
