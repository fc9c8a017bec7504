package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/k3infer/k3/core/kernel"
)

// Options choose what Run measures. The zero value measures every case on every available backend.
type Options struct {
	Backends []string // names; none: all that this machine can run
	Threads  []int    // numbers of threads; none: 1 and kernel.DefaultThreads
	Match    string   // only cases whose name or shape contains it
	Repeat   int      // times a case is measured, of which the median counts; 0: 9
	// Seconds is the time after which a case is not repeated any more; 0: 1.
	Seconds float64
	// Progress is called with each measurement, if it is not nil.
	Progress func(Measurement)

	arena int // its size in tests
}

// Measurement is the median of one case's times, beside what the machine did in between.
type Measurement struct {
	Kernel  string  `json:"kernel"`
	Shape   string  `json:"shape"`
	Vectors int     `json:"vectors"`
	Backend string  `json:"backend"`
	Threads int     `json:"threads"`
	Seconds float64 `json:"seconds"`
	// GBps is how fast weights or state were consumed, GFLOPS the arithmetic, a multiplication and an addition counted apart;
	// 0 where that says nothing.
	GBps   float64 `json:"gb_per_second,omitempty"`
	GFLOPS float64 `json:"gflop_per_second,omitempty"`
	// ReadGBps is how fast as many threads read memory, between the repetitions; CopyGBps how fast they read and wrote it in
	// place, where the case does so; PeakGFLOPS how fast they could multiply and add.
	ReadGBps   float64 `json:"read_gb_per_second"`
	CopyGBps   float64 `json:"copy_gb_per_second,omitempty"`
	PeakGFLOPS float64 `json:"peak_gflop_per_second,omitempty"`
}

// Token is the time of one token at the released size, all weights in memory: the layer cases, as often as they occur.
type Token struct {
	Backend string  `json:"backend"`
	Threads int     `json:"threads"`
	Seconds float64 `json:"seconds"`
	Limit   float64 `json:"limit_seconds"` // reading the same weights and nothing else
}

// Result is everything measured.
type Result struct {
	Measurements []Measurement `json:"measurements"`
	Tokens       []Token       `json:"tokens,omitempty"`
}

// Run measures. It maps 1.6 times ArenaBytes of memory, and stops early, with the error of ctx, when ctx ends.
func Run(ctx context.Context, o Options) (Result, error) {
	if len(o.Backends) == 0 {
		for _, d := range kernel.Drivers() {
			if d.Missing() == "" {
				o.Backends = append(o.Backends, d.Name)
			}
		}
	}
	if len(o.Threads) == 0 {
		o.Threads = slices.Compact([]int{1, kernel.DefaultThreads()})
	}
	if o.Repeat <= 0 {
		o.Repeat = 9
	}
	if o.Seconds <= 0 {
		o.Seconds = 1
	}
	var backends []kernel.Backend
	for _, name := range o.Backends {
		b, err := kernel.Select(name)
		if err != nil {
			return Result{}, fmt.Errorf("bench: %w", err)
		}
		backends = append(backends, b)
	}
	if o.arena == 0 {
		o.arena = ArenaBytes
	}
	arena, err := newArena(o.arena)
	if err != nil {
		return Result{}, err
	}
	defer arena.Close()
	var result Result
	for _, threads := range o.Threads {
		for _, b := range backends {
			if err := result.measure(ctx, o, b, threads, arena); err != nil {
				return result, err
			}
		}
	}
	return result, nil
}

// Matches reports whether a case is to be measured.
func (o Options) Matches(c Case) bool { return strings.Contains(c.Name+" "+c.Shape, o.Match) }

// measure adds the cases of one backend and number of threads.
func (r *Result) measure(ctx context.Context, o Options, b kernel.Backend, threads int, arena *Arena) error {
	e := NewEnv(b, threads, arena)
	defer e.Close()
	token, layers := Token{Backend: b.Name(), Threads: threads}, 0
	for _, c := range Cases() {
		if !o.Matches(c) {
			continue
		}
		m, err := e.measure(ctx, c, o)
		if err != nil {
			return err
		}
		m.Backend, m.Threads = b.Name(), threads
		r.Measurements = append(r.Measurements, m)
		if o.Progress != nil {
			o.Progress(m)
		}
		if c.Count > 0 {
			layers++
			token.Seconds += c.Count * m.Seconds
			token.Limit += c.Count * float64(c.Bytes) / m.ReadGBps / 1e9
		}
	}
	if layers == len(Layers()) {
		r.Tokens = append(r.Tokens, token)
	}
	return nil
}

// measure times a case and the machine by turns.
func (e *Env) measure(ctx context.Context, c Case, o Options) (Measurement, error) {
	const flops = 20_000_000
	read := min(64<<20, len(e.Arena.states))
	seconds := func(f func()) float64 {
		at := time.Now()
		f()
		return time.Since(at).Seconds()
	}
	// Short cases are repeated within a measurement, which lasts some milliseconds.
	n := 1
	c.Run(e)
	if once := seconds(func() { c.Run(e) }); once < 4e-3 {
		n = min(1000, int(4e-3/once)+1)
	}
	var times, reads, copies, peaks []float64
	peak, hasPeak := e.Pool.Backend().(arithmetic)
	for start := time.Now(); len(times) == 0 || len(times) < o.Repeat && time.Since(start).Seconds() < o.Seconds; {
		if err := ctx.Err(); err != nil {
			return Measurement{}, err
		}
		times = append(times, seconds(func() {
			for range n {
				c.Run(e)
			}
		})/float64(n))
		reads = append(reads, seconds(func() { e.Read(read) }))
		if c.Writes {
			copies = append(copies, seconds(func() { e.Copy(read) }))
		}
		if hasPeak && c.Flops > 0 {
			peaks = append(peaks, seconds(func() {
				e.Pool.Run(e.Pool.Threads(), kernel.Func(func(int, int) { peak.Peak(flops) }))
			}))
		}
	}
	m := Measurement{Kernel: c.Name, Shape: c.Shape, Vectors: c.Vectors, Seconds: median(times), ReadGBps: float64(read) / median(reads) / 1e9}
	m.GBps, m.GFLOPS = float64(c.Bytes)/m.Seconds/1e9, float64(c.Flops)/m.Seconds/1e9
	if copies != nil {
		m.CopyGBps = float64(read) / median(copies) / 1e9
	}
	if peaks != nil {
		m.PeakGFLOPS = float64(e.Pool.Threads()) * flops / median(peaks) / 1e9
	}
	return m, nil
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
