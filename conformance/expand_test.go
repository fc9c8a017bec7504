package conformance

import (
	"bytes"
	"testing"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/kernel"
)

// A backend that expands compressed weights gives, for any bytes, what their description says.
func TestExpandersAgreeWithTheDescription(t *testing.T) {
	r := random.New(t, 1, 2)
	tested := 0
	for _, d := range kernel.Drivers() {
		if d.Missing() != "" {
			continue
		}
		e, ok := d.New().(kernel.Expander)
		if !ok {
			continue
		}
		tested++
		for _, chunks := range []int{0, 1, 2, 16, 300} {
			for _, off := range []int{0, 1, 31} {
				src := make([]byte, off+352*chunks+7)
				for i := range src {
					src[i] = byte(r.Uint32())
				}
				src = src[off:]
				lowest := byte(r.IntN(249))
				want, guard := make([]byte, 512*chunks), bytes.Repeat([]byte{0x5a}, 64)
				for i := range want[:len(want)/2] {
					chunk, g, lane := src[i/256*352:], i%256/32, i%32*2
					if lane >= 32 {
						lane -= 31
					}
					code := chunk[256+g/4*32+lane]>>(g%4*2)&3 | chunk[320+lane]>>g&1<<2
					s, exponent := chunk[32*g+lane], lowest+code
					want[2*i], want[2*i+1] = s&0x7f|exponent<<7, s&0x80|exponent>>1
				}
				memory := bytes.Repeat([]byte{0x5a}, off+len(want)+len(guard))
				got := memory[off : off+len(want)]
				e.ExpandBF16(got, src, lowest)
				if !bytes.Equal(got, want) {
					t.Fatalf("%s: %d chunks at %d: other weights", d.Name, chunks, off)
				}
				if !bytes.Equal(memory[off+len(want):], guard) || !bytes.Equal(memory[:off], guard[:off]) {
					t.Fatalf("%s: %d chunks: bytes around the weights were written", d.Name, chunks)
				}
			}
		}
		// What one of the two has no room for is left out.
		small := make([]byte, 600)
		e.ExpandBF16(small, make([]byte, 10*352), 100)
		e.ExpandBF16(make([]byte, 10*512), make([]byte, 353), 100)
		if !bytes.Equal(small[512:], make([]byte, 88)) {
			t.Errorf("%s: a chunk that there is no room for was begun", d.Name)
		}
	}
	if tested == 0 {
		t.Skip("no backend here expands")
	}
}
