package tokenizer

// merger holds the scratch space of byte-pair merging, reused from piece to piece.
type merger struct {
	parts []part
	heap  []uint64 // rank<<32 | index of the left part; entries whose part no longer has that rank are stale
}

// part is a token that begins at the part's own index in the piece.
type part struct {
	id         uint32
	rank       uint32 // of this part and the next together, or none
	next, prev int32  // indices; the piece's length after the last one, -1 before the first
}

// appendIDs appends the tokens of one piece: its own if it is one, otherwise what is left after merging, again and again, the
// two neighbours whose union has the lowest rank, the leftmost of equals. The heap makes that n log n.
func (m *merger) appendIDs(ids []int, v *vocabulary, piece string) []int {
	if id := v.rank(piece); id != none {
		return append(ids, int(id))
	}
	n := int32(len(piece))
	m.parts, m.heap = m.parts[:0], m.heap[:0]
	for i := range n {
		p := part{id: v.rank(piece[i : i+1]), rank: none, next: i + 1, prev: i - 1}
		if i+1 < n {
			p.rank = v.rank(piece[i : i+2])
		}
		m.parts = append(m.parts, p)
		m.push(p.rank, i)
	}
	for len(m.heap) > 0 {
		rank, i := m.pop()
		left := &m.parts[i]
		if left.rank != rank {
			continue
		}
		right := &m.parts[left.next]
		left.id, left.next = rank, right.next
		right.rank = none
		left.rank = none
		if left.next < n {
			m.parts[left.next].prev = i
			left.rank = v.rank(piece[i:m.parts[left.next].next])
			m.push(left.rank, i)
		}
		if left.prev >= 0 {
			before := &m.parts[left.prev]
			before.rank = v.rank(piece[left.prev:left.next])
			m.push(before.rank, left.prev)
		}
	}
	for i := int32(0); i < n; i = m.parts[i].next {
		ids = append(ids, int(m.parts[i].id))
	}
	return ids
}

func (m *merger) push(rank uint32, i int32) {
	if rank == none {
		return
	}
	key := uint64(rank)<<32 | uint64(i)
	m.heap = append(m.heap, key)
	at := len(m.heap) - 1
	for at > 0 {
		up := (at - 1) / 2
		if m.heap[up] <= key {
			break
		}
		m.heap[at] = m.heap[up]
		at = up
	}
	m.heap[at] = key
}

func (m *merger) pop() (rank uint32, i int32) {
	top := m.heap[0]
	last := len(m.heap) - 1
	key := m.heap[last]
	m.heap = m.heap[:last]
	at := 0
	for {
		down := 2*at + 1
		if down >= last {
			break
		}
		if down+1 < last && m.heap[down+1] < m.heap[down] {
			down++
		}
		if m.heap[down] >= key {
			break
		}
		m.heap[at] = m.heap[down]
		at = down
	}
	if last > 0 {
		m.heap[at] = key
	}
	return uint32(top >> 32), int32(uint32(top))
}
