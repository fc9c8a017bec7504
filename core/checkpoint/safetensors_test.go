package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

// entryOf is a header's entry of n bytes at offset a.
func entryOf(name string, a, n int) string {
	return `"` + name + `":{"dtype":"U8","shape":[` + itoa(n) + `],"data_offsets":[` + itoa(a) + `,` + itoa(a+n) + `]}`
}

func itoa(n int) string { return jsonShape([]int{n})[1 : len(jsonShape([]int{n}))-1] }

// one is a header with one tensor x of 16 bytes, of which one field is replaced.
func one(old, new string) string {
	const h = `{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}`
	if !strings.Contains(h, old) {
		panic(old)
	}
	return strings.Replace(h, old, new, 1)
}

func TestRefusesDamagedFiles(t *testing.T) {
	length := func(n uint64, rest int) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), make([]byte, rest)...)
	}
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "too few"},
		{"seven bytes", make([]byte, 7), "too few"},
		{"length 0", length(0, 248), "header length is 0"},
		{"length larger than the file", length(249, 248), "more than the 248 bytes"},
		{"length 4 GB", length(1<<32, 248), "more than the 248 bytes"},
		{"length 2^63", length(1<<63, 248), "more than the 248 bytes"},
		{"length 2^64-1", length(1<<64-1, 248), "more than the 248 bytes"},
		{"length that wraps with the 8 bytes before it", length(1<<64-8, 248), "more than the 248 bytes"},
		{"not JSON", raw("hello", 0), "header: "},
		{"list", raw("[]", 0), "an object is needed"},
		{"null", raw("null", 0), "an object is needed"},
		{"byte order mark", raw("\ufeff{}", 0), "an object is needed at byte 8"},
		{"trailing comma", raw("{"+entryOf("x", 0, 16)+",}", 16), "a string is needed"},
		{"trailing comma in shape", raw(one("[2,2]", "[2,2,]"), 16), "tensor x: "},
		{"text after the object", raw(one("x", "x")+"x", 16), "after the end"},
		{"NULs after the object", raw(one("x", "x")+"\x00\x00", 16), "after the end"},
		{"second object", raw("{}{}", 0), "after the end"},
		{"truncated JSON", raw(one(`}}`, ""), 16), "tensor x: "},
		{"invalid UTF-8", raw(one("x", "\xff"), 16), "UTF-8"},
		{"lone surrogate", raw(one("x", `\ud800`), 16), "escape"},
		{"number with a leading zero", raw(one("[0,16]", "[0,016]"), 16), "tensor x: an invalid number 016"},
		{"number with a plus", raw(one("[2,2]", "[+4]"), 16), "tensor x: "},
		{"deep nesting in an ignored field", raw(one(`"dtype"`, `"more":`+strings.Repeat("[", 200_000)+strings.Repeat("]", 200_000)+`,"dtype"`), 16),
			"inside each other"},
		{"duplicate name", raw("{"+entryOf("x", 0, 16)+","+entryOf("x", 16, 16)+"}", 32), "tensor x: the header has it twice"},
		{"duplicate name through an escape", raw("{"+entryOf("a", 0, 16)+","+entryOf(`\u0061`, 16, 16)+"}", 32), "tensor a: the header has it twice"},
		{"duplicate numbered name", raw("{"+entryOf("l.7.w", 0, 16)+","+entryOf("l.7.w", 16, 16)+"}", 32), "tensor l.7.w: the header has it twice"},
		{"duplicate metadata", raw(`{"__metadata__":{},"__metadata__":{}}`, 0), "__metadata__ a second time"},
		{"duplicate metadata key", raw(`{"__metadata__":{"a":"","a":""}}`, 0), `"a" of __metadata__ a second time`},
		{"metadata that is no object", raw(`{"__metadata__":[]}`, 0), "an object is needed"},
		{"metadata value that is no string", raw(`{"__metadata__":{"a":1}}`, 0), "a string is needed"},
		{"entry that is no object", raw(`{"x":[]}`, 0), "tensor x: "},
		{"duplicate dtype", raw(one(`"shape"`, `"dtype":"F32","shape"`), 16), "tensor x: a second dtype"},
		{"duplicate shape", raw(one(`"shape"`, `"shape":[4],"shape"`), 16), "tensor x: a second shape"},
		{"duplicate data_offsets", raw(one(`"shape"`, `"data_offsets":[0,16],"shape"`), 16), "tensor x: a second data_offsets"},
		{"missing dtype", raw(one(`"dtype":"F32",`, ""), 16), "tensor x: the dtype is missing"},
		{"missing shape", raw(one(`"shape":[2,2],`, ""), 16), "tensor x: the shape is missing"},
		{"missing data_offsets", raw(one(`,"data_offsets":[0,16]`, ""), 16), "tensor x: data_offsets is missing"},
		{"Dtype", raw(one("dtype", "Dtype"), 16), "the dtype is missing"},
		{"Shape", raw(one("shape", "Shape"), 16), "the shape is missing"},
		{"DATA_OFFSETS", raw(one("data_offsets", "DATA_OFFSETS"), 16), "data_offsets is missing"},
		{"unknown dtype", raw(one("F32", "F33"), 16), `tensor x: unknown dtype "F33"`},
		{"dtype in small letters", raw(one("F32", "f32"), 16), `unknown dtype "f32"`},
		{"dtype null", raw(one(`"F32"`, "null"), 16), "tensor x: "},
		{"shape null", raw(one("[2,2]", "null"), 16), "tensor x: "},
		{"shape with a string", raw(one("[2,2]", `["2","2"]`), 16), "tensor x: "},
		{"shape with a fraction", raw(one("[2,2]", "[2,2.0]"), 16), "tensor x: 2.0 where an integer"},
		{"shape with an exponent", raw(one("[2,2]", "[4e0]"), 16), "tensor x: 4e0 where an integer"},
		{"negative shape", raw(one("[2,2]", "[-2,-2]"), 16), "tensor x: -2 where an integer"},
		{"shape that wraps to the right size", raw(one("[2,2]", "[4294967296,4294967296,4]"), 16), "no whole number of bytes below 2^63"},
		{"shape that wraps in its bits only", raw(one("[2,2]", "[576460752303423492]"), 16), "no whole number of bytes"},
		{"shape that overflows before a 0", raw(one("[2,2]", "[4294967296,4294967296,0]"), 16), "no whole number of bytes"},
		{"shape beyond 64 bits", raw(one("[2,2]", "[18446744073709551620]"), 16), "where an integer"},
		{"too many dimensions", raw(one("[2,2]", "[4"+strings.Repeat(",1", 64)+"]"), 16), "more than 64 dimensions"},
		{"offsets of one", raw(one("[0,16]", "[0]"), 16), "data_offsets with 1 of two"},
		{"offsets of none", raw(one("[0,16]", "[]"), 16), "data_offsets with 0 of two"},
		{"offsets of three", raw(one("[0,16]", "[0,16,16]"), 16), "more than two numbers"},
		{"offsets null", raw(one("[0,16]", "null"), 16), "tensor x: "},
		{"offsets as strings", raw(one("[0,16]", `["0","16"]`), 16), "tensor x: "},
		{"offsets with a fraction", raw(one("[0,16]", "[0,16.0]"), 16), "tensor x: 16.0 where an integer"},
		{"offsets negative", raw(one("[0,16]", "[-16,0]"), 16), "tensor x: -16 where an integer"},
		{"offsets backwards", raw(one("[0,16]", "[16,0]"), 16), "are not the 16 bytes"},
		{"offsets near 2^63", raw(one("[0,16]", "[9223372036854775791,9223372036854775807]"), 16), "beyond any file"},
		{"offsets that are not the size", raw(one("[0,16]", "[0,12]"), 16), "tensor x: data_offsets [0,12] are not the 16 bytes"},
		{"half a byte", raw(`{"x":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), "no whole number of bytes"},
		{"overlap", raw("{"+entryOf("x", 0, 16)+","+entryOf("y", 8, 16)+"}", 24), "tensor y: it overlaps x"},
		{"two names for one range", raw("{"+entryOf("x", 0, 16)+","+entryOf("y", 0, 16)+"}", 16), "overlaps"},
		{"hole", raw("{"+entryOf("x", 0, 16)+","+entryOf("y", 24, 16)+"}", 40), "tensor y: 8 unused bytes between x and it"},
		{"first not at 0", raw("{"+entryOf("x", 8, 16)+"}", 24), "tensor x: it is first but starts at byte 8"},
		{"missing bytes at the end", raw(one("x", "x"), 15), "tensor x: it ends at byte 16 of the data, but the file is 1 bytes too short"},
		{"extra bytes at the end", raw(one("x", "x"), 17), "the file is 1 bytes longer"},
		{"data without tensors", raw("{}", 1), "the file is 1 bytes longer"},
		{"NUL in a name", raw(one("x", `x\u0000`), 16), "a NUL in it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := memFiles{}
			files.put("f.safetensors", c.file)
			var err error
			if n := testing.AllocsPerRun(1, func() { _, err = ReadFile(files, "f.safetensors") }); n > 1000 {
				t.Error("allocations:", n)
			}
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "memory/f.safetensors: ") {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestHeaderAbove100MBIsRefusedUnread(t *testing.T) {
	files := memFiles{"f": {name: "f", data: binary.LittleEndian.AppendUint64(nil, 100_000_001), size: 1 << 40}}
	if _, err := ReadFile(files, "f"); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "more than 100000000") {
		t.Error(err)
	}
}

func TestAcceptsEveryValidHeader(t *testing.T) {
	for _, c := range []struct {
		name, header string
		data         int
		want         []Tensor
	}{
		{"no tensors", "{}", 0, nil},
		{"white space around", " \t\r\n{ \"x\" : {\"dtype\":\"F32\",\n\"shape\":[ 2 , 2 ],\"data_offsets\":[0, 16]} }\n\t\r  ", 16,
			[]Tensor{{Name: "x", DType: F32, Shape: []int{2, 2}, Bytes: 16}}},
		{"empty tensor", `{"x":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]}}`, 0, []Tensor{{Name: "x", DType: F32, Shape: []int{2, 0}}}},
		{"empty tensor between others", "{" + entryOf("x", 0, 8) + "," + entryOf("y", 8, 8) + `,"e":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}`, 16,
			[]Tensor{{Name: "x", DType: U8, Shape: []int{8}, Bytes: 8}, {Name: "e", DType: F32, Shape: []int{0}, Offset: 8},
				{Name: "y", DType: U8, Shape: []int{8}, Offset: 8, Bytes: 8}}},
		{"scalar", `{"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}`, 8, []Tensor{{Name: "x", DType: I64, Bytes: 8}}},
		{"empty metadata", `{"__metadata__":{}}`, 0, nil},
		{"metadata null", `{"__metadata__":null}`, 0, nil},
		{"metadata last", `{` + entryOf("x", 0, 1) + `,"__metadata__":{"format":"pt","é":"\u0041"}}`, 1,
			[]Tensor{{Name: "x", DType: U8, Shape: []int{1}, Bytes: 1}}},
		{"unknown fields", one(`"dtype"`, `"more":{"dtype":[{}],"a":null,"b":[1.5e3,true]},"dtype"`), 16,
			[]Tensor{{Name: "x", DType: F32, Shape: []int{2, 2}, Bytes: 16}}},
		{"fields in another order", `{"x":{"data_offsets":[0,16],"shape":[2,2],"dtype":"F32"}}`, 16,
			[]Tensor{{Name: "x", DType: F32, Shape: []int{2, 2}, Bytes: 16}}},
		{"tensors out of order", "{" + entryOf("z", 24, 8) + "," + entryOf("y", 0, 16) + "," + entryOf("x", 16, 8) + "}", 32,
			[]Tensor{{Name: "y", DType: U8, Shape: []int{16}, Bytes: 16}, {Name: "x", DType: U8, Shape: []int{8}, Offset: 16, Bytes: 8},
				{Name: "z", DType: U8, Shape: []int{8}, Offset: 24, Bytes: 8}}},
		{"packed elements", `{"x":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]},"y":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[3,6]}}`, 6,
			[]Tensor{{Name: "x", DType: F4, Shape: []int{3, 2}, Bytes: 3}, {Name: "y", DType: F6E2M3, Shape: []int{4}, Offset: 3, Bytes: 3}}},
		{"odd names", "{" + entryOf("", 0, 1) + "," + entryOf(`\"\\\u00e9`, 1, 1) + "," + entryOf("a.{}.b", 2, 1) + "," + entryOf(".", 3, 1) + "}", 4,
			[]Tensor{{Name: "", DType: U8, Shape: []int{1}, Bytes: 1}, {Name: `"\é`, DType: U8, Shape: []int{1}, Offset: 1, Bytes: 1},
				{Name: "a.{}.b", DType: U8, Shape: []int{1}, Offset: 2, Bytes: 1}, {Name: ".", DType: U8, Shape: []int{1}, Offset: 3, Bytes: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := memFiles{}
			files.put("f", raw(c.header, c.data))
			files["f"].opened = new(int)
			x, err := ReadFile(files, "f")
			if err != nil {
				t.Fatal(err)
			}
			if *files["f"].opened != 0 {
				t.Error("the file is left open")
			}
			if got := plain(x); len(got) != x.Len() || !reflect.DeepEqual(got, shifted(c.want, 8+int64(len(c.header)))) {
				t.Errorf("%+v", got)
			}
			if want := []Shard{{"f", int64(8 + len(c.header) + c.data)}}; !reflect.DeepEqual(x.Shards(), want) {
				t.Error(x.Shards())
			}
			for _, w := range c.want {
				if got, ok := x.Lookup(w.Name); !ok || got.Name != w.Name || got.Bytes != w.Bytes {
					t.Errorf("Lookup(%q): %v %v", w.Name, got, ok)
				}
			}
			if _, ok := x.Lookup("none"); ok {
				t.Error("Lookup finds what is not there")
			}
		})
	}
}

