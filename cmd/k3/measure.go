package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	gopsutil "github.com/shirou/gopsutil/v4/disk"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/memory"
)

// speed is how fast a machine was measured to be, several times each, in bytes of weights a second. What could not be measured is
// nil, and Notes say why.
type speed struct {
	Disk    *series  `json:"disk,omitempty"`
	Trunk   *series  `json:"trunk,omitempty"`
	Experts *series  `json:"experts,omitempty"`
	Direct  bool     `json:"direct"`          // the disk was read around the page cache
	Notes   []string `json:"notes,omitempty"` // what else must be known about the figures
}

// addCompute measures the processor. What cannot be measured is a note.
func (s *speed) addCompute(ctx context.Context, backend string, threads int) error {
	rates, err := core.MeasureCompute(ctx, backend, threads)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		s.Notes = append(s.Notes, "the processor could not be measured: "+oneLine(err))
		return nil
	}
	s.Trunk, s.Experts = &series{}, &series{}
	for _, r := range rates {
		s.Trunk.add(r.Trunk)
		s.Experts.add(r.Experts)
	}
	return nil
}

// addDisk takes what a disk was measured to do with one load.
func (s *speed) addDisk(d diskRows, rate series) {
	s.Disk, s.Direct = &rate, d.Direct
	s.Notes = append(s.Notes, d.Notes...)
}

// prediction is what a token is expected to take, in bytes and seconds. Low and high are with the fastest and the slowest of all
// rates that were measured, the others with their medians.
type prediction struct {
	TrunkBytes     int64   `json:"trunk_bytes"` // weights it is computed with
	ExpertBytes    int64   `json:"expert_bytes"`
	TrunkRead      int64   `json:"trunk_read_bytes"` // those of them that come from the disk
	ExpertRead     int64   `json:"expert_read_bytes"`
	HitRate        float64 `json:"expert_hit_rate"`           // share of experts expected in memory
	DiskSeconds    float64 `json:"disk_seconds,omitempty"`    // where the disk was measured
	ComputeSeconds float64 `json:"compute_seconds,omitempty"` // where the processor was
	Seconds        float64 `json:"seconds,omitempty"`
	Low            float64 `json:"seconds_low,omitempty"`
	High           float64 `json:"seconds_high,omitempty"`
}

// predict says what a token takes under a plan.
func (s speed) predict(p memory.Plan, w core.Weights) prediction {
	at := func(pick func(series) float64) core.Prediction {
		rate := func(s *series) float64 {
			if s == nil {
				return math.Inf(1) // takes no time that is known
			}
			return pick(*s)
		}
		return core.Predict(p, w, core.Rates{Disk: rate(s.Disk), Trunk: rate(s.Trunk), Experts: rate(s.Experts)})
	}
	x := at(func(s series) float64 { return s.Median })
	return prediction{x.TrunkBytes, x.ExpertBytes, x.TrunkRead, x.ExpertRead, x.HitRate, x.DiskSeconds, x.ComputeSeconds, x.Seconds,
		at(func(s series) float64 { return s.Max }).Seconds, at(func(s series) float64 { return s.Min }).Seconds}
}

// complete tells whether all that a prediction rests on was measured.
func (s speed) complete() bool { return s.Disk != nil && s.Trunk != nil }

// token writes the time of a token: "24 to 31 s", "8.4 s", or "8.4 s or more" where not all was measured.
func (s speed) token(x prediction) string {
	switch {
	case s.complete():
		return between(x.Low, x.High)
	case x.Seconds == 0:
		return "-"
	}
	return between(x.Low, x.High) + " or more"
}

// between writes a range of times with two digits, as one time where the ends are no different.
func between(low, high float64) string {
	if high == 0 {
		return "0 s"
	}
	unit, name := 1e-6, "µs"
	for _, u := range []struct {
		seconds float64
		name    string
	}{{1e-3, "ms"}, {1, "s"}} {
		if high >= u.seconds {
			unit, name = u.seconds, u.name
		}
	}
	digits := func(x float64) string {
		x /= unit
		if x < 9.95 {
			return fmt.Sprintf("%.1f", x)
		}
		return fmt.Sprintf("%.0f", x)
	}
	if digits(low) == digits(high) {
		return digits(high) + " " + name
	}
	return digits(low) + " to " + digits(high) + " " + name
}

// rates writes a range of rates.
func (s series) rates() string {
	low, high := size(int64(s.Min)), size(int64(s.Max))
	if low == high {
		return high + "/s"
	}
	return low + " to " + high + "/s"
}

