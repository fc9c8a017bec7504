package disk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
	"github.com/k3infer/k3/core/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func content(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func buffer(t testing.TB, n int) []byte {
	t.Helper()
	var a memory.Account
	b, err := a.Allocate("test", n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Free)
	return b.Bytes()
}

func open(t testing.TB, files disk.Files, name string) disk.File {
	t.Helper()
	f, err := files.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// collections gives the same file "x" in every way it can be read.
func collections(t *testing.T, data []byte) map[string]disk.Files {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	m := map[string]disk.Files{
		"directory": disk.Dir(dir),
		"memory":    disktest.Memory{"x": data},
		"fs":        disk.FS(os.DirFS(dir), "fs"),
	}
	for name, direct := range map[string]disktest.Direct{"refused at open": disktest.RefuseAtOpen,
		"refused at the first read": disktest.RefuseAtFirstRead, "direct": disktest.AllowDirect} {
		f := disktest.Wrap(disktest.Memory{"x": data}, nil)
		f.Direct = direct
		m[name] = f
	}
	return m
}

func TestAnyRangeOfAnyFileComesExactly(t *testing.T) {
	data := content(3*disk.Block+1234, 1)
	for name, files := range collections(t, data) {
		for _, piece := range []int{1, 2 * disk.Block, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, piece), func(t *testing.T) {
				f := open(t, files, "x")
				var told atomic.Int64
				pool := disk.NewPool(disk.Config{Readers: 3, Piece: piece, Fallback: func(string, error) { told.Add(1) }})
				defer pool.Close()
				var want int64
				for _, from := range []int{0, 1, 4095, 4096, 4097, 8192, len(data) - 1, len(data)} {
					for _, to := range []int{from, from + 1, 4096, 8191, 8192, 8193, len(data) - 1, len(data)} {
						if to < from || to > len(data) {
							continue
						}
						mem := buffer(t, disk.Span(int64(from), to-from))
						err := pool.Read(t.Context(), disk.Ahead, []disk.Run{{File: f, Off: int64(from), Len: to - from, Mem: mem}})
						if err != nil || !bytes.Equal(mem[from%disk.Block:][:to-from], data[from:to]) {
							t.Fatalf("[%d,%d): %v, or other bytes", from, to, err)
						}
						want += int64(to - from)
					}
				}
				if s := pool.Stats(); s.Ahead != want || s.Urgent != 0 {
					t.Errorf("counted %+v, want %d bytes", s, want)
				}
				if n, refuse := told.Load(), len(name) > 7 && name[:7] == "refused"; refuse != (n == 1) {
					t.Errorf("told of the fallback %d times", n)
				}
			})
		}
	}
}

func TestADirectReadIsReallyDirect(t *testing.T) {
	data := content(1<<20, 1)
	files := disktest.Wrap(disktest.Memory{"x": data}, nil)
	files.Direct = disktest.AllowDirect
	var misaligned atomic.Bool
	files.Set(func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		if off%disk.Block != 0 || len(p)%disk.Block != 0 || !disk.Aligned(p) {
			misaligned.Store(true)
		}
		return r.ReadAt(p, off)
	})
	pool := disk.NewPool(disk.Config{Readers: 2, Piece: 3 * disk.Block, Fallback: func(f string, err error) { t.Errorf("%s: %v", f, err) }})
	defer pool.Close()
	f := open(t, files, "x")
	mem := buffer(t, disk.Span(777, len(data)-777))
	if err := pool.Read(t.Context(), disk.Urgent, []disk.Run{{File: f, Off: 777, Len: len(data) - 777, Mem: mem}}); err != nil {
		t.Fatal(err)
	}
	if misaligned.Load() {
		t.Error("a read went around the direct reader")
	}
	if !bytes.Equal(mem[777:][:len(data)-777], data[777:]) {
		t.Error("other bytes")
	}
}