// plain is the tensors of an index without what only the index knows.
func plain(x *Index) []Tensor {
	var list []Tensor
	for t := range x.All() {
		t.index, t.id = nil, 0
		if len(t.Shape) == 0 {
			t.Shape = nil
		}
		list = append(list, t)
	}
	return list
}

func shifted(list []Tensor, by int64) []Tensor {
	list = append([]Tensor(nil), list...)
	for i := range list {
		list[i].Offset += by
	}
	return list
}

func TestNamesAreKeptWhole(t *testing.T) {
	names := []string{"a.0.b", "a.00.b", "a.01.b", "a.1.b", "a.999999999.b", "a.1000000000.b", "a.4294967296.b", "a.b", "a..b", "a.1", "1.a", "1",
		"1.2", "1.2.3", "1.2.4", "1.3.3", "1.02.3", "x1.y2", "x1.y3", ".1.", "1.", ".1", "a.1b.c", "a.-1.b", "a. 1.b", "é.7.é", "0", "00", "", "."}
	n := newNames()
	table := newTable()
	for _, name := range names {
		k, _ := n.key([]byte(name))
		if _, fresh := table.insert(k); !fresh {
			t.Errorf("%q is taken for another name", name)
		}
		if got := n.join(k); got != name {
			t.Errorf("%q comes back as %q", name, got)
		}
	}
	for i, name := range names {
		k, ok := n.lookup(name)
		if at, found := table.find(k); !ok || !found || at != i {
			t.Errorf("%q is not found", name)
		}
	}
	if _, ok := n.lookup("a.\x00.b"); ok {
		t.Error("a NUL is taken for a number")
	}
	if len(n.pattern) != 26 {
		t.Errorf("%d patterns", len(n.pattern))
	}
}

