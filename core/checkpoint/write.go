package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/k3infer/k3/core/internal/counted"
)

// Named is a tensor to write.
type Named struct {
	Name  string
	DType DType
	Shape []int
	Data  func(w io.Writer) error // writes exactly the tensor's bytes, little-endian
}

// Bytes is the Data of a tensor that is in memory.
func Bytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error { _, err := w.Write(data); return err }
}

// Header is a .safetensors file with the tensors in the order given, up to where their data begins; Data plays no part. It is
// the same for the same tensors and is padded so that the data begins at a multiple of 8.
func Header(tensors []Named) ([]byte, error) {
	h := make([]byte, 8, 8+160*len(tensors))
	h = append(h, '{')
	seen := make(map[string]bool, len(tensors))
	offset := int64(0)
	for i, t := range tensors {
		size, ok := byteSize(t.DType, t.Shape)
		if !ok || t.DType == 0 || slices.ContainsFunc(t.Shape, func(n int) bool { return n < 0 }) || offset > math.MaxInt64-size {
			return nil, fmt.Errorf("checkpoint: write tensor %s: %s %v is no whole number of bytes", t.Name, t.DType, t.Shape)
		}
		if seen[t.Name] || t.Name == "__metadata__" {
			return nil, fmt.Errorf("checkpoint: write tensor %s: the name is taken", t.Name)
		}
		if !utf8.ValidString(t.Name) || strings.Contains(t.Name, "\x00") {
			return nil, fmt.Errorf("checkpoint: write tensor %q: not a name", t.Name)
		}
		seen[t.Name] = true
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: write tensor %s: %w", t.Name, err)
		}
		if i > 0 {
			h = append(h, ',')
		}
		shape := strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ",")
		h = fmt.Appendf(h, `%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, t.DType, shape, offset, offset+size)
		offset += size
	}
	h = append(h, '}')
	for len(h)%8 != 0 {
		h = append(h, ' ')
	}
	binary.LittleEndian.PutUint64(h, uint64(len(h)-8))
	return h, nil
}

// WriteFile writes a .safetensors file with the tensors in the order given, which begins with their Header.
func WriteFile(w io.Writer, tensors []Named) error {
	h, err := Header(tensors)
	if err != nil {
		return err
	}
	if _, err := w.Write(h); err != nil {
		return fmt.Errorf("checkpoint: write header: %w", err)
	}
	for _, t := range tensors {
		size, _ := byteSize(t.DType, t.Shape)
		c := &counted.Writer{W: w}
		err := t.Data(c)
		if err == nil && c.N != size {
			err = fmt.Errorf("%d bytes of data for %d", c.N, size)
		}
		if err != nil {
			return fmt.Errorf("checkpoint: write tensor %s: %w", t.Name, err)
		}
	}
	return nil
}
