package core_test

import (
	"testing"

	"github.com/k3infer/k3/core"
)

func TestProgressTellsWhatWasRead(t *testing.T) {
	e := open(t, core.Options{PrefillChunk: 2, Sequences: 2})
	var last int64
	o := seeded
	o.Progress = func(at core.Progress) {
		n := at.Read()
		if n < last {
			t.Errorf("layer %d: %d bytes read, before there were %d", at.Layer, n, last)
		}
		last = n
	}
	out, err := e.Generate(t.Context(), sequence(t, e), prompt, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if all := out.Prefill.Read() + out.Decode.Read(); last <= 0 || last > all {
		t.Errorf("%d bytes read, in the end %d", last, all)
	}
	// Another Generate begins at nothing.
	first := true
	o.Progress = func(at core.Progress) {
		if first && at.Read() > last/2 {
			t.Errorf("%d bytes read before the first layer", at.Read())
		}
		first = false
	}
	if _, err := e.Generate(t.Context(), sequence(t, e), prompt, o, nil); err != nil {
		t.Fatal(err)
	}
}