func TestBadReadersGiveExactBytesOrANamedError(t *testing.T) {
	data := content(5*disk.Block+99, 2)
	broken := errors.New("broken")
	tests := []struct {
		name  string
		fault disktest.Fault
		off   int64 // of the error; -1: none
		err   error
	}{
		{"one byte at a time", disktest.OneByte, -1, nil},
		{"short by one", disktest.ShortByOne, -1, nil},
		{"interrupted", disktest.Interrupt(), -1, nil},
		{"slow", disktest.Slow(time.Millisecond), -1, nil},
		{"fails at a byte", disktest.FailAt("x", 9000, broken), 9000, broken},
		{"I/O error", disktest.FailAt("x", 4096, syscall.EIO), 4096, syscall.EIO},
		{"truncated", disktest.Truncate("x", 12000), 12000, disk.ErrShort},
		{"truncated by one", disktest.Truncate("x", int64(len(data)-1)), int64(len(data) - 1), disk.ErrShort},
		{"empty", disktest.Truncate("x", 1), 1, disk.ErrShort},
		{"always interrupted", func(io.ReaderAt, string, []byte, int64) (int, error) { return 0, syscall.EINTR }, 1, syscall.EINTR},
		{"no progress", func(io.ReaderAt, string, []byte, int64) (int, error) { return 0, nil }, 1, io.ErrNoProgress},
		{"lies about the length", func(_ io.ReaderAt, _ string, p []byte, _ int64) (int, error) { return len(p) + 1, nil }, 1, nil},
	}
	for _, test := range tests {
		for _, direct := range []disktest.Direct{disktest.NoDirect, disktest.RefuseAtFirstRead, disktest.AllowDirect} {
			t.Run(fmt.Sprintf("%s/%d", test.name, direct), func(t *testing.T) {
				files := disktest.Wrap(disktest.Memory{"x": data}, test.fault)
				files.Direct = direct
				f := open(t, files, "x")
				pool := disk.NewPool(disk.Config{Readers: 1, Piece: 2 * disk.Block})
				defer pool.Close()
				mem := buffer(t, disk.Span(1, len(data)-1))
				err := pool.Read(t.Context(), disk.Ahead, []disk.Run{{File: f, Off: 1, Len: len(data) - 1, Mem: mem}})
				if test.off < 0 {
					if err != nil || !bytes.Equal(mem[1:len(data)], data[1:]) {
						t.Fatalf("%v, or other bytes", err)
					}
					if busy := pool.Stats().Busy; test.name == "slow" && busy < 3*time.Millisecond {
						t.Errorf("three reads of a millisecond took %v", busy)
					}
					return
				}
				var e *disk.Error
				if !errors.As(err, &e) || e.File != "x" || e.Off != test.off || test.err != nil && !errors.Is(err, test.err) {
					t.Fatalf("error %v, want %v at %d", err, test.err, test.off)
				}
			})
		}
	}
}

func TestAFileTruncatedWhileOpenIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, content(1<<20, 3), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, disk.Dir(filepath.Dir(path)), "x")
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	run := []disk.Run{{File: f, Off: 5, Len: 1<<20 - 5, Mem: buffer(t, 1<<20)}}
	if err := pool.Read(t.Context(), disk.Ahead, run); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 70000); err != nil {
		t.Fatal(err)
	}
	err := pool.Read(t.Context(), disk.Ahead, run)
	var e *disk.Error
	if !errors.Is(err, disk.ErrShort) || !errors.As(err, &e) || e.Off != 70000 || e.File != path {
		t.Fatalf("got %v", err)
	}
}

func TestAFileReplacedWhileOpenIsStillItself(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files that are open cannot be replaced")
	}
	path := filepath.Join(t.TempDir(), "x")
	data := content(100_000, 3)
	for name, p := range map[string][]byte{path: data, path + "2": content(100_000, 4)} {
		if err := os.WriteFile(name, p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := open(t, disk.Dir(filepath.Dir(path)), "x")
	if err := os.Rename(path+"2", path); err != nil {
		t.Fatal(err)
	}
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	mem := buffer(t, disk.Span(0, len(data)))
	if err := pool.Read(t.Context(), disk.Ahead, []disk.Run{{File: f, Len: len(data), Mem: mem}}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem[:len(data)], data) {
		t.Error("the bytes of another file")
	}
}

// gate lets reads through one by one and notes their order.
type gate struct {
	mu    sync.Mutex
	order []int64
	next  chan struct{}
}

func (g *gate) fault(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
	g.mu.Lock()
	g.order = append(g.order, off)
	g.mu.Unlock()
	<-g.next
	return r.ReadAt(p, off)
}

func (g *gate) begun() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.order)
}

