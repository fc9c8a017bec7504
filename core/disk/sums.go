package disk

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"
	"sort"
)

// ErrChecksum says that what was read, twice, is not what the checksums of the file say.
var ErrChecksum = errors.New("the bytes are not those that were verified: damaged on the disk, or replaced")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C is the checksum of a unit, whose first bytes had the checksum crc; 0 begins one.
func CRC32C(crc uint32, p []byte) uint32 {
	for len(p) > 0 {
		page := p[:min(len(p), touched)]
		touch(page)
		crc = crc32.Update(crc, castagnoli, page)
		p = p[len(page):]
	}
	return crc
}

// touched is how much memory is brought near before its checksum is made. What comes from a disk is in no cache, and a loop that
// only loads is faster at fetching it than one that waits for each sum: 9 GB/s together, 6.4 without.
const touched = 4096

// touch loads a byte of each line of a cache.
//
//go:noinline
func touch(p []byte) (sum byte) {
	for ; len(p) >= 512; p = p[512:] {
		sum += p[0] + p[64] + p[128] + p[192] + p[256] + p[320] + p[384] + p[448]
	}
	return sum
}

// Sums are the CRC32C checksums of a file. It is divided into units, what is read at once or a part of that: a tensor of an
// expert, some rows of a matrix. They lie one after the other and make up the whole file. A Sums is not changed once made.
type Sums struct {
	lengths []uint32
	crcs    []uint32
	starts  []int64 // of every unitsPerStart'th unit
	size    int64
}

// unitsPerStart is how many units are looked through to find an offset; the others are skipped by halving.
const unitsPerStart = 64

// NewSums makes checksums of lengths and values, one of each per unit. A unit has at least one byte.
func NewSums(lengths, crcs []uint32) *Sums {
	s := &Sums{lengths: lengths, crcs: crcs}
	for i, n := range lengths {
		if i%unitsPerStart == 0 {
			s.starts = append(s.starts, s.size)
		}
		s.size += int64(n)
	}
	return s
}

// Size is the length of the file.
func (s *Sums) Size() int64 { return s.size }

// Len is the number of units.
func (s *Sums) Len() int { return len(s.lengths) }

// Memory is about how many bytes the checksums take.
func (s *Sums) Memory() int64 { return 8*int64(len(s.lengths)) + 8*int64(len(s.starts)) }

// Unit is the length and the checksum of a unit.
func (s *Sums) Unit(i int) (length int, crc uint32) { return int(s.lengths[i]), s.crcs[i] }

// Equal reports whether both have the same units with the same checksums.
func (s *Sums) Equal(x *Sums) bool {
	return slices.Equal(s.lengths, x.lengths) && slices.Equal(s.crcs, x.crcs)
}

// Differ is where the first unit begins whose checksum is another, if the units are the same.
func (s *Sums) Differ(x *Sums) (off int64, ok bool) {
	if !slices.Equal(s.lengths, x.lengths) {
		return 0, false
	}
	for i, crc := range s.crcs {
		if crc != x.crcs[i] {
			return off, true
		}
		off += int64(s.lengths[i])
	}
	return 0, false
}

// Find is the unit that has the byte at off, and where it begins.
func (s *Sums) Find(off int64) (i int, start int64) {
	if off < 0 || off >= s.size {
		return len(s.lengths), s.size
	}
	n := sort.Search(len(s.starts), func(i int) bool { return s.starts[i] > off }) - 1
	i, start = n*unitsPerStart, s.starts[n]
	for start+int64(s.lengths[i]) <= off {
		start += int64(s.lengths[i])
		i++
	}
	return i, start
}

// Range is the checksum of the bytes [off, off+n), if whole units make them up.
func (s *Sums) Range(off, n int64) (crc uint32, ok bool) {
	i, start := s.Find(off)
	if start != off {
		return 0, false
	}
	for end := off + n; start < end; i++ {
		if i == len(s.lengths) {
			return 0, false
		}
		crc = combine(crc, s.crcs[i], int64(s.lengths[i]))
		start += int64(s.lengths[i])
	}
	return crc, start == off+n
}

// polynomial is the modulus of CRC32C: a CRC is a polynomial over GF(2), with the highest power in the lowest bit,
// modulo it.
const polynomial = crc32.Castagnoli

// multiply is the product of two polynomials.
func multiply(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			p ^= b
		}
		b = b>>1 ^ polynomial&-(b&1)
	}
	return p
}

// powers are x to the power of 8, 16, 32, 64, ...: what appending 1, 2, 4, 8, ... bytes of zeros multiplies a CRC with.
var powers = func() (p [63]uint32) {
	p[0] = 1 << (31 - 8)
	for i := 1; i < len(p); i++ {
		p[i] = multiply(p[i-1], p[i-1])
	}
	return p
}()

// combine is the checksum of two stretches together: of the first, and of the second, which has n bytes.
func combine(first, second uint32, n int64) uint32 {
	for left := uint64(n); left != 0; left &= left - 1 {
		first = multiply(first, powers[bits.TrailingZeros64(left)])
	}
	return first ^ second
}

