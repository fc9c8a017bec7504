package disk_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

func TestALockIsHeldOnceAndLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for range 3 {
		unlock, err := disk.Lock(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := disk.Lock(path); !errors.Is(err, disk.ErrLocked) {
			t.Errorf("a second lock gives %v", err)
		}
		unlock()
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file is left: %v", err)
		}
	}
	if _, err := disk.Lock(filepath.Join(path, "nowhere")); err == nil || errors.Is(err, disk.ErrLocked) {
		t.Errorf("a lock in a folder that is not there gives %v", err)
	}
}

func TestOneOfManyHoldsALock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders, held atomic.Int32
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 200 {
				unlock, err := disk.Lock(path)
				if err != nil {
					continue
				}
				if holders.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				held.Add(1)
				holders.Add(-1)
				unlock()
			}
		})
	}
	wait.Wait()
	if held.Load() == 0 {
		t.Error("nobody got the lock")
	}
}
