package session_test

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	"github.com/k3infer/k3/core/session"
)

// write saves a session of 64 MiB.
func write(b *testing.B, path string) (size int64) {
	state := make([]byte, 64<<20)
	header := session.Header{Fingerprint: "f", IDs: make([]int, 1000), Computed: 1000, StateBytes: int64(len(state))}
	err := session.Write(path, header, func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(state))
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return header.StateBytes
}

func BenchmarkWrite(b *testing.B) {
	path := filepath.Join(b.TempDir(), "session")
	for b.Loop() {
		b.SetBytes(write(b, path))
	}
}

func BenchmarkRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "session")
	b.SetBytes(write(b, path))
	for b.Loop() {
		r, err := session.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		err = r.State(func(state io.Reader) error {
			_, err := io.Copy(io.Discard, state)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// Every sequence that begins looks for a kept text it goes on from.
func BenchmarkLongest(b *testing.B) {
	const texts, length = 200, 10000
	kept := session.NewPrefixes(texts, func(int) {})
	ids := make([]int, length)
	for i := range texts { // they differ in their last id only
		ids[length-1] = i
		kept.Put(append([]int(nil), ids...), i, 1)
	}
	ids = append(ids, 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, n, ok := kept.Longest(ids); !ok || n != length {
			b.Fatal("not found")
		}
	}
}
