package tape_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// trunk is a made-up trunk: random matrices, strewn over a few files.
type trunk struct {
	matrices []tape.Matrix
	raw      [][]byte // the bytes of each matrix
	data     disktest.Memory
	files    *disktest.Faulty
	open     map[string]disk.File
}

func newTrunk(t testing.TB, r *rand.Rand, count, maxRows int) *trunk {
	t.Helper()
	k := &trunk{data: disktest.Memory{}, open: map[string]disk.File{}}
	shards := 1 + r.IntN(3)
	for i := range count {
		m := tape.Matrix{Cols: 1 + r.IntN(200), Unit: 1, Format: []kernel.Format{kernel.F32, kernel.BF16, kernel.F16}[r.IntN(3)]}
		if r.IntN(4) == 0 {
			m.Unit = 1 + r.IntN(9)
		}
		m.Rows = m.Unit * (1 + r.IntN(maxRows/m.Unit))
		shard := r.IntN(shards)
		name := fmt.Sprintf("shard%d", shard)
		p := k.data[name]
		for n := r.IntN(3) * r.IntN(100); n > 0; n-- {
			p = append(p, 0xee) // other tensors
		}
		m.Tensor = checkpoint.Tensor{Name: fmt.Sprintf("matrix%d", i), Shard: shard, Offset: int64(len(p)),
			Bytes: int64(m.Rows * m.Format.RowBytes(m.Cols))}
		for range m.Tensor.Bytes {
			p = append(p, byte(r.Uint32()))
		}
		k.data[name] = p
		k.raw = append(k.raw, p[m.Tensor.Offset:])
		k.matrices = append(k.matrices, m)
	}
	k.files = disktest.Wrap(k.data, nil)
	k.files.Direct = disktest.Direct(r.IntN(4))
	for name := range k.data {
		f, err := k.files.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		k.open[name] = f
		t.Cleanup(func() { f.Close() })
	}
	return k
}

func (k *trunk) locate(x checkpoint.Tensor) (disk.File, int64, error) {
	return k.open[fmt.Sprintf("shard%d", x.Shard)], x.Offset, nil
}

func (k *trunk) want(x tape.Tile) []byte {
	m := k.matrices[x.Matrix]
	row := m.Format.RowBytes(m.Cols)
	return k.raw[x.Matrix][x.Row*row : (x.Row+x.Rows)*row]
}

// errExpand is what expanding a frame that is not one gives.
var errExpand = errors.New("not a frame")

// pack moves two in three matrices to a file that holds them in frames, each the bytes of its rows inverted behind a 7.
func (k *trunk) pack(t testing.TB, r *rand.Rand) {
	t.Helper()
	var data []byte
	packed := map[int]*tape.Packed{}
	for i, m := range k.matrices {
		if r.IntN(3) == 0 {
			continue
		}
		p := &tape.Packed{Off: int64(len(data)), Rows: 1 + r.IntN(m.Rows), Expand: func(dst, frame []byte) error {
			if len(frame) != len(dst)+1 || frame[0] != 7 {
				return errExpand
			}
			for i, b := range frame[1:] {
				dst[i] = ^b
			}
			return nil
		}}
		if r.IntN(2) == 0 {
			p.Rows = 1 + r.IntN(min(m.Rows, 8)) // many frames
		}
		frame := p.Rows * m.Format.RowBytes(m.Cols)
		for raw := k.raw[i][:m.Tensor.Bytes]; len(raw) > 0; raw = raw[min(frame, len(raw)):] {
			data = append(data, 7)
			for _, b := range raw[:min(frame, len(raw))] {
				data = append(data, ^b)
			}
			p.Ends = append(p.Ends, int64(len(data))-p.Off)
		}
		packed[i] = p
	}
	k.data["packed"] = data
	f, err := k.files.Open("packed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for i, p := range packed {
		p.File = f
		k.matrices[i].Packed = p
	}
}

