package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"

	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
)

// The sizes of the units that checksums are made of. The rows of a matrix are read in tiles, and those of the embedding one
// by one, so a unit is a small part of its matrix; a routed expert is read as a whole, and so is each of its tensors.
const (
	headerUnit = 64 << 10
	leastUnit  = 4 << 10
	mostUnit   = 256 << 10
	perTensor  = 64      // units, about, as long as leastUnit and mostUnit allow it
	wholeUnit  = 1 << 30 // what even a tensor that is read as a whole is divided by
)

// Summer makes the checksums of one .safetensors file from its bytes, given in order by Write. It is an io.Writer.
type Summer struct {
	size   int64
	header []byte // as far as it has come; nil once it was understood
	length int64  // of the header with its length, 0: not known yet
	bad    bool   // it is no .safetensors file
	adder  *checksum.Adder
	index  *Index
	next   int   // tensor
	at     int64 // where the next unit begins
}

// NewSummer begins the checksums of a file of the given size.
func NewSummer(size int64) *Summer {
	s := &Summer{size: size, header: []byte{}}
	s.adder = checksum.NewAdder(s.unit)
	return s
}

// Write adds bytes of the file. It does not fail: a file whose header cannot be understood has no checksums.
func (s *Summer) Write(p []byte) (int, error) {
	n := len(p)
	if s.header != nil && !s.bad {
		s.header = append(s.header, p...)
		p = nil
		if s.length == 0 && len(s.header) >= 8 {
			s.length = 8 + int64(min(binary.LittleEndian.Uint64(s.header), maxHeader+1))
			s.bad = s.length > min(8+maxHeader, s.size)
		}
		if s.length > 0 && int64(len(s.header)) >= s.length {
			s.bad = s.understand() != nil
			p, s.header = s.header, nil
		}
	}
	if !s.bad {
		s.adder.Write(p)
	}
	return n, nil
}

// understand reads the header.
func (s *Summer) understand() error {
	s.index = newIndex()
	s.index.shards = []Shard{{"", s.size}}
	b := builder{index: s.index}
	return b.shard(context.Background(), headerOnly{bytes.NewReader(s.header), s.size}, 0)
}

// headerOnly is a file of which only the header can be read.
type headerOnly struct {
	*bytes.Reader
	size int64
}

func (headerOnly) Name() string  { return "header" }
func (f headerOnly) Size() int64 { return f.size }
func (headerOnly) Close() error  { return nil }

// unit is the length of the unit that begins at s.at.
func (s *Summer) unit() int64 {
	n := int64(0)
	if left := s.length - s.at; left > 0 {
		n = min(left, headerUnit)
	} else {
		for n == 0 {
			t := s.index.tensor(s.next)
			if left := t.Offset + t.Bytes - s.at; left > 0 {
				n = min(left, t.UnitBytes())
			} else {
				s.next++
			}
		}
	}
	s.at += n
	return n
}

// UnitBytes is the size of the units that checksums of the tensor are made of: a power of two of its rows, or all of it.
func (t Tensor) UnitBytes() int64 {
	if strings.Contains(t.String(), ".experts.") || len(t.Shape) < 2 {
		return wholeUnit
	}
	row := t.Bytes / int64(t.Shape[0])
	rows := int64(1)
	for most := min(max(t.Bytes/perTensor, leastUnit), mostUnit); 2*rows*row <= most; rows *= 2 {
	}
	return min(rows*row, wholeUnit)
}

// Sums are the checksums, nil if the file is not complete or no .safetensors file.
func (s *Summer) Sums() *disk.Sums {
	if s.bad || s.header != nil {
		return nil
	}
	if sums := s.adder.Sums(); sums != nil && sums.Size() == s.size {
		return sums
	}
	return nil
}
