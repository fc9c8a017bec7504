package main

import (
	"fmt"

	"github.com/k3infer/k3/backends/_gen/assembly"
	"github.com/k3infer/k3/backends/_gen/exact"
)

// vec writes code on whole registers for either instruction set, handing out register numbers. Its functions perform,
// on all lanes, the operations of core/kernel/exact.go in their order. NaN needs no care before the end: clamps keep
// it (they return their second operand where one is NaN), every operation passes it on, and canonical makes it the
// one NaN.
type vec struct {
	f   *file
	s   isa
	all registers
	k   int // last opmask register given out

	after func() // code after the loop
}

func newVec(f *file, s isa) *vec {
	return &vec{f: f, s: s, all: newRegisters(s, assembly.NewestFirst, 0)}
}

func (v *vec) take() reg       { return v.all.take() }
func (v *vec) drop(all ...reg) { v.all.give(all...) }

func (v *vec) load(x string) reg {
	r := v.take()
	v.f.P("VMOVUPS %s, %s", x, r)
	return r
}

func (v *vec) store(r reg, at string) { v.f.P("VMOVUPS %s, %s", r, at) }

func (v *vec) broadcast(at string) reg {
	r := v.take()
	v.f.P("VBROADCASTSS %s, %s", at, r)
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
	v.f.P("V%s %s, %s, %s", name, b, a, d)
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

// exact returns a constant as an operand.
func (v *vec) exact(c exact.Constant) string { return v.f.exact(c) }

// note writes a comment.
func (v *vec) note(words string) { v.f.Note("%s", words) }

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
	v.f.P("VPMOVD2M %s, %s", x, c.k)
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
		v.f.P("VCMPPS $%d, %s, %s, %s", predicate, b, a, c.r)
		return c
	}
	c := v.mask()
	v.f.P("VCMPPS $%d, %s, %s, %s", predicate, b, a, c.k)
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
		v.f.P("VBLENDVPS %s, %s, %s, %s", c.r, yes, no, d)
	} else {
		v.f.P("VBLENDMPS %s, %s, %s, %s", yes, no, c.k, d)
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
	v.choose(x, c, v.exact(exact.CanonicalNaN), x)
	v.done(c)
}