func (k *trunk) cut(t testing.TB, tileBytes int) *tape.Tiles {
	t.Helper()
	tiles, err := tape.Cut(k.matrices, k.locate, tileBytes)
	if err != nil {
		t.Fatal(err)
	}
	return tiles
}

func openTape(t testing.TB, tiles *tape.Tiles, o tape.Options) *tape.Stream {
	t.Helper()
	s, err := tape.Open(tiles, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// play checks a pass over the first n matrices, up to `tiles` tiles. busy is how long a tile is computed with.
func (k *trunk) play(ctx context.Context, s *tape.Stream, n, tiles int, busy func()) (played []string, err error) {
	r, err := s.Start(ctx, n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	matrix, row := 0, 0
	for ; tiles > 0; tiles-- {
		x, err := r.Next()
		if errors.Is(err, io.EOF) {
			if matrix != n {
				return nil, fmt.Errorf("ended at matrix %d row %d", matrix, row)
			}
			return played, nil
		}
		if err != nil {
			return played, err
		}
		if x.Matrix != matrix || x.Row != row {
			return nil, fmt.Errorf("matrix %d row %d came, want matrix %d row %d", x.Matrix, x.Row, matrix, row)
		}
		m := k.matrices[matrix]
		if x.Format != m.Format || x.Cols != m.Cols || x.Stride != m.Cols || x.Rows%m.Unit != 0 || x.Rows == 0 {
			return nil, fmt.Errorf("matrix %d: bad tile %+v", matrix, x.Tile)
		}
		for range 2 {
			if !bytes.Equal(x.Data, k.want(x)) {
				return nil, fmt.Errorf("matrix %d row %d: other bytes", matrix, row)
			}
			busy()
		}
		played = append(played, fmt.Sprint(x.Matrix, x.Row, x.Rows))
		if row += x.Rows; row == m.Rows {
			matrix, row = matrix+1, 0
		}
		x.Release()
		x.Release() // must not count twice
	}
	return played, nil
}

func TestEveryBudgetPlaysTheSameTiles(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := random.New(t, uint64(seed), 1)
			k := newTrunk(t, r, 1+r.IntN(20), 300)
			if seed%2 == 1 {
				k.pack(t, r)
			}
			tileBytes := 1 << (8 + r.IntN(9))
			workers := kernel.NewPool(nil, 1+r.IntN(3))
			defer workers.Close()
			tiles := k.cut(t, tileBytes)
			var want []string
			for range 4 {
				pool := disk.NewPool(disk.Config{Readers: 1 + r.IntN(4), Piece: 1 << (10 + r.IntN(6))})
				var account memory.Account
				pinned := r.Int64N(tiles.Bytes() + 1)
				if r.IntN(3) == 0 {
					pinned = []int64{0, tiles.Bytes()}[r.IntN(2)]
				}
				ring := 1 + r.IntN(3)
				o := tape.Options{Pool: pool, Account: &account, Pinned: pinned, Ring: ring, Workers: workers}
				if r.IntN(3) == 0 {
					o.Workers = nil
				}
				s := openTape(t, tiles, o)
				var total int64
				for _, n := range account.Bytes() {
					total += n
				}
				if most := pinned + int64(ring*tiles.BufferBytes()+tiles.ScratchBytes()); total > most {
					t.Errorf("took %d bytes of %d", total, most)
				}
				busy := func() {
					if r.IntN(4) == 0 {
						runtime.Gosched()
					}
				}
				for range 4 {
					if r.IntN(2) == 0 { // a pass that ends early
						if _, err := k.play(t.Context(), s, 1+r.IntN(len(k.matrices)), r.IntN(tiles.Len()+1), busy); err != nil {
							t.Fatal(err)
						}
					}
					got, err := k.play(t.Context(), s, len(k.matrices), 1<<30, busy)
					if err != nil {
						t.Fatal(err)
					}
					if want == nil {
						want = got
					}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Fatalf("played %v, and before %v", got, want)
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				pool.Close()
				if left := account.Bytes(); len(left) != 0 {
					t.Errorf("not given back: %v", left)
				}
			}
		})
	}
}

func TestABufferBeingComputedFromIsNotOverwritten(t *testing.T) {
	for ring := 1; ring <= 3; ring++ {
		t.Run(fmt.Sprint(ring), func(t *testing.T) {
			r := random.New(t, 7, uint64(ring))
			k := newTrunk(t, r, 8, 300)
			if ring == 2 {
				k.pack(t, r)
			}
			tiles := k.cut(t, 8<<10)
			pool := disk.NewPool(disk.Config{Readers: 4, Piece: 4096})
			defer pool.Close()
			s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: ring})
			defer s.Close()
			if _, err := k.play(t.Context(), s, 8, 1<<30, func() { time.Sleep(100 * time.Microsecond) }); err != nil {
				t.Fatal(err)
			}
			// Nor when its pass was closed.
			for range 20 {
				p, err := s.Start(t.Context(), 8)
				if err != nil {
					t.Fatal(err)
				}
				x, err := p.Next()
				for range r.IntN(5) {
					x.Release()
					x, err = p.Next()
				}
				if err != nil {
					t.Fatal(err)
				}
				p.Close()
				p, err = s.Start(t.Context(), 8)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.Next(); err == nil {
					t.Fatal("two tiles were lent at a time")
				}
				time.Sleep(time.Millisecond)
				if !bytes.Equal(x.Data, k.want(x)) {
					t.Fatal("overwritten")
				}
				x.Release()
				if x, err = p.Next(); err != nil || x.Row != 0 || !bytes.Equal(x.Data, k.want(x)) {
					t.Fatal("the next pass does not begin at the beginning", err)
				}
				x.Release()
				p.Close()
			}
		})
	}
}

