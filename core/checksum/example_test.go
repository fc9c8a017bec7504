package checksum_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
)

// With checksums beside a file, every read of it is checked.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "checksum")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	content := []byte("sixteen of bytes")
	path := filepath.Join(dir, "weights")
	if err := os.WriteFile(path, content, 0o666); err != nil {
		log.Fatal(err)
	}
	adder := checksum.NewAdder(func() int64 { return 8 })
	adder.Write(content)
	sums := checksum.File{Header: checksum.Header{Name: "weights", Size: int64(len(content))}, Sums: adder.Sums()}
	if err := sums.Save(dir); err != nil {
		log.Fatal(err)
	}

	content[10] ^= 1 // a bit flips
	if err := os.WriteFile(path, content, 0o666); err != nil {
		log.Fatal(err)
	}
	f, _, err := checksum.Open(disk.Dir(dir), "weights")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	half := make([]byte, 8)
	fmt.Println(disk.ReadFull(f, half, 0))
	err = disk.ReadFull(f, half, 8)
	fmt.Println(errors.Is(err, disk.ErrChecksum))
	// Output:
	// <nil>
	// true
}
