package memory

import "testing"

func TestBlocksAreZeroedCountedAndFreed(t *testing.T) {
	var a Account
	b, err := a.Allocate("state", 1<<20+3)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range b.Bytes() {
		if v != 0 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	f := b.Float32s()
	f[len(f)-1] = 1
	if len(f) != 1<<18 || a.Bytes()["state"] != 1<<20+3 {
		t.Fatalf("%d floats, %v counted", len(f), a.Bytes())
	}
	b.Free()
	b.Free()
	if len(a.Bytes()) != 0 {
		t.Fatalf("still counted: %v", a.Bytes())
	}
	if b, err := a.Allocate("nothing", 0); err != nil || b.Float32s() != nil {
		t.Fatal("an empty block must work", err)
	}
}