// scratchBytes is the file that a disk is measured with, and scratchTime the longest time to write it.
const (
	scratchBytes = 1 << 30
	scratchTime  = 4 * time.Second
	expertBlock  = releasedExpertBytes / disk.Block * disk.Block
)

// measureScratch measures the disk of a directory with a scratch file, which is removed again.
func measureScratch(ctx context.Context, dir string, loads []disk.Load, repeats int, line *progress) (rows diskRows, err error) {
	rows = diskRows{File: dir, Device: diskName(dir)}
	if free, err := disk.FreeSpace(dir); err == nil && free < 2*scratchBytes {
		return rows, fmt.Errorf("%s: only %s free, and a scratch file takes %s", dir, size(free), size(scratchBytes))
	}
	failed := func(err error) error {
		if path := (&fs.PathError{}); errors.As(err, &path) {
			err = path.Err // the name of the scratch file says nothing to anyone
		}
		return fmt.Errorf("%s: no scratch file can be written: %w", dir, err)
	}
	scratch, err := os.CreateTemp(dir, ".k3-scratch-*")
	if err != nil {
		return rows, failed(err)
	}
	defer func() {
		scratch.Close()
		if e := os.Remove(scratch.Name()); e != nil && err == nil {
			err = e
		}
	}()
	line.show(time.Now(), "writing a scratch file to "+dir)
	if err := fillScratch(ctx, scratch); err != nil {
		return rows, failed(err)
	}
	file, err := disk.Dir(dir).Open(filepath.Base(scratch.Name()))
	if err != nil {
		return rows, failed(err)
	}
	defer file.Close()
	measured, err := measureFile(ctx, file, dir, loads, repeats, line)
	measured.File = dir
	return measured, err
}

// fillScratch writes what a disk is to be measured with.
func fillScratch(ctx context.Context, f *os.File) error {
	block := make([]byte, 8<<20)
	if _, err := rand.Read(block); err != nil { // a disk that compresses must not look faster than it is
		return err
	}
	for start, n := time.Now(), 0; n < scratchBytes && ctx.Err() == nil && (time.Since(start) < scratchTime || n < 8*len(block)); n += len(block) {
		block[0]++
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return f.Sync()
}

// measureFile measures the disk of directory dir by a file in it, repeats times with each load, in turns. Blocks larger than the
// file become smaller.
func measureFile(ctx context.Context, file disk.File, dir string, loads []disk.Load, repeats int, line *progress) (diskRows, error) {
	rows := diskRows{File: file.Name(), Device: diskName(dir)}
	if file.Size() < disk.Block {
		return rows, fmt.Errorf("%s: %d bytes are too few to measure a disk", file.Name(), file.Size())
	}
	for _, l := range loads {
		order := "sequential"
		if l.Random {
			order = "random"
		}
		block := min(l.Block, int(file.Size()/disk.Block*disk.Block))
		rows.Rows = append(rows.Rows, diskRow{Order: order, Block: block, Readers: l.Readers})
	}
	for round := range repeats {
		for i, l := range loads {
			line.show(time.Now(), fmt.Sprintf("reading %s, %d of %d", rows.File, round*len(loads)+i+1, repeats*len(loads)))
			l.Block, l.Seed = rows.Rows[i].Block, uint64(round*len(loads)+i)
			rate, direct, err := disk.Measure(ctx, file, l)
			if err != nil {
				return rows, err
			}
			rows.Direct = direct
			rows.Rows[i].Rate.add(rate)
		}
	}
	rows.Notes = notDisk(ctx, dir, disk.Holes(file), rows.Direct)
	return rows, nil
}

// notDisk says why reading files of dir does not measure a disk. "" for dir is the model that is built in.
func notDisk(ctx context.Context, dir string, holes float64, direct bool) (notes []string) {
	if holes >= 0.01 {
		notes = append(notes, fmt.Sprintf("%.0f%% of the file that was read are holes, which read faster than a disk: the speed of a disk is not measured by them",
			math.Floor(100*holes)))
	}
	if dir == "" {
		return append(notes, "the model is part of the program: no disk is read")
	}
	if u, err := gopsutil.UsageWithContext(ctx, dir); err == nil && slices.Contains([]string{"tmpfs", "ramfs"}, u.Fstype) {
		return append(notes, "the files are in memory ("+u.Fstype+"): no disk is read")
	}
	if !direct {
		notes = append(notes, "no direct reads here: files that the page cache holds are read from memory, and a disk may be slower")
	}
	return notes
}

// largestShard is the name of the largest .safetensors file, or "".
func largestShard(files disk.Files) (name string, err error) {
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
