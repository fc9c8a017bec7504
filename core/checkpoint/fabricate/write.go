package fabricate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// shardFile is a shard that is being written. Whoever finishes its last job closes it.
type shardFile struct {
	*os.File
	sync    bool // have it on the disk then
	pending atomic.Int64
}

func (f *shardFile) release() error {
	if f.pending.Add(-1) > 0 {
		return nil
	}
	if f.sync {
		return errors.Join(f.Sync(), f.Close())
	}
	return f.Close()
}

// job is neighbouring bytes of a file, at most a chunk.
type job struct {
	file  *shardFile
	parts []stretch
}

// weights writes all shards into the directory work, on all processors.
func (w *writer) weights(ctx context.Context, work string) error {
	ctx, w.stop = context.WithCancel(ctx)
	defer w.stop()
	jobs := make(chan job)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			buffer := make([]byte, chunk)
			for j := range jobs {
				if ctx.Err() == nil {
					w.fail(w.write(j, buffer))
				}
				w.fail(j.file.release())
			}
		})
	}
	for i := range w.shards {
		if ctx.Err() != nil {
			break
		}
		w.fail(w.shard(ctx, i, filepath.Join(work, shardName(i, len(w.shards))), jobs))
	}
	close(jobs)
	workers.Wait()
	if w.err != nil {
		return w.err
	}
	return ctx.Err()
}

// fail notes an error and ends the work.
func (w *writer) fail(err error) {
	if err == nil {
		return
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.stop()
}

// shard writes the header of shard i and hands out its data.
func (w *writer) shard(ctx context.Context, i int, path string, jobs chan<- job) (err error) {
	opened, err := os.Create(path)
	if err != nil {
		return err
	}
	f := &shardFile{File: opened, sync: !w.o.Sparse} // a sparse checkpoint is made again sooner than 96 files are synced on a busy disk
	f.pending.Add(1)                                 // until all is handed out
	defer func() { err = errors.Join(err, f.release()) }()
	header, err := w.header(i)
	if err != nil {
		return err
	}
	if w.o.Sparse {
		if err := makeSparse(f.File); err != nil {
			return err
		}
	}
	s := w.shards[i]
	last := s[len(s)-1]
	if err := f.Truncate(last.offset + last.bytes); err != nil {
		return err
	}
	if _, err := f.WriteAt(header, 0); err != nil {
		return err
	}
	next := job{file: f}
	room, end := int64(chunk), int64(-1) // of the next job; where it ends in the file
	flush := func() {
		if len(next.parts) == 0 {
			return
		}
		f.pending.Add(1)
		select {
		case jobs <- next:
		case <-ctx.Done():
			f.pending.Add(-1) // not the last: this function holds one
		}
		next, room = job{file: f}, chunk
	}
	for j := range s {
		for _, r := range w.o.stretches(&s[j]) {
			if r.offset() != end {
				flush()
			}
			for r.bytes > 0 {
				part := r
				if part.bytes > room {
					part.bytes = room / grain * grain
				}
				if part.bytes > 0 {
					next.parts = append(next.parts, part)
				}
				r.from, r.bytes, room = r.from+part.bytes, r.bytes-part.bytes, room-part.bytes
				if r.bytes > 0 {
					flush()
				}
			}
			end = r.offset()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	flush()
	return nil
}

// write makes the bytes of a job and writes them.
func (w *writer) write(j job, buffer []byte) error {
	n := int64(0)
	for _, r := range j.parts {
		t := r.tensor
		f := newFiller(w.o.Seed, t.name, t.dtype, t.shape, w.config)
		f.fill(buffer[n:n+r.bytes], r.from)
		n += r.bytes
	}
	if _, err := j.file.WriteAt(buffer[:n], j.parts[0].offset()); err != nil {
		return err
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.done += n
	if w.o.Progress != nil {
		w.o.Progress(w.done, w.todo)
	}
	return nil
}
