package tiny

import "testing"

func TestAbs(t *testing.T) {
	if Abs(-2) != 2 || Abs(3) != 3 || Abs(1) != 1 {
		t.Error("wrong")
	}
}

func TestSum(t *testing.T) { Sum([]int{1, 2}) }
