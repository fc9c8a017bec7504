package disk_test

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/memory"
)

// flaky is a file in memory. Reads that have byte bad get it wrong, as often as left says.
type flaky struct {
	data []byte
	bad  int64
	left *atomic.Int64
}

func (c *flaky) Name() string { return "content" }
func (c *flaky) Size() int64  { return int64(len(c.data)) }
func (c *flaky) Close() error { return nil }

func (c *flaky) ReadAt(p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(c.data).ReadAt(p, off)
	if c.left != nil && off <= c.bad && c.bad < off+int64(n) && c.left.Add(-1) >= 0 {
		p[c.bad-off] ^= 0x10
	}
	return n, err
}

// sumsOf cuts data into units of random lengths up to longest.
func sumsOf(r *rand.Rand, data []byte, longest int) *disk.Sums {
	var lengths, crcs []uint32
	for at := 0; at < len(data); {
		n := min(1+r.IntN(longest), len(data)-at)
		lengths = append(lengths, uint32(n))
		crcs = append(crcs, crc32.Checksum(data[at:at+n], crc32.MakeTable(crc32.Castagnoli)))
		at += n
	}
	return disk.NewSums(lengths, crcs)
}

func noise(r *rand.Rand, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

func TestUnitsAreFoundByAnyOffset(t *testing.T) {
	r := random.New(t, 1, 2)
	s := sumsOf(r, noise(r, 100_000), 300)
	at, i := int64(0), 0
	for off := range s.Size() {
		if n, _ := s.Unit(i); off == at+int64(n) {
			at += int64(n)
			i++
		}
		if gotUnit, gotStart := s.Find(off); gotUnit != i || gotStart != at {
			t.Fatalf("Find(%d) is unit %d at %d, want %d at %d", off, gotUnit, gotStart, i, at)
		}
	}
	for _, off := range []int64{-1, s.Size(), s.Size() + 1} {
		if i, start := s.Find(off); i != s.Len() || start != s.Size() {
			t.Errorf("Find(%d) is unit %d at %d", off, i, start)
		}
	}
}

func TestChecksumsOfUnitsAddUp(t *testing.T) {
	r := random.New(t, 3, 4)
	data := noise(r, 50_000)
	s := sumsOf(r, data, 2000)
	var starts []int64
	for i, at := 0, int64(0); i < s.Len(); i++ {
		starts = append(starts, at)
		n, _ := s.Unit(i)
		at += int64(n)
	}
	starts = append(starts, s.Size())
	for range 2000 {
		a, b := r.IntN(len(starts)), r.IntN(len(starts))
		from, to := starts[min(a, b)], starts[max(a, b)]
		if from == s.Size() {
			continue
		}
		want := crc32.Checksum(data[from:to], crc32.MakeTable(crc32.Castagnoli))
		if got, ok := s.Range(from, to-from); !ok || got != want {
			t.Fatalf("Range(%d, %d) is %08x, %v; want %08x", from, to-from, got, ok, want)
		}
	}
	if _, ok := s.Range(starts[1]+1, 10); ok {
		t.Error("a range that begins inside a unit has a checksum")
	}
	if _, ok := s.Range(0, starts[3]-1); ok {
		t.Error("a range that ends inside a unit has a checksum")
	}
}

// poolRead reads runs of f and returns what came.
func poolRead(t *testing.T, f disk.File, piece int, ranges [][2]int) ([][]byte, error) {
	t.Helper()
	pool := disk.NewPool(disk.Config{Readers: 3, Piece: piece})
	defer pool.Close()
	var account memory.Account
	var runs []disk.Run
	for _, x := range ranges {
		m, err := account.Allocate("test", disk.Span(int64(x[0]), x[1]))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Free)
		runs = append(runs, disk.Run{File: f, Off: int64(x[0]), Len: x[1], Mem: m.Bytes()})
	}
	err := pool.Read(context.Background(), disk.Urgent, runs)
	var out [][]byte
	for _, run := range runs {
		from := int(run.Off % disk.Block)
		out = append(out, run.Mem[from:from+run.Len])
	}
	return out, err
}

