package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
	"github.com/k3infer/k3/core/internal/journal"
)

// A file that is not whole is called NAME.partial. Beside it, NAME.partial.blocks says which blocks of it have arrived: a line
// of JSON that tells which file it is, then a line "BLOCK CRC32C" for each.
//
// Neither file is synced while it grows. After a crash of the machine a line may be there whose block is not; it is found by its
// checksum, since every block is read again for the checksum of the whole file, and only it is fetched again. After the end of
// this process alone, by whatever means, all is there.
const (
	partialSuffix = ".partial"
	blocksSuffix  = ".blocks"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// partial is the file that blocks are put into. It has no locks: its owner takes care.
type partial struct {
	path   string // of the whole file
	file   File
	block  int64
	data   *os.File
	blocks *journal.Writer
	sum    []uint32
	have   []bool
}

type blocksHeader struct {
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256,omitempty"`
	GitSHA1 string `json:"git_sha1,omitempty"`
	Block   int64  `json:"block"`
}

func (p *partial) header() blocksHeader {
	return blocksHeader{p.file.Size, p.file.SHA256, p.file.GitSHA1, p.block}
}

func blocksOf(size, block int64) int { return int((size + block - 1) / block) }

// stored tells which blocks of a partial file are on disk, without opening it for writing. A file that belongs to other content
// has none.
func stored(path string, f File, block int64) (bytes int64) {
	info, err := os.Stat(path + partialSuffix)
	if err != nil {
		return 0
	}
	in, err := os.Open(path + partialSuffix + blocksSuffix)
	if err != nil {
		return 0
	}
	defer in.Close()
	n := blocksOf(f.Size, block)
	p := &partial{path: path, file: f, block: block, sum: make([]uint32, n), have: make([]bool, n)}
	p.load(in, info.Size())
	for b, have := range p.have {
		if have {
			bytes += p.length(b)
		}
	}
	return bytes
}

// load reads the lines of a blocks file and returns where the last good one ends, 0 if it belongs to another content.
func (p *partial) load(in io.Reader, size int64) (end int64) {
	ours := false // the first line says so
	end, _ = journal.Read(in, func(line []byte) bool {
		if !ours {
			var h blocksHeader
			ours = json.Unmarshal(line, &h) == nil && h == p.header()
			return ours
		}
		number, sum, _ := bytes.Cut(line, []byte(" "))
		b, err := strconv.Atoi(string(number))
		c, err2 := strconv.ParseUint(string(sum), 16, 32)
		if err != nil || err2 != nil || b < 0 || b >= len(p.have) {
			return false
		}
		if int64(b)*p.block+p.length(b) <= size {
			p.have[b], p.sum[b] = true, uint32(c)
		}
		return true
	})
	return end
}

// openPartial opens or begins the partial file of f, which will be path when it is whole.
func openPartial(path string, f File, block int64) (*partial, error) {
	n := blocksOf(f.Size, block)
	p := &partial{path: path, file: f, block: block, sum: make([]uint32, n), have: make([]bool, n)}
	err := p.open()
	if err != nil {
		p.close()
		return nil, &localError{fmt.Errorf("write %s: %w", path+partialSuffix, err)}
	}
	return p, nil
}

func (p *partial) open() (err error) {
	if p.data, err = os.OpenFile(p.path+partialSuffix, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	info, err := p.data.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	end, blocks := int64(0), p.path+partialSuffix+blocksSuffix
	if in, err := os.Open(blocks); err == nil {
		end = p.load(in, info.Size())
		in.Close()
	}
	if p.blocks, err = journal.Append(blocks, end); err != nil {
		return err
	}
	if end == 0 {
		if err := p.begin(); err != nil {
			return err
		}
	}
	return p.data.Truncate(p.file.Size)
}

// begin writes the first line of the empty blocks file.
func (p *partial) begin() error {
	line, err := json.Marshal(p.header())
	if err != nil {
		return err
	}
	return p.blocks.Add(line)
}

// reset forgets all blocks.
func (p *partial) reset() error {
	clear(p.have)
	err := p.blocks.Cut(0)
	if err == nil {
		err = p.begin()
	}
	if err != nil {
		return &localError{fmt.Errorf("write %s: %w", p.blocks.Name(), err)}
	}
	return nil
}

// length is the size of block b.
func (p *partial) length(b int) int64 { return min(p.block, p.file.Size-int64(b)*p.block) }

// write stores block b. Several goroutines may write different blocks.
func (p *partial) write(b int, data []byte) error {
	if _, err := p.data.WriteAt(data, int64(b)*p.block); err != nil {
		return &localError{fmt.Errorf("write %s: %w", p.data.Name(), err)}
	}
	return nil
}

// note records that block b was written.
func (p *partial) note(b int, sum uint32) error {
	if err := p.blocks.Add(fmt.Appendf(nil, "%d %08x", b, sum)); err != nil {
		return &localError{fmt.Errorf("write %s: %w", p.blocks.Name(), err)}
	}
	p.have[b], p.sum[b] = true, sum
	return nil
}

// read reads block b into data, which has its length.
func (p *partial) read(b int, data []byte) error {
	if _, err := p.data.ReadAt(data, int64(b)*p.block); err != nil {
		return &localError{fmt.Errorf("read %s: %w", p.data.Name(), err)}
	}
	return nil
}

// finish gives the whole file its name, durably.
func (p *partial) finish(replace bool) error {
	err := p.data.Sync()
	if e := p.close(); err == nil {
		err = e
	}
	if err == nil && !replace {
		if _, e := os.Lstat(p.path); e == nil {
			return fault.Errorf(ErrExists, "%s appeared while it was downloaded", p.path)
		}
	}
	if err == nil {
		err = os.Rename(p.path+partialSuffix, p.path)
	}
	if err != nil {
		return &localError{fmt.Errorf("write %s: %w", p.path, err)}
	}
	os.Remove(p.path + partialSuffix + blocksSuffix)
	disk.SyncDir(filepath.Dir(p.path))
	return nil
}

// close leaves the files as they are, to go on with later.
func (p *partial) close() (first error) {
	closed := func(err error) {
		if first == nil && !errors.Is(err, os.ErrClosed) {
			first = err
		}
	}
	if p.data != nil {
		closed(p.data.Close())
	}
	if p.blocks != nil {
		closed(p.blocks.Close())
	}
	return first
}

// removePartial removes what is left of a partial file.
func removePartial(path string) {
	os.Remove(path + partialSuffix)
	os.Remove(path + partialSuffix + blocksSuffix)
}
