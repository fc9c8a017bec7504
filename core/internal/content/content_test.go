package content

import (
	"strings"
	"testing"
	"unicode"
)

func TestWhatIsInPlaceOfAFileIsNamed(t *testing.T) {
	for head, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n": "a git-lfs pointer",
		"GGUF\x03\x00\x00\x00":                   "GGUF",
		"\n<!DOCTYPE html>\n<html>":              "a web page",
		"<html class=''>":                        "a web page",
		"<?xml version='1.0'?><Error>":           "an XML message",
		"PK\x03\x04\x00":                         "a zip archive or a PyTorch file",
		"\x80\x02}":                              "a Python pickle",
		"\x1f\x8b\x08":                           "compressed by gzip",
		"\xef\xbb\xbf{\"model_type\"":            "text with a byte order mark (BOM)",
		"\xff\xfe{\x00\"\x00":                    "UTF-16 text",
		"\xfe\xff\x00{\x00\"":                    "UTF-16 text",
		"{\x00\"\x00":                            "UTF-16 text",
		"\x00{\x00\"":                            "UTF-16 text",
		"Entry not found":                        `a message of the hub, not the file itself: "Entry not found"`,
		"404: Not Found\nmore":                   `a message of the hub, not the file itself: "404: Not Found"`,
		`{"error":"Repo gone"}`:                  `a message of the hub, not the file itself: "Repo gone"`,
		"{ \"error\" : \"x\",\n \"code\": 401 }": `a message of the hub, not the file itself: "x"`,
		`{"error":{"code":5}}`:                   "",
		`{"model_type":"kimi_k3"}`:               "",
		`{"error": "` + strings.Repeat("é", 200): "",
		"":                                 "",
		"404" + "\xff":                     "",
		"\x00\x00\x00\x00\x00\x00\x00\x00": "",
		"IQ== 0\nIg== 1\n":                 "",
		"\x80\x00\x00\x00\x00\x00\x00\x00{\"a\":{": "",
	} {
		if got := Recognise([]byte(head)); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q is %q, want %q", head, got, want)
		}
	}
}

// FuzzRecognise holds that whatever is in a file, what is said of it is one short line.
func FuzzRecognise(f *testing.F) {
	f.Add([]byte("Entry not found \u2028 \x07"))
	f.Add([]byte(`{"error":"` + strings.Repeat("é", 120) + `"}`))
	f.Add([]byte("version https://git-lfs.github.com/spec/v1"))
	f.Fuzz(func(t *testing.T, head []byte) {
		said := Recognise(head)
		if len(said) > 800 || strings.ContainsFunc(said, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", said)
		}
	})
}