func TestPinnedBytesAreReadOnceAndTheOthersOncePerPass(t *testing.T) {
	r := random.New(t, 3, 1)
	k := newTrunk(t, r, 12, 300)
	tiles := k.cut(t, 8<<10)
	var weights int64
	for _, m := range k.matrices {
		weights += m.Tensor.Bytes
	}
	for _, pinned := range []int64{0, tiles.Bytes() / 2, tiles.Bytes()} {
		pool := disk.NewPool(disk.Config{Readers: 2})
		s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Pinned: pinned, Ring: 2})
		const passes = 8
		for range passes {
			if _, err := k.play(t.Context(), s, 12, 1<<30, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		s.Close() // and no load is under way
		stats := s.Stats()
		pool.Close()
		kept := pinned * weights / tiles.Bytes()
		want := passes*weights - (passes-1)*kept
		slack := int64(2*tiles.BufferBytes()) + weights/6
		if d := stats.Read - want; d > slack || d < -slack || pinned == tiles.Bytes() && stats.Read != weights {
			t.Errorf("%d of %d bytes pinned: read %d, want about %d", pinned, tiles.Bytes(), stats.Read, want)
		}
		// The ring may have read ahead of a pass that never came.
		if d := stats.Read - (passes*weights - (passes-1)*stats.KeptBytes); stats.Bytes != weights || d < 0 || d > int64(2*tiles.BufferBytes()) {
			t.Errorf("%d of %d bytes in %d tiles are said to stay, %d were read", stats.KeptBytes, stats.Bytes, stats.Kept, stats.Read)
		}
		if (stats.Kept == 0) != (pinned == 0) || (stats.Kept == tiles.Len()) != (pinned == tiles.Bytes()) {
			t.Errorf("%d bytes pinned: %d tiles of %d stay", pinned, stats.Kept, tiles.Len())
		}
		var sum int64
		for _, m := range stats.Matrices {
			sum += m.Read
		}
		if sum != stats.Read {
			t.Errorf("the matrices read %d, all %d", sum, stats.Read)
		}
	}
}

