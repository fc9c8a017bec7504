package tape

import (
	"cmp"
	"fmt"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
)

// DefaultTileBytes is the size that tiles are cut to, about: large enough for the disk to be at its best, small enough that
// two of them are nothing in the smallest budget.
const DefaultTileBytes = 16 << 20

// expandedBytes is the default of Packed.TileBytes.
const expandedBytes = 512 << 10

// Locate says where the bytes of a tensor are: in a shard, or in a pack.
type Locate func(checkpoint.Tensor) (file disk.File, off int64, err error)

// Shards locates tensors in the checkpoint's own files.
func Shards(m *checkpoint.Model) Locate {
	return func(t checkpoint.Tensor) (disk.File, int64, error) { return m.Shard(t.Shard), t.Offset, nil }
}

// Tiles is a tape cut up. It depends on the matrices alone, never on the memory there is.
//
// The tiles are grouped into segments of consecutive ones, each about as large as a tile may be: what is read at once, and
// kept or not kept in memory. A large matrix has one tile a segment; small matrices share one, and are one read where they
// are neighbours in their file.
type Tiles struct {
	matrices []Matrix
	locate   Locate
	tiles    []tile
	segments []segment
	first    []int // first tile of each matrix, and the number of tiles
	bytes    int64
	largest  int
	scratch  int // bytes of the largest tile that is expanded
}

// tile is where a tile lies.
type tile struct {
	matrix, row, rows int
	segment           int
	at, bytes         int // in the segment's buffer
	file              disk.File
	off               int64 // in the file
	frame, frames     int   // of a compressed matrix: those that have the rows
}

type segment struct {
	disk.Arrangement
	end int // tile behind its last
}

// Cut cuts the matrices into tiles of at most tileBytes (0 is DefaultTileBytes), or of one Unit of rows where that is more.
func Cut(matrices []Matrix, locate Locate, tileBytes int) (*Tiles, error) {
	if tileBytes <= 0 {
		tileBytes = DefaultTileBytes
	}
	t := &Tiles{matrices: matrices, locate: locate}
	var parts []disk.Part
	filled := 0
	flush := func() {
		if len(parts) == 0 {
			return
		}
		a := disk.Arrange(parts)
		for i, at := range a.At {
			t.tiles[len(t.tiles)-len(parts)+i].at = at
		}
		t.segments = append(t.segments, segment{a, len(t.tiles)})
		t.bytes += int64(a.Size)
		t.largest = max(t.largest, a.Size)
		parts, filled = nil, 0
	}
	for i, m := range matrices {
		t.first = append(t.first, len(t.tiles))
		more, err := t.cut(i, tileBytes)
		if err != nil {
			return nil, fmt.Errorf("tape: cut %s: %w", m.Tensor, err)
		}
		for _, x := range more {
			if filled+x.bytes > tileBytes {
				flush()
			}
			x.segment = len(t.segments)
			t.tiles = append(t.tiles, x)
			parts = append(parts, disk.Part{File: x.file, Off: x.off, Len: x.bytes})
			filled += x.bytes
		}
	}
	flush()
	t.first = append(t.first, len(t.tiles))
	return t, nil
}

// cut cuts matrix i.
func (t *Tiles) cut(i, tileBytes int) ([]tile, error) {
	m := t.matrices[i]
	if err := m.check(); err != nil {
		return nil, err
	}
	x := tile{matrix: i}
	row, unit := m.Format.RowBytes(m.Cols), m.Unit
	if p := m.Packed; p == nil {
		var err error
		if x.file, x.off, err = t.locate(m.Tensor); err != nil {
			return nil, err
		}
		if rows := lcm(unit, summedRows(x.file, x.off, row)); rows*row <= tileBytes {
			unit = rows // so that a tile can be checked without more than its own bytes
		}
	} else {
		x.file, x.off = p.File, p.Off
		tileBytes = min(tileBytes, cmp.Or(p.TileBytes, expandedBytes))
		if p.Rows%unit == 0 {
			unit = p.Rows // so that no frame is expanded for two tiles
		}
	}
	// As few tiles as there can be, as equal as the units allow.
	units := (m.Rows + unit - 1) / unit
	most := max(1, tileBytes/(row*unit))
	count := (units + most - 1) / most
	tiles := make([]tile, count)
	for n := range count {
		tiles[n] = x
		x := &tiles[n]
		x.row = n * units / count * unit
		x.rows = min((n+1)*units/count*unit, m.Rows) - x.row
		if p := m.Packed; p == nil {
			x.off += int64(x.row) * int64(row)
			x.bytes = x.rows * row
		} else {
			x.frame = x.row / p.Rows
			x.frames = (x.row+x.rows+p.Rows-1)/p.Rows - x.frame
			start := p.start(x.frame)
			x.off += start
			x.bytes = int(p.start(x.frame+x.frames) - start)
			t.scratch = max(t.scratch, x.frames*p.Rows*row)
		}
	}
	return tiles, nil
}

