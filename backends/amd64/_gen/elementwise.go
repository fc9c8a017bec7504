package main

import (
	"fmt"
	"math"
)

// vec writes code on whole registers for either instruction set, handing out register numbers. Its functions perform, on
// all lanes, the operations of core/kernel/exact.go in their order. NaN needs no care before the end: clamps keep it (they
// return their second operand where one is NaN), every operation passes it on, and canonical makes it the one NaN.
type vec struct {
	f    *file
	s    isa
	free []int
	k    int // last opmask register given out

	at    map[string]string // addresses of the parameters of a loop
	after func()            // code behind the loop
}

type reg int

func newVec(f *file, s isa) *vec {
	v := &vec{f: f, s: s}
	for i := s.regs - 1; i >= 0; i-- {
		v.free = append(v.free, i)
	}
	return v
}

func (v *vec) take() reg {
	n := len(v.free) - 1
	r := v.free[n]
	v.free = v.free[:n]
	return reg(r)
}

func (v *vec) drop(rs ...reg) {
	for _, r := range rs {
		v.free = append(v.free, int(r))
	}
}

func (v *vec) n(r reg) string { return v.s.r(int(r)) }

// operand turns a register or an address into text.
func (v *vec) operand(x any) string {
	if r, ok := x.(reg); ok {
		return v.n(r)
	}
	return x.(string)
}

func (v *vec) load(x any) reg {
	r := v.take()
	v.f.p("VMOVUPS %s, %s", v.operand(x), v.n(r))
	return r
}

func (v *vec) store(r reg, at string) { v.f.p("VMOVUPS %s, %s", v.n(r), at) }

func (v *vec) broadcast(at string) reg {
	r := v.take()
	v.f.p("VBROADCASTSS %s, %s", at, v.n(r))
	return r
}

// op computes a OP b into a register of its own.
func (v *vec) op(name string, a reg, b any) reg {
	d := v.take()
	v.to(d, name, a, b)
	return d
}

// to computes a OP b into d.
func (v *vec) to(d reg, name string, a reg, b any) {
	v.f.p("V%s %s, %s, %s", name, v.operand(b), v.n(a), v.n(d))
}

// fma computes d = a*b + d, and horner d = d*a + b.
func (v *vec) fma(d, a reg, b any)    { v.to(d, "FMADD231PS", a, b) }
func (v *vec) fnma(d, a reg, b any)   { v.to(d, "FNMADD231PS", a, b) }
func (v *vec) horner(d, a reg, b any) { v.to(d, "FMADD213PS", a, b) }

func (v *vec) logic(name string) string {
	if v.s == avx512 {
		return name + "D"
	}
	return name
}

// float returns a constant as an operand.
func (v *vec) float(x float32) string {
	bits := math.Float32bits(x)
	return v.f.constant(fmt.Sprintf("word%08x", bits), bits)
}

func (v *vec) word(bits uint32) string { return v.f.constant(fmt.Sprintf("word%08x", bits), bits) }

// choice is a condition on lanes: a register whose sign bits say so, or an opmask.
type choice struct {
	r reg
	k string
}

// negative is the choice of lanes whose sign bit is set. x must stay until the choice has been used.
func (v *vec) negative(x reg) choice {
	if v.s == avx2 {
		return choice{r: x}
	}
	c := v.mask()
	v.f.p("VPMOVD2M %s, %s", v.n(x), c.k)
	return c
}

func (v *vec) mask() choice {
	v.k = v.k%6 + 1
	return choice{k: fmt.Sprintf("K%d", v.k)}
}

// compare is the choice of lanes where a PREDICATE b.
func (v *vec) compare(predicate int, a reg, b any) choice {
	if v.s == avx2 {
		c := choice{r: v.take()}
		v.f.p("VCMPPS $%d, %s, %s, %s", predicate, v.operand(b), v.n(a), v.n(c.r))
		return c
	}
	c := v.mask()
	v.f.p("VCMPPS $%d, %s, %s, %s", predicate, v.operand(b), v.n(a), c.k)
	return c
}

// done ends the use of a choice made by compare.
func (v *vec) done(c choice) {
	if v.s == avx2 {
		v.drop(c.r)
	}
}

