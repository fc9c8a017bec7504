package main

import (
	"fmt"

	"github.com/k3infer/k3/backends/_gen/exact"
)

// expParts is exp(x) = p*s*t for x within the limits. Rounding to an integer by frintn gives what adding and
// subtracting roundMagic gives, but for the sign of zero, which is lost in the next addition that matters.
func (l *lanes) expParts(x value) (p, s, t value) {
	l.note("exp(x) = p*s*t: n = round(x*log2e), r = x - n*ln2.")
	n := l.word2("frintn", l.times(x, l.number(exact.Log2E)))
	r := l.fms(n, l.number(exact.Ln2High), x)
	r = l.fms(n, l.number(exact.Ln2Low), r)
	l.note("k = n as integers, and p = 1 + r + r*r*(exp2 + r*(exp3 + ...)).")
	k := l.word2("fcvtzs", n)
	half := l.sshr(k, 1)
	l.note("The polynomial from exp6 down, and s = 2^(n/2) beside it.")
	q := l.fma(l.number(exact.Exp6), r, l.number(exact.Exp5))
	s = l.power2(half)
	q = l.fma(q, r, l.number(exact.Exp4))
	q = l.fma(q, r, l.number(exact.Exp3))
	l.note("t = 2^(n - n/2), and the rest of the polynomial.")
	t = l.power2(l.named("VSUB", "S4", k, half))
	q = l.fma(q, r, l.number(exact.Exp2))
	l.note("p = 1 + r + r*r*q, q being the polynomial.")
	p = l.plus(l.fma(l.times(r, r), q, r), l.number(exact.One))
	return p, s, t
}

// power2 is 2^k for integers k.
func (l *lanes) power2(k value) value {
	return l.named("VADD", "S4", l.shl(k, 23), l.number(exact.One))
}

func (l *lanes) scaled(p, s, t value) value { return l.times(l.times(p, s), t) }

// exp is Exp but for NaN, which stays one.
func (l *lanes) exp(x value) value {
	return l.scaled(l.expParts(l.min(l.max(x, l.number(exact.ExpLow)), l.number(exact.ExpHigh))))
}

// logistic is the function of that name for -a, which is not positive.
func (l *lanes) logistic(minusA value) (p, s, t, d, low, y value) {
	p, s, t = l.expParts(l.max(minusA, l.number(exact.ExpLow)))
	l.note("e = p*s*t, d + low = 1 + e exactly, y = 1/d.")
	e := l.scaled(p, s, t)
	d = l.plus(e, l.number(exact.One))
	low = l.minus(e, l.minus(d, l.number(exact.One)))
	return p, s, t, d, low, l.over(l.number(exact.One), d)
}

// quotient is the function of that name; with nLow it adds that.
func (l *lanes) quotient(n, d, low, y value, nLow ...value) value {
	l.note("q = n/(d + low): n*y, corrected by y times the remainder.")
	q := l.times(n, y)
	r := l.fms(q, low, l.fms(q, d, n))
	for _, x := range nLow {
		r = l.plus(r, x)
	}
	return l.fma(r, y, q)
}

// negative is all ones where the sign bit is set.
func (l *lanes) negative(x value) value { return l.sshr(x, 31) }

// sigmoid is Sigmoid but for NaN, which stays one. Adding the nLow of 0 would change nothing: the quotient is not 0.
func (l *lanes) sigmoid(x value) value {
	l.note("sigmoid(x), with the exponential of -|x|.")
	p, s, t, d, low, y := l.logistic(l.named("VORR", "B16", x, l.number(exact.SignBit)))
	l.note("The numerator: p where x is negative, 1 elsewhere.")
	n := l.choose(l.negative(x), p, l.number(exact.One))
	q := l.quotient(n, d, low, y)
	l.note("Where x is negative, scale by s and t.")
	return l.choose(l.negative(x), l.scaled(q, s, t), q)
}

// silu is SiLU but for NaN, which stays one.
func (l *lanes) silu(x value) value {
	l.note("silu(x), with the exponential of -|x|.")
	a := l.min(l.abs(x), l.number(exact.SiLULow))
	p, s, t, d, low, y := l.logistic(l.named("VORR", "B16", a, l.number(exact.SignBit)))
	l.note("From zero up: x/(1 + e).")
	above := l.quotient(x, d, low, y, l.number(exact.Zero))
	l.note("Below zero: |x|*p, exactly n + nLow, over 1 + e, scaled by s and t and negated.")
	n := l.times(a, p)
	nLow := l.fma(a, p, l.named("VEOR", "B16", n, l.number(exact.SignBit)))
	l.note("The quotient below zero.")
	below := l.scaled(l.quotient(n, d, low, y, nLow), s, t)
	below = l.named("VEOR", "B16", below, l.number(exact.SignBit))
	l.note("Choose; where x is large, silu(x) is x.")
	v := l.choose(l.negative(x), below, above)
	return l.choose(l.greater(x, l.number(exact.ExpHigh)), x, v)
}

