package checksum_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
)

const file = "model.safetensors"

// saved writes a file and its checksums into a directory.
func saved(t testing.TB, data []byte, unit int64) (dir string, f *checksum.File) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
		t.Fatal(err)
	}
	left := int64(len(data))
	a := checksum.NewAdder(func() int64 {
		n := min(unit, left)
		left -= n
		return n
	})
	for i := 0; i < len(data); i += 7 {
		a.Write(data[i:min(i+7, len(data))])
	}
	f = &checksum.File{Header: checksum.Header{Name: file, Size: int64(len(data)), Changed: time.Unix(1000, 5).UTC(),
		Of: &checksum.Of{Samples: "a", Exact: "b"}}, Sums: a.Sums()}
	if err := f.Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir, f
}

func TestChecksumsAreFoundAsTheyWereSaved(t *testing.T) {
	data := bytes.Repeat([]byte("weights "), 1000)
	dir, want := saved(t, data, 100)
	got, err := checksum.Load(disk.Dir(dir), file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := checksum.Load(disk.Dir(dir), "other"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a file without: %v", err)
	}
	f, about, err := checksum.Open(disk.Dir(dir), file)
	if err != nil || about == nil {
		t.Fatal(about, err)
	}
	defer f.Close()
	p := make([]byte, len(data))
	if err := disk.ReadFull(f, p, 0); err != nil || !bytes.Equal(p, data) {
		t.Error("the file is not read as it is:", err)
	}
}

func TestADamagedFileIsNotRead(t *testing.T) {
	data := bytes.Repeat([]byte("weights "), 1000)
	dir, _ := saved(t, data, 100)
	data[777] ^= 4
	if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
		t.Fatal(err)
	}
	for checked, files := range map[bool]disk.Files{true: disk.Dir(dir), false: checksum.Ignore(disk.Dir(dir))} {
		f, _, err := checksum.Open(files, file)
		if err != nil {
			t.Fatal(err)
		}
		if err := disk.ReadFull(f, make([]byte, len(data)), 0); errors.Is(err, disk.ErrChecksum) != checked {
			t.Errorf("checked %v: %v", checked, err)
		}
		f.Close()
	}
}

func TestUselessChecksumsAreRefused(t *testing.T) {
	data := bytes.Repeat([]byte("weights "), 100)
	dir, _ := saved(t, data, 100)
	if err := os.WriteFile(filepath.Join(dir, file), data[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := checksum.Open(disk.Dir(dir), file); !errors.Is(err, checksum.ErrFormat) {
		t.Errorf("a file of another size: %v", err)
	}
	path := filepath.Join(dir, checksum.Folder, "checksums", file)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := checksum.Load(disk.Dir(dir), file); !errors.Is(err, checksum.ErrFormat) {
			t.Fatalf("byte %d of the checksums wrong: %v", i, err)
		}
		if err := os.WriteFile(path, whole[:i], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := checksum.Load(disk.Dir(dir), file); !errors.Is(err, checksum.ErrFormat) {
			t.Fatalf("the checksums end at byte %d: %v", i, err)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".other"); err != nil {
		t.Fatal(err)
	}
	if _, err := checksum.Load(disk.Dir(dir), file+".other"); !errors.Is(err, checksum.ErrFormat) {
		t.Errorf("the checksums of another file: %v", err)
	}
}