// choose sets d to yes where c holds and to no elsewhere. yes may be an address.
func (v *vec) choose(d reg, c choice, yes any, no reg) {
	if v.s == avx2 {
		v.f.p("VBLENDVPS %s, %s, %s, %s", v.n(c.r), v.operand(yes), v.n(no), v.n(d))
	} else {
		v.f.p("VBLENDMPS %s, %s, %s, %s", v.operand(yes), v.n(no), c.k, v.n(d))
	}
}

const (
	lessThan    = 0x11 // quiet, false for NaN
	greaterThan = 0x1e
	unordered   = 3
)

// canonical replaces the NaNs of x.
func (v *vec) canonical(x reg) {
	c := v.compare(unordered, x, x)
	v.choose(x, c, v.word(0x7fc00000), x)
	v.done(c)
}

// expParts is kernel.expParts; it uses up x.
func (v *vec) expParts(x reg) (p, s, t reg) {
	c := v.load(v.float(-110))
	v.to(x, "MAXPS", c, x)
	v.f.p("VMOVUPS %s, %s", v.float(89), v.n(c))
	v.to(x, "MINPS", c, x)
	n := c
	v.to(n, "MULPS", x, v.float(1.4426950216293335))
	v.to(n, "ADDPS", n, v.float(3<<22))
	v.to(n, "SUBPS", n, v.float(3<<22))
	v.fnma(x, n, v.float(0.693359375))
	v.fnma(x, n, v.float(-0.00021219444005471377))
	p = v.load(v.float(0.0013813142431899905))
	for _, c := range []float32{0.008369418792426586, 0.04166845604777336, 0.16666515171527863, 0.4999999403953552} {
		v.horner(p, x, v.float(c))
	}
	rr := v.op("MULPS", x, x)
	v.horner(p, rr, x)
	v.to(p, "ADDPS", p, v.float(1))
	v.drop(x)
	s, t = rr, n
	v.f.p("VCVTPS2DQ %s, %s", v.n(n), v.n(n))
	v.f.p("VPSRAD $1, %s, %s", v.n(n), v.n(s))
	v.to(t, "PSUBD", n, s)
	for _, r := range []reg{s, t} {
		v.to(r, "PADDD", r, v.word(127))
		v.f.p("VPSLLD $23, %s, %s", v.n(r), v.n(r))
	}
	return p, s, t
}

// exp is kernel.Exp; it uses up x.
func (v *vec) exp(x reg) reg {
	p, s, t := v.expParts(x)
	v.to(p, "MULPS", p, s)
	v.to(p, "MULPS", p, t)
	v.drop(s, t)
	return p
}

// logistic is kernel.logistic for -x in m, which it uses up.
func (v *vec) logistic(m reg) (p, s, t, d, low, y reg) {
	p, s, t = v.expParts(m)
	low = v.op("MULPS", p, s)
	v.to(low, "MULPS", low, t) // e
	d = v.op("ADDPS", low, v.float(1))
	y = v.op("SUBPS", d, v.float(1))
	v.to(low, "SUBPS", low, y)
	v.f.p("VMOVUPS %s, %s", v.float(1), v.n(y))
	v.to(y, "DIVPS", y, d)
	return
}

// quotient is kernel.quotient; it uses up n, d, low and y. nLow is -1 for zero: adding that would only turn a -0 into 0,
// which is then multiplied and added to something else.
func (v *vec) quotient(n, nLow, d, low, y reg) reg {
	q := v.op("MULPS", n, y)
	v.fnma(n, q, d)
	v.fnma(n, q, low)
	if nLow >= 0 {
		v.to(n, "ADDPS", n, nLow)
	}
	v.fma(q, n, y)
	v.drop(n, d, low, y)
	return q
}

// sigmoid is kernel.Sigmoid; x is kept.
func (v *vec) sigmoid(x reg) reg {
	m := v.op(v.logic("POR"), x, v.word(1<<31))
	p, s, t, d, low, y := v.logistic(m)
	c := v.negative(x)
	one := v.load(v.float(1))
	v.choose(p, c, p, one)
	v.drop(one)
	q := v.quotient(p, -1, d, low, y)
	v.to(s, "MULPS", q, s)
	v.to(s, "MULPS", s, t)
	v.choose(q, c, s, q)
	v.drop(s, t)
	return q
}