// tanh is Tanh but for NaN, which stays one.
func (l *lanes) tanh(x value) value {
	l.note("tanh(x) below 0.625: a + a*z*(tanh3 + z*(tanh5 + ...)), a = |x|, z = a*a.")
	a := l.abs(x)
	z := l.times(a, a)
	q := l.fma(l.number(exact.Tanh11), z, l.number(exact.Tanh9))
	q = l.fma(q, z, l.number(exact.Tanh7))
	q = l.fma(q, z, l.number(exact.Tanh5))
	q = l.fma(q, z, l.number(exact.Tanh3))
	l.note("The end of the polynomial.")
	small := l.fma(l.times(a, z), q, a)
	l.note("From 0.625 up: 1 - 2e/(1 + e), e = exp(-2a).")
	e := l.exp(l.times(a, l.number(exact.MinusTwo)))
	l.note("That quotient.")
	large := l.minus(l.number(exact.One), l.over(l.plus(e, e), l.plus(e, l.number(exact.One))))
	l.note("Choose, and give the sign of x back.")
	y := l.choose(l.greater(l.number(exact.TanhSmall), a), small, large)
	return l.named("VORR", "B16", y, l.named("VAND", "B16", x, l.number(exact.SignBit)))
}

// canonical is x, or the canonical NaN for any.
func (l *lanes) canonical(x value) value {
	l.note("NaN becomes canonical; store.")
	return l.choose(l.word3("fcmeq", x, x), x, l.number(exact.CanonicalNaN))
}

// elementwise writes a function that takes two times four elements at a time. Its first parameters are slices' first
// elements, then come numbers, which fill v31, v30 and so on, and last the count, a multiple of 8.
func elementwise(f *file, name, comment string, vectors, numbers []string, body func(l *lanes)) {
	var params []param
	for _, v := range vectors {
		params = append(params, param{v, "*float32"})
	}
	for _, n := range numbers {
		params = append(params, param{n, "float32"})
	}
	params = append(params, param{"n", "int"})
	f.function(comment+" n is a multiple of 8.", name, params...)
	f.load(0, 31, params...)
	f.P("MOVD $constants<>(SB), R14")
	counter := register(len(vectors))
	loop := f.NewLabel("eight")
	f.Label(loop)
	var bodies []*lanes
	for i := range 2 {
		l := &lanes{f: f, shift: 16 * i}
		body(l)
		bodies = append(bodies, l)
	}
	f.Note("Eight elements: the instructions of two times four in turn.")
	write(f, 32-len(numbers), bodies...)
	f.Note("On to the next eight.")
	for i := range vectors {
		f.P("ADD $32, %s", register(i))
	}
	f.P("SUB $8, %s", counter)
	f.P("CBNZ %s, %s", counter, loop)
	f.P("RET")
}

