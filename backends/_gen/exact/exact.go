// Package exact has the constants of core/kernel/exact.go, whose functions both generators write on whole registers.
package exact

import "math"

// Constant is one word, as a float32 or by its bits, and its name in the assembly.
type Constant struct {
	Name string
	Bits uint32
}

func number(name string, x float32) Constant { return Constant{name, math.Float32bits(x)} }

// Constants of Exp: its limits, log2(e), ln(2) in two parts, and the coefficients of the polynomial by their powers.
// Adding RoundMagic and subtracting it again rounds to an integer.
var (
	ExpLow     = number("expLow", -110)
	ExpHigh    = number("expHigh", 89)
	RoundMagic = number("roundMagic", 3<<22)
	Log2E      = number("log2e", 1.4426950216293335)
	Ln2High    = number("ln2High", 0.693359375)
	Ln2Low     = number("ln2Low", -0.00021219444005471377)
	Exp2       = number("exp2", 0.4999999403953552)
	Exp3       = number("exp3", 0.16666515171527863)
	Exp4       = number("exp4", 0.04166845604777336)
	Exp5       = number("exp5", 0.008369418792426586)
	Exp6       = number("exp6", 0.0013813142431899905)
)

// SiLULow is the largest -x that SiLU puts into its numerator.
var SiLULow = number("siluLow", 110)

// Constants of Tanh: below TanhSmall it is a polynomial, whose coefficients are by their powers.
var (
	TanhSmall = number("tanhSmall", 0.625)
	Tanh3     = number("tanh3", -0.3333328068256378)
	Tanh5     = number("tanh5", 0.13331373035907745)
	Tanh7     = number("tanh7", -0.053733695298433304)
	Tanh9     = number("tanh9", 0.02061862125992775)
	Tanh11    = number("tanh11", -0.005681279115378857)
)

// Plain numbers, and words whose bits matter.
var (
	Zero         = number("zero", 0)
	One          = number("one", 1)
	Two          = number("two", 2)
	MinusTwo     = number("minusTwo", -2)
	ExponentBias = Constant{"exponentBias", 127}
	SignBit      = Constant{"signBit", 1 << 31}
	AllButSign   = Constant{"allButSign", 1<<31 - 1}
	CanonicalNaN = Constant{"canonicalNaN", 0x7fc00000}
)
