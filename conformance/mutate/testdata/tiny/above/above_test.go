package above

import "testing"

func TestFour(t *testing.T) {
	if Four() != 4 {
		t.Error("wrong")
	}
}
