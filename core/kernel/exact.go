package kernel

import "math"

// This file holds the scalar functions whose every bit is part of the numerical contract (docs/numerics.md). A vector
// backend performs the same operations in the same order on more lanes. "fma" below is one rounding to float32; every
// other operation is rounded to float32 by itself, which the explicit conversions keep a compiler from changing.

// FMA returns a*b+c rounded once to float32, on every processor, without a float32 fma instruction.
//
// The product of two float32 is exact in float64. Adding c in float64 and rounding to float32 rounds twice, which
// matters only where the first rounding lands on a tie of the second, or where the result is subnormal so that float32
// keeps fewer bits than the test for ties assumes; those cases go through round-to-odd. A compiler that fuses the
// expression changes nothing, since the product is exact.
func FMA(a, b, c float32) float32 {
	if s := float64(a)*float64(b) + float64(c); !DoublyRounded(s) {
		return float32(s)
	}
	return fmaOdd(a, b, c)
}

// DoublyRounded says that rounding s, a float64 sum of a float32 and a product of two, to float32 may not give the float32
// nearest to the exact sum: FMA then has to look closer. Loops that cannot afford a call an element ask it themselves.
func DoublyRounded(s float64) bool {
	bits := math.Float64bits(s)
	return bits&(1<<29-1) == 1<<28 || bits<<1-1 < smallest<<1-1
}

// smallest is the float64 pattern of 2^-126, the smallest normal float32. The comparison in DoublyRounded is on patterns shifted
// left to drop the sign and lowered by one to let an exact zero pass.
const smallest = (1023 - 126) << 52

