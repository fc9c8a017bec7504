package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	gopsutil "github.com/shirou/gopsutil/v4/disk"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/estimate"
)

// addCompute measures the processor. What cannot be measured is a note.
func addCompute(ctx context.Context, r *estimate.Rates, backend string, threads int) (err error) {
	err = r.MeasureCompute(ctx, backend, threads)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r.Notes = append(r.Notes, "the processor could not be measured: "+ui.OneLine(err))
	}
	return nil
}

// addDisk takes what a disk was measured to do with one load.
func addDisk(r *estimate.Rates, d diskRows, rate estimate.Series) {
	r.Disk, r.Direct = &rate, d.Direct
	r.Notes = append(r.Notes, d.Notes...)
}

// tokenTime writes the time of a token: "24 to 31 s", "8.4 s", or "8.4 s or more" where not all was measured.
func tokenTime(r estimate.Rates, x estimate.Prediction) string {
	switch {
	case r.Complete():
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

// rateRange writes a range of rates.
func rateRange(s *estimate.Series) string {
	low, high := ui.Size(int64(s.Min)), ui.Size(int64(s.Max))
	if low == high {
		return high + "/s"
	}
	return low + " to " + high + "/s"
}

// expertBlock is about what the engine reads for an expert of the released model.
const expertBlock = releasedExpertBytes / disk.Block * disk.Block

// measureScratch measures the disk of a directory with a scratch file, which is removed again.
func measureScratch(ctx context.Context, dir string, loads []disk.Load, repeats int, line *ui.Progress) (diskRows, error) {
	measured, err := estimate.MeasureScratch(ctx, dir, loads, repeats, func(text string) { line.Show(time.Now(), text) })
	return newDiskRows(ctx, dir, dir, loads, measured, err)
}

// measureFile measures the disk of directory dir by a file in it.
func measureFile(ctx context.Context, file disk.File, dir string, loads []disk.Load, repeats int, line *ui.Progress) (diskRows, error) {
	measured, err := estimate.MeasureFile(ctx, file, loads, repeats, func(text string) { line.Show(time.Now(), text) })
	return newDiskRows(ctx, file.Name(), dir, loads, measured, err)
}

// newDiskRows describes what was measured with a file in a directory, if err is nil.
func newDiskRows(ctx context.Context, file, dir string, loads []disk.Load, d estimate.DiskRates, err error) (diskRows, error) {
	rows := diskRows{File: file, Device: diskName(dir), Direct: d.Direct}
	if err != nil {
		return rows, err
	}
	for i, l := range loads {
		order := "sequential"
		if l.Random {
			order = "random"
		}
		rows.Rows = append(rows.Rows, diskRow{Order: order, Block: d.Loads[i].Block, Readers: l.Readers, Rate: d.Loads[i].Rate})
	}
	rows.Notes = notDisk(ctx, dir, d.Holes, d.Direct)
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