func TestTheRingIsFilledAcrossTheEndOfAPass(t *testing.T) {
	r := random.New(t, 3, 1)
	k := newTrunk(t, r, 6, 300)
	tiles := k.cut(t, 8<<10)
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: 2})
	defer s.Close()
	if _, err := k.play(t.Context(), s, 6, 1<<30, func() {}); err != nil {
		t.Fatal(err)
	}
	settled := pool.Stats().Ahead
	for range 100 {
		time.Sleep(2 * time.Millisecond)
		if n := pool.Stats().Ahead; n == settled {
			break
		} else {
			settled = n
		}
	}
	k.files.Set(func(io.ReaderAt, string, []byte, int64) (int, error) { return 0, syscall.EIO })
	p, err := s.Start(t.Context(), 6)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	x, err := p.Next()
	if err != nil {
		t.Fatal("the beginning was not read ahead:", err)
	}
	if !bytes.Equal(x.Data, k.want(x)) {
		t.Error("other bytes")
	}
	x.Release()
}

func TestAFailedReadNamesFileOffsetAndTensorAndTheNextPassTriesAgain(t *testing.T) {
	r := random.New(t, 11, 1)
	k := newTrunk(t, r, 10, 300)
	tiles := k.cut(t, 8<<10)
	broken := errors.New("broken")
	for _, m := range k.matrices[1:] {
		for _, pinned := range []int64{0, tiles.Bytes()} {
			pool := disk.NewPool(disk.Config{Readers: 2})
			s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Pinned: pinned, Ring: 2})
			file, off := fmt.Sprintf("shard%d", m.Tensor.Shard), m.Tensor.Offset+m.Tensor.Bytes/2
			for _, fault := range []disktest.Fault{disktest.FailAt(file, off, broken), disktest.Truncate(file, off)} {
				k.files.Set(fault)
				played, err := k.play(t.Context(), s, 10, 1<<30, func() {})
				var e *disk.Error
				if !errors.As(err, &e) || e.File != file || e.Off > off || !errors.Is(err, broken) && !errors.Is(err, disk.ErrShort) {
					t.Fatalf("after %d tiles: %v", len(played), err)
				}
				if e.Off == off && !strings.Contains(err.Error(), m.Tensor.Name+":") {
					t.Errorf("%v does not name %s", err, m.Tensor.Name)
				}
				k.files.Set(nil)
				if pinned > 0 {
					continue // it would be in memory now
				}
				if _, err := k.play(t.Context(), s, 10, 1<<30, func() {}); err != nil {
					t.Fatal("the tape does not recover:", err)
				}
			}
			if _, err := k.play(t.Context(), s, 10, 1<<30, func() {}); err != nil {
				t.Fatal("the tape does not recover:", err)
			}
			s.Close()
			pool.Close()
		}
	}
}

func TestAFrameThatIsDamagedNamesFileOffsetAndTensor(t *testing.T) {
	r := random.New(t, 11, 1)
	k := newTrunk(t, r, 10, 300)
	k.pack(t, r)
	tiles := k.cut(t, 8<<10)
	workers := kernel.NewPool(nil, 2)
	defer workers.Close()
	for i, m := range k.matrices {
		if m.Packed == nil {
			continue
		}
		off := m.Packed.Off
		if n := len(m.Packed.Ends); n > 1 {
			off += m.Packed.Ends[n/2-1]
		}
		k.data["packed"][off] = 8
		for _, pinned := range []int64{0, tiles.Bytes()} {
			pool := disk.NewPool(disk.Config{Readers: 2})
			s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Pinned: pinned, Ring: 2, Workers: workers})
			_, err := k.play(t.Context(), s, 10, 1<<30, func() {})
			if !errors.Is(err, errExpand) || !strings.Contains(err.Error(), fmt.Sprintf("matrix%d: packed at ", i)) {
				t.Errorf("matrix %d: %v", i, err)
			}
			// The disk may give the right bytes the next time: what was damaged is not kept.
			k.files.Set(func(r io.ReaderAt, name string, p []byte, at int64) (int, error) {
				n, err := r.ReadAt(p, at)
				if off := off - at; name == "packed" && off >= 0 && off < int64(n) {
					p[off] = 7
				}
				return n, err
			})
			if _, err := k.play(t.Context(), s, 10, 1<<30, func() {}); err != nil {
				t.Errorf("matrix %d, %d bytes pinned: the tape does not recover: %v", i, pinned, err)
			}
			k.files.Set(nil)
			s.Close()
			pool.Close()
		}
		k.data["packed"][off] = 7
	}
}

