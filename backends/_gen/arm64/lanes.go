package main

import (
	"fmt"

	"github.com/k3infer/k3/backends/_gen/assembly"
	"github.com/k3infer/k3/backends/_gen/exact"
)

// lanes builds a loop body on four float32 at a time: its methods are operations on values, which get registers when
// the body is written.
type lanes struct {
	f     *file
	shift int // bytes from the loop's pointers to this body's four elements
	ops   []operation
	next  int
	about string // comment on the next operation
}

// value is what an operation computed, or a register that the body only reads (fixed).
type value int

// fixed is a register that holds the same before and after the body.
func fixed(register int) value { return value(-1 - register) }

// operation is one instruction. Registers of args and then that of the result are given to emit. With inPlace the
// result takes the first argument's register, after a copy where the argument is needed later.
type operation struct {
	args    []value
	result  value
	about   string // a comment before the instruction
	none    bool   // no result
	inPlace bool
	emit    func(f *file, r []int)
}

func (l *lanes) add(o operation) value {
	o.result, o.about, l.about = value(l.next), l.about, ""
	l.next++
	l.ops = append(l.ops, o)
	return o.result
}

// note says what the operations that follow compute, in a comment before the first of them. A note that nothing
// followed is continued by the next.
func (l *lanes) note(words string) {
	if l.about != "" {
		words = l.about + " " + words
	}
	l.about = words
}

func (l *lanes) word3(op string, a, b value) value {
	return l.add(operation{args: []value{a, b}, emit: func(f *file, r []int) { f.word3(op, r[2], r[0], r[1]) }})
}

func (l *lanes) word2(op string, a value) value {
	return l.add(operation{args: []value{a}, emit: func(f *file, r []int) { f.word2(op, r[1], r[0]) }})
}

// Plain float32 operations, each rounded.
func (l *lanes) plus(a, b value) value  { return l.word3("fadd", a, b) }
func (l *lanes) minus(a, b value) value { return l.word3("fsub", a, b) }
func (l *lanes) times(a, b value) value { return l.word3("fmul", a, b) }
func (l *lanes) over(a, b value) value  { return l.word3("fdiv", a, b) }
func (l *lanes) max(a, b value) value   { return l.word3("fmax", a, b) }
func (l *lanes) min(a, b value) value   { return l.word3("fmin", a, b) }
func (l *lanes) abs(a value) value      { return l.word2("fabs", a) }

// greater is all ones where a > b.
func (l *lanes) greater(a, b value) value { return l.word3("fcmgt", a, b) }

func (l *lanes) sshr(a value, n int) value {
	return l.add(operation{args: []value{a}, emit: func(f *file, r []int) { f.sshr(r[1], r[0], n) }})
}

// named is an instruction of Go's assembler on three registers, or two and a number.
func (l *lanes) named(op, arrangement string, a, b value) value {
	return l.add(operation{args: []value{a, b}, emit: func(f *file, r []int) {
		f.P("%s V%d.%s, V%d.%s, V%d.%s", op, r[1], arrangement, r[0], arrangement, r[2], arrangement)
	}})
}

func (l *lanes) shl(a value, n int) value {
	return l.add(operation{args: []value{a}, emit: func(f *file, r []int) {
		f.P("VSHL $%d, V%d.S4, V%d.S4", n, r[0], r[1])
	}})
}

func (l *lanes) inPlace(op, arrangement string, acc, a, b value) value {
	return l.add(operation{args: []value{acc, a, b}, inPlace: true, emit: func(f *file, r []int) {
		f.P("%s V%d.%s, V%d.%s, V%d.%s", op, r[2], arrangement, r[1], arrangement, r[0], arrangement)
	}})
}

// fma is a*b + c and fms is c - a*b, rounded once.
func (l *lanes) fma(a, b, c value) value { return l.inPlace("VFMLA", "S4", c, a, b) }
func (l *lanes) fms(a, b, c value) value { return l.inPlace("VFMLS", "S4", c, a, b) }

// choose is a where mask is all ones and b where it is 0.
func (l *lanes) choose(mask, a, b value) value { return l.inPlace("VBSL", "B16", mask, a, b) }

// number loads a constant.
func (l *lanes) number(c exact.Constant) value {
	at := l.f.constant(c)
	return l.add(operation{emit: func(f *file, r []int) { f.P("FMOVQ %d(R14), F%d", at, r[0]) }})
}

// load reads the four elements at a pointer.
func (l *lanes) load(pointer string) value {
	return l.add(operation{emit: func(f *file, r []int) { f.P("FMOVQ %d(%s), F%d", l.shift, pointer, r[0]) }})
}

func (l *lanes) store(v value, pointer string) {
	l.add(operation{args: []value{v}, none: true, emit: func(f *file, r []int) {
		f.P("FMOVQ F%d, %d(%s)", r[0], l.shift, pointer)
	}})
}

// write gives the values of some bodies registers below limit and writes the bodies, one instruction of each in turn,
// so that one computes while the other waits.
func write(f *file, limit int, bodies ...*lanes) {
	type place struct {
		body *lanes
		v    value
	}
	registers := map[place]int{}
	free := assembly.NewRegisters(assembly.LowestFirst, 0, limit-1)
	take := func(at place) int {
		registers[at] = free.Take()
		return registers[at]
	}
	last := map[place]int{}
	for _, l := range bodies {
		for i, o := range l.ops {
			for _, a := range o.args {
				last[place{l, a}] = i
			}
		}
	}
	for i := range bodies[0].ops {
		for _, l := range bodies {
			o := l.ops[i]
			if o.about != "" && l == bodies[0] {
				f.Note("%s", o.about)
			}
			var r []int
			for _, a := range o.args {
				if a < 0 {
					r = append(r, int(-1-a))
				} else {
					r = append(r, registers[place{l, a}])
				}
			}
			dies := func(k int) bool {
				a := o.args[k]
				if a < 0 || last[place{l, a}] != i {
					return false
				}
				for _, before := range o.args[:k] {
					if before == a {
						return false // freed already
					}
				}
				return true
			}
			result := place{l, o.result}
			if o.inPlace && dies(0) {
				registers[result] = r[0]
			} else if o.inPlace {
				to := take(result)
				f.P("VMOV V%d.B16, V%d.B16", r[0], to)
				r[0] = to
			}
			for k, a := range o.args {
				if dies(k) && !(o.inPlace && k == 0) {
					free.Free(registers[place{l, a}])
				}
			}
			if !o.inPlace && !o.none {
				r = append(r, take(result))
			}
			o.emit(f, r)
			if _, used := last[result]; !used && !o.none {
				panic(fmt.Sprintf("%s: operation %d of a body is used by none", f.Name, i))
			}
		}
	}
}
