package tape_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
)

// BenchmarkStream plays a tape of 3 GiB from a cold disk, each tile being computed with for as long as the disk needs for
// it, and compares with plain parallel direct readers of the same block size that do nothing else: "share" is the tape's
// part of their speed, "waited" the part of the time that computing waited.
func BenchmarkStream(b *testing.B) {
	if testing.Short() {
		b.Skip("writes a large file")
	}
	const rows, cols, size = 12288, 7168, 12288 * 7168 * 2
	const count = 3 << 30 / size
	path := filepath.Join(b.TempDir(), "big")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * i >> 3)
	}
	for range count*size>>20 + 1 {
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	file, err := disk.Dir(filepath.Dir(path)).Open("big")
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	var matrices []tape.Matrix
	for i := range count {
		matrices = append(matrices, tape.Matrix{Rows: rows, Cols: cols, Unit: 1, Format: kernel.BF16,
			Tensor: checkpoint.Tensor{Name: fmt.Sprint(i), Offset: int64(1000 + i*size), Bytes: size}})
	}
	tiles, err := tape.Cut(matrices, func(x checkpoint.Tensor) (disk.File, int64, error) { return file, x.Offset, nil }, 0)
	if err != nil {
		b.Fatal(err)
	}
	const readers = 8
	plain := func() float64 {
		d, err := file.(disk.Direct).OpenDirect()
		if err != nil {
			b.Skip(err)
		}
		defer d.Close()
		var at atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for range readers {
			m, err := new(memory.Account).Allocate("test", disk.DefaultPiece)
			if err != nil {
				b.Fatal(err)
			}
			defer m.Free()
			all.Go(func() {
				for {
					off := at.Add(disk.DefaultPiece) - disk.DefaultPiece
					if off+disk.DefaultPiece > count*size {
						return
					}
					if _, err := d.ReadAt(m.Bytes(), off); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		return count * size / time.Since(start).Seconds()
	}
	for _, ring := range []int{2, 3, 4, 8} {
		for _, computing := range []bool{false, true} {
			b.Run(fmt.Sprintf("ring=%d/computing=%v", ring, computing), func(b *testing.B) {
				pool := disk.NewPool(disk.Config{Readers: readers})
				defer pool.Close()
				s := openTape(b, tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: ring})
				defer s.Close()
				b.SetBytes(count * size)
				var plainly float64 // sum over the passes
				passes := 0.0
				for b.Loop() {
					b.StopTimer()
					plainly += plain()
					passes++
					b.StartTimer()
					r, err := s.Start(b.Context(), count)
					if err != nil {
						b.Fatal(err)
					}
					busy := time.Duration(0.9 * float64(tiles.BufferBytes()) / (plainly / passes) * float64(time.Second))
					for {
						x, err := r.Next()
						if errors.Is(err, io.EOF) {
							break
						}
						if err != nil {
							b.Fatal(err)
						}
						if computing {
							time.Sleep(busy)
						}
						x.Release()
					}
					r.Close()
				}
				speed := passes * count * size / b.Elapsed().Seconds()
				b.ReportMetric(100*speed/(plainly/passes), "%share")
				b.ReportMetric(100*s.Stats().Wait.Seconds()/b.Elapsed().Seconds(), "%waited")
			})
		}
	}
}
