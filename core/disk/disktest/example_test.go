package disktest_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
)

// FailAt stands for a disk with a bad sector.
func ExampleFailAt() {
	fault := disktest.FailAt("weights", 5, errors.New("bad sector"))
	files := disktest.Wrap(disktest.Memory{"weights": []byte("0123456789")}, fault)
	f, err := files.Open("weights")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(disk.ReadFull(f, make([]byte, 5), 0))
	fmt.Println(disk.ReadFull(f, make([]byte, 5), 3))
	f.Close()
	fmt.Println(files.OpenFiles(), "files left open")
	// Output:
	// <nil>
	// disk: read weights at 5: bad sector
	// 0 files left open
}
