package memory

import "testing"

func TestPeakRSSRisesWithWhatIsTouchedAndNeverFalls(t *testing.T) {
	before, err := PeakRSS()
	if err != nil {
		t.Fatal(err)
	}
	const n = 64 << 20
	var a Account
	b, err := a.Allocate("test", n)
	if err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()
	for i := 0; i < n; i += 4096 {
		data[i] = 1
	}
	peak, err := PeakRSS()
	b.Free()
	if err != nil || peak < n || peak < before {
		t.Errorf("peak %d after %d were touched (%d before): %v", peak, n, before, err)
	}
	// The kernel adds up its counters now and then only: what it says may fall by some pages.
	if after, err := PeakRSS(); err != nil || after < peak-1<<20 {
		t.Errorf("peak fell from %d to %d (%v)", peak, after, err)
	}
}
