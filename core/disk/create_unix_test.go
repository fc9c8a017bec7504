//go:build unix

package disk_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

// write makes a file of that content.
func write(t *testing.T, create func(string) (*disk.NewFile, error), path, content string) {
	t.Helper()
	f, err := create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Abandon()
	if _, err := io.WriteString(f, content); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
}

func textOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAPipeIsWrittenToAndStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	link := path + ".link"
	if err := os.Symlink("pipe", link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link} {
		read := make(chan string, 1)
		go func() {
			data, _ := os.ReadFile(path)
			read <- string(data)
		}()
		if !disk.IsStream(name) || disk.CanCreate(name) != nil {
			t.Errorf("%s is no stream", name)
		}
		write(t, disk.Create, name, "text")
		if got := <-read; got != "text" {
			t.Errorf("%s: %q was read", name, got)
		}
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("it is %v, %v", info, err)
	}
}

func TestADeviceIsWrittenToAndStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "null")
	if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
		t.Skip(err) // for root alone
	}
	if f, err := os.OpenFile(path, os.O_WRONLY, 0); err != nil {
		t.Skip(err) // mounted without devices
	} else {
		f.Close()
	}
	write(t, disk.Create, path, "text")
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("it is %v, %v", info, err)
	}
}

func TestAnOpenFileIsWrittenToWhereItStands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "open")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	io.WriteString(f, "one ")
	// The child's descriptor 3 is the file.
	cmd := exec.Command(os.Args[0], "-test.run=^TestDescriptorThree$")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), "K3_TEST_DESCRIPTOR=1"), []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	io.WriteString(f, " three")
	if got := textOf(t, path); got != "one two three" {
		t.Errorf("%q", got)
	}
}

func TestDescriptorThree(t *testing.T) {
	if os.Getenv("K3_TEST_DESCRIPTOR") == "" {
		t.Skip("part of TestAnOpenFileIsWrittenToWhereItStands")
	}
	write(t, disk.Create, "/dev/fd/3", "two")
	if _, err := disk.Create("/dev/fd/999"); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}

func TestLinksAreFollowed(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"a", "b", "b/c"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"file.link": "file", "dangling": "a/new", "absolute": at("a/absolute"), "twice": "file.link", "c.link": "b/c",
		"round": "round", "folder": "a",
	} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	// From where a link has led to, ".." is another place than from where it stands.
	if err := os.Symlink("c.link/../up", at("back")); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"file.link": "file", "dangling": "a/new", "absolute": "a/absolute", "twice": "file", "back": "b/up",
	} {
		write(t, disk.Create, at(name), name)
		if got := textOf(t, at(target)); got != name {
			t.Errorf("%s: %s has %q", name, target, got)
		}
		if info, err := os.Lstat(at(name)); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is %v, %v", name, info, err)
		}
	}
	for _, name := range []string{"round", "folder", "a", "new/"} {
		path := dir + "/" + name
		if _, err := disk.Create(path); err == nil || !strings.HasPrefix(err.Error(), "disk: create "+path+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPermissionsAreThoseOfTheUmaskOrOfTheFileReplaced(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	dir := t.TempDir()
	for _, c := range []struct {
		create func(string) (*disk.NewFile, error)
		old    os.FileMode // 0: none
		want   os.FileMode
	}{
		{disk.Create, 0, 0o640}, {disk.Create, 0o600, 0o600}, {disk.Create, 0o666, 0o666},
		{disk.CreatePrivate, 0, 0o600}, {disk.CreatePrivate, 0o644, 0o644},
	} {
		path := filepath.Join(dir, "file")
		os.Remove(path)
		if c.old != 0 {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, c.old)); err != nil {
				t.Fatal(err)
			}
		}
		write(t, c.create, path, "x")
		if info, err := os.Stat(path); err != nil || info.Mode() != c.want {
			t.Errorf("%v becomes %v, want %v, %v", c.old, info.Mode(), c.want, err)
		}
	}
}

func TestTheOwnerOfAReplacedFileStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 12345, 23456); err != nil {
		t.Skip(err) // for root alone
	}
	write(t, disk.Create, path, "x")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); s.Uid != 12345 || s.Gid != 23456 {
		t.Errorf("it belongs to %d:%d", s.Uid, s.Gid)
	}
}

// What a killed process leaves is removed by the next one that writes the same file, and nothing else is.
func TestTheNextWriterSweepsWhatAKilledOneLeft(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{
		".file.1.partial", ".file.77.partial", // left
		".file.txt.1.partial", ".other.1.partial", ".file.x.partial", ".file.partial", "file.1.partial", // others'
	} {
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	alive, err := disk.Create(at("file"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(alive, "alive"); err != nil {
		t.Fatal(err)
	}
	write(t, disk.Create, at("file"), "next")
	if got := textOf(t, at("file")); got != "next" {
		t.Errorf("%q", got)
	}
	names := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if got := names(); len(got) != 7 {
		t.Errorf("there are %v", got)
	}
	if n := disk.Sweep(dir, func(name string) bool { return name == "file" }); n != 5 {
		t.Errorf("%d bytes are being written", n)
	}
	if err := alive.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := textOf(t, at("file")); got != "alive" || len(names()) != 6 {
		t.Errorf("%q in %v", got, names())
	}
}

func TestNoMessageHasTheNameOfATemporary(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	var errs []error
	_, err := disk.Create(filepath.Join(dir, "nowhere", "file"))
	errs = append(errs, err)
	f, err := disk.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	errs = append(errs, f.Commit())
	_, err = f.Write([]byte("x"))
	errs = append(errs, err)
	_, err = f.Seek(0, io.SeekStart)
	errs = append(errs, err)
	for _, err := range errs {
		if err == nil || strings.Contains(err.Error(), ".partial") {
			t.Errorf("%v", err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v is left, %v", entries, err)
	}
}
