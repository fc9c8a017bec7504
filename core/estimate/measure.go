package estimate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// computeRounds is how many times MeasureCompute measures.
const computeRounds = 5

// MeasureCompute measures how fast a backend computes, with one vector and with SharedRows of them, several times, in a second or
// less, and puts it into r. It takes up to 256 MiB of memory, and no more than a quarter of what the machine has free.
func (r *Rates) MeasureCompute(ctx context.Context, backend string, threads int) error {
	b, err := kernel.Select(backend)
	if err != nil {
		return fmt.Errorf("estimate: measure: %w", err)
	}
	if threads == 0 {
		threads = kernel.DefaultThreads()
	}
	pool := kernel.NewPool(b, threads)
	defer pool.Close()
	const cols, step = 7168, 256
	var account memory.Account
	block, err := account.Allocate("measure", int(min(256<<20, max(16<<20, memory.Probe().Free().Free/4))))
	if err != nil {
		return fmt.Errorf("estimate: measure: %w", err)
	}
	defer block.Free()
	data := block.Bytes()
	for i := range data {
		data[i] = byte(i*7) &^ 0x40 // finite as BF16
	}
	x := make([]float32, SharedRows*cols)
	for i := range x {
		x[i] = float32(i%13) - 6
	}
	product := func(f kernel.Format, n int) (rate func() float64) {
		t := kernel.Tile{Format: f, Cols: cols, Stride: cols}
		if f == kernel.MXFP4 {
			t.Scale = make([]byte, len(data)/f.RowBytes(cols)*cols/kernel.GroupSize)
			for i := range t.Scale {
				t.Scale[i] = 127
			}
		}
		t.Rows = len(data) / f.RowBytes(cols)
		t.Data = data[:t.Rows*f.RowBytes(cols)]
		t.Scale = t.Scale[:min(len(t.Scale), t.Rows*cols/kernel.GroupSize)]
		packed := pool.Pack(make([]float32, pool.PackedLen(f, cols, n)), f, x, cols, cols, n)
		dst := make([]float32, n*step)
		return func() float64 {
			start, done := time.Now(), 0
			for from := 0; from+step <= t.Rows && time.Since(start) < 80*time.Millisecond && ctx.Err() == nil; from += step {
				pool.Product(dst, step, t.Slice(from, from+step), packed)
				done += step
			}
			return float64(done*(f.RowBytes(cols)+len(t.Scale)/t.Rows)) / time.Since(start).Seconds()
		}
	}
	series := []**Series{&r.Trunk, &r.Experts, &r.TrunkShared, &r.ExpertsShared}
	rates := []func() float64{product(kernel.BF16, 1), product(kernel.MXFP4, 1), product(kernel.BF16, SharedRows), product(kernel.MXFP4, SharedRows)}
	var measured [4]Series
	for round := range computeRounds + 1 {
		for i, rate := range rates {
			if x := rate(); round > 0 { // the first finds nothing in place
				measured[i].Add(x)
			}
		}
	}
	for i := range series {
		*series[i] = &measured[i]
	}
	return ctx.Err()
}

// DiskRates is how fast a disk was read.
type DiskRates struct {
	Direct bool       // around the page cache
	Holes  float64    // share of the file that are holes, which read faster than a disk
	Loads  []LoadRate // one for each load
}

// LoadRate is how fast a disk was read with a load, in bytes a second.
type LoadRate struct {
	Block int // of the load, or what the file has room for
	Rate  Series
}

// MeasureFile measures the disk that holds a file, repeats times with each load, in turns. Blocks larger than the file become
// smaller. show is told what is going on.
func MeasureFile(ctx context.Context, file disk.File, loads []disk.Load, repeats int, show func(string)) (DiskRates, error) {
	d := DiskRates{Holes: disk.Holes(file), Loads: make([]LoadRate, len(loads))}
	if file.Size() < disk.Block {
		return d, fmt.Errorf("%s: %d bytes are too few to measure a disk", file.Name(), file.Size())
	}
	for i, l := range loads {
		d.Loads[i].Block = min(l.Block, int(file.Size()/disk.Block*disk.Block))
	}
	for round := range repeats {
		for i, l := range loads {
			show(fmt.Sprintf("reading %s, %d of %d", file.Name(), round*len(loads)+i+1, repeats*len(loads)))
			l.Block, l.Seed = d.Loads[i].Block, uint64(round*len(loads)+i)
			rate, direct, err := disk.Measure(ctx, file, l)
			if err != nil {
				return d, err
			}
			d.Direct = direct
			d.Loads[i].Rate.Add(rate)
		}
	}
	return d, nil
}

// ScratchBytes is the size of the file that MeasureScratch writes.
const ScratchBytes = 1 << 30

// scratchTime is the longest time to write it.
const scratchTime = 4 * time.Second

// MeasureScratch measures the disk of a directory with a scratch file, which is removed again.
func MeasureScratch(ctx context.Context, dir string, loads []disk.Load, repeats int, show func(string)) (d DiskRates, err error) {
	if free, err := disk.FreeSpace(dir); err == nil && free < 2*ScratchBytes {
		return d, fmt.Errorf("%s: only %.3g GB free, and a scratch file takes %.3g GB", dir, float64(free)/1e9, float64(ScratchBytes)/1e9)
	}
	failed := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if path := (&fs.PathError{}); errors.As(err, &path) {
			err = path.Err // the name of the scratch file says nothing to anyone
		}
		return fmt.Errorf("%s: no scratch file can be written: %w", dir, err)
	}
	scratch, err := os.CreateTemp(dir, ".k3-scratch-*")
	if err != nil {
		return d, failed(err)
	}
	defer func() {
		scratch.Close()
		if e := os.Remove(scratch.Name()); e != nil && err == nil {
			err = e
		}
	}()
	show("writing a scratch file to " + dir)
	if err := fillScratch(ctx, scratch); err != nil {
		return d, failed(err)
	}
	file, err := disk.Dir(dir).Open(filepath.Base(scratch.Name()))
	if err != nil {
		return d, failed(err)
	}
	defer file.Close()
	return MeasureFile(ctx, file, loads, repeats, show)
}

// fillScratch writes what a disk is to be measured with.
func fillScratch(ctx context.Context, f *os.File) error {
	block := make([]byte, 8<<20)
	if _, err := rand.Read(block); err != nil { // a disk that compresses must not look faster than it is
		return err
	}
	for start, n := time.Now(), 0; n < ScratchBytes && ctx.Err() == nil && (time.Since(start) < scratchTime || n < 8*len(block)); n += len(block) {
		block[0]++
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return f.Sync()
}

// LargestShard is the name of the largest .safetensors file, or "".
func LargestShard(files disk.Files) (name string, err error) {
	names, err := files.List()
	if err != nil {
		return "", err
	}
	var largest int64
	for _, n := range names {
		if !strings.HasSuffix(n, ".safetensors") {
			continue
		}
		f, err := files.Open(n)
		if err != nil {
			continue
		}
		if f.Size() > largest {
			name, largest = n, f.Size()
		}
		f.Close()
	}
	return name, nil
}
