package strictjson

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRefusesWhatIsNotJSON(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "ends where a value"},
		{" \n", "ends where a value"},
		{"\ufeff{}", "where a value is needed at byte 0"},
		{"{} x", "after the end of the value at byte 3"},
		{"{}\x00", "after the end"},
		{"{}{}", "after the end"},
		{"// a comment\n{}", "where a value"},
		{"{/**/}", "where a string"},
		{"[1,]", "where a value"},
		{"[,1]", "where a value"},
		{"[1 2]", "a comma or"},
		{"[1", "ends where a comma or"},
		{"[", "ends where a value"},
		{"{", "ends where a string"},
		{`{"a"`, "ends where a colon"},
		{`{"a" 1}`, "where a colon"},
		{`{"a":}`, "where a value"},
		{`{"a":1,}`, "where a string"},
		{`{a:1}`, "where a string"},
		{`{'a':1}`, "where a string"},
		{"]", "where a value"},
		{"[1}", "a comma or"},
		{"[04]", "invalid number 04"},
		{"[-]", "invalid number"},
		{"[+4]", "where a value"},
		{"[.5]", "where a value"},
		{"[5.]", "invalid number"},
		{"[1e]", "invalid number"},
		{"[1e+]", "invalid number"},
		{"[1.e1]", "invalid number"},
		{"[0x10]", "a comma or"},
		{"[1-2]", "invalid number"},
		{"[NaN]", "where a value"},
		{"[Infinity]", "where a value"},
		{"[-Infinity]", "invalid number"},
		{"[" + strings.Repeat("1", 2000) + "]", "more than 1024"},
		{"[nul]", "unknown word"},
		{"[nulL]", "unknown word"},
		{"[True]", "where a value"},
		{"tru", "unknown word"},
		{"truee", "after the end"},
		{`"a`, "without its end"},
		{`"a\`, "without its end"},
		{`"a\"`, "without its end"},
		{"\"a\nb\"", "control character"},
		{"\"abcdefghi\x1f\"", "control character"},
		{"\"\x00\"", "control character"},
		{"\"abc\x1fdefghijkl\"", "control character"},
		{`"\x41"`, "unknown escape"},
		{`"\'"`, "unknown escape"},
		{`"\u12"`, `\u escape`},
		{`"\u12g4"`, `\u escape`},
		{`"\ud800"`, `\u escape`},
		{`"\udc00"`, `\u escape`},
		{`"\ud800\u0041"`, `\u escape`},
		{`"\ud800\ud800"`, `\u escape`},
		{`"\ud800\n"`, `\u escape`},
		{"\"\xff\"", "UTF-8"},
		{"\"abcdefgh\xc3\"", "UTF-8"},
		{"\"\xed\xa0\x80\"", "UTF-8"}, // an encoded surrogate
		{"\"\xc0\xaf\"", "UTF-8"},     // an overlong slash
		{strings.Repeat("[", 200_000), "inside each other"},
		{strings.Repeat(`{"a":`, 200_000), "inside each other"},
		{`{"a":1,"a":2}`, `the key "a" a second time`},
		{`{"a":1,"\u0061":2}`, `the key "a" a second time`},
		{`[{"b":{"x":null,"x":null}}]`, `the key "x" a second time`},
	} {
		name := c.text[:min(len(c.text), 20)]
		_, err := Parse([]byte(c.text))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", name, err, c.want)
		}
		if strings.Contains(c.want, "second time") {
			continue // Skip does not look for duplicates
		}
		r := streamed(c.text, 1)
		r.Skip()
		r.End()
		if r.Err() == nil || r.Err().Error() != err.Error() {
			t.Errorf("%q in a window of one byte: %v, want %v", name, r.Err(), err)
		}
	}
}

