package memory

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoFit is matched by the errors of Make for requests that do not fit. They say how much is missing and what would fit.
var ErrNoFit = errors.New("does not fit in the memory given")

// Purposes of memory. Those outside the Go heap are the purposes under which an Account counts.
const (
	Program      = "program"       // its code, the Go runtime, stacks
	Heap         = "Go heap"       // the index of tensors, the tokenizer and what comes and goes
	Vectors      = "vectors"       // small tensors, widened
	Workspace    = "workspace"     // activations of a pass and scratch of the threads
	State        = "state"         // of sequences: what never grows
	Latents      = "latents"       // of sequences: what grows with their length
	Guesses      = "guesses"       // of sequences: rows that may be taken back
	Logits       = "logits"        // results of a pass
	TrunkRing    = "trunk ring"    // buffers that tiles stream through
	TrunkTiles   = "trunk tiles"   // tiles that stay
	TrunkScratch = "trunk scratch" // the tile in use, where tiles are kept compressed
	ExpertSlots  = "expert slots"  // routed experts
)

// Request is what memory is wanted for. Sizes are in bytes.
type Request struct {
	// Total is the promise: what the whole process may take. 0 promises nothing; what Trunk and Experts leave open is then
	// the least that works.
	Total int64
	// Trunk and Experts divide memory by hand, into ring and tiles of the trunk and slots of experts. 0 leaves it to the plan.
	Trunk, Experts int64

	Index     int64 // the checkpoint's, on the Go heap
	Tokenizer int64 // on the Go heap
	Vectors   int64

	// Workspace is the memory for a pass of so many rows over sequences of so many tokens.
	Workspace func(rows, context int) int64
	Logits    int64 // of one row
	AllLogits bool  // every row of a prompt has logits, and not only the last of each sequence

	State       int64 // of a sequence: what never grows
	Position    int64 // of a sequence: what each token of its context adds
	Guess       int64 // of a sequence: what each guessed row of a pass adds
	Sequences   int   // at least 1
	Context     int   // tokens of a sequence, at least 1
	Tokens      int   // of all sequences together; 0: Context for each
	Guesses     int   // guessed rows of a sequence in a pass
	PrefillRows int   // rows of a prompt that share a pass; 0 leaves it to the plan

	TrunkBytes  int64 // all tiles
	TileBuffer  int64 // one buffer of the tape's ring
	TileScratch int64 // a tile that is expanded for use
	ExpertSlot  int64 // one expert
	ExpertsAll  int   // experts of the model; 0 for a model without
	TopK        int   // experts a token chooses in a layer
}

// Item is the memory for one purpose.
type Item struct {
	Purpose string
	Bytes   int64
}

// Plan says what memory is used for, to the byte.
type Plan struct {
	Total       int64 // as promised, or the sum of the items
	Items       []Item
	Unused      int64 // what Total is above the sum of the items
	GoLimit     int64 // for debug.SetMemoryLimit: the heap, and what of the program the Go runtime counts
	Context     int
	PrefillRows int
	MaxRows     int   // of any pass
	Ring        int   // buffers of the tape
	Trunk       int64 // bytes of all tiles
	Pinned      int64 // bytes of tiles that stay
	Slots       int   // experts

	request Request
}

// Within is the plan for the same needs in another total.
func (p Plan) Within(total int64) (Plan, error) {
	r := p.request
	r.Total = total
	return Make(r)
}

// WithSequences is the plan for n sequences, each of the whole context, in the same total.
func (p Plan) WithSequences(n int) (Plan, error) {
	r := p.request
	r.Sequences, r.Tokens = n, 0
	return Make(r)
}

// Bytes is the memory for one purpose.
func (p Plan) Bytes(purpose string) (n int64) {
	for _, i := range p.Items {
		if i.Purpose == purpose {
			n += i.Bytes
		}
	}
	return n
}

// What a plan reckons with where nothing can be measured beforehand.
const (
	programBytes = 40 << 20 // code, runtime and stacks of a running engine
	heapBase     = 32 << 20 // what comes and goes: requests, texts, headers of shards while they are read
	ringFull     = 8        // with fewer the disk rests when computing or experts hold the tape up; more gain nothing
	ringLeast    = 2
	usualRows    = 64  // where no total bounds them
	mostRows     = 256 // with more, computing takes longer than reading the weights
)

