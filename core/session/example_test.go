package session_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/k3infer/k3/core/session"
)

// A session keeps the ids of a sequence and the state the model has of them.
func ExampleWrite() {
	dir, err := os.MkdirTemp("", "session")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "talk.session")
	header := session.Header{Program: "example", Fingerprint: "f", IDs: []int{5, 6, 7}, Computed: 3, StateBytes: 5}
	err = session.Write(path, header, func(w io.Writer) error {
		_, err := io.WriteString(w, "state")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	r, err := session.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	err = r.State(func(state io.Reader) error {
		text, err := io.ReadAll(state)
		fmt.Printf("%v %s\n", r.Header.IDs, text)
		return err
	})
	fmt.Println(err)
	// Output:
	// [5 6 7] state
	// <nil>
}

// Prefixes finds the longest kept text that a new one begins with.
func ExamplePrefixes() {
	kept := session.NewPrefixes(100, func(state string) { fmt.Println(state, "leaves") })
	kept.Put([]int{1, 2}, "short", 40)
	kept.Put([]int{1, 2, 3}, "long", 40)
	fmt.Println(kept.Longest([]int{1, 2, 3, 4}))
	kept.Put([]int{9}, "other", 40) // more than the budget: the least recently used goes
	// Output:
	// long 3 true
	// short leaves
}