func TestFilesOfDripsGiveTheSameIndex(t *testing.T) {
	files := memFiles{}
	files.put("f", raw("{"+entryOf("x", 0, 16)+","+entryOf("y", 16, 8)+"}", 24))
	x, err := ReadFile(files, "f")
	if err != nil {
		t.Fatal(err)
	}
	files["f"].slow = true
	y, err := ReadFile(files, "f")
	if err != nil || !reflect.DeepEqual(plain(x), plain(y)) {
		t.Error(err)
	}
}

func TestReadErrorsAreNotCalledDamage(t *testing.T) {
	files := memFiles{}
	files.put("f", raw(one("x", "x"), 16))
	for _, at := range []int64{4, 20} {
		files["f"].fail = at
		if _, err := ReadFile(files, "f"); !errors.Is(err, errDisk) || errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "memory/f") {
			t.Error(err)
		}
	}
	files["f"].fail = 0
	files["f"].data = files["f"].data[:30] // cut while open
	if _, err := ReadFile(files, "f"); !errors.Is(err, disk.ErrShort) {
		t.Error(err)
	}
	if _, err := ReadFile(files, "g"); !notExist(err) {
		t.Error(err)
	}
}

func TestWriteFileGivesWhatReadFileReads(t *testing.T) {
	tensors := []Named{
		{"logits", F32, []int{2, 3}, func(w io.Writer) error { return binary.Write(w, binary.LittleEndian, []float32{1, 2, 3, 4, 5, 6}) }},
		{"ids", I32, []int{2}, Bytes([]byte{1, 0, 0, 0, 2, 0, 0, 0})},
		{"a<\"\u2028\\é.7.x", U8, []int{0}, Bytes(nil)},
		{"scalar", F64, nil, Bytes(make([]byte, 8))},
	}
	var b bytes.Buffer
	if err := WriteFile(&b, tensors); err != nil {
		t.Fatal(err)
	}
	first := b.String()
	b.Reset()
	if WriteFile(&b, tensors); b.String() != first {
		t.Error("a second time gives another file")
	}
	if n := binary.LittleEndian.Uint64(b.Bytes()); n%8 != 0 || string(b.Bytes()[8:18]) != `{"logits":` {
		t.Errorf("header of %d bytes: %s", n, b.Bytes()[8:40])
	}
	files := memFiles{}
	files.put("f", b.Bytes())
	x, err := ReadFile(files, "f")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range tensors {
		got, ok := x.Lookup(want.Name)
		if !ok || got.DType != want.DType || jsonShape(got.Shape) != jsonShape(want.Shape) {
			t.Errorf("%s: %+v", want.Name, got)
		}
		var data bytes.Buffer
		want.Data(&data)
		if !bytes.Equal(b.Bytes()[got.Offset:got.Offset+got.Bytes], data.Bytes()) {
			t.Errorf("%s has other bytes", want.Name)
		}
	}
}