func TestEveryReadOfAFileWithChecksumsIsChecked(t *testing.T) {
	r := random.New(t, 5, 6)
	data := noise(r, 300_000)
	for _, longest := range []int{10, 5000, 70_000} {
		sums := sumsOf(r, data, longest)
		for range 60 {
			c := &flaky{data: data, bad: int64(r.IntN(len(data)))}
			f, err := disk.Summed(c, sums)
			if err != nil {
				t.Fatal(err)
			}
			var ranges [][2]int
			for range 1 + r.IntN(3) {
				from := r.IntN(len(data))
				ranges = append(ranges, [2]int{from, r.IntN(len(data) - from + 1)})
			}
			unit, start := sums.Find(c.bad)
			length, _ := sums.Unit(unit)
			touched := false // the unit with the bad byte
			for _, x := range ranges {
				touched = touched || x[1] > 0 && int64(x[0]) < start+int64(length) && start < int64(x[0]+x[1])
			}
			check := func(how string, times int64, read func() ([][]byte, error)) {
				t.Helper()
				c.left = new(atomic.Int64)
				c.left.Store(times)
				got, err := read()
				if touched && times > 1 {
					var e *disk.Error
					if !errors.Is(err, disk.ErrChecksum) || !errors.As(err, &e) || e.Off != start || e.File != "content" {
						t.Fatalf("%s of %v with byte %d of unit %d wrong for good: %v, want a checksum error at %d", how, ranges, c.bad, unit, err, start)
					}
					return
				}
				if err != nil {
					t.Fatalf("%s of %v with byte %d wrong %d times: %v", how, ranges, c.bad, times, err)
				}
				for i, x := range ranges {
					if !bytes.Equal(got[i], data[x[0]:x[0]+x[1]]) {
						t.Fatalf("%s: bytes %d to %d are not those of the file", how, x[0], x[0]+x[1])
					}
				}
			}
			for _, times := range []int64{0, 1, 1 << 40} {
				check("pool", times, func() ([][]byte, error) { return poolRead(t, f, 8192, ranges) })
				check("ReadFull", times, func() (out [][]byte, err error) {
					for _, x := range ranges {
						p := make([]byte, x[1])
						if err := disk.ReadFull(f, p, int64(x[0])); err != nil {
							return nil, err
						}
						out = append(out, p)
					}
					return out, nil
				})
			}
		}
	}
}

func TestChecksumsOfAnotherSizeAreRefused(t *testing.T) {
	r := random.New(t, 7, 8)
	data := noise(r, 1000)
	if _, err := disk.Summed(&flaky{data: data[:999]}, sumsOf(r, data, 100)); err == nil {
		t.Error("a file of 999 bytes took the checksums of 1000")
	}
}

func TestTheEndOfAFileWithChecksumsIsTheEnd(t *testing.T) {
	r := random.New(t, 9, 10)
	data := noise(r, 1000)
	f, err := disk.Summed(&flaky{data: data}, sumsOf(r, data, 100))
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.ReadFull(f, make([]byte, 10), 995); !errors.Is(err, disk.ErrShort) {
		t.Errorf("reading beyond the end: %v, want ErrShort", err)
	}
}

// BenchmarkPool compares reads that are checked with reads that are not.
func BenchmarkCheckedReads(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const size = 64 << 20
	data := noise(r, size)
	sums := sumsOf(r, data, 8<<20)
	var account memory.Account
	m, err := account.Allocate("test", size)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Free()
	for _, checked := range []bool{false, true} {
		name := "plain"
		var f disk.File = &flaky{data: data}
		if checked {
			name = "checked"
			if f, err = disk.Summed(f, sums); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(name, func(b *testing.B) {
			pool := disk.NewPool(disk.Config{Readers: 2})
			defer pool.Close()
			b.SetBytes(size)
			for b.Loop() {
				if err := pool.Read(b.Context(), disk.Ahead, []disk.Run{{File: f, Off: 0, Len: size, Mem: m.Bytes()}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