// summedRows is the number of rows that a checksum is of, in a file that has checksums; else 1.
func summedRows(f disk.File, off int64, row int) int {
	_, sums := disk.Unchecked(f)
	if sums == nil {
		return 1
	}
	i, start := sums.Find(off)
	if start != off || i == sums.Len() {
		return 1
	}
	n, _ := sums.Unit(i)
	return max(1, n/row)
}

// lcm is the least common multiple of two positive numbers.
func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// start is where a frame begins, or ends for one behind the last.
func (p *Packed) start(frame int) int64 {
	if frame == 0 {
		return 0
	}
	return p.Ends[frame-1]
}

func (m Matrix) check() error {
	switch {
	case m.Rows < 1 || m.Cols < 1 || m.Unit < 1 || m.Rows%m.Unit != 0:
		return fmt.Errorf("%d rows of %d in units of %d", m.Rows, m.Cols, m.Unit)
	case m.Format == kernel.MXFP4:
		return fmt.Errorf("%v has scales, which a tile of the tape has not", m.Format)
	case m.Packed != nil && (m.Packed.Rows < 1 || m.Packed.Expand == nil || len(m.Packed.Ends) != (m.Rows+m.Packed.Rows-1)/m.Packed.Rows):
		return fmt.Errorf("%d frames of %d rows for %d", len(m.Packed.Ends), m.Packed.Rows, m.Rows)
	case m.Tensor.Bytes != int64(m.Rows)*int64(m.Format.RowBytes(m.Cols)):
		return fmt.Errorf("%d bytes for %dx%d %v", m.Tensor.Bytes, m.Rows, m.Cols, m.Format)
	}
	return nil
}

// Bytes is the memory that holds all tiles.
func (t *Tiles) Bytes() int64 { return t.bytes }

// BufferBytes is the memory of one buffer of the ring.
func (t *Tiles) BufferBytes() int { return t.largest }

// ScratchBytes is the memory for a tile that is expanded; 0 if none is stored compressed.
func (t *Tiles) ScratchBytes() int { return t.scratch }

// Len is the number of tiles.
func (t *Tiles) Len() int { return len(t.tiles) }

// tensorAt is the tensor of segment s that has byte off of a file, or begins behind it.
func (t *Tiles) tensorAt(s int, file string, off int64) checkpoint.Tensor {
	best, distance := t.matrices[t.tiles[t.begin(s)].matrix].Tensor, int64(-1)
	for _, x := range t.tiles[t.begin(s):t.segments[s].end] {
		if x.file.Name() != file {
			continue
		}
		if d := x.off + int64(x.bytes) - off; d > 0 && (distance < 0 || d < distance) {
			best, distance = t.matrices[x.matrix].Tensor, d
		}
	}
	return best
}

// begin is the first tile of segment s.
func (t *Tiles) begin(s int) int {
	if s == 0 {
		return 0
	}
	return t.segments[s-1].end
}

// requestBytes is what a read costs, expressed in bytes.
const requestBytes = 256 << 10

// pin chooses the segments to keep in at most budget bytes.
//
// Every pass needs every tile once, so a byte kept saves a byte read wherever it is, with two exceptions: lm_head, which
// passes over a prompt leave out, comes last; and segments of many small reads, which cost the disk more than their bytes,
// come first. Within a kind the choice is spread evenly along the tape, so that the ring is filled with what is not kept
// while the pass works through what is.
func (t *Tiles) pin(budget int64) []bool {
	const costly, plain, head, kinds = 0, 1, 2, 3
	kind := func(s int) int {
		switch {
		case t.tiles[t.begin(s)].matrix == len(t.matrices)-1:
			return head
		case 4*requestBytes*t.segments[s].Reads() > t.segments[s].Size:
			return costly
		}
		return plain
	}
	var total [kinds]int64
	for s := range t.segments {
		total[kind(s)] += int64(t.segments[s].Size)
	}
	keep := make([]bool, len(t.segments))
	for k := range kinds {
		give := min(max(budget, 0), total[k])
		budget -= give
		share, owed := float64(give)/float64(max(total[k], 1)), 0.0
		for s := range t.segments {
			if size := t.segments[s].Size; kind(s) == k {
				owed += float64(size) * share
				if owed >= float64(size) && int64(size) <= give {
					owed -= float64(size)
					give -= int64(size)
					keep[s] = true
				}
			}
		}
	}
	return keep
}
