package disk_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

// big makes a file of n bytes that is really on the disk.
func big(b *testing.B, n int64) string {
	b.Helper()
	if testing.Short() {
		b.Skip("writes a large file")
	}
	path := filepath.Join(b.TempDir(), "big")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	p := content(1<<20, 9)
	for at := int64(0); at < n; at += int64(len(p)) {
		if _, err := f.Write(p); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return path
}

// BenchmarkPlain is what the disk gives parallel direct readers that do nothing else; BenchmarkPool must come close.
func BenchmarkPlain(b *testing.B) {
	const size = 2 << 30
	path := big(b, size)
	for _, readers := range []int{1, 2, 4, 8} {
		for _, block := range []int{1 << 20, 4 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("readers=%d/block=%dMiB", readers, block>>20), func(b *testing.B) {
				f := open(b, disk.Dir(filepath.Dir(path)), "big")
				d, err := f.(disk.Direct).OpenDirect()
				if err != nil {
					b.Skip(err)
				}
				defer d.Close()
				b.SetBytes(size)
				for b.Loop() {
					var at atomic.Int64
					var all sync.WaitGroup
					for range readers {
						mem := buffer(b, block)
						all.Go(func() {
							for {
								off := at.Add(int64(block)) - int64(block)
								if off >= size {
									return
								}
								if _, err := d.ReadAt(mem, off); err != nil {
									b.Error(err)
								}
							}
						})
					}
					all.Wait()
				}
			})
		}
	}
}

func BenchmarkPool(b *testing.B) {
	const size = 2 << 30
	path := big(b, size)
	for _, readers := range []int{4, 8} {
		for _, piece := range []int{1 << 20, 4 << 20} {
			b.Run(fmt.Sprintf("readers=%d/piece=%dMiB", readers, piece>>20), func(b *testing.B) {
				f := open(b, disk.Dir(filepath.Dir(path)), "big")
				pool := disk.NewPool(disk.Config{Readers: readers, Piece: piece})
				defer pool.Close()
				const run, ring = 16 << 20, 4
				mem := buffer(b, ring*run)
				b.SetBytes(size)
				for b.Loop() {
					free := make(chan []byte, ring)
					for i := range ring {
						free <- mem[i*run:][:run]
					}
					for off := int64(0); off < size; off += run {
						m := <-free
						pool.Start(b.Context(), disk.Ahead, []disk.Run{{File: f, Off: off, Len: run, Mem: m}}, func(err error) {
							if err != nil {
								b.Error(err)
							}
							free <- m
						})
					}
					for range ring {
						<-free
					}
				}
			})
		}
	}
}
