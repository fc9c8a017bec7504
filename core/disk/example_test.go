package disk_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"testing/fstest"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/memory"
)

// A pool reads parts of files into one aligned buffer, urgent reads first.
func ExamplePool() {
	files := disk.FS(fstest.MapFS{"weights": {Data: []byte("gate up down")}}, "memory")
	f, err := files.Open("weights")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	layout := disk.Arrange([]disk.Part{{File: f, Off: 8, Len: 4}, {File: f, Off: 0, Len: 4}})
	var account memory.Account
	block, err := account.Allocate("example", layout.Size)
	if err != nil {
		log.Fatal(err)
	}
	defer block.Free()

	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	if err := pool.Read(context.Background(), disk.Urgent, layout.Runs(block.Bytes())); err != nil {
		log.Fatal(err)
	}
	for _, at := range layout.At {
		fmt.Printf("%q\n", block.Bytes()[at:at+4])
	}
	// Output:
	// "down"
	// "gate"
}

// A new file has its name when it is complete, and not before.
func ExampleCreate() {
	dir, err := os.MkdirTemp("", "disk")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "result")
	f, err := disk.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Abandon() // does nothing after Commit
	fmt.Fprintln(f, "all of it")
	_, err = os.Stat(path)
	fmt.Println("there before Commit:", err == nil)
	if err := f.Commit(); err != nil {
		log.Fatal(err)
	}
	_, err = os.Stat(path)
	fmt.Println("there after it:", err == nil)
	// Output:
	// there before Commit: false
	// there after it: true
}
