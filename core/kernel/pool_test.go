package kernel

import (
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestPoolDoesEveryPartOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		p := NewPool(nil, threads)
		for round := range 2000 {
			parts := round % 37
			counts := make([]int32, parts)
			var busy [8]atomic.Int32
			p.Run(parts, Func(func(i, worker int) {
				if busy[worker].Add(1) != 1 {
					t.Errorf("worker %d runs two parts at once", worker)
				}
				counts[i]++
				busy[worker].Add(-1)
			}))
			for i, n := range counts {
				if n != 1 {
					t.Fatalf("%d threads: part %d of %d was done %d times", threads, i, parts, n)
				}
			}
			if round%500 == 0 {
				time.Sleep(time.Millisecond) // let the workers fall asleep
			}
		}
		p.Close()
	}
}

func TestPoolServesSeveralCallers(t *testing.T) {
	p := NewPool(nil, 3)
	defer p.Close()
	var sum atomic.Int64
	done := make(chan bool)
	for range 4 {
		go func() {
			for range 200 {
				p.Run(10, Func(func(i, _ int) { sum.Add(int64(i)) }))
			}
			done <- true
		}()
	}
	for range 4 {
		<-done
	}
	if sum.Load() != 4*200*45 {
		t.Fatalf("sum %d, want %d", sum.Load(), 4*200*45)
	}
}

// As many parts as threads, each of which waits for the others: they end only if every worker takes part, asleep or not.
func TestSleepingWorkersAreWoken(t *testing.T) {
	for _, threads := range []int{2, 3, 8} {
		p := NewPool(nil, threads)
		for range 3 {
			for start := time.Now(); int(p.sleeping.Load()) < threads-1; time.Sleep(time.Millisecond) {
				if time.Since(start) > time.Minute {
					t.Fatalf("%d threads: %d workers are asleep", threads, p.sleeping.Load())
				}
			}
			var arrived atomic.Int32
			p.Run(threads, Func(func(int, int) {
				arrived.Add(1)
				for start := time.Now(); int(arrived.Load()) < threads && !t.Failed(); time.Sleep(50 * time.Microsecond) {
					if time.Since(start) > 10*time.Second {
						t.Errorf("%d threads: only %d parts run at the same time", threads, arrived.Load())
					}
				}
			}))
		}
		p.Close()
	}
}

// The caller falls asleep about when the last part ends, again and again: whoever does that part must see it sleep.
func TestACallerIsWokenByTheLastPart(t *testing.T) {
	p := NewPool(nil, 2)
	defer p.Close()
	runs := 20000
	if testing.Short() {
		runs /= 2
	}
	var done atomic.Int64
	over := make(chan struct{})
	go func() {
		defer close(over)
		for n := range runs {
			last := spinTime + time.Duration(n*7919%60000-20000)
			var arrived atomic.Int32
			p.Run(2, Func(func(_, worker int) {
				for arrived.Add(1); arrived.Load() < 2; {
					runtime.Gosched()
				}
				for start := time.Now(); worker != 0 && time.Since(start) < last; {
				}
			}))
			done.Add(1)
		}
	}()
	for before := int64(-1); ; before = done.Load() {
		select {
		case <-over:
			return
		case <-time.After(20 * time.Second):
		}
		if done.Load() == before {
			t.Fatalf("run %d does not end", before)
		}
	}
}

var errPart = errors.New("a part's own error")

// What a part that does not return leaves: all others are done before Run ends, and the pool goes on with every thread.
func TestPoolWaitsForItsPartsBeforeAPanicGoesOn(t *testing.T) {
	leave := map[string]func(){
		"panics":              func() { panic(errPart) },
		"has a runtime error": func() { _ = make([]int, 1)[len(errPart.Error())] },
		"ends its goroutine":  runtime.Goexit,
	}
	for _, threads := range []int{1, 2, 3, 8} {
		p := NewPool(nil, threads)
		for name, leave := range leave {
			for bad := range 9 {
				var running, done atomic.Int32
				var got any
				over := make(chan bool)
				go func() {
					defer close(over)
					defer func() { got = recover() }()
					p.Run(9, Func(func(i, _ int) {
						running.Add(1)
						defer running.Add(-1)
						if i == bad {
							leave()
						}
						time.Sleep(100 * time.Microsecond)
						done.Add(1)
					}))
					t.Errorf("%d threads: part %d %s, and Run returned", threads, bad, name)
				}()
				select {
				case <-over:
				case <-time.After(time.Minute):
					t.Fatalf("%d threads: part %d %s, and Run hangs", threads, bad, name)
				}
				if n := running.Load(); n != 0 || threads > 1 && done.Load() != 8 {
					t.Fatalf("%d threads: part %d %s: %d parts are running and %d done when Run ends", threads, bad, name, n,
						done.Load())
				}
				if err, _ := got.(error); name == "panics" && !errors.Is(err, errPart) {
					t.Errorf("%d threads: part %d %s: Run panics with %v", threads, bad, name, got)
				}
				var all countJob
				if p.Run(20, &all); all.n.Load() != 20 {
					t.Fatalf("%d threads: after part %d %s the pool does %d parts of 20", threads, bad, name, all.n.Load())
				}
			}
		}
		// As many parts as threads run at once, so none of them is lost.
		var arrived atomic.Int32
		p.Run(threads, Func(func(int, int) {
			arrived.Add(1)
			for start := time.Now(); int(arrived.Load()) < threads; runtime.Gosched() {
				if time.Since(start) > time.Minute {
					t.Fatalf("only %d of %d threads are left", arrived.Load(), threads)
				}
			}
		}))
		p.Close()
	}
}

func TestAPanicInAWorkerSaysWhere(t *testing.T) {
	p := NewPool(nil, 2)
	defer p.Close()
	defer func() {
		err, _ := recover().(error)
		if !errors.Is(err, errPart) || !strings.Contains(err.Error(), "pool_test.go") {
			t.Errorf("got %v", err)
		}
	}()
	p.Run(2, Func(func(_, worker int) {
		if worker == 1 {
			panic(errPart)
		}
		time.Sleep(10 * time.Millisecond) // so that the worker gets a part
	}))
	t.Skip("the worker was not scheduled in time")
}

type countJob struct{ n atomic.Int64 }

func (c *countJob) Do(int, int) { c.n.Add(1) }

func TestPoolRunDoesNotAllocate(t *testing.T) {
	p := NewPool(nil, 2)
	defer p.Close()
	j := new(countJob)
	if n := testing.AllocsPerRun(100, func() { p.Run(16, j) }); n > 0 {
		t.Fatalf("%g allocations a job", n)
	}
}

func BenchmarkPoolRun(b *testing.B) {
	p := NewPool(nil, 2)
	defer p.Close()
	j := new(countJob)
	for range b.N {
		p.Run(8, j)
	}
}
