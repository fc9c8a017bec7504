package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/experts/replay"
)

// outputs are the files a run writes. They are begun before the work, so that a wrong path does not cost it, and appear under
// their names when they are complete.
type outputs struct {
	report  *disk.NewFile
	logits  *logitsFile
	trace   *traceFile
	session string // path, or ""

	run         savedRun     // for the session
	checkpoints *checkpoints // nil: none
}

func (o *outputs) open(f runFlags) (err error) {
	if f.report != "" {
		if o.report, err = disk.Create(f.report); err != nil {
			return err
		}
	}
	if f.dumpLogits != "" {
		if o.logits, err = createLogits(f.dumpLogits); err != nil {
			return err
		}
	}
	if f.trace != "" {
		if o.trace, err = createTrace(f.trace); err != nil {
			return err
		}
	}
	if o.session = f.saveSession; o.session != "" {
		try, err := disk.Create(o.session)
		if err != nil {
			return err
		}
		try.Abandon()
	}
	return nil
}

// commit completes the files: the report always, the others unless the run failed. ids are those whose logits were dumped, and
// those generated from them.
func (o *outputs) commit(r *report, s *core.Sequence, ids []int, failed error) error {
	// After a failure that left the sequence whole, what was generated is worth to be saved.
	if o.session != "" && (failed == nil || s.Err() == nil && len(r.IDs) > 0) {
		data, err := json.Marshal(sessionExtra{Run: &o.run})
		if err == nil {
			err = s.Save(o.session, data)
		}
		if err != nil {
			return err
		}
	}
	if failed == nil {
		if o.logits != nil {
			if err := o.logits.commit(ids); err != nil {
				return err
			}
		}
		if o.trace != nil {
			if err := o.trace.commit(); err != nil {
				return err
			}
		}
	}
	if o.report != nil {
		if err := writeJSON(o.report, r); err != nil {
			return fmt.Errorf("write %s: %w", o.report.Path(), err)
		}
		return o.report.Commit()
	}
	return nil
}

// abandon removes what was not committed.
func (o *outputs) abandon() {
	if o.report != nil {
		o.report.Abandon()
	}
	if o.logits != nil {
		o.logits.abandon()
	}
	if o.trace != nil {
		o.trace.file.Abandon()
	}
}

// traceFile is an expert trace under way.
type traceFile struct {
	file   *disk.NewFile
	out    *bufio.Writer
	buffer []byte
	err    error // the first
}

func createTrace(path string) (*traceFile, error) {
	f, err := disk.Create(path)
	if err != nil {
		return nil, err
	}
	return &traceFile{file: f, out: bufio.NewWriterSize(f, 1<<16)}, nil
}

// add takes the experts that a row chose.
func (t *traceFile) add(layer int, chosen []int) {
	t.buffer = t.buffer[:0]
	for _, e := range chosen {
		t.buffer = replay.Append(t.buffer, experts.Key{Layer: int32(layer), Expert: int32(e)})
	}
	if _, err := t.out.Write(t.buffer); t.err == nil {
		t.err = err
	}
}

func (t *traceFile) commit() error {
	if err := t.out.Flush(); t.err == nil {
		t.err = err
	}
	if t.err != nil {
		return fmt.Errorf("write %s: %w", t.file.Path(), t.err)
	}
	return t.file.Commit()
}

// logitsFile collects the logits of a run in a file beside the one they will end in, since the header, which comes first,
// says how many there are.
type logitsFile struct {
	out, rows *disk.NewFile
	positions int
	vocab     int
	buffer    []byte
}

func createLogits(path string) (*logitsFile, error) {
	out, err := disk.Create(path)
	if err != nil {
		return nil, err
	}
	rows, err := disk.Create(path)
	if err != nil {
		out.Abandon()
		return nil, err
	}
	return &logitsFile{out: out, rows: rows}, nil
}

// add takes the logits of the next position.
func (l *logitsFile) add(_ int, logits []float32) error {
	l.buffer = l.buffer[:0]
	for _, x := range logits {
		l.buffer = binary.LittleEndian.AppendUint32(l.buffer, math.Float32bits(x))
	}
	l.positions++
	l.vocab = len(logits)
	if _, err := l.rows.Write(l.buffer); err != nil {
		return fmt.Errorf("write %s: %w", l.out.Path(), err)
	}
	return nil
}

// commit writes the tensors logits [positions, vocab] and ids [prompt + generated].
func (l *logitsFile) commit(ids []int) error {
	if _, err := l.rows.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("write %s: %w", l.out.Path(), err)
	}
	data := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		data = binary.LittleEndian.AppendUint32(data, uint32(id))
	}
	err := checkpoint.WriteFile(l.out, []checkpoint.Named{
		{Name: "logits", DType: checkpoint.F32, Shape: []int{l.positions, l.vocab}, Data: func(w io.Writer) error {
			_, err := io.Copy(w, l.rows)
			return err
		}},
		{Name: "ids", DType: checkpoint.I32, Shape: []int{len(ids)}, Data: checkpoint.Bytes(data)},
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", l.out.Path(), err)
	}
	return l.out.Commit()
}

func (l *logitsFile) abandon() {
	l.out.Abandon()
	l.rows.Abandon()
}