// fmaOdd is FMA for sums that a float64 may round onto a float32 tie: the float64 sum is corrected to round-to-odd, whose
// second rounding is then always the rounding of the exact value.
func fmaOdd(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	// Two-sum: s + e is exactly p + q. Nothing here can be fused: there is no product.
	t := s - p
	e := (p - (s - t)) + (q - t)
	bits := math.Float64bits(s)
	if e != 0 && e == e && bits&1 == 0 {
		if (e > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
	}
	return float32(math.Float64frombits(bits))
}

// canonicalNaN is the one NaN a kernel stores: processors differ in the sign and payload of the ones they make.
const canonicalNaN = 0x7fc00000

// Canonical returns x, or the canonical quiet NaN (0x7fc00000) for any NaN.
func Canonical(x float32) float32 {
	if x != x {
		return math.Float32frombits(canonicalNaN)
	}
	return x
}

// Constants of the exponential. expLow is where x*exp(x), and so exp(x), is 0 in float32; expHigh is beyond overflow.
const (
	expLow, expHigh float32 = -110, 89
	log2e           float32 = 1.4426950216293335
	ln2High         float32 = 0.693359375
	ln2Low          float32 = -0.00021219444005471377
	roundMagic      float32 = 3 << 22 // adding and subtracting it rounds to an integer, ties to even
	exp2, exp3      float32 = 0.4999999403953552, 0.16666515171527863
	exp4, exp5      float32 = 0.04166845604777336, 0.008369418792426586
	exp6            float32 = 0.0013813142431899905
)

// expParts returns p, s and t with exp(x) = p*s*t, where s and t are powers of two and p is in [0.7, 1.42], for x
// clamped to [expLow, expHigh]. x must not be NaN.
//
//	n = round(x*log2e); r = fma(n,-ln2Low, fma(n,-ln2High, x))
//	p = fma(r*r, Horner(exp2..exp6, r), r) + 1;  s = 2^(n>>1);  t = 2^(n-(n>>1))
func expParts(x float32) (p, s, t float32) {
	x = min(max(x, expLow), expHigh)
	n := float32(float32(x*log2e)+roundMagic) - roundMagic
	r := FMA(n, -ln2Low, FMA(n, -ln2High, x))
	q := FMA(exp6, r, exp5)
	q = FMA(q, r, exp4)
	q = FMA(q, r, exp3)
	q = FMA(q, r, exp2)
	p = float32(FMA(float32(r*r), q, r) + 1)
	k := int32(n)
	return p, power2(k >> 1), power2(k - k>>1)
}

// power2 returns 2^k for k in the normal range.
func power2(k int32) float32 { return math.Float32frombits(uint32(k+127) << 23) }

// Exp returns e^x, within 1 ulp (docs/numerics.md has the measurement): 0 and +Inf beyond the range of float32,
// subnormals where the truth is one.
func Exp(x float32) float32 {
	if x != x {
		return Canonical(x)
	}
	p, s, t := expParts(x)
	return float32(float32(p*s) * t)
}

// logistic returns the parts from which Sigmoid and SiLU are made, for a >= 0 and e = Exp(-min(a,110)) = p*s*t:
// d + low = 1 + e exactly up to the rounding of low, and y = 1/d.
//
//	d = 1 + e;  low = e - (d - 1);  y = 1/d
func logistic(a float32) (p, s, t, d, low, y float32) {
	p, s, t = expParts(-a)
	e := float32(float32(p*s) * t)
	d = float32(1 + e)
	return p, s, t, d, float32(e - float32(d-1)), float32(1 / d)
}

// quotient returns (n + nLow) / (d + low), almost correctly rounded, from y = 1/d:
//
//	q = n*y;  r = fma(-q, low, fma(-q, d, n)) + nLow;  fma(r, y, q)
func quotient(n, nLow, d, low, y float32) float32 {
	q := float32(n * y)
	r := float32(FMA(-q, low, FMA(-q, d, n)) + nLow)
	return FMA(r, y, q)
}

// Sigmoid returns 1/(1+e^-x), within 2 ulp: quotient(1, 0) from zero up and quotient(p, 0) * s * t below, subnormal
// where the truth is.
func Sigmoid(x float32) float32 {
	if x != x {
		return Canonical(x)
	}
	p, s, t, d, low, y := logistic(abs(x))
	if math.Float32bits(x)>>31 == 0 {
		return quotient(1, 0, d, low, y)
	}
	return float32(float32(quotient(p, 0, d, low, y)*s) * t)
}

// SiLU returns x*Sigmoid(x), within 2 ulp even where Sigmoid(x) is subnormal, and with the sign of x: from zero up it is
// quotient(x, 0), or x itself above 89; below, with a = min(-x, 110) and n = a*p, it is
// quotient(n, fma(a, p, -n)) * s * t.
func SiLU(x float32) float32 {
	if x != x {
		return Canonical(x)
	}
	if x > expHigh {
		return x
	}
	a := min(abs(x), -expLow)
	p, s, t, d, low, y := logistic(a)
	if math.Float32bits(x)>>31 == 0 {
		return quotient(x, 0, d, low, y)
	}
	n := float32(a * p)
	return -float32(float32(quotient(n, FMA(a, p, -n), d, low, y)*s) * t)
}

// Constants of the hyperbolic tangent.
const (
	tanhSmall    float32 = 0.625
	tanh3, tanh5 float32 = -0.3333328068256378, 0.13331373035907745
	tanh7, tanh9 float32 = -0.053733695298433304, 0.02061862125992775
	tanh11       float32 = -0.005681279115378857
)

// Tanh returns the hyperbolic tangent of x, within 2 ulp. With a = |x|, z = a*a and e = Exp(-2a) it is
// fma(a*z, Horner(tanh3..tanh11, z), a) for a < 0.625 and 1 - 2e/(1+e) from there on, with the sign of x.
func Tanh(x float32) float32 {
	if x != x {
		return Canonical(x)
	}
	a := abs(x)
	var y float32
	if a < tanhSmall {
		z := float32(a * a)
		q := FMA(tanh11, z, tanh9)
		q = FMA(q, z, tanh7)
		q = FMA(q, z, tanh5)
		q = FMA(q, z, tanh3)
		y = FMA(float32(a*z), q, a)
	} else {
		e := Exp(float32(-2 * a))
		y = float32(1 - float32(float32(2*e)/float32(1+e)))
	}
	return math.Float32frombits(math.Float32bits(y) | math.Float32bits(x)&(1<<31))
}

// SiTU returns the gated unit of the mixture and the dense layers (docs/model.md, "Building blocks"):
// ((b1*tanh(g/b1)) * sigmoid(g)) * (b2*tanh(u/b2)). The sigmoid sees the uncapped g; |result| <= b1*b2.
func SiTU(g, u, b1, b2 float32) float32 {
	t := float32(b1 * Tanh(float32(g/b1)))
	t = float32(t * Sigmoid(g))
	return Canonical(float32(t * float32(b2*Tanh(float32(u/b2)))))
}

func abs(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }
