package checksum

import (
	"encoding/binary"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

// FuzzParse gives the parser files whose own checksum is right, as otherwise nothing would be looked at.
func FuzzParse(f *testing.F) {
	header := `{"name":"a","size":300}`
	data := binary.LittleEndian.AppendUint32([]byte(magic), version)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(header)))
	data = append(data, header...)
	for _, n := range []uint32{100, 200, 7, 8} {
		data = binary.LittleEndian.AppendUint32(data, n)
	}
	f.Add(data)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := parse(binary.LittleEndian.AppendUint32(data, disk.CRC32C(0, data)))
		if err != nil {
			return
		}
		size := int64(0)
		for i := range x.Sums.Len() {
			n, _ := x.Sums.Unit(i)
			if at, start := x.Sums.Find(size); n < 1 || at != i || start != size {
				t.Fatalf("unit %d of %d bytes at %d is found as %d at %d", i, n, size, at, start)
			}
			size += int64(n)
		}
		if size != x.Size || size != x.Sums.Size() {
			t.Fatalf("%d bytes in units, %d in the header, %d in all", size, x.Size, x.Sums.Size())
		}
	})
}
