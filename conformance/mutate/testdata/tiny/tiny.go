// Package tiny has one function that its tests hold, one that they run without looking, and one that they do not run.
package tiny

import "fmt"

// Abs is tested.
func Abs(x int) int {
	if x < 0 {
		return -x
	}
	return x
}

// Sum is run by a test that does not look at what it returns.
func Sum(all []int) int {
	sum := 0
	for _, x := range all {
		sum += x
	}
	return sum
}

// Two is not run by any test of this package, but by one of package above.
func Two() int { return 2 }

// Must is not run by any test.
func Must(x int) {
	if x > 7 {
		panic(fmt.Sprint(x + 1))
	}
}

type kind int

// String only describes.
func (k kind) String() string { return fmt.Sprint(int(k) + 1) }