func TestReadsValuesOfEveryKind(t *testing.T) {
	const text = " \t\r\n{\"\":[],\"a\\u0041\\ud83d\\ude00\\n\\t\\r\\b\\f\\/\\\\\\\"é\":{\"Key\":null,\"key\":[true,false,0,-0,-1.5e+10,1E2]}} \n"
	want := Value{Kind: Object, Members: []Member{
		{"", Value{Kind: Array}},
		{"aA😀\n\t\r\b\f/\\\"é", Value{Kind: Object, Members: []Member{
			{"Key", Value{Kind: Null}},
			{"key", Value{Kind: Array, Items: []Value{{Kind: Bool, Text: "true"}, {Kind: Bool, Text: "false"}, {Kind: Number, Text: "0"},
				{Kind: Number, Text: "-0"}, {Kind: Number, Text: "-1.5e+10"}, {Kind: Number, Text: "1E2"}}}},
		}}},
	}}
	got, err := Parse([]byte(text))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %+v", err, got)
	}
	for window := range 40 {
		r := streamed(text, window+1)
		if got := r.value(); r.Err() != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("window %d: %v %+v", window+1, r.Err(), got)
		}
	}
	if v, ok := want.Members[1].Value.Get("key"); !ok || v.Kind != Array {
		t.Error("Get does not tell key from Key")
	}
}

func TestStringsKeepTheirBytesAtEveryLength(t *testing.T) {
	for n := range 40 {
		for _, special := range []string{"", "é", `\n`, `\\`, `\"`} {
			text := `"` + strings.Repeat("x", n) + special + strings.Repeat("y", n/2) + `"`
			var want string
			if err := json.Unmarshal([]byte(text), &want); err != nil {
				t.Fatal(err)
			}
			for _, r := range []*Reader{New([]byte(text)), streamed(text, 1), streamed(text, 7)} {
				if got := r.Str(); string(got) != want || r.Err() != nil {
					t.Errorf("%s: %q %v", text, got, r.Err())
				}
			}
		}
	}
}

func TestSizesAreIntegersOf63Bits(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "7": 7, "9223372036854775807": 1<<63 - 1} {
		if r := New([]byte(text)); r.Size() != want || r.Err() != nil {
			t.Errorf("%s: %v", text, r.Err())
		}
	}
	for _, text := range []string{"-1", "-0", "1.0", "1e2", "16.5", `"16"`, "null", "true", "[1]", "9223372036854775808", "18446744073709551616",
		"99999999999999999999999999", ""} {
		if r := New([]byte(text)); r.Size() != 0 || r.Err() == nil {
			t.Errorf("%s is taken for a size", text)
		}
	}
}

func TestErrorsOfTheFileComeThrough(t *testing.T) {
	r := &Reader{}
	r.Reset(func([]byte, int64) error { return io.ErrClosedPipe }, 0, 10)
	r.Skip()
	r.End()
	if r.Err() != io.ErrClosedPipe {
		t.Error(r.Err())
	}
}

// streamed reads text through a window of this many bytes.
func streamed(text string, window int) *Reader {
	r := &Reader{}
	r.Reset(func(p []byte, off int64) error {
		if copy(p, text[off:]) < len(p) {
			return io.ErrUnexpectedEOF
		}
		return nil
	}, 0, int64(len(text)))
	r.window = window
	return r
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,null,true],"b":"\u0061\ud83d\ude00é"}`, `[04]`, `{"a":1,"a":2}`, "\"\xff\"", `"\ud800"`, "[[[[[["} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Parse(data)
		valid := json.Valid(data)
		if err == nil && (!valid || !utf8.Valid(data)) {
			t.Fatalf("accepted %q", data)
		}
		if err != nil && valid {
			stricter := false
			for _, s := range []string{"UTF-8", `\u escape`, "second time", "inside each other", "more than 1024"} {
				stricter = stricter || strings.Contains(err.Error(), s)
			}
			if !stricter {
				t.Fatalf("refused %q: %v", data, err)
			}
		}
		r := streamed(string(data), 1+len(data)%5)
		w := r.value()
		r.End()
		if (err == nil) != (r.Err() == nil) || err != nil && err.Error() != r.Err().Error() || err == nil && !reflect.DeepEqual(v, w) {
			t.Fatalf("%q in a small window: %v, want %v", data, r.Err(), err)
		}
		s := New(data)
		s.Skip()
		if s.End(); err == nil && s.Err() != nil {
			t.Fatalf("Skip of %q: %v", data, s.Err())
		}
	})
}

func TestWhatIsNoBoolIsFalseAndAnError(t *testing.T) {
	for text, want := range map[string]bool{"true": true, "false": false, "1": false, "\"true\"": false, "null": false, "tru": false} {
		r := New([]byte(text))
		got := r.Bool()
		err := r.Err()
		if got != want || (err == nil) != (text == "true" || text == "false") {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