func (g *gate) waitFor(n int) {
	for g.begun() < n {
		time.Sleep(time.Millisecond)
	}
}

func TestUrgentReadsComeFirst(t *testing.T) {
	data := content(16*disk.Block, 4)
	g := &gate{next: make(chan struct{})}
	f := open(t, disktest.Wrap(disktest.Memory{"x": data}, g.fault), "x")
	pool := disk.NewPool(disk.Config{Readers: 1, Piece: disk.Block})
	defer pool.Close()
	var all sync.WaitGroup
	start := func(priority disk.Priority, block, n int) {
		all.Add(1)
		pool.Start(t.Context(), priority, []disk.Run{{File: f, Off: int64(block * disk.Block), Len: n * disk.Block,
			Mem: buffer(t, n*disk.Block)}}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			all.Done()
		})
	}
	start(disk.Ahead, 0, 3)
	g.waitFor(1)
	start(disk.Ahead, 4, 1)
	start(disk.Urgent, 8, 2)
	close(g.next)
	all.Wait()
	if got := fmt.Sprint(g.order); got != fmt.Sprint([]int64{0, 8 * 4096, 9 * 4096, 4096, 2 * 4096, 4 * 4096}) {
		t.Errorf("read in the order %v", got)
	}
}

func TestCancellingLeavesOutTheRestAndWaitsForWhatIsUnderWay(t *testing.T) {
	data := content(16*disk.Block, 4)
	g := &gate{next: make(chan struct{})}
	f := open(t, disktest.Wrap(disktest.Memory{"x": data}, g.fault), "x")
	pool := disk.NewPool(disk.Config{Readers: 2, Piece: disk.Block})
	defer pool.Close()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	pool.Start(ctx, disk.Ahead, []disk.Run{{File: f, Len: len(data), Mem: buffer(t, len(data))}}, func(err error) { result <- err })
	g.waitFor(2)
	cancel()
	select {
	case err := <-result:
		t.Fatalf("%v came while reads were under way", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(g.next)
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := g.begun(); n > 2 {
		t.Errorf("%d reads were begun", n)
	}
}

// A cancelled read that nobody has begun waits for no reader, which may be in the middle of a read that takes long.
func TestACancelledReadThatIsNotBegunEndsAtOnce(t *testing.T) {
	data := content(4*disk.Block, 4)
	g := &gate{next: make(chan struct{})}
	f := open(t, disktest.Wrap(disktest.Memory{"x": data}, g.fault), "x")
	pool := disk.NewPool(disk.Config{Readers: 1})
	defer pool.Close()
	start := func(ctx context.Context) chan error {
		result := make(chan error, 1)
		pool.Start(ctx, disk.Ahead, []disk.Run{{File: f, Len: len(data), Mem: buffer(t, len(data))}}, func(err error) { result <- err })
		return result
	}
	first := start(t.Context())
	g.waitFor(1)
	for _, early := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		if early {
			cancel()
		}
		second := start(ctx)
		cancel()
		select {
		case err := <-second:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("it waits for the only reader")
		}
	}
	close(g.next)
	if err := <-first; err != nil || g.begun() != 1 {
		t.Errorf("%d reads were begun, %v", g.begun(), err)
	}
}

// What is left of a read one piece of which failed would only keep the disk from others.
func TestNothingMoreIsReadAfterAPieceThatFailed(t *testing.T) {
	data := content(16*disk.Block, 4)
	broken := errors.New("broken")
	g, fail := &gate{next: make(chan struct{})}, make(chan struct{})
	failing := func(r io.ReaderAt, name string, p []byte, off int64) (int, error) {
		if off > 0 {
			return g.fault(r, name, p, off)
		}
		<-fail
		return 0, broken
	}
	f := open(t, disktest.Wrap(disktest.Memory{"x": data}, failing), "x")
	pool := disk.NewPool(disk.Config{Readers: 2, Piece: disk.Block})
	defer pool.Close()
	result := make(chan error, 1)
	pool.Start(t.Context(), disk.Ahead, []disk.Run{{File: f, Len: len(data), Mem: buffer(t, len(data))}}, func(err error) { result <- err })
	g.waitFor(1)
	close(fail)
	time.Sleep(20 * time.Millisecond) // for the reader whose piece failed to begin another
	close(g.next)
	if err := <-result; !errors.Is(err, broken) || g.begun() != 1 {
		t.Errorf("%d pieces were begun beside the one that failed, %v", g.begun(), err)
	}
}

func TestClosingThePoolEndsEveryReadOnce(t *testing.T) {
	data := content(64*disk.Block, 4)
	files := disktest.Wrap(disktest.Memory{"x": data}, disktest.Slow(time.Millisecond))
	files.Direct = disktest.AllowDirect
	f := open(t, files, "x")
	pool := disk.NewPool(disk.Config{Readers: 3, Piece: disk.Block})
	results := make(chan error, 100)
	for range 10 {
		mem := buffer(t, len(data))
		pool.Start(t.Context(), disk.Ahead, []disk.Run{{File: f, Len: len(data), Mem: mem}}, func(err error) { results <- err })
	}
	time.Sleep(5 * time.Millisecond)
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
	pool.Start(t.Context(), disk.Ahead, nil, func(err error) { results <- err })
	closed := 0
	for range 11 {
		if err := <-results; errors.Is(err, disk.ErrClosed) {
			closed++
		} else if err != nil {
			t.Error(err)
		}
	}
	if closed == 0 {
		t.Error("no read was cut short")
	}
	if n := files.OpenFiles(); n != 1 {
		t.Errorf("%d files are open, want the one the test opened", n)
	}
}

func TestArrangedPartsAreReadTogetherAndExactly(t *testing.T) {
	r := random.New(t, 5, 6)
	data := disktest.Memory{"a": content(1<<20, 7), "b": content(300<<10, 8)}
	pool := disk.NewPool(disk.Config{Readers: 2, Piece: 8 * disk.Block})
	defer pool.Close()
	files := disktest.Wrap(data, nil)
	files.Direct = disktest.AllowDirect
	a, b := open(t, files, "a"), open(t, files, "b")
	for range 100 {
		var parts []disk.Part
		for range r.IntN(8) {
			f := a
			if r.IntN(3) == 0 {
				f = b
			}
			n := r.IntN(int(f.Size()) / 4)
			parts = append(parts, disk.Part{File: f, Off: r.Int64N(f.Size() - int64(n)), Len: n})
		}
		arranged := disk.Arrange(parts)
		mem := buffer(t, arranged.Size)
		if err := pool.Read(t.Context(), disk.Ahead, arranged.Runs(mem)); err != nil {
			t.Fatal(err)
		}
		for i, p := range parts {
			if !bytes.Equal(mem[arranged.At[i]:][:p.Len], data[p.File.Name()][p.Off:][:p.Len]) {
				t.Fatalf("part %d of %v has other bytes", i, parts)
			}
		}
	}
	neighbours := []disk.Part{{File: a, Off: 5000, Len: 1000}, {File: b, Len: 10},
		{File: a, Off: 1000, Len: 4000}, {File: a, Off: 6100, Len: 100}}
	if got := disk.Arrange(neighbours); got.Reads() != 2 || got.Size != 3*disk.Block {
		t.Errorf("%d reads into %d bytes, want 2 into %d", got.Reads(), got.Size, 3*disk.Block)
	}
}
