package verify

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/internal/journal"
)

// record is what reading one file gave. An interrupted check keeps them, a line of JSON each, and goes on after them.
type record struct {
	Name     string    `json:"name"`
	Size     int64     `json:"size"`
	Changed  time.Time `json:"changed"`            // the file's time of change when it was read
	Expected string    `json:"expected,omitempty"` // checksum
	Sum      string    `json:"sum"`
	Faults   []fault   `json:"faults,omitempty"` // of single tensors
	Zeros    zeros     `json:"zeros"`

	sums *disk.Sums // of a shard that was read now
}

type fault struct {
	Tensor string `json:"tensor"`
	Text   string `json:"text"`
}

// records is the file of them. A directory that cannot be written to has none.
type records struct {
	mu   sync.Mutex
	path string
	file *journal.Writer
	old  map[string]record
}

func journalPath(dir string) string { return filepath.Join(dir, hub.Folder, "verify.jsonl") }

// Begun reports whether an interrupted deep check of a directory has left there what the next one goes on from.
func Begun(dir string) bool {
	_, err := os.Stat(journalPath(dir))
	return err == nil
}

// openRecords reads what an interrupted check left, unless restart, and begins to write.
func openRecords(dir string, restart bool) *records {
	j := &records{old: map[string]record{}}
	if dir == "" {
		return j
	}
	j.path = journalPath(dir)
	folder := filepath.Dir(j.path)
	if restart {
		os.Remove(j.path)
	}
	end := int64(0)
	if f, err := os.Open(j.path); err == nil {
		end, _ = journal.Read(f, func(line []byte) bool {
			var r record
			if json.Unmarshal(line, &r) != nil {
				return false
			}
			j.old[r.Name] = r
			return true
		})
		f.Close()
	}
	if os.MkdirAll(folder, 0o755) == nil {
		j.file, _ = journal.Append(j.path, end)
	}
	return j
}

// known gives the record of a file that has not changed since.
func (j *records) known(name string, info fs.FileInfo, expected string) (record, bool) {
	r, ok := j.old[name]
	return r, ok && info != nil && r.Size == info.Size() && r.Changed.Equal(info.ModTime()) && r.Expected == expected
}

// add keeps a record. That it is lost does no harm, so errors are not told.
func (j *records) add(r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return
	}
	if line, err := json.Marshal(r); err == nil {
		j.file.Add(line)
	}
}

// close ends the journal; with done the check was not interrupted and it is removed.
func (j *records) close(done bool) {
	if j.file == nil {
		return
	}
	j.file.Close()
	if done {
		if err := os.Remove(j.path); err == nil || errors.Is(err, fs.ErrNotExist) {
			os.Remove(filepath.Dir(j.path)) // if nothing else is in it
		}
	}
}
