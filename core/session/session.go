// Package session is the file a sequence is saved in: its ids and what the model remembers of them.
//
// A session restores into any memory budget, backend, thread count or operating system and goes on with the same bits. It
// names the checkpoint it belongs to by content, not by path, and ends in a checksum, so a file that is damaged, cut short,
// of another model or of a newer program is refused.
//
// The layout, little endian: 8 bytes magic, the format's version and the header's length as 32-bit numbers, the header as
// JSON, the state (Header.StateBytes long), and the SHA-256 of all that.
package session

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/counted"
)

// ErrSession is matched when a file is no session, is damaged or cut short, belongs to another model, or was made by a
// newer program. The message says which.
var ErrSession = errors.New("not a usable session")

// magic begins every session; its line ends show a file that was copied as text.
const magic = "K3SES\r\n\x1a"

// Version is the version of the format this package writes, and the newest it reads.
const Version = 2

// maxHeader is the most bytes of a header: ids of a million tokens take eight.
const maxHeader = 256 << 20

const sumSize = sha256.Size

// Header is what a session says about itself.
type Header struct {
	Program     string          `json:"program"`         // what wrote it
	Model       string          `json:"model"`           // for people
	Fingerprint string          `json:"fingerprint"`     // of the checkpoint's samples: see checkpoint.Fingerprint
	Exact       string          `json:"exact,omitempty"` // and of all of it, if that was known
	IDs         []int           `json:"ids"`             // all ids of the sequence
	Computed    int             `json:"computed"`        // how many of them are part of the state
	StateBytes  int64           `json:"state_bytes"`     // length of the state
	Extra       json.RawMessage `json:"extra,omitempty"`
}

// Of is the fingerprint of the checkpoint the session belongs to.
func (h Header) Of() checkpoint.Fingerprint {
	return checkpoint.Fingerprint{Samples: h.Fingerprint, Exact: h.Exact}
}

// Write saves a session at path, whole or not at all. state writes Header.StateBytes bytes.
func Write(path string, h Header, state func(io.Writer) error) error {
	header, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("session: write %s: %w", path, err)
	}
	f, err := disk.CreatePrivate(path)
	if err != nil {
		return fmt.Errorf("session: write: %w", err)
	}
	defer f.Abandon()
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(f, sum), 1<<20)
	body := &counted.Writer{W: out}
	start := binary.LittleEndian.AppendUint32([]byte(magic), Version)
	start = binary.LittleEndian.AppendUint32(start, uint32(len(header)))
	_, err = out.Write(append(start, header...))
	if err == nil {
		err = state(body)
	}
	if err == nil && body.N != h.StateBytes {
		err = fmt.Errorf("the state has %d bytes, not %d", body.N, h.StateBytes)
	}
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		_, err = f.Write(sum.Sum(nil))
	}
	if err == nil {
		err = f.Commit()
	}
	if err != nil {
		return fmt.Errorf("session: write %s: %w", path, err)
	}
	return nil
}

// Reader is a session being read: first its header, then its state.
type Reader struct {
	Header Header
	path   string
	file   *os.File
	in     *bufio.Reader
	sum    hash.Hash
	summed io.Reader // in, through sum
}

// Open reads a session's header. The file's length is checked; its content only by State, so nothing of it may be believed
// before.
func Open(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	r := &Reader{path: path, file: f, sum: sha256.New()}
	if err := r.header(); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func (r *Reader) refuse(format string, args ...any) error {
	return fmt.Errorf("session: %s: %w: %s", r.path, ErrSession, fmt.Sprintf(format, args...))
}

func (r *Reader) header() error {
	info, err := r.file.Stat()
	if err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if !info.Mode().IsRegular() {
		return r.refuse("it is no regular file")
	}
	r.in = bufio.NewReaderSize(r.file, 1<<20)
	r.summed = io.TeeReader(r.in, r.sum)
	var start [16]byte
	if _, err := io.ReadFull(r.summed, start[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.refuse("it has only %d bytes", info.Size())
	} else if err != nil {
		return fmt.Errorf("session: read %s: %w", r.path, err)
	}
	if string(start[:8]) != magic {
		return r.refuse("it does not begin like one")
	}
	if v := binary.LittleEndian.Uint32(start[8:]); v != Version {
		return r.refuse("it has version %d of the format; this program reads version %d", v, Version)
	}
	n := int64(binary.LittleEndian.Uint32(start[12:]))
	if n > maxHeader || n > info.Size()-16-sumSize {
		return r.refuse("it is cut short or damaged: a header of %d bytes in a file of %d", n, info.Size())
	}
	header := make([]byte, n)
	if _, err := io.ReadFull(r.summed, header); err != nil {
		return fmt.Errorf("session: read %s: %w", r.path, err)
	}
	if err := json.Unmarshal(header, &r.Header); err != nil {
		return r.refuse("its header is damaged: %v", err)
	}
	h := r.Header
	if h.StateBytes < 0 || h.Computed < 0 || h.Computed > len(h.IDs) {
		return r.refuse("its header is damaged: %d of %d ids computed, a state of %d bytes", h.Computed, len(h.IDs), h.StateBytes)
	}
	if want := 16 + n + h.StateBytes + sumSize; h.StateBytes > info.Size() || info.Size() != want {
		return r.refuse("it is cut short or damaged: %d bytes, not %d", info.Size(), want)
	}
	return nil
}

// State hands the state to read, which must take all of it, and then checks the checksum. Whatever read made must be thrown
// away if State returns an error.
func (r *Reader) State(read func(io.Reader) error) error {
	limited := &io.LimitedReader{R: r.summed, N: r.Header.StateBytes}
	if err := read(limited); err != nil {
		return fmt.Errorf("session: read %s: %w", r.path, err)
	}
	if limited.N != 0 {
		return r.refuse("%d bytes of its state belong to nothing", limited.N)
	}
	var stored [sumSize]byte
	if _, err := io.ReadFull(r.in, stored[:]); err != nil {
		return fmt.Errorf("session: read %s: %w", r.path, err)
	}
	if string(r.sum.Sum(nil)) != string(stored[:]) {
		return r.refuse("its checksum does not match: it is damaged")
	}
	return nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }
