package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/k3infer/k3/core"
)

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