// Make divides the memory. The error for a request that does not fit matches ErrNoFit.
//
// Fixed needs come first, then the state of the sequences, then the smallest ring and the fewest slots that keep the disk
// busy. What is left goes to the trunk until all of it stays in memory, and only then to experts: a byte of the trunk saves
// reading a byte in every pass; a byte of an expert saves one in those passes that choose the expert, which are not all
// even for the most popular one and one in 56 for the average.
//
// Before that, the rows of a prompt that share a pass get up to half of what is left, because twice the rows are half the
// passes over the trunk, while in a small budget the same memory keeps but a per mille of it.
func Make(r Request) (Plan, error) {
	if r.ExpertsAll == 0 {
		r.Experts = 0
	}
	if err := r.check(); err != nil {
		return Plan{}, err
	}
	rows, ring := max(r.PrefillRows, 1), ringFull
	if r.Total == 0 && r.PrefillRows == 0 {
		rows = usualRows
	}
	least, missing := r.least(rows, ring)
	for missing > 0 && ring > ringLeast {
		ring--
		least, missing = r.least(rows, ring)
	}
	if missing > 0 {
		return Plan{}, r.misfit(missing)
	}
	p := least
	for n := 2; r.Total > 0 && r.PrefillRows == 0 && n <= min(mostRows, r.Context); n *= 2 {
		more, missing := r.least(n, ring)
		if missing > 0 || more.sum() > least.sum()+least.Unused/2 {
			break
		}
		p = more
	}
	p = r.share(p)
	p.request = r
	return p, nil
}

func (r Request) check() error {
	switch {
	case r.Total < 0 || r.Trunk < 0 || r.Experts < 0 || r.Context < 1 || r.Sequences < 1 || r.Guesses < 0 || r.PrefillRows < 0:
		return fmt.Errorf("memory: plan: total %d, trunk %d, experts %d, context %d, %d sequences, %d guesses, %d rows: out of range",
			r.Total, r.Trunk, r.Experts, r.Context, r.Sequences, r.Guesses, r.PrefillRows)
	case r.Trunk > 0 && r.Trunk < r.leastTrunk(ringLeast):
		return fmt.Errorf("memory: plan: %w: %s for the trunk are less than the %s of %d tile buffers", ErrNoFit, size(r.Trunk),
			size(r.leastTrunk(ringLeast)), ringLeast)
	case r.Experts > 0 && r.Experts/r.ExpertSlot < int64(r.leastSlots()):
		return fmt.Errorf("memory: plan: %w: %s for experts hold %d of %s, and a token chooses %d in a layer: %s are the least", ErrNoFit,
			size(r.Experts), r.Experts/r.ExpertSlot, size(r.ExpertSlot), r.TopK, size(int64(r.leastSlots())*r.ExpertSlot))
	}
	return nil
}

// leastTrunk is the memory for a ring, or for all tiles where that is less.
func (r Request) leastTrunk(ring int) int64 { return min(int64(ring)*r.TileBuffer, r.TrunkBytes) }

func (r Request) leastSlots() int {
	return min(max(r.TopK, 2), r.ExpertsAll) // one to keep and one in transit at least
}

// least is the plan without anything that only makes it faster, and what its total lacks.
func (r Request) least(rows, ring int) (p Plan, missing int64) {
	rows = min(rows, r.Context)
	all := r.Sequences * (1 + r.Guesses) // rows of a decode pass
	p = Plan{Total: r.Total, Context: r.Context, PrefillRows: rows, MaxRows: max(rows, all), Ring: ring, Trunk: r.TrunkBytes, Slots: r.leastSlots()}
	heap := heapBase + (r.Index+r.Tokenizer)*3/2 // live, and what the collector leaves until it runs
	p.GoLimit = programBytes/2 + heap
	logits := all
	if r.AllLogits {
		logits = r.Sequences * max(rows, 1+r.Guesses)
	}
	if r.Sequences > 1 {
		logits *= 2 // a pass begins while results of the last are being read
	}
	sequences := int64(r.Sequences)
	p.Items = []Item{
		{Program, programBytes},
		{Heap, heap},
		{Vectors, r.Vectors},
		{Workspace, r.Workspace(p.MaxRows, r.Context)},
		{Logits, int64(logits) * r.Logits},
		{State, sequences * r.State},
		{Latents, int64(r.tokens()) * r.Position},
		{Guesses, sequences * int64(r.Guesses) * r.Guess},
		{TrunkScratch, r.TileScratch},
	}
	trunk := r.leastTrunk(ring)
	if r.Trunk > 0 {
		trunk = min(r.Trunk, r.TrunkBytes)
	}
	p.setTrunk(r, trunk)
	if r.Experts > 0 {
		p.Slots = int(min(r.Experts/r.ExpertSlot, int64(r.ExpertsAll)))
	}
	p.setSlots(r, p.Slots)
	p.Unused = p.Total - p.sum()
	if r.Total == 0 {
		p.Total, p.Unused = p.sum(), 0
	}
	return p, -p.Unused
}

