package core

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/session"
)

// prefixSuffix is how the names of kept states end.
const prefixSuffix = ".k3s"

// prefixDir keeps states as session files, named by what they hold.
type prefixDir struct {
	engine *Engine
	mu     sync.Mutex
	path   string
	budget int64
	known  map[string]prefixFile // by name; what was found in the files when they were last looked at
}

// prefixFile is what is known of a file as long as its size and time are these.
type prefixFile struct {
	size   int64
	time   time.Time
	header session.Header // without what Extra has; the zero value for a file that is no session
}

// OnDisk has the store keep states in files of a directory, too, up to budget bytes, where it and others of the same checkpoint
// find them later. Above the budget the files leave that were not used for the longest time. The directory is made if there is
// none, and other files in it are left alone.
func (p *Prefixes) OnDisk(dir string, budget int64) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("core: keep prefixes: %w", err)
	}
	p.dir = &prefixDir{engine: p.engine, path: dir, budget: budget}
	return nil
}

// keep writes the computed part of a sequence, unless it is there or never fits.
func (d *prefixDir) keep(s *Sequence) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	fingerprint, err := d.engine.Fingerprint()
	if err != nil {
		return err
	}
	h := s.header(fingerprint, s.ids[:s.state.Len()])
	if h.StateBytes > d.budget {
		return nil
	}
	sum := sha256.Sum256(fmt.Append(nil, fingerprint, h.IDs))
	path := filepath.Join(d.path, hex.EncodeToString(sum[:16])+prefixSuffix)
	if d.touch(path) {
		return nil
	}
	if err := d.room(h.StateBytes); err != nil {
		return err
	}
	return session.Write(path, h, func(w io.Writer) error {
		_, err := s.state.WriteTo(w)
		return err
	})
}

// touch marks a file as used, and reports whether it is there.
func (d *prefixDir) touch(path string) bool {
	now := time.Now()
	if os.Chtimes(path, now, now) != nil {
		return false
	}
	// Its content is what it was.
	if known, ok := d.known[filepath.Base(path)]; ok {
		if info, err := os.Stat(path); err == nil && info.Size() == known.size {
			known.time = info.ModTime()
			d.known[filepath.Base(path)] = known
		}
	}
	return true
}

// headers returns the headers of the files by name. Only those that are new or have changed are opened.
func (d *prefixDir) headers(files []os.FileInfo) map[string]prefixFile {
	now := make(map[string]prefixFile, len(files))
	for _, f := range files {
		known, ok := d.known[f.Name()]
		if !ok || known.size != f.Size() || !known.time.Equal(f.ModTime()) {
			known = prefixFile{size: f.Size(), time: f.ModTime()}
			r, err := session.Open(filepath.Join(d.path, f.Name()))
			if err == nil {
				known.header = r.Header
				known.header.Extra = nil
				r.Close()
			} else if !errors.Is(err, ErrSession) {
				continue // it may be readable the next time
			}
		}
		now[f.Name()] = known
	}
	d.known = now
	return now
}

// files returns the states' files, the least recently used first.
func (d *prefixDir) files() ([]os.FileInfo, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("core: keep prefixes: %w", err)
	}
	var files []os.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && strings.HasSuffix(e.Name(), prefixSuffix) {
			files = append(files, info)
		}
	}
	slices.SortStableFunc(files, func(a, b os.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	return files, nil
}

// room removes files until so many bytes more fit beside those that are there and those that others write.
func (d *prefixDir) room(bytes int64) error {
	files, err := d.files()
	if err != nil {
		return err
	}
	bytes += disk.Sweep(d.path, func(name string) bool { return strings.HasSuffix(name, prefixSuffix) })
	for _, f := range files {
		bytes += f.Size()
	}
	for _, f := range files {
		if bytes <= d.budget {
			break
		}
		if err := os.Remove(filepath.Join(d.path, f.Name())); err != nil {
			return fmt.Errorf("core: keep prefixes: %w", err)
		}
		bytes -= f.Size()
	}
	return nil
}

// longest restores the longest kept text that ids begin with and go on after, if it is longer than length; nil if there is none.
// A file that cannot be used is none.
func (d *prefixDir) longest(ids []int, length, tokens int) *Sequence {
	d.mu.Lock()
	defer d.mu.Unlock()
	files, err := d.files()
	if err != nil {
		return nil
	}
	fingerprint, err := d.engine.Fingerprint()
	if err != nil {
		return nil
	}
	type candidate struct {
		path string
		ids  int
	}
	var candidates []candidate
	for name, f := range d.headers(files) {
		h := f.header
		n := len(h.IDs)
		if n > length && n < len(ids) && h.Computed == n && h.Of().Matches(fingerprint) && slices.Equal(h.IDs, ids[:n]) {
			candidates = append(candidates, candidate{filepath.Join(d.path, name), n})
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int { return cmp.Compare(b.ids, a.ids) })
	for _, c := range candidates {
		s, _, err := d.engine.loadSequence(c.path, tokens)
		if errors.Is(err, ErrSession) {
			os.Remove(c.path) // it is damaged, and in the way of a good one
		}
		if err == nil {
			d.touch(c.path)
			s.Append(ids[c.ids:]...)
			return s
		}
	}
	return nil
}