func elementwiseKernels(f *file) {
	const r0, r1, r2 = "R0", "R1", "R2"
	none := []string(nil)
	elementwise(f, "sigmoidNEON", "sigmoidNEON sets y[i] = Sigmoid(x[i]). It is generic.Backend.Sigmoid.",
		[]string{"y", "x"}, none, func(l *lanes) {
			l.store(l.canonical(l.sigmoid(l.load(r1))), r0)
		})
	elementwise(f, "gateNEON", "gateNEON sets y[i] = y[i]*Sigmoid(gate[i]). It is generic.Backend.Gate.",
		[]string{"y", "gate"}, none, func(l *lanes) {
			s := l.sigmoid(l.load(r1))
			l.store(l.canonical(l.times(l.load(r0), s)), r0)
		})
	elementwise(f, "decayNEON",
		"decayNEON sets alpha[i] = Exp(lower*Sigmoid(scale*(z[i]+bias[i]))). It is generic.Backend.Decay.",
		[]string{"alpha", "z", "bias"}, []string{"scale", "lower"}, func(l *lanes) {
			s := l.sigmoid(l.times(l.plus(l.load(r1), l.load(r2)), fixed(31)))
			l.store(l.canonical(l.exp(l.times(s, fixed(30)))), r0)
		})
	elementwise(f, "situNEON", "situNEON sets y[i] = SiTU(gate[i], up[i], b1, b2). It is generic.Backend.SiTU.",
		[]string{"y", "gate", "up"}, []string{"b1", "b2"}, func(l *lanes) {
			g := l.load(r1)
			a := l.times(l.tanh(l.over(g, fixed(31))), fixed(31))
			a = l.times(a, l.sigmoid(g))
			b := l.times(l.tanh(l.over(l.load(r2), fixed(30))), fixed(30))
			l.store(l.canonical(l.times(a, b)), r0)
		})
	elementwise(f, "normNEON",
		"normNEON sets y[i] = (x[i]*inv)*w[i], with canonical NaN. It is the loop of generic.Backend.RMSNorm.",
		[]string{"y", "x", "w"}, []string{"inv"}, func(l *lanes) {
			l.store(l.canonical(l.times(l.times(l.load(r1), fixed(31)), l.load(r2))), r0)
		})
	elementwise(f, "scaleNEON",
		"scaleNEON sets y[i] = (x[i]*inv)*scale, with canonical NaN. It is the loop of generic.Backend.L2Norm.",
		[]string{"y", "x"}, []string{"inv", "scale"}, func(l *lanes) {
			l.store(l.canonical(l.times(l.times(l.load(r1), fixed(31)), fixed(30))), r0)
		})
	elementwise(f, "expNEON", "expNEON sets x[i] = Exp(x[i]-m), NaN being any. It is a step of generic.Backend.Softmax.",
		[]string{"x"}, []string{"m"}, func(l *lanes) {
			l.store(l.exp(l.minus(l.load(r0), fixed(31))), r0)
		})
	elementwise(f, "divideNEON",
		"divideNEON sets x[i] = x[i]/sum, with canonical NaN. It is a step of generic.Backend.Softmax.",
		[]string{"x"}, []string{"sum"}, func(l *lanes) {
			l.store(l.canonical(l.over(l.load(r0), fixed(31))), r0)
		})
	shortConv(f)
	maximum(f)
}

// shortConv is for four taps, which one instruction reads in columns.
func shortConv(f *file) {
	params := []param{{"y", "*float32"}, {"w", "*float32"}, {"x", "*float32"}, {"stride", "int"}, {"n", "int"}}
	f.function("shortConvNEON sets y[c] to SiLU of the sum over the taps j ascending of fma(w[4*c+j], "+
		"x[j*stride+c], .) from 0, for four taps. "+
		"It is generic.Backend.ShortConv; n is a multiple of 4 and stride is in bytes.", "shortConvNEON", params...)
	f.load(0, 0, params...)
	f.P("MOVD $constants<>(SB), R14")
	f.P("ADD R3, R2, R5")
	f.P("ADD R3, R5, R6")
	f.P("ADD R3, R6, R7")
	loop := f.NewLabel("four")
	f.Label(loop)
	f.Note("The four taps of four channels, each tap to a register.")
	f.P("VLD4.P 64(R1), [V28.S4, V29.S4, V30.S4, V31.S4]")
	l := &lanes{f: f}
	l.note("sum = 0; sum = fma(w[c][j], x[j][c], sum) for the taps j ascending.")
	sum := l.number(exact.Zero)
	for j, x := range []string{"R2", "R5", "R6", "R7"} {
		sum = l.fma(fixed(28+j), l.load(x), sum)
	}
	l.store(l.canonical(l.silu(sum)), "R0")
	write(f, 28, l)
	for _, pointer := range []string{"R0", "R2", "R5", "R6", "R7"} {
		f.P("ADD $16, %s", pointer)
	}
	f.P("SUB $4, R4")
	f.P("CBNZ R4, %s", loop)
	f.P("RET")
}

// maximum compares, rather than use fmax, because a NaN must not win.
func maximum(f *file) {
	params := []param{{"m", "*float32"}, {"x", "*float32"}, {"n", "int"}}
	f.function("maximumNEON sets m[i mod 8] to x[i] where that is greater, i ascending. It is a step of "+
		"generic.Backend.Softmax; n is a multiple of 8.",
		"maximumNEON", params...)
	f.load(0, 0, params...)
	f.pair(0, "R0", 0, 1)
	loop := f.NewLabel("eight")
	f.Label(loop)
	f.pair(0, "R1", 2, 3)
	f.Note("m = x where x > m; NaN is not greater.")
	for i := range 2 {
		f.word3("fcmgt", 4+i, 2+i, i)
		f.P("VBIT V%d.B16, V%d.B16, V%d.B16", 4+i, 2+i, i)
	}
	f.P("ADD $32, R1")
	f.P("SUB $8, R2")
	f.P("CBNZ R2, %s", loop)
	f.P("FSTPQ (F0, F1), 0(R0)")
	f.P("RET")
}

func register(i int) string { return fmt.Sprintf("R%d", i) }
