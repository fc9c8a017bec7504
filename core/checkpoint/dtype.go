package checkpoint

// DType is the type of a tensor's elements.
type DType uint8

// The types of the safetensors format.
const (
	BOOL DType = iota + 1
	F4
	F6E2M3
	F6E3M2
	U8
	I8
	F8E5M2
	F8E4M3
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64
	F64
	I64
	U64
)

var dtypes = [...]struct {
	name string
	bits int
}{
	BOOL: {"BOOL", 8}, F4: {"F4", 4}, F6E2M3: {"F6_E2M3", 6}, F6E3M2: {"F6_E3M2", 6}, U8: {"U8", 8}, I8: {"I8", 8},
	F8E5M2: {"F8_E5M2", 8}, F8E4M3: {"F8_E4M3", 8}, F8E8M0: {"F8_E8M0", 8}, F8E4M3FNUZ: {"F8_E4M3FNUZ", 8},
	F8E5M2FNUZ: {"F8_E5M2FNUZ", 8}, I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16}, BF16: {"BF16", 16},
	I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32}, C64: {"C64", 64}, F64: {"F64", 64}, I64: {"I64", 64}, U64: {"U64", 64},
}

// String is the type's name in a safetensors header, or "?" for no type.
func (t DType) String() string {
	if t == 0 || int(t) >= len(dtypes) {
		return "?"
	}
	return dtypes[t].name
}

// Bits is the size of one element; F4 and F6 are packed without gaps.
func (t DType) Bits() int { return dtypes[t].bits }

func parseDType(name []byte) (DType, bool) {
	for i := range dtypes {
		if i > 0 && dtypes[i].name == string(name) {
			return DType(i), true
		}
	}
	return 0, false
}