// tokens is the most that all sequences have together.
func (r Request) tokens() int {
	if all := r.Sequences * r.Context; r.Tokens == 0 || r.Tokens > all {
		return all
	}
	return r.Tokens
}

func (p Plan) sum() (n int64) {
	for _, i := range p.Items {
		n += i.Bytes
	}
	return n
}

// set gives a purpose so many bytes.
func (p *Plan) set(purpose string, bytes int64) {
	for i := range p.Items {
		if p.Items[i].Purpose == purpose {
			p.Items[i].Bytes = bytes
			return
		}
	}
	p.Items = append(p.Items, Item{purpose, bytes})
}

// setTrunk divides memory for the trunk between ring and tiles that stay.
func (p *Plan) setTrunk(r Request, bytes int64) {
	if bytes >= r.TrunkBytes {
		p.Ring, p.Pinned = 0, r.TrunkBytes
	} else {
		p.Ring = int(min(int64(p.Ring), bytes/r.TileBuffer))
		p.Pinned = bytes - int64(p.Ring)*r.TileBuffer
	}
	p.set(TrunkRing, int64(p.Ring)*r.TileBuffer)
	p.set(TrunkTiles, p.Pinned)
}

func (p *Plan) setSlots(r Request, n int) {
	p.Slots = n
	p.set(ExpertSlots, int64(n)*r.ExpertSlot)
}

// share gives what is left to the trunk, then to experts.
func (r Request) share(p Plan) Plan {
	if r.Trunk == 0 && r.Total > 0 {
		p.setTrunk(r, p.Bytes(TrunkRing)+p.Pinned+p.Unused)
		p.Unused = p.Total - p.sum()
	}
	if r.Experts == 0 && r.Total > 0 && r.ExpertSlot > 0 {
		p.setSlots(r, int(min(int64(p.Slots)+p.Unused/r.ExpertSlot, int64(r.ExpertsAll))))
		p.Unused = p.Total - p.sum()
	}
	return p
}

// misfit says what is missing and which single change would do.
func (r Request) misfit(missing int64) error {
	var would []string
	fits := func(change func(*Request, int), most int) int {
		// The largest that fits; more never takes less.
		low, high := 0, most
		for low < high {
			n := (low + high + 1) / 2
			q := r
			if change(&q, n); func() bool { _, m := q.least(max(q.PrefillRows, 1), ringLeast); return m <= 0 }() {
				low = n
			} else {
				high = n - 1
			}
		}
		return low
	}
	would = append(would, fmt.Sprintf("%s of memory", size(r.Total+missing)))
	if n := fits(func(q *Request, n int) { q.Context = n }, r.Context-1); n > 0 {
		would = append(would, fmt.Sprintf("a context of %d tokens", n))
	}
	if n := fits(func(q *Request, n int) { q.PrefillRows = n }, r.PrefillRows-1); n > 0 {
		would = append(would, fmt.Sprintf("a prefill chunk of %d rows", n))
	}
	if n := fits(func(q *Request, n int) { q.Sequences = n }, r.Sequences-1); n > 0 {
		would = append(would, fmt.Sprintf("%d sequences", n))
	}
	hand := ""
	if r.Trunk > 0 || r.Experts > 0 {
		hand = ", with the memory for trunk and experts as asked for"
	}
	return fmt.Errorf("memory: plan: %w: %s given, %s more needed%s; would fit: %s", ErrNoFit, size(r.Total), size(missing), hand,
		strings.Join(would, ", or "))
}

// size writes a number of bytes in MiB, or KiB where that says more, rounded up.
func size(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%dKiB", (n+1<<10-1)>>10)
	}
	return fmt.Sprintf("%dMiB", (n+1<<20-1)>>20)
}
