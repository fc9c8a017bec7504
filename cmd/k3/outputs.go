package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/experts/replay"
)

// output is where something is written that is complete when it is committed: a disk.NewFile, or stdout.
type output interface {
	io.Writer
	Path() string
	Commit() error
	Abandon()
}

// stdoutName stands for stdout in place of a file.
const stdoutName = "-"

// isStdout reports whether path means stdout.
func isStdout(path string) bool {
	return path == stdoutName || path == "/dev/stdout" && runtime.GOOS != "windows"
}

// createOutput begins a file; - is stdout.
func createOutput(path string, stdout io.Writer) (output, error) {
	if isStdout(path) {
		return standardOutput{stdout}, nil
	}
	f, err := disk.Create(path)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// standardOutput is stdout as an output.
type standardOutput struct{ io.Writer }

func (standardOutput) Path() string  { return "stdout" }
func (standardOutput) Commit() error { return nil }
func (standardOutput) Abandon()      {}

// noStdout refuses - for what cannot share stdout with the text.
func noStdout(flag, path string) error {
	if path == stdoutName {
		return ui.Usagef("--%s: - would be stdout, where the text goes: name a file or a pipe", flag)
	}
	return nil
}

// outputs are the files a run writes. They are begun before the work, so that a wrong path does not cost it, and appear under
// their names when they are complete.
type outputs struct {
	report  output
	logits  *logitsFile
	trace   *traceFile
	session string // path, or ""

	run         savedRun     // for the session
	loaded      string       // the session that the run goes on from, or ""
	checkpoints *checkpoints // nil: none
	saved       string       // what the session has, once it is written
}

func (o *outputs) open(f runFlags, stdout io.Writer) (err error) {
	if err := errors.Join(noStdout("dump-logits", f.dumpLogits), noStdout("trace", f.trace), noStdout("save-session", f.saveSession)); err != nil {
		return err
	}
	if o.session = f.saveSession; o.session != "" {
		if err := disk.CanCreate(o.session); err != nil {
			return err
		}
	}
	if f.report != "" {
		if o.report, err = createOutput(f.report, stdout); err != nil {
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
	return nil
}

// commit completes the files: the report always, whatever becomes of the others, which are completed unless the run failed. ids are
// those whose logits were dumped, and those generated from them.
func (o *outputs) commit(r *report, s *core.Sequence, ids []int, failed error) error {
	err := o.saveSession(r, s, failed)
	if failed == nil && o.logits != nil {
		err = errors.Join(err, o.logits.commit(ids))
	}
	if failed == nil && o.trace != nil {
		err = errors.Join(err, o.trace.commit())
	}
	if o.report == nil {
		return err
	}
	if err != nil && r.Error == "" {
		r.Error = ui.OneLine(err)
	}
	if e := ui.WriteJSON(o.report, r); e != nil {
		return errors.Join(err, fmt.Errorf("write %s: %w", o.report.Path(), e))
	}
	return errors.Join(err, o.report.Commit())
}

// saveSession writes the session. After a failure that left the sequence whole, what was generated is worth to be saved; after one
// that did not, its ids are, with the last state that was: the rest is computed again. The second Ctrl-C asks for nothing of that.
func (o *outputs) saveSession(r *report, s *core.Sequence, failed error) error {
	broken := s.Err() != nil
	if o.session == "" || failed != nil && (len(r.IDs) == 0 || broken && errors.Is(failed, context.Canceled)) {
		return nil
	}
	data, err := json.Marshal(sessionExtra{Run: &o.run})
	computed := s.Computed()
	switch {
	case err != nil:
	case broken:
		from := o.loaded
		if o.checkpoints != nil && o.checkpoints.saved > 0 {
			from = o.session
		}
		computed, err = s.SaveIDs(o.session, from, data)
	default:
		err = s.Save(o.session, data)
	}
	if err != nil {
		return err
	}
	n := len(s.IDs())
	left := ""
	if n > computed+1 {
		left = fmt.Sprintf(", of which the last %d are still to be computed", n-computed)
	}
	o.saved = fmt.Sprintf("%s has all %s%s; --load-session goes on from there", o.session, ui.Plural(n, "token", "tokens"), left)
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

// logitsFile collects the logits of a run in a file of its own before the one they will end in, since the header, which comes
// first, says how many there are.
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
	if disk.IsStream(path) {
		path = filepath.Join(os.TempDir(), "k3-logits") // there is no place beside it, and no way back in it
	}
	rows, err := disk.CreatePrivate(path)
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
