package policies

import "github.com/k3infer/k3/core/experts"

// none marks the absence of an expert id.
const none = -1

// ids numbers the experts of a model densely, so that policies use arrays where a general cache needs maps.
type ids struct{ experts int32 }

func newIDs(config experts.Config) ids { return ids{int32(config.Experts)} }

func (n ids) of(key experts.Key) int32 { return key.Layer*n.experts + key.Expert }

func (n ids) key(id int32) experts.Key {
	return experts.Key{Layer: id / n.experts, Expert: id % n.experts}
}

func (n ids) may(id int32, evictable func(experts.Key) bool) bool {
	return evictable == nil || evictable(n.key(id))
}

// bag is a set of ids in no order, from which any can be taken in a moment.
type bag struct {
	members []int32
	place   []int32 // by id: index in members, none: not there
}

func newBag(config experts.Config) bag {
	total := config.Layers * config.Experts
	b := bag{members: make([]int32, 0, min(config.Capacity, total)), place: make([]int32, total)}
	for i := range b.place {
		b.place[i] = none
	}
	return b
}

func (b *bag) add(id int32) {
	b.place[id] = int32(len(b.members))
	b.members = append(b.members, id)
}

// remove takes an id out if it is there.
func (b *bag) remove(id int32) {
	at := b.place[id]
	if at == none {
		return
	}
	last := len(b.members) - 1
	moved := b.members[last]
	b.members[at], b.place[moved] = moved, at
	b.members = b.members[:last]
	b.place[id] = none
}

// empty takes all out.
func (b *bag) empty() {
	for _, id := range b.members {
		b.place[id] = none
	}
	b.members = b.members[:0]
}

// links holds the chains of any number of lists that share the same ids; an id is on one list at most.
type links struct{ next, prev []int32 }

func newLinks(config experts.Config) *links {
	total := config.Layers * config.Experts
	return &links{next: make([]int32, total), prev: make([]int32, total)}
}

// list is a doubly linked list of ids: front is the newest, back the oldest.
type list struct {
	*links
	front, back int32
	size        int
}

func newList(l *links) list { return list{links: l, front: none, back: none} }

func (l *list) pushFront(id int32) {
	l.prev[id], l.next[id] = none, l.front
	if l.front == none {
		l.back = id
	} else {
		l.prev[l.front] = id
	}
	l.front = id
	l.size++
}

func (l *list) remove(id int32) {
	before, after := l.prev[id], l.next[id]
	if before == none {
		l.front = after
	} else {
		l.next[before] = after
	}
	if after == none {
		l.back = before
	} else {
		l.prev[after] = before
	}
	l.size--
}

func (l *list) moveToFront(id int32) {
	if l.front != id {
		l.remove(id)
		l.pushFront(id)
	}
}

// oldest returns the entry nearest to the back that may leave, or none.
func (l *list) oldest(n ids, evictable func(experts.Key) bool) int32 {
	id := l.back
	for id != none && !n.may(id, evictable) {
		id = l.prev[id]
	}
	return id
}

// takeFront moves all of other, which shares the chains, to the front of l.
func (l *list) takeFront(other *list) {
	if other.size == 0 {
		return
	}
	if l.size == 0 {
		l.back = other.back
	} else {
		l.next[other.back], l.prev[l.front] = l.front, other.back
	}
	l.front = other.front
	l.size += other.size
	other.front, other.back, other.size = none, none, 0
}
