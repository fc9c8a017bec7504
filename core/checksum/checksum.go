// Package checksum keeps the checksums of a model's files beside them, in a folder of the model's directory, so that every
// read can be checked: see disk.Summed.
//
// The file .k3/checksums/NAME has those of NAME, little endian: 8 bytes magic, the format's version and the length of a header
// in JSON as 32-bit numbers, the header, the lengths of all units and their CRC32C as 32-bit numbers, and the CRC32C of all
// that.
package checksum

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/k3infer/k3/core/disk"
)

// Folder is where k3 keeps what it knows about a directory of files, inside that directory.
const Folder = ".k3"

// subfolder of Folder.
const subfolder = "checksums"

// ErrFormat is matched when a file of checksums is damaged, was made by a newer program, or is another file's.
var ErrFormat = errors.New("unusable checksums")

const (
	magic     = "K3SUM\r\n\x1a" // its line ends show a file that was copied as text
	version   = 1
	maxHeader = 1 << 16
	maxUnits  = 1 << 26 // 512 MiB of them
)

// File is the checksums of one file, and what else is known of it.
type File struct {
	Header
	Sums *disk.Sums
}

// Header is what is known of a file besides the checksums of its units.
type Header struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// Changed is the file's time of change when the checksums were made.
	Changed time.Time `json:"changed,omitzero"`
	// Of is for a copy of parts of a model, such as a pack: which model's. See checkpoint.Fingerprint.
	Of *Of `json:"of,omitempty"`
}

// Of is the fingerprint of a model.
type Of struct {
	Samples string `json:"samples"`
	Exact   string `json:"exact,omitempty"`
}

// name is where the checksums of a file are, relative to its directory.
func name(file string) string { return path.Join(Folder, subfolder, file) }

// Load reads the checksums of one of files. If there are none the error matches fs.ErrNotExist, if they are of no use
// ErrFormat.
func Load(files disk.Files, file string) (*File, error) {
	data, err := disk.ReadAll(files, filepath.FromSlash(name(file)), 8*maxUnits+maxHeader+64)
	if err != nil {
		return nil, fmt.Errorf("checksum: load: %w", err)
	}
	f, err := parse(data)
	if err == nil && f.Name != file {
		err = fmt.Errorf("they are of %q", f.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("checksum: load %s in %s: %w: %w", name(file), files.Name(), ErrFormat, err)
	}
	return f, nil
}

func parse(data []byte) (*File, error) {
	const fixed = len(magic) + 4 + 4
	if len(data) < fixed+4 || string(data[:len(magic)]) != magic {
		return nil, errors.New("it is another sort of file")
	}
	if v := binary.LittleEndian.Uint32(data[len(magic):]); v != version {
		return nil, fmt.Errorf("version %d of the format; this program reads version %d", v, version)
	}
	body := data[:len(data)-4]
	if disk.CRC32C(0, body) != binary.LittleEndian.Uint32(data[len(body):]) {
		return nil, errors.New("the file is damaged")
	}
	n := int(binary.LittleEndian.Uint32(data[len(magic)+4:]))
	if n > maxHeader || n > len(body)-fixed || (len(body)-fixed-n)%8 != 0 {
		return nil, errors.New("the file is cut short")
	}
	f := &File{}
	if err := json.Unmarshal(body[fixed:fixed+n], &f.Header); err != nil {
		return nil, errors.New("its header is not what it should be")
	}
	rest := body[fixed+n:]
	units := len(rest) / 8
	numbers := make([]uint32, 2*units)
	size := int64(0)
	for i := range numbers {
		if numbers[i] = binary.LittleEndian.Uint32(rest[4*i:]); i < units {
			if size += int64(numbers[i]); numbers[i] == 0 {
				return nil, errors.New("a unit without bytes")
			}
		}
	}
	if size != f.Size {
		return nil, fmt.Errorf("its units have %d bytes together, not %d", size, f.Size)
	}
	f.Sums = disk.NewSums(numbers[:units:units], numbers[units:])
	return f, nil
}

// Save puts the checksums of a file into dir, the file's directory, replacing those that are there.
func (f *File) Save(dir string) error {
	header, err := json.Marshal(f.Header)
	if err != nil {
		return fmt.Errorf("checksum: save: %w", err)
	}
	data := append([]byte(magic), binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, version), uint32(len(header)))...)
	data = append(data, header...)
	units := f.Sums.Len()
	lengths, crcs := make([]byte, 0, 4*units), make([]byte, 0, 4*units)
	for i := range units {
		n, crc := f.Sums.Unit(i)
		lengths = binary.LittleEndian.AppendUint32(lengths, uint32(n))
		crcs = binary.LittleEndian.AppendUint32(crcs, crc)
	}
	data = append(append(data, lengths...), crcs...)
	data = binary.LittleEndian.AppendUint32(data, disk.CRC32C(0, data))
	target := filepath.Join(dir, filepath.FromSlash(name(f.Name)))
	if err := os.MkdirAll(filepath.Dir(target), 0o777); err != nil {
		return fmt.Errorf("checksum: save: %w", err)
	}
	out, err := disk.Create(target)
	if err != nil {
		return fmt.Errorf("checksum: save: %w", err)
	}
	defer out.Abandon()
	if _, err := out.Write(data); err != nil {
		return fmt.Errorf("checksum: save %s: %w", target, err)
	}
	if err := out.Commit(); err != nil {
		return fmt.Errorf("checksum: save: %w", err)
	}
	return nil
}

// Remove forgets the checksums of a file in dir, if there are any.
func Remove(dir, file string) error {
	err := os.Remove(filepath.Join(dir, filepath.FromSlash(name(file))))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Adder makes the checksums of a file from its bytes, given in order.
type Adder struct {
	lengths, crcs []uint32
	left          int64 // of the unit under way
	crc           uint32
	next          func() int64
}

// NewAdder returns an Adder whose units are as long as next says, called as each begins.
func NewAdder(next func() int64) *Adder { return &Adder{next: next} }

// Write adds bytes of the file. It does not fail.
func (a *Adder) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if a.left == 0 {
			a.left = a.next()
			a.lengths, a.crc = append(a.lengths, uint32(a.left)), 0
		}
		part := p[:min(int64(len(p)), a.left)]
		a.crc = disk.CRC32C(a.crc, part)
		a.left -= int64(len(part))
		if a.left == 0 {
			a.crcs = append(a.crcs, a.crc)
		}
		p = p[len(part):]
	}
	return n, nil
}

// Sums are the checksums, nil if the last unit is not complete.
func (a *Adder) Sums() *disk.Sums {
	if a.left > 0 {
		return nil
	}
	return disk.NewSums(a.lengths, a.crcs)
}
