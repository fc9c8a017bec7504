package tokenizer_test

import (
	"fmt"
	"log"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/tokenizer"
)

// Text becomes ids and comes back byte for byte.
func ExampleTokenizer_Encode() {
	t, err := tokenizer.Load(disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode("The capital of France")
	if err != nil {
		log.Fatal(err)
	}
	text, err := t.Decode(ids)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d ids, %q\n", len(ids), text)
	_, err = t.Encode("cut \xe2\x82")
	fmt.Println(err)
	// Output:
	// 4 ids, "The capital of France"
	// tokenizer: encode text: not valid UTF-8 at byte 4
}

// A decoder gives a character when its last byte is there.
func ExampleDecoder() {
	t, err := tokenizer.Load(disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	d := t.NewDecoder()
	for _, part := range []string{"5 \xe2", "\x82", "\xac"} {
		fmt.Printf("%q ", d.PushBytes([]byte(part)))
	}
	fmt.Printf("%q\n", d.Flush())
	// Output:
	// "5 " "" "€" ""
}
