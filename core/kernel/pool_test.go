package kernel

import (
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