// silu is kernel.SiLU; x is kept.
func (v *vec) silu(x reg) reg {
	m := v.op(v.logic("POR"), x, v.word(1<<31))
	p, s, t, d, low, y := v.logistic(m)
	c := v.negative(x)
	// Below zero the numerator is a*p, exactly n + nLow; from zero up it is x.
	a := v.op(v.logic("PAND"), x, v.word(1<<31-1))
	v.to(a, "MINPS", a, v.float(110))
	n := v.op("MULPS", a, p)
	v.to(p, "FMSUB213PS", a, n) // p = a*p - n
	v.f.p("VXORPS %s, %s, %s", v.n(a), v.n(a), v.n(a))
	v.choose(p, c, p, a)
	v.choose(n, c, n, x)
	v.drop(a)
	q := v.quotient(n, p, d, low, y)
	v.drop(p)
	v.to(s, "MULPS", q, s)
	v.to(s, "MULPS", s, t)
	v.to(s, v.logic("PXOR"), s, v.word(1<<31))
	v.choose(q, c, s, q)
	v.drop(s, t)
	big := v.compare(greaterThan, x, v.float(89))
	v.choose(q, big, x, q)
	v.done(big)
	return q
}

// tanh is kernel.Tanh; it uses up x.
func (v *vec) tanh(x reg) reg {
	a := v.op(v.logic("PAND"), x, v.word(1<<31-1))
	z := v.op("MULPS", a, a)
	q := v.load(v.float(-0.005681279115378857))
	for _, c := range []float32{0.02061862125992775, -0.053733695298433304, 0.13331373035907745, -0.3333328068256378} {
		v.horner(q, z, v.float(c))
	}
	v.to(z, "MULPS", a, z)
	v.horner(q, z, a) // the value below 0.625
	v.to(z, "MULPS", a, v.float(-2))
	e := v.exp(z)
	two := v.op("MULPS", e, v.float(2))
	v.to(e, "ADDPS", e, v.float(1))
	v.to(two, "DIVPS", two, e)
	v.f.p("VMOVUPS %s, %s", v.float(1), v.n(e))
	v.to(e, "SUBPS", e, two)
	v.drop(two)
	c := v.compare(lessThan, a, v.float(0.625))
	v.choose(q, c, q, e)
	v.done(c)
	v.drop(a, e)
	v.to(x, v.logic("PAND"), x, v.word(1<<31))
	v.to(q, v.logic("POR"), q, x)
	v.drop(x)
	return q
}

// loop writes a function that goes through n elements, a whole number of registers, with the pointers in params (all but
// the last, which counts) advancing together. before runs once; body sees the pointers' registers.
func loop(f *file, s isa, comment, name string, pointers []string, extra []string, before func(v *vec), body func(v *vec, at map[string]string)) {
	var params []string
	for _, p := range pointers {
		params = append(params, p+" *float32")
	}
	params = append(params, "n int")
	for _, p := range extra {
		params = append(params, p+" *float32")
	}
	f.function(name+s.name+" "+comment+" n is a multiple of "+fmt.Sprint(s.lanes)+".", name+s.name, params...)
	regs := []string{"DI", "SI", "DX", "R8"}
	at := map[string]string{}
	off := 0
	for i, p := range pointers {
		f.p("MOVQ %s+%d(FP), %s", p, off, regs[i])
		at[p] = fmt.Sprintf("(%s)", regs[i])
		off += 8
	}
	f.p("MOVQ n+%d(FP), CX", off)
	off += 8
	extras := []string{"R9", "R10", "R11"}
	for i, p := range extra {
		f.p("MOVQ %s+%d(FP), %s", p, off, extras[i])
		at[p] = fmt.Sprintf("(%s)", extras[i])
		off += 8
	}
	v := newVec(f, s)
	v.at = at
	if before != nil {
		before(v)
	}
	f.p("loop:")
	body(v, at)
	for i := range pointers {
		f.p("ADDQ $%d, %s", s.bytes(), regs[i])
	}
	f.p("SUBQ $%d, CX", s.lanes)
	f.p("JNZ loop")
	if v.after != nil {
		v.after()
	}
	f.p("VZEROUPPER")
	f.p("RET")
}

