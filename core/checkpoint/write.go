package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
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

// WriteFile writes a .safetensors file with the tensors in the order given. The header is the same for the same tensors and
// is padded so that the data begins at a multiple of 8.
func WriteFile(w io.Writer, tensors []Named) error {
	var h bytes.Buffer
	h.WriteByte('{')
	sizes := make([]int64, len(tensors))
	seen := map[string]bool{}
	offset := int64(0)
	for i, t := range tensors {
		size, ok := byteSize(t.DType, t.Shape)
		if !ok || t.DType == 0 || slices.ContainsFunc(t.Shape, func(n int) bool { return n < 0 }) {
			return fmt.Errorf("checkpoint: write tensor %s: %s %v is no whole number of bytes", t.Name, t.DType, t.Shape)
		}
		if seen[t.Name] || t.Name == "__metadata__" {
			return fmt.Errorf("checkpoint: write tensor %s: the name is taken", t.Name)
		}
		if !utf8.ValidString(t.Name) || strings.Contains(t.Name, "\x00") {
			return fmt.Errorf("checkpoint: write tensor %q: not a name", t.Name)
		}
		seen[t.Name] = true
		sizes[i] = size
		name, err := json.Marshal(t.Name)
		if err != nil {
			return fmt.Errorf("checkpoint: write tensor %s: %w", t.Name, err)
		}
		if i > 0 {
			h.WriteByte(',')
		}
		shape := strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ",")
		fmt.Fprintf(&h, `%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, t.DType, shape, offset, offset+size)
		offset += size
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 {
		h.WriteByte(' ')
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(h.Len()))); err != nil {
		return fmt.Errorf("checkpoint: write header: %w", err)
	}
	if _, err := w.Write(h.Bytes()); err != nil {
		return fmt.Errorf("checkpoint: write header: %w", err)
	}
	for i, t := range tensors {
		c := &counter{w: w}
		err := t.Data(c)
		if err == nil && c.n != sizes[i] {
			err = fmt.Errorf("%d bytes of data for %d", c.n, sizes[i])
		}
		if err != nil {
			return fmt.Errorf("checkpoint: write tensor %s: %w", t.Name, err)
		}
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