// summed is a file whose reads are checked.
type summed struct {
	File
	sums *Sums
}

// Summed returns f with its reads checked. What is not what sums say is read once more, and if it is still not, the error
// matches ErrChecksum and has the offset of the unit. Closing it closes f. Sizes must agree.
func Summed(f File, sums *Sums) (File, error) {
	if f.Size() != sums.size {
		return nil, fmt.Errorf("disk: %s has %d bytes, its checksums are of %d", f.Name(), f.Size(), sums.size)
	}
	return &summed{f, sums}, nil
}

// Unchecked is the file that f checks the reads of, and the checksums; f itself and nil if it checks none.
func Unchecked(f File) (File, *Sums) {
	if s, ok := f.(*summed); ok {
		return s.File, s.sums
	}
	return f, nil
}

// ReadAt implements io.ReaderAt: it reads the whole units around the bytes.
func (f *summed) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 || off < 0 || off >= f.Size() {
		return f.File.ReadAt(p, off)
	}
	done := 0
	for i, start := f.sums.Find(off); done < len(p) && i < f.sums.Len(); i++ {
		n, crc := f.sums.Unit(i)
		at := off + int64(done) - start // in the unit
		want := min(len(p)-done, n-int(at))
		unit := p[done:][:want]
		if want < n {
			unit = make([]byte, n)
		}
		if err := f.unit(unit, start, crc); err != nil {
			return done, err
		}
		if want < n {
			copy(p[done:], unit[at:][:want])
		}
		done += want
		start += int64(n)
	}
	if done < len(p) {
		n, err := f.File.ReadAt(p[done:], off+int64(done)) // the end of the file
		return done + n, err
	}
	return done, nil
}

// unit reads a unit that begins at off, at most twice.
func (f *summed) unit(p []byte, off int64, crc uint32) error {
	for range 2 {
		if err := ReadFull(f.File, p, off); err != nil {
			return err
		}
		if CRC32C(0, p) == crc {
			return nil
		}
	}
	return &Error{f.Name(), off, ErrChecksum}
}

// stretch is a part of a unit that was read, as long as the others are missing.
type stretch struct {
	run  int
	off  int64
	n    int
	crc  uint32
	unit int
}

// inspect adds up the bytes [from, to) of run number n, which were just read. Units that they have whole are compared;
// of others it returns what there is of them.
func (f *summed) inspect(n int, run Run, from, to int64) (parts []stretch, err error) {
	for i, start := f.sums.Find(from); from < to && i < f.sums.Len(); i++ {
		length, want := f.sums.Unit(i)
		end := min(start+int64(length), to)
		crc := CRC32C(0, run.bytes(from, end))
		if whole := end-from == int64(length); !whole {
			parts = append(parts, stretch{n, from, int(end - from), crc, i})
		} else if crc != want {
			if err := f.again(run, i, start); err != nil {
				return nil, err
			}
		}
		start += int64(length)
		from = start
	}
	return parts, nil
}

// join compares the first unit of parts, which are sorted and of one run, with what is outside the run read now. It returns
// how many of the parts are of that unit.
func (f *summed) join(run Run, parts []stretch) (n int, err error) {
	_, start := f.sums.Find(parts[0].off)
	length, want := f.sums.Unit(parts[0].unit)
	end, at := start+int64(length), parts[0].off
	crc, err := f.outside(start, at)
	if err != nil {
		return 0, err
	}
	for ; n < len(parts) && parts[n].run == parts[0].run && parts[n].unit == parts[0].unit; n++ {
		crc = combine(crc, parts[n].crc, int64(parts[n].n))
		at += int64(parts[n].n)
	}
	rest, err := f.outside(at, end)
	if err != nil {
		return 0, err
	}
	if combine(crc, rest, end-at) != want {
		return n, f.again(run, parts[0].unit, start)
	}
	return n, nil
}

// outside is the checksum of bytes that are of a unit but of no run.
func (f *summed) outside(from, to int64) (uint32, error) {
	if from == to {
		return 0, nil
	}
	p := make([]byte, to-from)
	if err := ReadFull(f.File, p, from); err != nil {
		return 0, err
	}
	return CRC32C(0, p), nil
}

// again reads a unit that was not what it should be once more, and puts it where it is wanted.
func (f *summed) again(run Run, i int, start int64) error {
	length, crc := f.sums.Unit(i)
	p := make([]byte, length)
	if err := f.unit(p, start, crc); err != nil {
		return err
	}
	from, to := max(start, run.Off), min(start+int64(length), run.Off+int64(run.Len))
	copy(run.bytes(from, to), p[from-start:])
	return nil
}

// bytes is where the bytes [from, to) of the file go.
func (r Run) bytes(from, to int64) []byte {
	base := roundDown(r.Off)
	return r.Mem[from-base : to-base]
}