func TestAPanicInExpandingLeavesTheTapeUsable(t *testing.T) {
	r := random.New(t, 11, 1)
	k := newTrunk(t, r, 10, 300)
	k.pack(t, r)
	var bad atomic.Bool
	for _, m := range k.matrices {
		if p := m.Packed; p != nil {
			good := p.Expand
			p.Expand = func(dst, frame []byte) error {
				if bad.Load() {
					panic(errExpand)
				}
				return good(dst, frame)
			}
		}
	}
	tiles := k.cut(t, 8<<10)
	workers := kernel.NewPool(nil, 2)
	defer workers.Close()
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: 2, Workers: workers})
	defer s.Close()
	bad.Store(true)
	func() {
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, errExpand) {
				t.Errorf("a panic with %v", err)
			}
		}()
		_, err := k.play(t.Context(), s, 10, 1<<30, func() {})
		t.Errorf("no panic, %v", err)
	}()
	bad.Store(false)
	if _, err := k.play(t.Context(), s, 10, 1<<30, func() {}); err != nil {
		t.Fatal(err)
	}
}

func TestCancellationStopsWithinATile(t *testing.T) {
	r := random.New(t, 11, 1)
	k := newTrunk(t, r, 10, 300)
	tiles := k.cut(t, 8<<10)
	release := make(chan struct{})
	var reads atomic.Int64
	k.files.Set(func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		if reads.Add(1) > 3 {
			<-release
		}
		return r.ReadAt(p, off)
	})
	pool := disk.NewPool(disk.Config{Readers: 1})
	s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: 2})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err := k.play(ctx, s, 10, 1<<30, func() {})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	close(release)
	k.files.Set(nil)
	if _, err := k.play(t.Context(), s, 10, 1<<30, func() {}); err != nil {
		t.Fatal("the tape does not recover:", err)
	}
	s.Close()
	pool.Close()
}

func TestTilesFillTheirBuffersAndKeepUnitsWhole(t *testing.T) {
	matrix := func(rows, cols, unit int) tape.Matrix {
		return tape.Matrix{Rows: rows, Cols: cols, Unit: unit, Format: kernel.BF16,
			Tensor: checkpoint.Tensor{Name: "m", Bytes: int64(2 * rows * cols)}}
	}
	at := int64(100)
	var f disk.File
	locate := func(x checkpoint.Tensor) (disk.File, int64, error) { at += x.Bytes; return f, at - x.Bytes, nil }
	// A released KDA layer's q_proj, b_proj and gate, an MLA layer's kv_b_proj.
	for _, test := range []struct {
		matrices []tape.Matrix
		tiles    int
		most     int // bytes of a buffer
	}{
		{[]tape.Matrix{matrix(12288, 7168, 1)}, 11, 12288 * 7168 * 2 / 11},
		{[]tape.Matrix{matrix(96, 7168, 1), matrix(896, 7168, 1)}, 2, (96 + 896) * 7168 * 2},
		{[]tape.Matrix{matrix(24576, 512, 256)}, 2, 24576 * 512},
		{[]tape.Matrix{matrix(3, 16<<20, 1)}, 3, 32 << 20},
	} {
		tiles, err := tape.Cut(test.matrices, locate, 0)
		if err != nil {
			t.Fatal(err)
		}
		if tiles.Len() != test.tiles || tiles.BufferBytes() > test.most+20<<10 || tiles.BufferBytes() < test.most {
			t.Errorf("%d tiles in buffers of %d bytes, want %d of about %d", tiles.Len(), tiles.BufferBytes(), test.tiles, test.most)
		}
	}
	for _, bad := range []tape.Matrix{{}, {Rows: 3, Cols: 1, Unit: 2, Format: kernel.F32}, {Rows: 1, Cols: 32, Unit: 1, Format: kernel.MXFP4},
		{Rows: 1, Cols: 1, Unit: 1, Format: kernel.F32, Tensor: checkpoint.Tensor{Bytes: 5}},
		{Rows: 4, Cols: 1, Unit: 1, Format: kernel.F32, Tensor: checkpoint.Tensor{Bytes: 16}, Packed: &tape.Packed{Rows: 2, Ends: []int64{5}}}} {
		if _, err := tape.Cut([]tape.Matrix{bad}, locate, 0); err == nil {
			t.Errorf("%+v was cut", bad)
		}
	}
}

