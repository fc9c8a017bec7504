package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
)

// scanner looks for values that no weight has, in tensors whose bytes it is given in order.
type scanner struct {
	tensors []checkpoint.Tensor // of one file, by offset
	next    int                 // the tensor under way
	carry   [8]byte             // the beginning of an element that the last piece cut
	carried int
	seen    counts
	zeros   zeroScanner
	report  func(tensor, text string)
}

// counts is what was found in the tensor under way.
type counts struct {
	nan, inf, bad int64
	first         int64 // element, of any sort
}

// kind is how the elements of a tensor are looked at.
type kind int

const (
	ignored kind = iota
	bf16
	f16
	f32
	scale // E8M0: 255 is NaN
)

func (k kind) size() int {
	switch k {
	case bf16, f16:
		return 2
	case f32:
		return 4
	}
	return 1
}

func kindOf(t checkpoint.Tensor) kind {
	if isVision(t.Name) {
		return ignored
	}
	switch t.DType {
	case checkpoint.BF16:
		return bf16
	case checkpoint.F16:
		return f16
	case checkpoint.F32:
		return f32
	case checkpoint.U8:
		if strings.HasSuffix(t.Name, ".weight_scale") {
			return scale
		}
	}
	return ignored
}

// isVision reports whether a tensor is one that the text model does not read.
func isVision(name string) bool {
	return strings.HasPrefix(name, "vision_tower.") || strings.HasPrefix(name, "mm_projector.")
}

// feed takes the bytes of the file at offset at. Pieces come in order and without gaps, from the beginning of the file.
func (s *scanner) feed(data []byte, at int64) {
	for s.next < len(s.tensors) {
		t := s.tensors[s.next]
		from, to := max(t.Offset, at), min(t.Offset+t.Bytes, at+int64(len(data)))
		if t.Offset >= at+int64(len(data)) && t.Bytes > 0 {
			return
		}
		if from < to {
			s.elements(kindOf(t), data[from-at:to-at], from-t.Offset)
			s.zeros.feed(t, data[from-at:to-at])
		}
		if to < t.Offset+t.Bytes {
			return // it goes on in the next piece
		}
		s.end(t)
		s.next++
	}
}

// elements looks at a part of the tensor under way that begins at its byte at.
func (s *scanner) elements(k kind, data []byte, at int64) {
	size := k.size()
	if k == ignored {
		return
	}
	if s.carried > 0 {
		n := copy(s.carry[s.carried:size], data)
		s.carried += n
		if s.carried < size {
			return
		}
		s.seen.count(k, s.carry[:size], at/int64(size))
		s.carried = 0
		data, at = data[n:], at+int64(n)
	}
	whole := len(data) / size * size
	s.seen.count(k, data[:whole], at/int64(size))
	s.carried = copy(s.carry[:], data[whole:])
}

// end tells what was found in a tensor.
func (s *scanner) end(t checkpoint.Tensor) {
	s.zeros.end(t)
	c := s.seen
	s.seen, s.carried = counts{}, 0
	if c.nan+c.inf+c.bad == 0 {
		return
	}
	var texts []string
	for _, n := range []struct {
		n    int64
		what string
	}{{c.nan, "NaN"}, {c.inf, "infinite"}, {c.bad, "scale bytes of 255, which is NaN"}} {
		if n.n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", n.n, n.what))
		}
	}
	s.report(t.Name, fmt.Sprintf("tensor %s: %s, the first at element %d", t.Name, strings.Join(texts, " and "), c.first))
}

// count looks at whole elements, the first of which is number at of its tensor. Most of the time there is nothing: eight bytes
// are looked at together. An exponent of ones is the one that overflows into the sign when one is added to it.
func (c *counts) count(k kind, data []byte, at int64) {
	var ones, one, sign uint64
	switch k {
	case bf16:
		ones, one, sign = 0x7F80_7F80_7F80_7F80, 0x0080_0080_0080_0080, 0x8000_8000_8000_8000
	case f16:
		ones, one, sign = 0x7C00_7C00_7C00_7C00, 0x0400_0400_0400_0400, 0x8000_8000_8000_8000
	case f32:
		ones, one, sign = 0x7F80_0000_7F80_0000, 0x0080_0000_0080_0000, 0x8000_0000_8000_0000
	case scale:
		ones, one, sign = 0x7F7F_7F7F_7F7F_7F7F, 0x0101_0101_0101_0101, 0x8080_8080_8080_8080
	}
	size := k.size()
	i := 0
	for ; i+32 <= len(data); i += 32 {
		p := data[i : i+32 : i+32]
		w0, w1 := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		w2, w3 := binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint64(p[24:])
		var hit uint64
		if k == scale { // all eight bits are ones
			hit = (w0&ones+one)&w0 | (w1&ones+one)&w1 | (w2&ones+one)&w2 | (w3&ones+one)&w3
		} else {
			hit = (w0&ones + one) | (w1&ones + one) | (w2&ones + one) | (w3&ones + one)
		}
		if hit&sign != 0 {
			c.slow(k, p, at+int64(i/size))
		}
	}
	c.slow(k, data[i:], at+int64(i/size))
}

// slow looks at elements one by one.
func (c *counts) slow(k kind, data []byte, at int64) {
	size := k.size()
	for i := 0; i+size <= len(data); i += size {
		nan, inf := false, false
		switch k {
		case bf16:
			v := uint32(binary.LittleEndian.Uint16(data[i:])) << 16
			nan, inf = special(v)
		case f32:
			nan, inf = special(binary.LittleEndian.Uint32(data[i:]))
		case f16:
			v := binary.LittleEndian.Uint16(data[i:])
			inf = v&0x7FFF == 0x7C00
			nan = v&0x7C00 == 0x7C00 && !inf
		case scale:
			if data[i] == 255 {
				c.found(at + int64(i))
				c.bad++
			}
			continue
		}
		if nan || inf {
			c.found(at + int64(i/size))
		}
		if nan {
			c.nan++
		}
		if inf {
			c.inf++
		}
	}
}

func special(bits uint32) (nan, inf bool) {
	inf = bits&^(1<<31) == math.Float32bits(float32(math.Inf(1)))
	return bits&0x7F80_0000 == 0x7F80_0000 && !inf, inf
}

func (c *counts) found(at int64) {
	if c.nan+c.inf+c.bad == 0 {
		c.first = at
	}
}
