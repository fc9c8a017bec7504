// Package replay runs recorded expert requests through cache policies: the simulator behind `k3 simulate`, and the bench the
// policies are developed on. The policies it drives are the ones the engine runs, through the same interface.
//
// A trace is a list of requests in the order the router made them. It has no marks: a new layer shows as another layer
// number, a new pass as a layer number that is lower than the one before.
package replay

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/k3infer/k3/core/experts"
)

// ErrTrace is returned (wrapped, with file and offset) for a file that is not an expert trace.
var ErrTrace = errors.New("not an expert trace")

// Bounds on what a trace may name, far above any model, so that a foreign file is refused before tables are made for it.
const (
	maxLayer  = 1 << 12
	maxExpert = 1 << 16
	maxTable  = 1 << 22 // layers times experts
)

const entrySize = 8 // bytes of a request: layer and expert, little-endian int32

// Trace is a list of expert requests in the order they were made.
type Trace struct {
	Keys    []experts.Key
	Layers  int // one more than the highest layer number
	Experts int // one more than the highest expert number
}

// New makes a trace of keys, whose numbers must not be negative.
func New(keys []experts.Key) *Trace {
	t := &Trace{Keys: keys}
	for _, key := range keys {
		t.Layers = max(t.Layers, int(key.Layer)+1)
		t.Experts = max(t.Experts, int(key.Expert)+1)
	}
	return t
}

// Passes returns how often the layer number falls, plus one: the passes of the model over its layers. A run makes one token
// a pass, so this is also the number of tokens it made. An empty trace has none.
func (t *Trace) Passes() int {
	if len(t.Keys) == 0 {
		return 0
	}
	passes := 1
	for i := 1; i < len(t.Keys); i++ {
		if t.Keys[i].Layer < t.Keys[i-1].Layer {
			passes++
		}
	}
	return passes
}

// Open reads the trace in the file at path. The error wraps ErrTrace if the file is not one.
func Open(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("replay: open trace: %w", err)
	}
	defer f.Close()
	return Read(f, path)
}

// Read reads a trace: pairs of little-endian int32, layer and expert. name stands for the source in errors, which wrap
// ErrTrace and name the offset of what is wrong.
func Read(r io.Reader, name string) (*Trace, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	t := &Trace{}
	var entry [entrySize]byte
	for offset := int64(0); ; offset += entrySize {
		n, err := io.ReadFull(in, entry[:])
		if err == io.EOF {
			break
		}
		if err == io.ErrUnexpectedEOF {
			return nil, refuse(name, offset, "ends after %d of the %d bytes of a request", n, entrySize)
		}
		if err != nil {
			return nil, fmt.Errorf("replay: read trace %s: offset %d: %w", name, offset, err)
		}
		layer := int32(binary.LittleEndian.Uint32(entry[:4]))
		expert := int32(binary.LittleEndian.Uint32(entry[4:]))
		if layer < 0 || layer >= maxLayer {
			return nil, refuse(name, offset, "layer %d is outside 0..%d", layer, maxLayer-1)
		}
		if expert < 0 || expert >= maxExpert {
			return nil, refuse(name, offset+4, "expert %d is outside 0..%d", expert, maxExpert-1)
		}
		t.Layers = max(t.Layers, int(layer)+1)
		t.Experts = max(t.Experts, int(expert)+1)
		if t.Layers*t.Experts > maxTable {
			return nil, refuse(name, offset, "%d layers of %d experts are more than any model has", t.Layers, t.Experts)
		}
		t.Keys = append(t.Keys, experts.Key{Layer: layer, Expert: expert})
	}
	if len(t.Keys) == 0 {
		return nil, refuse(name, 0, "is empty")
	}
	return t, nil
}

func refuse(name string, offset int64, format string, args ...any) error {
	return fmt.Errorf("replay: read trace %s: offset %d: %s: %w", name, offset, fmt.Sprintf(format, args...), ErrTrace)
}

// Append appends the encoding of keys to b, as Read takes it, and returns the longer b.
func Append(b []byte, keys ...experts.Key) []byte {
	for _, key := range keys {
		b = binary.LittleEndian.AppendUint32(b, uint32(key.Layer))
		b = binary.LittleEndian.AppendUint32(b, uint32(key.Expert))
	}
	return b
}
