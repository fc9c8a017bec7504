package assembly

import (
	"fmt"
	"slices"
)

// Order says which of the free registers is taken next. Until one has been given back it is the lowest.
type Order int

const (
	// NewestFirst takes the register that was given back last.
	NewestFirst Order = iota
	// OldestFirst takes the register that has been free for longest.
	OldestFirst
	// LowestFirst takes the register of the lowest number.
	LowestFirst
)

// Registers hands out registers by their numbers and takes them back, so that code can give them names. Running out of
// registers, and giving back one that is free, are mistakes of the generator: they panic.
type Registers struct {
	order Order
	free  []int // in the order in which they are taken
}

// NewRegisters returns the registers from first to last, all free.
func NewRegisters(order Order, first, last int) *Registers {
	r := &Registers{order: order}
	for n := first; n <= last; n++ {
		r.free = append(r.free, n)
	}
	return r
}

// Take hands out one register.
func (r *Registers) Take() int {
	if len(r.free) == 0 {
		panic("no register is free")
	}
	n := r.free[0]
	r.free = r.free[1:]
	return n
}

// TakeN hands out n registers.
func (r *Registers) TakeN(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = r.Take()
	}
	return all
}

// TakeLast hands out the register that would be taken last: for what stays, such as a mask.
func (r *Registers) TakeLast() int {
	if len(r.free) == 0 {
		panic("no register is free")
	}
	last := len(r.free) - 1
	n := r.free[last]
	r.free = r.free[:last]
	return n
}

// Free takes registers back.
func (r *Registers) Free(registers ...int) {
	for _, n := range registers {
		if slices.Contains(r.free, n) {
			panic(fmt.Sprintf("register %d is free already", n))
		}
		at := len(r.free)
		switch r.order {
		case NewestFirst:
			at = 0
		case LowestFirst:
			at, _ = slices.BinarySearch(r.free, n)
		}
		r.free = slices.Insert(r.free, at, n)
	}
}

// Copy returns the registers that are free now, to be handed out again and again, as by code that is written several
// times.
func (r *Registers) Copy() *Registers { return &Registers{r.order, slices.Clone(r.free)} }
