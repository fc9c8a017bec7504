package kernel

import "unsafe"

// float32Bytes is x's memory as bytes. All supported processors are little endian, which a test asserts.
func float32Bytes(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