func TestPassesWithoutLogitsReadNoHead(t *testing.T) {
	r := random.New(t, 3, 1)
	k := newTrunk(t, r, 12, 300)
	head := &k.matrices[11]
	head.Rows, head.Cols, head.Unit = int(head.Tensor.Bytes)/head.Format.RowBytes(1), 1, 1
	tiles := k.cut(t, int(head.Tensor.Bytes)) // the head fills a segment
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: 2})
	for range 5 {
		if _, err := k.play(t.Context(), s, 11, 1<<30, func() { time.Sleep(100 * time.Microsecond) }); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	if n := s.Stats().Matrices[11].Read; n != 0 {
		t.Errorf("%d bytes of lm_head were read", n)
	}
}

// Passes over a prompt leave lm_head out, so memory for it is the last that pays.
func TestTheHeadIsPinnedAfterTheTrunk(t *testing.T) {
	r := random.New(t, 3, 1)
	k := newTrunk(t, r, 12, 300)
	head := k.matrices[11].Tensor.Bytes
	const tileBytes = 4 << 10
	trunk := *k
	trunk.matrices = k.matrices[:11]
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	tiles := k.cut(t, tileBytes)
	s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Pinned: trunk.cut(t, tileBytes).Bytes(), Ring: 1})
	const passes = 3
	for range passes {
		if _, err := k.play(t.Context(), s, 12, 1<<30, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	stats := s.Stats()
	for i, m := range stats.Matrices[:11] {
		if m.Read != k.matrices[i].Tensor.Bytes {
			t.Errorf("in %d passes %d bytes were read of matrix %d, which has %d", passes, m.Read, i, k.matrices[i].Tensor.Bytes)
		}
	}
	if read := stats.Matrices[11].Read; read < passes*head || read > passes*head+int64(tiles.BufferBytes()) {
		t.Errorf("in %d passes %d bytes were read of lm_head, which has %d", passes, read, head)
	}
}

// strip is a trunk of one matrix that is its file: rows of a block, two to a segment.
func strip(t *testing.T, segments int) *trunk {
	t.Helper()
	const cols = disk.Block / 4
	m := tape.Matrix{Rows: 2 * segments, Cols: cols, Unit: 1, Format: kernel.F32,
		Tensor: checkpoint.Tensor{Name: "matrix", Bytes: int64(2 * segments * disk.Block)}}
	raw := make([]byte, m.Tensor.Bytes)
	for i := range raw {
		raw[i] = byte(i / 3)
	}
	k := &trunk{matrices: []tape.Matrix{m}, raw: [][]byte{raw}, data: disktest.Memory{"shard0": raw}}
	k.files = disktest.Wrap(k.data, nil)
	f, err := k.files.Open("shard0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	k.open = map[string]disk.File{"shard0": f}
	return k
}

// Whatever a first pass keeps, it does not ask the readers for all of it at once: experts, and what the pass needs next,
// would wait.
func TestAFirstPassReadsNoMoreAheadThanARingWould(t *testing.T) {
	const segments, most = 32, 4
	k := strip(t, segments)
	tiles := k.cut(t, 2*disk.Block)
	gate := make(chan struct{})
	var begun atomic.Int64
	k.files.Set(func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		begun.Add(1)
		<-gate
		return r.ReadAt(p, off)
	})
	pool := disk.NewPool(disk.Config{Readers: segments})
	defer pool.Close()
	s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Pinned: tiles.Bytes()})
	defer s.Close()
	p, err := s.Start(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); begun.Load() < most && time.Since(start) < 10*time.Second; {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	if n := begun.Load(); n != most {
		t.Errorf("%d of %d segments are being read before the first tile came, not %d", n, segments, most)
	}
	close(gate)
	p.Close()
	if _, err := k.play(t.Context(), s, 1, 1<<30, func() {}); err != nil {
		t.Error(err)
	}
}

