package disk

import (
	"cmp"
	"slices"
)

// Part is a range of a file that somebody needs in memory.
type Part struct {
	File File
	Off  int64
	Len  int
}

// Arrangement is how parts lie in one buffer so that they can be read directly: parts that are neighbours in a file form
// one run.
type Arrangement struct {
	At   []int // where each part starts in the buffer, in the order the parts were given
	Size int   // of the buffer, a multiple of Block
	runs []Run
}

// maxGap is the number of bytes between two parts up to which they are read together. It is less than a block, so that a
// fault in bytes that nobody asked for stops nobody.
const maxGap = Block - 1

// Arrange lays out parts, whatever their order. Parts may overlap.
func Arrange(parts []Part) Arrangement {
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	// Parts of one file come next to each other, files in the order they first appear.
	first := func(f File) int {
		return slices.IndexFunc(parts, func(p Part) bool { return p.File == f })
	}
	slices.SortFunc(order, func(a, b int) int {
		if x, y := parts[a], parts[b]; x.File == y.File {
			return cmp.Compare(x.Off, y.Off)
		}
		return first(parts[a].File) - first(parts[b].File)
	})
	a := Arrangement{At: make([]int, len(parts))}
	start := 0 // of the last run in the buffer
	for _, i := range order {
		p := parts[i]
		last := len(a.runs) - 1
		if last >= 0 && a.runs[last].File == p.File && p.Off <= a.runs[last].Off+int64(a.runs[last].Len)+maxGap {
			r := &a.runs[last]
			r.Len = max(r.Len, int(p.Off-r.Off)+p.Len)
		} else {
			start = a.Size
			a.runs = append(a.runs, Run{File: p.File, Off: p.Off, Len: p.Len})
			last++
		}
		a.At[i] = start + int(p.Off-roundDown(a.runs[last].Off))
		a.Size = start + Span(a.runs[last].Off, a.runs[last].Len)
	}
	return a
}

// Runs gives the reads that fill a buffer of at least Size bytes, whose address is a multiple of Block.
func (a Arrangement) Runs(buffer []byte) []Run {
	runs := slices.Clone(a.runs)
	at := 0
	for i := range runs {
		n := Span(runs[i].Off, runs[i].Len)
		runs[i].Mem = buffer[at:][:n:n]
		at += n
	}
	return runs
}

// Reads is the number of runs.
func (a Arrangement) Reads() int { return len(a.runs) }