// expParts is kernel.expParts; it uses up x.
func (v *vec) expParts(x reg) (p, s, t reg) {
	v.note("exp(x) = p*s*t: clamp x to the limits, n = round(x*log2e).")
	c := v.load(v.exact(exact.ExpLow))
	v.to(x, "MAXPS", c, x)
	v.f.P("VMOVUPS %s, %s", v.exact(exact.ExpHigh), c)
	v.to(x, "MINPS", c, x)
	n := c
	v.to(n, "MULPS", x, v.exact(exact.Log2E))
	v.to(n, "ADDPS", n, v.exact(exact.RoundMagic))
	v.to(n, "SUBPS", n, v.exact(exact.RoundMagic))
	v.note("r = x - n*ln2, and p = 1 + r + r*r*(exp2 + r*(exp3 + ...)).")
	v.fnma(x, n, v.exact(exact.Ln2High))
	v.fnma(x, n, v.exact(exact.Ln2Low))
	p = v.load(v.exact(exact.Exp6))
	for _, c := range []exact.Constant{exact.Exp5, exact.Exp4, exact.Exp3, exact.Exp2} {
		v.horner(p, x, v.exact(c))
	}
	rr := v.op("MULPS", x, x)
	v.horner(p, rr, x)
	v.to(p, "ADDPS", p, v.exact(exact.One))
	v.drop(x)
	v.note("s = 2^(n/2) and t = 2^(n - n/2), made in the exponent's bits.")
	s, t = rr, n
	v.f.P("VCVTPS2DQ %s, %s", n, n)
	v.f.P("VPSRAD $1, %s, %s", n, s)
	v.to(t, "PSUBD", n, s)
	for _, r := range []reg{s, t} {
		v.to(r, "PADDD", r, v.exact(exact.ExponentBias))
		v.f.P("VPSLLD $23, %s, %s", r, r)
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
	v.note("e = p*s*t, d + low = 1 + e exactly, y = 1/d.")
	low = v.op("MULPS", p, s)
	v.to(low, "MULPS", low, t) // e
	d = v.op("ADDPS", low, v.exact(exact.One))
	y = v.op("SUBPS", d, v.exact(exact.One))
	v.to(low, "SUBPS", low, y)
	v.f.P("VMOVUPS %s, %s", v.exact(exact.One), y)
	v.to(y, "DIVPS", y, d)
	return
}

// quotient is kernel.quotient; it uses up n, d, low and y. nLow is nil for zero: adding that would only turn a -0
// into 0, which is then multiplied and added to something else.
func (v *vec) quotient(n reg, nLow *reg, d, low, y reg) reg {
	v.note("q = n/(d + low): q = n*y, corrected by y times the remainder.")
	q := v.op("MULPS", n, y)
	v.fnma(n, q, d)
	v.fnma(n, q, low)
	if nLow != nil {
		v.to(n, "ADDPS", n, *nLow)
	}
	v.fma(q, n, y)
	v.drop(n, d, low, y)
	return q
}

// sigmoid is kernel.Sigmoid; x is kept.
func (v *vec) sigmoid(x reg) reg {
	v.note("sigmoid(x), with the exponential of -|x|.")
	m := v.op(v.logic("POR"), x, v.exact(exact.SignBit))
	p, s, t, d, low, y := v.logistic(m)
	v.note("The numerator: p where x is negative, 1 elsewhere.")
	c := v.negative(x)
	one := v.load(v.exact(exact.One))
	v.choose(p, c, p, one)
	v.drop(one)
	q := v.quotient(p, nil, d, low, y)
	v.note("Where x is negative, scale by s and t.")
	v.to(s, "MULPS", q, s)
	v.to(s, "MULPS", s, t)
	v.choose(q, c, s, q)
	v.drop(s, t)
	return q
}

// silu is kernel.SiLU; x is kept.
func (v *vec) silu(x reg) reg {
	v.note("silu(x), with the exponential of -|x|.")
	m := v.op(v.logic("POR"), x, v.exact(exact.SignBit))
	p, s, t, d, low, y := v.logistic(m)
	v.note("The numerator: below zero |x|*p, exactly n + nLow; from zero up x.")
	c := v.negative(x)
	a := v.op(v.logic("PAND"), x, v.exact(exact.AllButSign))
	v.to(a, "MINPS", a, v.exact(exact.SiLULow))
	n := v.op("MULPS", a, p)
	v.to(p, "FMSUB213PS", a, n) // p = a*p - n
	v.f.zero(a)
	v.choose(p, c, p, a)
	v.choose(n, c, n, x)
	v.drop(a)
	q := v.quotient(n, &p, d, low, y)
	v.drop(p)
	v.note("Where x is negative, scale by s and t and negate; where it is large, silu(x) is x.")
	v.to(s, "MULPS", q, s)
	v.to(s, "MULPS", s, t)
	v.to(s, v.logic("PXOR"), s, v.exact(exact.SignBit))
	v.choose(q, c, s, q)
	v.drop(s, t)
	big := v.compare(greaterThan, x, v.exact(exact.ExpHigh))
	v.choose(q, big, x, q)
	v.done(big)
	return q
}

// tanh is kernel.Tanh; it uses up x.
func (v *vec) tanh(x reg) reg {
	v.note("tanh(x) below 0.625: a + a*z*(tanh3 + z*(tanh5 + ...)), a = |x|, z = a*a.")
	a := v.op(v.logic("PAND"), x, v.exact(exact.AllButSign))
	z := v.op("MULPS", a, a)
	q := v.load(v.exact(exact.Tanh11))
	for _, c := range []exact.Constant{exact.Tanh9, exact.Tanh7, exact.Tanh5, exact.Tanh3} {
		v.horner(q, z, v.exact(c))
	}
	v.to(z, "MULPS", a, z)
	v.horner(q, z, a)
	v.note("From 0.625 up: 1 - 2e/(1 + e), e = exp(-2a).")
	v.to(z, "MULPS", a, v.exact(exact.MinusTwo))
	e := v.exp(z)
	v.note("That quotient; then choose, and give the sign of x back.")
	two := v.op("MULPS", e, v.exact(exact.Two))
	v.to(e, "ADDPS", e, v.exact(exact.One))
	v.to(two, "DIVPS", two, e)
	v.f.P("VMOVUPS %s, %s", v.exact(exact.One), e)
	v.to(e, "SUBPS", e, two)
	v.drop(two)
	c := v.compare(lessThan, a, v.exact(exact.TanhSmall))
	v.choose(q, c, q, e)
	v.done(c)
	v.drop(a, e)
	v.to(x, v.logic("PAND"), x, v.exact(exact.SignBit))
	v.to(q, v.logic("POR"), q, x)
	v.drop(x)
	return q
}

// finish stores y, with canonical NaN.
func (v *vec) finish(y reg, at string) {
	v.note("Store, with canonical NaN.")
	v.canonical(y)
	v.store(y, at)
	v.drop(y)
}

// loop is a function that goes through n elements, a whole number of registers, with its pointers advancing together.
// Its parameters are the pointers, n, and pointers to numbers, each of which fills a register.
type loop struct {
	name, about       string
	pointers, numbers []string
	formula           string // of an element, in the comment on the loop
	// begin, where there is one, gives the numbers registers instead of filling one with each.
	begin func(v *vec, at map[string]string, number map[string]reg)
	// body computes one register of elements. at has the addresses of the pointers, number the registers of numbers.
	body func(v *vec, at map[string]string, number map[string]reg)
}

func (l loop) emit(f *file, s isa) {
	const count = "CX"
	pointers, numbers := []string{"DI", "SI", "DX", "R8"}, []string{"R9", "R10", "R11"}
	at := map[string]string{}
	var arguments []argument
	add := func(name, register string) {
		arguments = append(arguments, argument{name, "*float32", register})
		at[name] = fmt.Sprintf("(%s)", register)
	}
	for i, name := range l.pointers {
		add(name, pointers[i])
	}
	arguments = append(arguments, argument{"n", "int", count})
	for i, name := range l.numbers {
		add(name, numbers[i])
	}
	name := l.name + s.name
	f.function(fmt.Sprintf("%s %s n is a multiple of %d.", name, l.about, s.lanes), name, arguments...)
	v := newVec(f, s)
	number := map[string]reg{}
	if l.begin != nil {
		l.begin(v, at, number)
	} else {
		for _, name := range l.numbers {
			number[name] = v.broadcast(at[name])
		}
	}
	f.Label("loop")
	f.Note("%d elements: %s.", s.lanes, l.formula)
	l.body(v, at, number)
	for i := range l.pointers {
		f.P("ADDQ $%d, %s", s.bytes(), pointers[i])
	}
	f.P("SUBQ $%d, %s", s.lanes, count)
	f.P("JNZ loop")
	if v.after != nil {
		v.after()
	}
	f.end()
}

var loops = []loop{
	{
		name: "sigmoid", about: "sets y[i] = Sigmoid(x[i]). It is generic.Backend.Sigmoid.",
		pointers: []string{"y", "x"}, formula: "y = sigmoid(x)",
		body: func(v *vec, at map[string]string, _ map[string]reg) {
			x := v.load(at["x"])
			y := v.sigmoid(x)
			v.drop(x)
			v.finish(y, at["y"])
		},
	},
	{
		name: "gate", about: "sets y[i] = y[i] * Sigmoid(gate[i]). It is generic.Backend.Gate.",
		pointers: []string{"y", "gate"}, formula: "y = y*sigmoid(gate)",
		body: func(v *vec, at map[string]string, _ map[string]reg) {
			g := v.load(at["gate"])
			y := v.sigmoid(g)
			v.drop(g)
			v.to(y, "MULPS", y, at["y"])
			v.finish(y, at["y"])
		},
	},
	{
		name: "situ", about: "sets y[i] = SiTU(gate[i], up[i], b1, b2). It is generic.Backend.SiTU.",
		pointers: []string{"y", "gate", "up"}, numbers: []string{"b1", "b2"},
		formula: "y = b1*tanh(gate/b1)*sigmoid(gate) * b2*tanh(up/b2)",
		body: func(v *vec, at map[string]string, number map[string]reg) {
			b1, b2 := number["b1"], number["b2"]
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
			v.finish(y, at["y"])
		},
	},
	{
		name: "decay", about: "sets alpha[i] = Exp(lower * Sigmoid(scale * (z[i]+bias[i]))). It is generic.Backend.Decay.",
		pointers: []string{"alpha", "z", "bias"}, numbers: []string{"scale", "lower"},
		formula: "alpha = exp(lower*sigmoid(scale*(z + bias)))",
		body: func(v *vec, at map[string]string, number map[string]reg) {
			x := v.load(at["z"])
			v.to(x, "ADDPS", x, at["bias"])
			v.to(x, "MULPS", number["scale"], x)
			y := v.sigmoid(x)
			v.drop(x)
			v.to(y, "MULPS", number["lower"], y)
			v.finish(v.exp(y), at["alpha"])
		},
	},
	{
		name: "axpy", about: "sets y[i] = fma(a, x[i], y[i]). It is generic.Backend.Axpy.",
		pointers: []string{"y", "x"}, numbers: []string{"a"}, formula: "y = fma(a, x, y)",
		body: func(v *vec, at map[string]string, number map[string]reg) {
			y := v.load(at["y"])
			v.fma(y, number["a"], at["x"])
			v.store(y, at["y"])
			v.drop(y)
		},
	},
	{
		name: "norm", about: "sets y[i] = (x[i]*inv) * w[i]. It is the second half of generic.Backend.RMSNorm.",
		pointers: []string{"y", "x", "w"}, numbers: []string{"inv"}, formula: "y = (x*inv)*w",
		body: func(v *vec, at map[string]string, number map[string]reg) {
			x := v.op("MULPS", number["inv"], at["x"])
			v.to(x, "MULPS", x, at["w"])
			v.finish(x, at["y"])
		},
	},
	{
		name: "scale", about: `sets y[i] = (x[i]*inv) * scale. It is the second half of generic.Backend.L2Norm, and of RMSNorm
			without weights, whose scale is 1.`,
		pointers: []string{"y", "x"}, numbers: []string{"inv", "scale"}, formula: "y = (x*inv)*scale",
		body: func(v *vec, at map[string]string, number map[string]reg) {
			x := v.op("MULPS", number["inv"], at["x"])
			v.to(x, "MULPS", x, number["scale"])
			v.finish(x, at["y"])
		},
	},
	{
		name: "maximum", about: `raises the lanes of m, one register, to the largest of the elements of x that fall to them;
			NaN is passed over. It is the first loop of generic.Backend.Softmax.`,
		pointers: []string{"x"}, numbers: []string{"m"}, formula: "m = max(x, m), where a NaN in x leaves m",
		begin: func(v *vec, at map[string]string, number map[string]reg) {
			m := v.load(at["m"])
			number["m"] = m
			v.after = func() { v.store(m, at["m"]) }
		},
		body: func(v *vec, at map[string]string, number map[string]reg) {
			// The second source, m, is what comes out where one is NaN.
			x := v.load(at["x"])
			v.to(number["m"], "MAXPS", x, number["m"])
			v.drop(x)
		},
	},
	{
		name: "divide", about: "divides x[i] by sum. It is the last loop of generic.Backend.Softmax.",
		pointers: []string{"x"}, numbers: []string{"sum"}, formula: "x = x/sum",
		body: func(v *vec, at map[string]string, number map[string]reg) {
			x := v.load(at["x"])
			v.to(x, "DIVPS", x, number["sum"])
			v.finish(x, at["x"])
		},
	},
}

func elementwiseKernels(f *file, s isa) {
	for _, l := range loops {
		l.emit(f, s)
	}
	expSum(f, s)
	shortConv(f, s)
}

// expSum is the middle loop of Softmax: exponentials, and their sum by lanes of the contract.
func expSum(f *file, s isa) {
	const x, blocks, m, sums = "DI", "CX", "SI", "DX"
	name := "expSum" + s.name
	f.function(name+` replaces x by Exp(x-m), x in blocks of 32 elements, and adds element i of each block to sums[i].
		It is the second loop of generic.Backend.Softmax.`, name,
		argument{"x", "*float32", x}, argument{"blocks", "int", blocks},
		argument{"m", "*float32", m}, argument{"sums", "*float32", sums})
	v := newVec(f, s)
	most := v.broadcast(fmt.Sprintf("(%s)", m))
	n := 32 / s.lanes
	var lanes []reg
	for i := range n {
		lanes = append(lanes, v.load(fmt.Sprintf("%d(%s)", i*s.bytes(), sums)))
	}
	f.Label("loop")
	for i, sum := range lanes {
		f.Note("Elements %d to %d of the block: x = exp(x-m), sum = sum + x.", i*s.lanes, (i+1)*s.lanes-1)
		at := fmt.Sprintf("%d(%s)", i*s.bytes(), x)
		e := v.load(at)
		v.to(e, "SUBPS", e, most)
		e = v.exp(e)
		v.to(sum, "ADDPS", sum, e)
		v.store(e, at)
		v.drop(e)
	}
	f.P("ADDQ $128, %s", x)
	f.P("DECQ %s", blocks)
	f.P("JNZ loop")
	f.Note("Store the sums.")
	for i, sum := range lanes {
		v.store(sum, fmt.Sprintf("%d(%s)", i*s.bytes(), sums))
	}
	f.end()
}

// shortConv is ShortConv for four taps: the weights of a register of channels are transposed, 4 by 4, as they are
// loaded.
func shortConv(f *file, s isa) {
	const y, w, x, stride, count, stride3 = "DI", "SI", "DX", "R8", "CX", "R9"
	name := "shortConv" + s.name
	f.function(fmt.Sprintf(`%s sets y[c] to SiLU of the sum over j of fma(w[4*c+j], x[j*stride+c], .) from 0, for
		n channels. It is generic.Backend.ShortConv for four taps. n is a multiple of %d, stride is in bytes.`,
		name, s.lanes),
		name,
		argument{"y", "*float32", y}, argument{"w", "*float32", w}, argument{"x", "*float32", x},
		argument{"stride", "uintptr", stride}, argument{"n", "int", count})
	f.P("LEAQ (%s)(%s*2), %s", stride, stride, stride3)
	f.Label("loop")
	v := newVec(f, s)
	f.Note("Quarter i of register j gets the four taps of channel 4*i+j.")
	insert := map[isa]string{avx2: "VINSERTF128", avx512: "VINSERTF32X4"}[s]
	var c [4]reg
	for j := range c {
		c[j] = v.take()
		f.P("VMOVUPS %d(%s), %s", 16*j, w, c[j].x())
		for i := 1; i < s.lanes/4; i++ {
			f.P("%s $%d, %d(%s), %s, %s", insert, i, 64*i+16*j, w, c[j], c[j])
		}
	}
	f.Note("Transpose, so that register j has tap j of all channels.")
	a, b := v.op("UNPCKLPS", c[0], c[1]), v.op("UNPCKHPS", c[0], c[1]) // taps 0 and 1, taps 2 and 3
	d, e := v.op("UNPCKLPS", c[2], c[3]), v.op("UNPCKHPS", c[2], c[3])
	v.to(c[0], "UNPCKLPD", a, d)
	v.to(c[1], "UNPCKHPD", a, d)
	v.to(c[2], "UNPCKLPD", b, e)
	v.to(c[3], "UNPCKHPD", b, e)
	f.Note("sum = 0; sum = fma(w[c][j], x[j][c], sum) for the taps j ascending.")
	f.zero(a)
	for j, offset := range []string{"", "(" + stride + "*1)", "(" + stride + "*2)", "(" + stride3 + "*1)"} {
		v.fma(a, c[j], fmt.Sprintf("(%s)%s", x, offset))
	}
	v.drop(c[:]...)
	v.drop(b, d, e)
	v.finish(v.silu(a), fmt.Sprintf("(%s)", y))
	f.P("ADDQ $%d, %s", s.bytes(), y)
	f.P("ADDQ $%d, %s", s.bytes(), x)
	f.P("ADDQ $%d, %s", 4*s.bytes(), w)
	f.P("SUBQ $%d, %s", s.lanes, count)
	f.P("JNZ loop")
	f.end()
}
