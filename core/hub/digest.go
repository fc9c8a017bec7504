package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/k3infer/k3/core/internal/fault"
)

// Digest adds up the content of a file to compare it with the published checksum.
type Digest struct {
	file File
	hash hash.Hash
	n    int64
}

// NewDigest begins the checksum of f, with the algorithm that its metadata have: SHA-256, git's SHA-1, or SHA-256 when they have
// none.
func NewDigest(f File) *Digest {
	d := &Digest{file: f}
	if f.SHA256 == "" && f.GitSHA1 != "" {
		d.hash = sha1.New()
		fmt.Fprintf(d.hash, "blob %d\x00", f.Size)
	} else {
		d.hash = sha256.New()
	}
	return d
}

// Write adds content. It does not fail.
func (d *Digest) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return d.hash.Write(p)
}

// Sum is the checksum in hexadecimal.
func (d *Digest) Sum() string { return hex.EncodeToString(d.hash.Sum(nil)) }

// Known reports whether there is a published checksum.
func (d *Digest) Known() bool { return d.file.SHA256 != "" || d.file.GitSHA1 != "" }

// Check is an error that matches ErrDigest unless the content has the published size and checksum, or none is known.
func (d *Digest) Check() error {
	if d.n != d.file.Size {
		return fault.Errorf(ErrDigest, "%s has %d bytes, not %d", d.file.Name, d.n, d.file.Size)
	}
	kind, want := "SHA-256", d.file.SHA256
	if want == "" {
		kind, want = "git SHA-1", d.file.GitSHA1
	}
	if got := d.Sum(); want != "" && got != want {
		return fault.Errorf(ErrDigest, "%s has %s %s, not %s", d.file.Name, kind, got, want)
	}
	return nil
}

// checkFile compares the content of the file at path with f. also is given every piece, as it is read.
func checkFile(ctx context.Context, path string, f File, also io.Writer) error {
	in, err := os.Open(path)
	if err != nil {
		return &localError{fmt.Errorf("check: %w", err)}
	}
	defer in.Close()
	d, buf := NewDigest(f), make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := in.Read(buf)
		d.Write(buf[:n])
		also.Write(buf[:n])
		if err == io.EOF {
			return d.Check()
		}
		if err != nil {
			return &localError{fmt.Errorf("check: %w", err)}
		}
	}
}
