package main

import (
	"fmt"

	"github.com/k3infer/k3/backends/_gen/assembly"
)

// recurrenceKernels write the KDA step for one token and `parts` registers of columns: columns are independent of
// each other. The first loop reads the state; the second repeats the decay, which is one product, rather than having
// stored it, writes the state once, and gives the output. A block of columns is small enough for the second loop, and
// the steps of further tokens, to find it in the first-level cache.
func recurrenceKernels(f *file, s isa) {
	for _, parts := range []int{8, 1} {
		recurrence(f, s, parts)
	}
}

func recurrence(f *file, s isa, parts int) {
	const (
		args, state, keys, i, row = "AX", "SI", "CX", "BX", "R9" // i is the current row, a key
		k, alpha, q               = "R10", "R11", "R12"
		first, ask                = "R8", "R13" // whether this is the first token, and how far ahead to prefetch
		v, beta, o                = "DI", "DX", "DI"
	)
	name := fmt.Sprintf("kdaC%d%s", parts, s.name)
	f.function(fmt.Sprintf(`%s advances %d columns of the state of a head by one token. It is the body of
		generic.Backend.KDA.`, name, parts*s.lanes), name, argument{"a", "*kdaArgs", args})
	f.P("MOVQ kdaArgs_row(%s), %s", args, row)
	f.P("MOVQ kdaArgs_k(%s), %s", args, k)
	f.P("MOVQ kdaArgs_alpha(%s), %s", args, alpha)
	f.P("MOVQ kdaArgs_q(%s), %s", args, q)

	// Registers: u and o, then one or more for the state, then the broadcasts. Where u and o do not both fit, they
	// share registers, and what u became is read from memory.
	const broadcasts = 3
	all := newRegisters(s, assembly.OldestFirst, 0)
	spill := 2*parts+broadcasts+1 > s.regs
	us := all.takeN(parts)
	os := us
	if !spill {
		os = all.takeN(parts)
	}
	rows := all.takeN(min(parts, s.regs-os[parts-1].n-1-broadcasts)) // of the state, in turn
	decay, key, query := all.take(), all.take(), all.take()
	stateRow := func(p int) reg { return rows[p%len(rows)] }

	f.Note("u = 0, and o = 0 where it has registers of its own.")
	for p, u := range us {
		f.zero(u)
		if !spill {
			f.zero(os[p])
		}
	}
	f.P("MOVQ kdaArgs_s(%s), %s", args, state)
	f.P("MOVQ kdaArgs_dim(%s), %s", args, keys)
	f.P("MOVQ kdaArgs_first(%s), %s", args, first)
	f.P("MOVQ kdaArgs_ask(%s), %s", args, ask)
	f.P("XORQ %s, %s", i, i)
	f.Label("read")
	f.Note("First loop, over the keys i: u[c] = fma(k[i], alpha[i]*s[i][c], u[c]).")
	f.P("VBROADCASTSS (%s)(%s*4), %s", alpha, i, decay)
	f.P("VBROADCASTSS (%s)(%s*4), %s", k, i, key)
	for p, u := range us {
		f.P("VMULPS %d(%s), %s, %s", p*s.bytes(), state, decay, stateRow(p))
		f.P("VFMADD231PS %s, %s, %s", stateRow(p), key, u)
	}
	f.Note("With the first token, prefetch the row four further on.")
	f.P("TESTQ %s, %s", first, first)
	f.P("JEQ readOn")
	for at := 0; at < parts*s.bytes(); at += 64 {
		f.P("PREFETCHT0 %d(%s)(%s*4)", at, state, row)
	}
	f.Label("readOn")
	f.P("ADDQ %s, %s", row, state)
	f.P("INCQ %s", i)
	f.P("CMPQ %s, %s", i, keys)
	f.P("JNE read")
	f.Note("u[c] = beta*(v[c]-u[c]).")
	f.P("MOVQ kdaArgs_v(%s), %s", args, v)
	f.P("MOVQ kdaArgs_beta(%s), %s", args, beta)
	f.P("VBROADCASTSS (%s), %s", beta, key)
	for p, u := range us {
		if parts > 4 && p == parts/2 {
			f.Note("The other half of the columns.")
		}
		f.P("VMOVUPS %d(%s), %s", p*s.bytes(), v, stateRow(p))
		f.P("VSUBPS %s, %s, %s", u, stateRow(p), u)
		f.P("VMULPS %s, %s, %s", u, key, u)
		if spill {
			f.P("VMOVUPS %s, kdaArgs_w+%d(%s)", u, p*s.bytes(), args)
			f.zero(os[p])
		}
	}
	f.Note("Back to the first key.")
	f.P("MOVQ kdaArgs_s(%s), %s", args, state)
	f.P("XORQ %s, %s", i, i)
	f.Label("write")
	f.Note("Second loop, over the keys i: s[i][c] = fma(k[i], u[c], alpha[i]*s[i][c]), " +
		"o[c] = fma(q[i], s[i][c], o[c]).")
	f.P("VBROADCASTSS (%s)(%s*4), %s", alpha, i, decay)
	f.P("VBROADCASTSS (%s)(%s*4), %s", k, i, key)
	f.P("VBROADCASTSS (%s)(%s*4), %s", q, i, query)
	for p, u := range us {
		if parts > 4 && p == parts/2 {
			f.Note("The other half of the columns.")
		}
		f.P("VMULPS %d(%s), %s, %s", p*s.bytes(), state, decay, stateRow(p))
		if spill {
			f.P("VFMADD231PS kdaArgs_w+%d(%s), %s, %s", p*s.bytes(), args, key, stateRow(p))
		} else {
			f.P("VFMADD231PS %s, %s, %s", u, key, stateRow(p))
		}
		f.P("VFMADD231PS %s, %s, %s", stateRow(p), query, os[p])
		f.P("VMOVUPS %s, %d(%s)", stateRow(p), p*s.bytes(), state)
	}
	// Memory would rest during this loop. The next head may be another thread's, and its lines must stay there.
	f.Note("Where a head is several blocks, prefetch the head's next block.")
	f.P("TESTQ %s, %s", ask, ask)
	f.P("JEQ writeOn")
	for at := 0; at < parts*s.bytes(); at += 64 {
		f.P("PREFETCHT1 %d(%s)(%s*1)", at, state, ask)
	}
	f.Label("writeOn")
	f.P("ADDQ %s, %s", row, state)
	f.P("INCQ %s", i)
	f.P("CMPQ %s, %s", i, keys)
	f.P("JNE write")
	f.Note("Store o, with canonical NaN.")
	f.P("MOVQ kdaArgs_o(%s), %s", args, o)
	lanes := &vec{f: f, s: s, all: newRegisters(s, assembly.NewestFirst, rows[0].n)}
	for p, out := range os {
		if parts > 4 && p == parts/2 {
			f.Note("The other half of the columns.")
		}
		lanes.canonical(out)
		lanes.store(out, fmt.Sprintf("%d(%s)", p*s.bytes(), o))
	}
	f.end()
}
