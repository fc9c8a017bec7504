package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
)

// copied is a directory with files that nobody knows the checksums of.
func copied(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// rot changes a byte of a file; touched says whether its time of change shows it.
func rot(t *testing.T, path string, touched bool) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	at := info.ModTime()
	if touched {
		at = at.Add(time.Hour)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// shard is one that the demonstration model has.
func shard(t *testing.T, dir string) string {
	t.Helper()
	shards, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(shards) == 0 {
		t.Fatal(shards, err)
	}
	return filepath.Base(shards[len(shards)-1])
}

func TestADeepCheckKeepsChecksumsOfWhatIsRight(t *testing.T) {
	dir := copied(t, demoFiles(t))
	if r := verified(t, dir, Options{}); r.Checked != 0 {
		t.Errorf("%d shards have checksums before anything was read", r.Checked)
	}
	if _, err := os.Stat(filepath.Join(dir, checksum.Folder)); err == nil {
		t.Error("a check that is not deep wrote into the model")
	}
	r := verified(t, dir, Options{Deep: true})
	if !r.OK || r.Shards == 0 || r.Checked != r.Shards {
		t.Fatalf("%d of %d shards have checksums; %v", r.Checked, r.Shards, r.texts())
	}
	f, _, err := checksum.Open(disk.Dir(dir), shard(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := disk.ReadFull(f, make([]byte, f.Size()), 0); err != nil {
		t.Error("what was verified is not what is read:", err)
	}
}

func TestWhatTheDiskLostIsDamageAndWhatWasReplacedIsNot(t *testing.T) {
	for _, touched := range []bool{false, true} {
		dir := copied(t, demoFiles(t))
		verified(t, dir, Options{Deep: true})
		name := shard(t, dir)
		rot(t, filepath.Join(dir, name), touched)
		for again := range 2 { // damage stays damage, and what was replaced is known from then on
			r := verified(t, dir, Options{Deep: true})
			if r.OK != touched {
				t.Errorf("touched %v: %v", touched, r.texts())
			}
			if !touched && (len(r.Damaged) != 1 || r.Damaged[0] != name) {
				t.Errorf("to be fetched again: %v, want %s", r.Damaged, name)
			}
			if noted := strings.Contains(strings.Join(r.Notes, "\n"), "made anew"); noted != (touched && again == 0) {
				t.Errorf("touched %v: notes %q", touched, r.Notes)
			}
		}
	}
}

func TestADownloadedModelHasChecksumsAndADamagedShardKeepsThem(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	if r := verified(t, dir, Options{}); r.Checked != r.Shards || r.Shards == 0 {
		t.Errorf("%d of %d downloaded shards have checksums", r.Checked, r.Shards)
	}
	name := shard(t, dir)
	before, err := checksum.Load(disk.Dir(dir), name)
	if err != nil {
		t.Fatal(err)
	}
	rot(t, filepath.Join(dir, name), true)
	if r := verified(t, dir, Options{Deep: true}); r.OK {
		t.Error("a damaged shard is right")
	}
	after, err := checksum.Load(disk.Dir(dir), name)
	if err != nil || !after.Sums.Equal(before.Sums) {
		t.Error("the checksums of a damaged shard were made anew:", err)
	}
}

func TestChecksumsThatCannotBeWrittenAreNoted(t *testing.T) {
	dir := copied(t, demoFiles(t))
	if err := os.Mkdir(filepath.Join(dir, checksum.Folder), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, checksum.Folder, "checksums"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := verified(t, dir, Options{Deep: true})
	if !r.OK || r.Checked != 0 || !strings.Contains(strings.Join(r.Notes, "\n"), "could not be written") {
		t.Errorf("%d checked, %v, notes %q", r.Checked, r.texts(), r.Notes)
	}
}
