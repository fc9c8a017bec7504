package disk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/k3infer/k3/core/disk"
)

// counted is a File of blocks that counts how often each is read.
type counted struct {
	disk.File
	blocks int64
	fail   error

	mu    sync.Mutex
	reads map[int64]int
}

func (c *counted) Name() string { return "counted" }
func (c *counted) Size() int64  { return c.blocks*2*disk.Block + 5 }

func (c *counted) ReadAt(p []byte, off int64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads[off]++
	if c.fail != nil {
		return 0, c.fail
	}
	return len(p), nil
}

func TestMeasureReadsWholeBlocksRoundAndRound(t *testing.T) {
	for _, random := range []bool{false, true} {
		c := &counted{blocks: 3, reads: map[int64]int{}}
		rate, direct, err := disk.Measure(t.Context(), c, disk.Load{Block: 2 * disk.Block, Readers: 3, Random: random, Time: 20 * time.Millisecond})
		if err != nil || direct || rate <= 0 {
			t.Fatalf("%g bytes a second, direct %v, %v", rate, direct, err)
		}
		for off := range c.reads {
			if off%(2*disk.Block) != 0 || off >= 3*2*disk.Block {
				t.Errorf("random %v: a read at %d", random, off)
			}
		}
		if len(c.reads) != 3 {
			t.Errorf("random %v: blocks read: %v", random, c.reads)
		}
	}
}

func TestMeasureReadsOnceHoweverShortTheTime(t *testing.T) {
	c := &counted{blocks: 3, reads: map[int64]int{}}
	rate, _, err := disk.Measure(t.Context(), c, disk.Load{Block: 2 * disk.Block, Readers: 3, Time: 1})
	if err != nil || rate <= 0 || len(c.reads) != 3 {
		t.Errorf("%g bytes a second, reads %v, %v", rate, c.reads, err)
	}
}

func TestMeasureFailsAsReadsDo(t *testing.T) {
	load := disk.Load{Block: 2 * disk.Block, Readers: 2, Time: time.Millisecond}
	if _, _, err := disk.Measure(t.Context(), &counted{blocks: 3, fail: os.ErrPermission, reads: map[int64]int{}}, load); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a read that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := disk.Measure(ctx, &counted{blocks: 3, reads: map[int64]int{}}, load); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	for _, bad := range []disk.Load{{Block: disk.Block / 2, Readers: 1}, {Block: disk.Block, Readers: 0}, {Block: 64 * disk.Block, Readers: 1}} {
		if _, _, err := disk.Measure(t.Context(), &counted{blocks: 3, reads: map[int64]int{}}, bad); err == nil {
			t.Errorf("%+v went well", bad)
		}
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 4*disk.Block), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := disk.Dir(filepath.Dir(path)).Open("file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if rate, _, err := disk.Measure(t.Context(), f, load); err != nil || rate <= 0 {
		t.Errorf("a file: %g, %v", rate, err)
	}
}
