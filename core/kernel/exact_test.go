package kernel

import (
	"math"
	"math/big"
	"testing"

	"github.com/k3infer/k3/conformance/random"
)

// exactFMA is a*b+c rounded once, by exact arithmetic.
func exactFMA(a, b, c float32) float32 {
	x := new(big.Float).SetPrec(600).SetFloat64(float64(a))
	x.Mul(x, new(big.Float).SetPrec(600).SetFloat64(float64(b)))
	x.Add(x, new(big.Float).SetPrec(600).SetFloat64(float64(c)))
	if x.Sign() == 0 {
		return float32(float64(a)*float64(b) + float64(c)) // the sign of an exact zero follows IEEE 754
	}
	f, _ := x.Float32()
	return f
}

func same(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

func TestFMARoundsOnceOnTiesAndSubnormals(t *testing.T) {
	rng := random.New(t, 1, 2)
	check := func(a, b, c float32) {
		t.Helper()
		if got, want := FMA(a, b, c), exactFMA(a, b, c); !same(got, want) {
			t.Fatalf("FMA(%x, %x, %x) = %x, exactly %x", a, b, c, got, want)
		}
	}
	finite := func() float32 {
		for {
			if f := math.Float32frombits(rng.Uint32()); f-f == 0 {
				return f
			}
		}
	}
	slow := 0
	for range 300_000 {
		check(finite(), finite(), finite())
		// Products of few bits far below c: the float64 sum is inexact and often on a float32 tie.
		a := float32(1+rng.IntN(255)) * power2(int32(rng.IntN(40)-70))
		b := float32(1+rng.IntN(1<<24)) * power2(int32(rng.IntN(40)-40))
		c := float32(1<<23+rng.IntN(1<<23)) * power2(int32(rng.IntN(10)-24))
		if rng.IntN(2) == 0 {
			a = -a
		}
		check(a, b, c)
		// c, half a unit in its last place, and a crumb: only a single rounding sees the crumb.
		half := power2(-24) * float32(1+rng.IntN(3))
		crumb := 1 + float32(rng.IntN(9)-4)*power2(-23)
		one := 1 + float32(rng.IntN(1<<23))*power2(-23)
		check(half, crumb, one)
		if bits := math.Float64bits(float64(half)*float64(crumb) + float64(one)); bits&(1<<29-1) == 1<<28 {
			slow++
		}
		// Subnormal results.
		check(float32(rng.Float64()-.5)*power2(-70), float32(rng.Float64())*power2(-60), float32(rng.IntN(1<<20)-1<<19)*1e-45)
		check(float32(rng.IntN(1<<12))*power2(-80), float32(rng.IntN(1<<12))*power2(-68), float32(rng.IntN(16))*1e-45)
	}
	if slow < 1000 {
		t.Fatalf("only %d inputs reached the slow path: the test has no teeth", slow)
	}
}

func TestFMASpecialValues(t *testing.T) {
	inf, nan, zero := float32(math.Inf(1)), float32(math.NaN()), float32(0)
	neg := float32(math.Copysign(0, -1))
	for _, c := range []struct{ a, b, c, want float32 }{
		{inf, 1, 0, inf}, {inf, -1, 5, -inf}, {1, 1, -inf, -inf}, {inf, 1, -inf, nan}, {inf, 0, 1, nan}, {nan, 1, 1, nan}, {1, 1, nan, nan},
		{0, 5, neg, zero}, {neg, 5, neg, neg}, {1, 1, -1, zero}, {math.MaxFloat32, 2, -math.MaxFloat32, math.MaxFloat32},
		{math.MaxFloat32, 2, 0, inf}, {math.MaxFloat32, 1, power2(102), math.MaxFloat32}, {math.MaxFloat32, 1, power2(103), inf},
	} {
		got := FMA(c.a, c.b, c.c)
		if c.want != c.want {
			if got == got {
				t.Errorf("FMA(%g, %g, %g) = %g, want NaN", c.a, c.b, c.c, got)
			}
		} else if !same(got, c.want) {
			t.Errorf("FMA(%g, %g, %g) = %g, want %g", c.a, c.b, c.c, got, c.want)
		}
	}
}

// ulps is the distance of got from the truth in units of the float32 spacing at the truth.
func ulps(got float32, truth float64) float64 {
	if float64(got) == truth || math.IsInf(float64(got), 0) && math.Abs(truth) >= math.MaxFloat32 {
		return 0
	}
	_, e := math.Frexp(truth)
	return math.Abs(float64(got)-truth) / math.Ldexp(1, max(e-24, -149))
}

var functions = []struct {
	name  string
	f     func(float32) float32
	truth func(float64) float64
	limit float64
}{
	{"Exp", Exp, math.Exp, 1},
	{"Sigmoid", Sigmoid, func(x float64) float64 {
		if x < 0 {
			return math.Exp(x) / (1 + math.Exp(x))
		}
		return 1 / (1 + math.Exp(-x))
	}, 2},
	{"Tanh", Tanh, math.Tanh, 2},
	{"SiLU", SiLU, func(x float64) float64 {
		if x < 0 {
			return x * (math.Exp(x) / (1 + math.Exp(x)))
		}
		return x / (1 + math.Exp(-x))
	}, 2},
}

// Every exponent of float32, both signs, its mantissas sampled densely, within the stated error.
func TestFunctionsAreWithinTwoUlpOverTheWholeRange(t *testing.T) {
	rng := random.New(t, 3, 4)
	for _, f := range functions {
		worst, at := 0.0, float32(0)
		for head := uint32(0); head < 512; head++ {
			if head&255 == 255 {
				continue
			}
			samples := 2000
			if e := int(head&255) - 127; e >= -6 && e <= 7 {
				samples = 60000 // where the functions bend
			}
			if testing.Short() {
				samples /= 10
			}
			for k := range samples {
				x := math.Float32frombits(head<<23 | (uint32(uint64(k)<<23/uint64(samples)) + rng.Uint32N(uint32(1<<23/samples))))
				if u := ulps(f.f(x), f.truth(float64(x))); !(u <= worst) {
					worst, at = u, x
				}
			}
		}
		t.Logf("%s: worst %.3f ulp at %g", f.name, worst, at)
		if !(worst <= f.limit) {
			t.Errorf("%s(%g) = %g, %g ulp from %g", f.name, at, f.f(at), worst, f.truth(float64(at)))
		}
	}
}

func TestFunctionsAtTheirLimits(t *testing.T) {
	inf, nan, neg := float32(math.Inf(1)), float32(math.NaN()), float32(math.Copysign(0, -1))
	oddNaN := math.Float32frombits(0xffc12345)
	for _, c := range []struct {
		name    string
		f       func(float32) float32
		x, want float32
	}{
		{"Exp", Exp, 0, 1}, {"Exp", Exp, neg, 1}, {"Exp", Exp, inf, inf}, {"Exp", Exp, -inf, 0}, {"Exp", Exp, 88.72284, inf},
		{"Exp", Exp, 88.722831, 3.4027985e+38}, {"Exp", Exp, -103.97208, 1e-45}, {"Exp", Exp, -103.97209, 0}, {"Exp", Exp, -math.MaxFloat32, 0},
		{"Exp", Exp, math.MaxFloat32, inf}, {"Exp", Exp, nan, nan}, {"Exp", Exp, oddNaN, nan},
		{"Sigmoid", Sigmoid, 0, .5}, {"Sigmoid", Sigmoid, neg, .5}, {"Sigmoid", Sigmoid, inf, 1}, {"Sigmoid", Sigmoid, -inf, 0}, {"Sigmoid", Sigmoid, oddNaN, nan},
		{"Tanh", Tanh, 0, 0}, {"Tanh", Tanh, neg, neg}, {"Tanh", Tanh, inf, 1}, {"Tanh", Tanh, -inf, -1}, {"Tanh", Tanh, oddNaN, nan}, {"Tanh", Tanh, 1e-45, 1e-45},
		{"SiLU", SiLU, 0, 0}, {"SiLU", SiLU, neg, neg}, {"SiLU", SiLU, inf, inf}, {"SiLU", SiLU, -inf, neg}, {"SiLU", SiLU, oddNaN, nan}, {"SiLU", SiLU, -math.MaxFloat32, neg},
	} {
		if got, want := c.f(c.x), Canonical(c.want); !same(got, want) {
			t.Errorf("%s(%g) = %g (%08x), want %g", c.name, c.x, got, math.Float32bits(got), want)
		}
	}
}

// The decay of a head whose A_log is 0: two values that an engine with another formula gets wrong.
func TestDecayCheckValues(t *testing.T) {
	for _, c := range []struct{ x, want float32 }{{0, 0.0820849986}, {2, 0.0122285073}} {
		if got := Exp(float32(-5 * Sigmoid(float32(Exp(0)*c.x)))); math.Abs(float64(got-c.want)) > 1e-8 {
			t.Errorf("alpha at x=%g is %.10g, want %.10g", c.x, got, c.want)
		}
	}
}

func TestSiTUSeesTheUncappedGate(t *testing.T) {
	// tanh(g/b1) is capped at 1, sigmoid(g) must not be: at g = 3*b1 a sigmoid of the capped value would be visible.
	g, u, b1, b2 := float32(12), float32(2), float32(4), float32(25)
	truth := 4 * math.Tanh(3) / (1 + math.Exp(-12)) * 25 * math.Tanh(2.0/25)
	if got := SiTU(g, u, b1, b2); ulps(got, truth) > 4 {
		t.Errorf("SiTU = %g, want %g", got, truth)
	}
	if got := SiTU(1e30, 1e30, b1, b2); got != 100 {
		t.Errorf("SiTU at infinity = %g, want 100", got)
	}
}

func BenchmarkFMA(b *testing.B) {
	x := float32(0.3)
	for range b.N {
		x = FMA(x, 0.999, 0.1)
	}
	_ = x
}