func elementwiseKernels(f *file, s isa) {
	finish := func(v *vec, r reg, at string) {
		v.canonical(r)
		v.store(r, at)
		v.drop(r)
	}
	loop(f, s, "sets y[i] = Sigmoid(x[i]). It is generic.Backend.Sigmoid.", "sigmoid", []string{"y", "x"}, nil, nil,
		func(v *vec, at map[string]string) {
			x := v.load(at["x"])
			y := v.sigmoid(x)
			v.drop(x)
			finish(v, y, at["y"])
		})
	loop(f, s, "sets y[i] = y[i] * Sigmoid(gate[i]). It is generic.Backend.Gate.", "gate", []string{"y", "gate"}, nil, nil,
		func(v *vec, at map[string]string) {
			g := v.load(at["gate"])
			y := v.sigmoid(g)
			v.drop(g)
			v.to(y, "MULPS", y, at["y"])
			finish(v, y, at["y"])
		})
	loop(f, s, "sets y[i] = SiTU(gate[i], up[i], b1, b2). It is generic.Backend.SiTU.", "situ", []string{"y", "gate", "up"}, []string{"b1", "b2"}, func(v *vec) {
		v.broadcast("(R9)")
		v.broadcast("(R10)")
	}, func(v *vec, at map[string]string) {
		b1, b2 := reg(0), reg(1)
		g := v.load(at["gate"])
		y := v.sigmoid(g)
		v.to(g, "DIVPS", g, b1)
		t := v.tanh(g)
		v.to(t, "MULPS", b1, t)
		v.to(y, "MULPS", t, y)
		v.drop(t)
		u := v.load(at["up"])
		v.to(u, "DIVPS", u, b2)
		t = v.tanh(u)
		v.to(t, "MULPS", b2, t)
		v.to(y, "MULPS", y, t)
		v.drop(t)
		finish(v, y, at["y"])
	})
	loop(f, s, "sets alpha[i] = Exp(lower * Sigmoid(scale * (z[i]+bias[i]))). It is generic.Backend.Decay.", "decay", []string{"alpha", "z", "bias"}, []string{"scale", "lower"}, func(v *vec) {
		v.broadcast("(R9)")
		v.broadcast("(R10)")
	}, func(v *vec, at map[string]string) {
		scale, lower := reg(0), reg(1)
		x := v.load(at["z"])
		v.to(x, "ADDPS", x, at["bias"])
		v.to(x, "MULPS", scale, x)
		y := v.sigmoid(x)
		v.drop(x)
		v.to(y, "MULPS", lower, y)
		finish(v, v.exp(y), at["alpha"])
	})
	loop(f, s, "sets y[i] = fma(a, x[i], y[i]). It is generic.Backend.Axpy.", "axpy", []string{"y", "x"}, []string{"a"}, func(v *vec) {
		v.broadcast("(R9)")
	}, func(v *vec, at map[string]string) {
		y := v.load(at["y"])
		v.fma(y, 0, at["x"])
		v.store(y, at["y"])
		v.drop(y)
	})
	loop(f, s, "sets y[i] = (x[i]*inv) * w[i]. It is the second half of generic.Backend.RMSNorm.", "norm", []string{"y", "x", "w"}, []string{"inv"}, func(v *vec) {
		v.broadcast("(R9)")
	}, func(v *vec, at map[string]string) {
		x := v.op("MULPS", 0, at["x"])
		v.to(x, "MULPS", x, at["w"])
		finish(v, x, at["y"])
	})
	loop(f, s, "sets y[i] = (x[i]*inv) * scale. It is the second half of generic.Backend.L2Norm, and of RMSNorm without weights, whose scale is 1.",
		"scale", []string{"y", "x"}, []string{"inv", "scale"}, func(v *vec) {
			v.broadcast("(R9)")
			v.broadcast("(R10)")
		}, func(v *vec, at map[string]string) {
			x := v.op("MULPS", 0, at["x"])
			v.to(x, "MULPS", x, reg(1))
			finish(v, x, at["y"])
		})
	loop(f, s, "raises the lanes of m, one register, to the largest of the elements of x that fall to them; NaN is passed over. It is the first loop of generic.Backend.Softmax.",
		"maximum", []string{"x"}, []string{"m"}, func(v *vec) {
			m := v.load("(R9)")
			v.after = func() { v.store(m, "(R9)") }
		}, func(v *vec, at map[string]string) {
			// The second source, m, is what comes out where one is NaN.
			x := v.load(at["x"])
			v.to(0, "MAXPS", x, reg(0))
			v.drop(x)
		})
	loop(f, s, "divides x[i] by sum. It is the last loop of generic.Backend.Softmax.", "divide", []string{"x"}, []string{"sum"}, func(v *vec) {
		v.broadcast("(R9)")
	}, func(v *vec, at map[string]string) {
		x := v.load(at["x"])
		v.to(x, "DIVPS", x, reg(0))
		finish(v, x, at["x"])
	})
	expSum(f, s)
	shortConv(f, s)
}

// expSum is the middle loop of Softmax: exponentials, and their sum by lanes of the contract.
func expSum(f *file, s isa) {
	name := "expSum" + s.name
	f.function(name+` replaces x by Exp(x-m), x in blocks of 32 elements, and adds element i of each block to sums[i]. It is the second
		loop of generic.Backend.Softmax.`, name, "x *float32", "blocks int", "m *float32", "sums *float32")
	f.p("MOVQ x+0(FP), DI")
	f.p("MOVQ blocks+8(FP), CX")
	f.p("MOVQ m+16(FP), SI")
	f.p("MOVQ sums+24(FP), DX")
	v := newVec(f, s)
	m := v.broadcast("(SI)")
	n := 32 / s.lanes
	var sums []reg
	for i := range n {
		sums = append(sums, v.load(fmt.Sprintf("%d(DX)", i*s.bytes())))
	}
	f.p("loop:")
	for i := range n {
		at := fmt.Sprintf("%d(DI)", i*s.bytes())
		x := v.load(at)
		v.to(x, "SUBPS", x, m)
		e := v.exp(x)
		v.to(sums[i], "ADDPS", sums[i], e)
		v.store(e, at)
		v.drop(e)
	}
	f.p("ADDQ $128, DI")
	f.p("DECQ CX")
	f.p("JNZ loop")
	for i := range n {
		v.store(sums[i], fmt.Sprintf("%d(DX)", i*s.bytes()))
	}
	f.p("VZEROUPPER")
	f.p("RET")
}

// shortConv is ShortConv for four taps: the weights of a register of channels are transposed, 4 by 4, as they are loaded.
func shortConv(f *file, s isa) {
	name := "shortConv" + s.name
	f.function(name+` sets y[c] to SiLU of the sum over j of fma(w[4*c+j], x[j*stride+c], .) from 0, for n channels. It is
		generic.Backend.ShortConv for four taps. n is a multiple of `+fmt.Sprint(s.lanes)+", stride is in bytes.",
		name, "y *float32", "w *float32", "x *float32", "stride uintptr", "n int")
	f.p("MOVQ y+0(FP), DI")
	f.p("MOVQ w+8(FP), SI")
	f.p("MOVQ x+16(FP), DX")
	f.p("MOVQ stride+24(FP), R8")
	f.p("MOVQ n+32(FP), CX")
	f.p("LEAQ (R8)(R8*2), R9")
	f.p("loop:")
	v := newVec(f, s)
	// Quarter i of register j gets the four taps of channel 4*i+j.
	var c [4]reg
	for j := range 4 {
		c[j] = v.take()
		f.p("VMOVUPS %d(SI), X%d", 16*j, c[j])
		for i := 1; i < s.lanes/4; i++ {
			if s == avx2 {
				f.p("VINSERTF128 $%d, %d(SI), Y%d, Y%d", i, 64*i+16*j, c[j], c[j])
			} else {
				f.p("VINSERTF32X4 $%d, %d(SI), Z%d, Z%d", i, 64*i+16*j, c[j], c[j])
			}
		}
	}
	a, b := v.op("UNPCKLPS", c[0], c[1]), v.op("UNPCKHPS", c[0], c[1]) // taps 0 and 1, taps 2 and 3
	d, e := v.op("UNPCKLPS", c[2], c[3]), v.op("UNPCKHPS", c[2], c[3])
	v.to(c[0], "UNPCKLPD", a, d)
	v.to(c[1], "UNPCKHPD", a, d)
	v.to(c[2], "UNPCKLPD", b, e)
	v.to(c[3], "UNPCKHPD", b, e)
	v.f.p("VXORPS %s, %s, %s", v.n(a), v.n(a), v.n(a))
	for j, at := range []string{"(DX)", "(DX)(R8*1)", "(DX)(R8*2)", "(DX)(R9*1)"} {
		v.fma(a, c[j], at)
	}
	v.drop(c[:]...)
	v.drop(b, d, e)
	y := v.silu(a)
	v.canonical(y)
	v.store(y, "(DI)")
	f.p("ADDQ $%d, DI", s.bytes())
	f.p("ADDQ $%d, DX", s.bytes())
	f.p("ADDQ $%d, SI", 4*s.bytes())
	f.p("SUBQ $%d, CX", s.lanes)
	f.p("JNZ loop")
	f.p("VZEROUPPER")
	f.p("RET")
}