// A pass that was given up has buffers loading that the next pass needs only later, if at all: its own first tile comes
// before them.
func TestANewPassDoesNotWaitForWhatAnOldOneReadAhead(t *testing.T) {
	k := strip(t, 8)
	var mu sync.Mutex
	var order []int64
	gate := make(chan struct{})
	k.files.Set(func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		mu.Lock()
		order = append(order, off/(2*disk.Block))
		mu.Unlock()
		if off > 2*disk.Block-1 {
			<-gate
		}
		return r.ReadAt(p, off)
	})
	begun := func() []int64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(order)
	}
	pool := disk.NewPool(disk.Config{Readers: 1, Piece: disk.Block})
	defer pool.Close()
	s := openTape(t, k.cut(t, 2*disk.Block), tape.Options{Pool: pool, Account: new(memory.Account), Ring: 3})
	defer s.Close()
	p, err := s.Start(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	x, err := p.Next()
	if err != nil {
		t.Fatal(err)
	}
	x.Release()
	p.Close()
	for start := time.Now(); len(begun()) < 3 && time.Since(start) < 10*time.Second; {
		time.Sleep(time.Millisecond)
	}
	before := len(begun()) // two pieces of the first segment, one of the second, which is held up
	again, err := s.Start(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	close(gate)
	if x, err = again.Next(); err != nil {
		t.Fatal(err)
	}
	x.Release()
	if after := begun()[before:]; before != 3 || after[0] != 0 {
		t.Errorf("after %d reads the segments %v are read, where the new pass begins at 0", before, after)
	}
}

func TestMisuseIsAnError(t *testing.T) {
	r := random.New(t, 11, 1)
	k := newTrunk(t, r, 3, 300)
	tiles := k.cut(t, 1<<10)
	pool := disk.NewPool(disk.Config{Readers: 1})
	defer pool.Close()
	if _, err := tape.Open(tiles, tape.Options{Pool: pool, Account: new(memory.Account)}); err == nil {
		t.Error("a tape without memory was opened")
	}
	s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: 1})
	for _, n := range []int{-1, 0, 4} {
		if _, err := s.Start(t.Context(), n); err == nil {
			t.Errorf("a pass over %d of 3 matrices began", n)
		}
	}
	p, err := s.Start(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(t.Context(), 3); err == nil {
		t.Error("two passes at a time")
	}
	x, err := p.Next()
	if err != nil {
		t.Fatal(err)
	}
	x.Release()
	if _, err = p.Next(); err != nil {
		t.Fatal(err)
	}
	x.Release() // again: it is not the tile that is lent now
	if _, err := p.Next(); err == nil {
		t.Error("two tiles were lent at a time")
	}
	p.Close()
	p.Close()
	if _, err := p.Next(); err == nil {
		t.Error("a closed pass goes on")
	}
	s.Close()
	if _, err := s.Start(t.Context(), 3); err == nil {
		t.Error("a closed tape plays")
	}
}

