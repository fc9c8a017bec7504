package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/kernel"
)

// Test is all a backend's own test needs to call: its kernels against the generic backend bit for bit, whole models
// against the oracle, and the logits of whole models against the generic backend's, bit for bit. A backend that cannot run
// on this machine fails: a test that is meant to skip must ask the driver first.
func Test(t *testing.T, backend string) {
	b, err := kernel.Select(backend)
	if err != nil {
		t.Fatal(err)
	}
	TestBackend(t, b)
	for _, g := range Goldens() {
		t.Run(g.Name, func(t *testing.T) {
			if _, err := g.Check(t.Context(), core.Options{Backend: backend}); err != nil {
				t.Error(err)
			}
			got, err := g.Bits(t.Context(), core.Options{Backend: backend})
			if err != nil {
				t.Fatal(err)
			}
			want, err := g.Bits(t.Context(), core.Options{Backend: "generic"})
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("the logits are not those of the generic backend, bit for bit")
			}
		})
	}
}

// Bits computes a fixed text of 20 ids with the golden's model, in a chunk of 13 and then token by token, and returns a
// hash of every bit of every logit. The options' Files are the golden's own.
func (g Golden) Bits(ctx context.Context, o core.Options) (string, error) {
	o.Files, o.PrefillChunk, o.Context = g.Files, 13, 64
	e, err := core.Open(ctx, o)
	if err != nil {
		return "", fmt.Errorf("conformance: %s: %w", g.Name, err)
	}
	defer e.Close()
	s, err := e.NewSequence()
	if err != nil {
		return "", fmt.Errorf("conformance: %s: %w", g.Name, err)
	}
	defer s.Close()
	var rows []core.Row
	for i := range 20 {
		rows = append(rows, core.Row{Sequence: s, Token: (i*i*7 + i*13 + 5) % e.Config().Vocab, Logits: true})
	}
	sum := sha256.New()
	for len(rows) > 0 {
		n := 13
		if len(rows) < 20 {
			n = 1
		}
		logits, err := e.Pass(ctx, rows[:n])
		if err != nil {
			return "", fmt.Errorf("conformance: %s: %w", g.Name, err)
		}
		rows = rows[n:]
		for _, l := range logits {
			var p []byte
			for _, x := range l {
				p = binary.LittleEndian.AppendUint32(p, math.Float32bits(x))
			}
			sum.Write(p)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}