func TestWriteFileRefusesWhatCannotBeRead(t *testing.T) {
	for _, bad := range [][]Named{
		{{"x", F32, []int{2}, Bytes(make([]byte, 7))}},
		{{"x", F32, []int{2}, Bytes(make([]byte, 9))}},
		{{"x", 0, []int{2}, Bytes(nil)}},
		{{"x", F4, []int{1}, Bytes(nil)}},
		{{"x", F32, []int{-1}, Bytes(nil)}},
		{{"x", F32, []int{-1, -1}, Bytes(make([]byte, 4))}},
		{{"x", F32, []int{0, -1}, Bytes(nil)}},
		{{"x\x00", U8, []int{0}, Bytes(nil)}},
		{{"x\xff", U8, []int{0}, Bytes(nil)}},
		{{"__metadata__", U8, []int{0}, Bytes(nil)}},
		{{"x", U8, []int{0}, Bytes(nil)}, {"x", U8, []int{0}, Bytes(nil)}},
		{{"x", U8, []int{0}, func(io.Writer) error { return errDisk }}},
	} {
		if err := WriteFile(io.Discard, bad); err == nil {
			t.Errorf("%v is written", bad[0].Name)
		}
	}
}

func TestDTypeNamesAndSizesAgree(t *testing.T) {
	for name, size := range map[string]int{"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
		"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64} {
		if d, ok := parseDType([]byte(name)); !ok || d.String() != name || d.Bits() != size {
			t.Error(name)
		}
	}
	if _, ok := parseDType(nil); ok || DType(0).String() != "?" || DType(200).String() != "?" {
		t.Error("no type has a name")
	}
}