// A matrix that does not begin where a checksum does, or that lies after the last, is cut as if there were none.
func TestAMatrixInsideOfAChecksumIsCutAllTheSame(t *testing.T) {
	const rows, row = 64, 2 * 64
	data := make([]byte, 1000+rows*row)
	plain, err := disktest.Memory{"a": data}.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for _, lengths := range [][]uint32{{uint32(len(data))}, {500, uint32(len(data) - 500)}, {999, 1, 3, rows*row - 3}} {
		var crcs []uint32
		at := 0
		for _, n := range lengths {
			crcs = append(crcs, disk.CRC32C(0, data[at:at+int(n)]))
			at += int(n)
		}
		file, err := disk.Summed(plain, disk.NewSums(lengths, crcs))
		if err != nil {
			t.Fatal(err)
		}
		m := tape.Matrix{Rows: rows, Cols: row / 2, Unit: 1, Format: kernel.BF16,
			Tensor: checkpoint.Tensor{Name: "a", Offset: 1000, Bytes: rows * row}}
		tiles, err := tape.Cut([]tape.Matrix{m}, func(checkpoint.Tensor) (disk.File, int64, error) { return file, 1000, nil }, 8*row)
		if err != nil || tiles.Len() != rows/8 {
			t.Errorf("checksums of %v bytes: %d tiles, %v", lengths, tiles.Len(), err)
		}
	}
}

func TestThePassIsToldHowLongItWaitedForTheDisk(t *testing.T) {
	k := strip(t, 4)
	const long = 50 * time.Millisecond
	k.files.Set(disktest.Slow(long))
	pool := disk.NewPool(disk.Config{Readers: 1})
	defer pool.Close()
	s := openTape(t, k.cut(t, 2*disk.Block), tape.Options{Pool: pool, Account: new(memory.Account), Ring: 1})
	start := time.Now()
	if _, err := k.play(t.Context(), s, 1, 1<<30, func() {}); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	s.Close()
	stats := s.Stats()
	if stats.Wait < 3*long || stats.Wait > took || stats.Matrices[0].Wait != stats.Wait {
		t.Errorf("waited %s, %s for the matrix, in a pass of %s", stats.Wait, stats.Matrices[0].Wait, took)
	}
}

// A tile that ends inside a unit of a checksum would have the rest of the unit read, too.
func TestTilesEndWhereChecksumsDo(t *testing.T) {
	const rows, row, perUnit = 1000, 2 * 64, 8
	data := make([]byte, 100+rows*row)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	lengths, crcs := []uint32{100}, []uint32{disk.CRC32C(0, data[:100])}
	for at := 100; at < len(data); at += perUnit * row {
		lengths = append(lengths, perUnit*row)
		crcs = append(crcs, disk.CRC32C(0, data[at:at+perUnit*row]))
	}
	var read atomic.Int64
	files := disktest.Wrap(disktest.Memory{"a": data}, func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		read.Add(int64(len(p)))
		return r.ReadAt(p, off)
	})
	plain, err := files.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	file, err := disk.Summed(plain, disk.NewSums(lengths, crcs))
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range []int{1, 2, 20} { // of the matrix
		m := tape.Matrix{Rows: rows, Cols: row / 2, Unit: unit, Format: kernel.BF16,
			Tensor: checkpoint.Tensor{Name: "a", Offset: 100, Bytes: rows * row}}
		tiles, err := tape.Cut([]tape.Matrix{m}, func(checkpoint.Tensor) (disk.File, int64, error) { return file, 100, nil }, 50*row)
		if err != nil {
			t.Fatal(err)
		}
		pool := disk.NewPool(disk.Config{Readers: 2})
		s := openTape(t, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: 2})
		read.Store(0)
		r, err := s.Start(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		for {
			x, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if x.Row%unit != 0 {
				t.Errorf("units of %d rows: a tile begins at row %d", unit, x.Row)
			}
			x.Release()
		}
		r.Close()
		if err := errors.Join(s.Close(), pool.Close()); err != nil {
			t.Fatal(err)
		}
		// The next pass is read ahead: up to two buffers.
		if n := read.Load(); n < rows*row || n > rows*row+2*50*row {
			t.Errorf("units of %d rows: %d bytes were read for %d", unit, n, rows*row)
		}
	}
}
