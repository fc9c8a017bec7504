package assembly

import (
	"slices"
	"strings"
	"testing"
)

func TestRegistersAreTakenInTheirOrder(t *testing.T) {
	for order, want := range map[Order][]int{NewestFirst: {2, 0, 3}, OldestFirst: {3, 0, 2}, LowestFirst: {0, 2, 3}} {
		r := NewRegisters(order, 0, 3)
		if got := r.TakeN(3); !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("order %d: first takes %v", order, got)
		}
		r.Free(0, 2)
		if got := r.TakeN(3); !slices.Equal(got, want) {
			t.Errorf("order %d: takes %v after 0 and 2 were given back, not %v", order, got, want)
		}
	}
	r := NewRegisters(OldestFirst, 4, 7)
	if last, first := r.TakeLast(), r.Take(); last != 7 || first != 4 {
		t.Errorf("the last register is %d and the first %d, not 7 and 4", last, first)
	}
}

func TestMistakesWithRegistersPanic(t *testing.T) {
	for name, mistake := range map[string]func(r *Registers){
		"taking more than there are":          func(r *Registers) { r.TakeN(3) },
		"taking the last where there is none": func(r *Registers) { r.TakeN(2); r.TakeLast() },
		"giving back a free one":              func(r *Registers) { r.Free(1) },
		"giving back one twice":               func(r *Registers) { n := r.Take(); r.Free(n, n) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", name)
				}
			}()
			mistake(NewRegisters(LowestFirst, 0, 1))
		}()
	}
}

func TestFramesAreLaidOutAsGoDoes(t *testing.T) {
	params := []Param{{"y", "*float32"}, {"a", "float32"}, {"b", "float32"}, {"c", "float32"}, {"n", "int"}}
	offsets, size := Offsets(params)
	if !slices.Equal(offsets, []int{0, 8, 12, 16, 24}) || size != 32 {
		t.Errorf("offsets %v in %d bytes", offsets, size)
	}
}

func TestCommentsFitTheirWidth(t *testing.T) {
	got := comment("//", 12, "two  words\n\tand averyverylongone")
	if want := "// two words\n// and\n// averyverylongone"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	for _, line := range strings.Split(got, "\n") {
		if !strings.HasPrefix(line, "// ") {
			t.Errorf("%q is no comment", line)
		}
	}
}
