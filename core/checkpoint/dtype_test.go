package checkpoint

import (
	"regexp"
	"strconv"
	"testing"
)

func TestTheNameOfATypeSaysItsBits(t *testing.T) {
	number := regexp.MustCompile(`[0-9]+`)
	for i := range len(dtypes) - 1 {
		dtype := DType(i + 1)
		want := 8
		if digits := number.FindString(dtype.String()); digits != "" {
			want, _ = strconv.Atoi(digits)
		}
		if again, ok := parseDType([]byte(dtype.String())); dtype.Bits() != want || !ok || again != dtype {
			t.Errorf("%s has %d bits, and is read as %s", dtype, dtype.Bits(), again)
		}
	}
	for _, none := range []DType{0, DType(len(dtypes))} {
		if none.String() != "?" {
			t.Errorf("type %d is called %s", none, none)
		}
	}
}