func TestGoldenFilesOfOtherWritersAreRead(t *testing.T) {
	list, _ := filepath.Glob(fixtures + "checkpoints/*/expect/golden.safetensors")
	if len(list) == 0 {
		t.Skip("no golden files")
	}
	for _, path := range list {
		x, err := ReadFile(disk.Dir(filepath.Dir(path)), filepath.Base(path))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := x.Lookup("logits"); !ok && x.Len() < 100 {
			t.Error(path, x.Len())
		}
	}
}

func TestOddPathsAndSymbolicLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a folder", "模型 é")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "blob"), raw(one("x", "x"), 16), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("blob", filepath.Join(dir, "f.safetensors")); err != nil {
		t.Skip(err)
	}
	x, err := ReadFile(disk.Dir(dir), "f.safetensors")
	if err != nil || x.Len() != 1 {
		t.Error(err)
	}
}

// FuzzHeader holds that a header is either refused, or describes tensors that cover the data and survive WriteFile.
func FuzzHeader(f *testing.F) {
	f.Add([]byte("{"+entryOf("x", 0, 16)+","+entryOf("l.3.y", 16, 8)+"}"), uint16(24))
	f.Add([]byte(one("x", `\u0061.0.b`)), uint16(16))
	f.Add([]byte(`{"__metadata__":{"a":"b"},"x":{"dtype":"F4","shape":[2,0],"data_offsets":[0,0],"y":[{}]}}`), uint16(0))
	f.Add([]byte("{"+entryOf("model.layers.3.block_sparse_moe.experts.4.w1", 0, 16)+"}"), uint16(16))
	f.Fuzz(func(t *testing.T, header []byte, data uint16) {
		files := memFiles{}
		files.put("f", raw(string(header), int(data)))
		x, err := ReadFile(files, "f")
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		// As part of a checkpoint it has the same tensors under released names, or is a mixture of two forms.
		f, _ := files.Open("f")
		m := builder{index: modelIndex()}
		m.index.shards = x.shards
		if err := m.shard(context.Background(), f, 0); err == nil {
			for y := range m.index.All() {
				if bare([]byte(y.Name)) || strings.HasSuffix(y.Name, scale) && y.DType == F8E8M0 {
					t.Fatalf("%s %s in a checkpoint", y.Name, y.DType)
				}
			}
			if m.index.Len() != x.Len() {
				t.Fatalf("%d tensors of %d", m.index.Len(), x.Len())
			}
		} else if !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
		at := int64(8 + len(header))
		var again []Named
		for y := range x.All() {
			if y.Offset != at {
				t.Fatalf("%s is at %d, not %d", y, y.Offset, at)
			}
			at += y.Bytes
			if z, ok := x.Lookup(y.Name); !ok || !reflect.DeepEqual(y, z) {
				t.Fatalf("%q is not found", y.Name)
			}
			if n, ok := ParseName(y.Name); ok && (n.Layer < -1 || n.Expert < -1 || !strings.HasSuffix(y.Name, n.Part)) {
				t.Fatalf("%q is %+v", y.Name, n)
			}
			again = append(again, Named{y.Name, y.DType, y.Shape, Bytes(make([]byte, y.Bytes))})
		}
		if at != int64(8+len(header)+int(data)) {
			t.Fatalf("the tensors end at %d", at)
		}
		var b bytes.Buffer
		if err := WriteFile(&b, again); err != nil {
			t.Fatal(err)
		}
		files.put("f", b.Bytes())
		y, err := ReadFile(files, "f")
		if err != nil || y.Len() != x.Len() {
			t.Fatalf("written again: %v", err)
		}
	})
}
