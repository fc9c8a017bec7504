package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
)

// made is the directory of a fabricated model.
func made(t testing.TB, o fabricate.Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if o.Config == nil {
		o.Config = fabricate.Geometry("tiny")
	}
	if _, err := fabricate.Write(t.Context(), dir, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

func fingerprint(t testing.TB, dir, cache string) checkpoint.Fingerprint {
	t.Helper()
	m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	f, err := m.Fingerprint(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// change calls f with the bytes [from, to) of a file and writes back what it made of them, with the time of change as it was.
func change(t testing.TB, path string, from, to int64, f func([]byte)) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	data := make([]byte, to-from)
	if _, err := file.ReadAt(data, from); err != nil {
		t.Fatal(err)
	}
	f(data)
	if _, err := file.WriteAt(data, from); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// sum makes the checksums of all shards of a directory.
func sum(t testing.TB, dir string) {
	t.Helper()
	shards, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(shards) == 0 {
		t.Fatal(shards, err)
	}
	for _, path := range shards {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s := checkpoint.NewSummer(int64(len(data)))
		for i := 0; i < len(data); i += 1000 {
			s.Write(data[i:min(i+1000, len(data))])
		}
		sums := s.Sums()
		if sums == nil {
			t.Fatalf("%s has no checksums", path)
		}
		f := checksum.File{Header: checksum.Header{Name: filepath.Base(path), Size: sums.Size()}, Sums: sums}
		if err := f.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// A LoRA that was merged changes nearly every byte of some matrices and nothing else.
func TestAModelWithOneOtherMatrixHasAnotherFingerprint(t *testing.T) {
	dir := made(t, fabricate.Options{Seed: 1})
	want := fingerprint(t, dir, "")
	m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	invert := func(p []byte) {
		for i := range p {
			p[i] ^= 1
		}
	}
	experts := map[string][]checkpoint.Tensor{} // by layer and matrix
	try := func(what string, tensors ...checkpoint.Tensor) {
		flip := func() {
			for _, x := range tensors {
				change(t, filepath.Join(dir, m.Index.Shards()[x.Shard].Name), x.Offset, x.Offset+x.Bytes, invert)
			}
		}
		flip()
		if fingerprint(t, dir, "").Matches(want) {
			t.Errorf("%s changed, and the fingerprint has not", what)
		}
		flip()
	}
	for x := range m.Index.All() {
		if before, after, ok := strings.Cut(x.Name, ".experts."); ok {
			_, part, _ := strings.Cut(after, ".")
			key := before + " " + part
			experts[key] = append(experts[key], x)
			continue
		}
		if x.Bytes <= 16<<10 { // one byte of a small tensor is enough
			x.Offset, x.Bytes = x.Offset+x.Bytes-1, 1
		}
		try(x.Name, x)
	}
	for key, tensors := range experts {
		try(key, tensors...)
	}
	if fingerprint(t, dir, "") != want {
		t.Error("everything is as it was, and the fingerprint is not")
	}
}

func TestTheFingerprintIsTheModelsNotTheFiles(t *testing.T) {
	one, many := made(t, fabricate.Options{Seed: 3, Shards: 1}), made(t, fabricate.Options{Seed: 3, Shards: 4})
	want := fingerprint(t, one, "")
	if got := fingerprint(t, many, ""); got != want {
		t.Error("other shards have another fingerprint")
	}
	path := filepath.Join(one, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(regexp.MustCompile(`"max_position_embeddings":\s*\d`).ReplaceAll(data, []byte("${0}1")))
	if fingerprint(t, one, "") != want {
		t.Error("a setting makes another model")
	}
	changed := regexp.MustCompile(`"rms_norm_eps":\s*[^,}\n]+`).ReplaceAll(data, []byte(`"rms_norm_eps": 0.002`))
	if bytes.Equal(changed, data) {
		t.Fatal("config.json is not as this test expects")
	}
	write(changed)
	if fingerprint(t, one, "").Matches(want) {
		t.Error("another epsilon is the same model")
	}
	write(data)
	// With checksums, the exact fingerprint does not depend on the files either.
	sum(t, one)
	sum(t, many)
	a, b := fingerprint(t, one, ""), fingerprint(t, many, "")
	if a.Exact == "" || a != b || !a.Matches(want) {
		t.Errorf("with checksums: %v and %v, without %v", a, b, want)
	}
}

// A byte that no sample has is enough where there are checksums.
func TestTheExactFingerprintKnowsEveryByte(t *testing.T) {
	dir := made(t, fabricate.Options{Seed: 4})
	m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	sum(t, dir)
	want := fingerprint(t, dir, "")
	var missed int
	for x := range m.Index.All() {
		if !strings.Contains(x.Name, ".experts.") {
			continue
		}
		change(t, filepath.Join(dir, m.Index.Shards()[x.Shard].Name), x.Offset+1, x.Offset+2, func(p []byte) { p[0] ^= 1 })
		sum(t, dir)
		got := fingerprint(t, dir, "")
		if got.Samples == want.Samples {
			missed++
		}
		if got.Matches(want) {
			t.Fatalf("%s changed by a bit, and the fingerprint has not", x.Name)
		}
		want = got
		if missed > 3 {
			return
		}
	}
	t.Error("the samples have every expert: this test shows nothing")
}

func TestAFingerprintIsRememberedAsLongAsTheFilesAreTheSame(t *testing.T) {
	dir, cache := made(t, fabricate.Options{Seed: 5}), t.TempDir()
	want := fingerprint(t, dir, cache)
	kept, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	other := "sha256:" + strings.Repeat("0", 64)
	if err := os.WriteFile(kept[0], []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := fingerprint(t, dir, cache); got.Samples != other {
		t.Error("it was computed again")
	}
	for _, bad := range []string{"", "sha256:12", other + "0", strings.Repeat("x", 71)} {
		if err := os.WriteFile(kept[0], []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := fingerprint(t, dir, cache); got != want {
			t.Errorf("%q in the cache gives %v", bad, got)
		}
	}
	if err := os.WriteFile(kept[0], []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	shards, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(shards[0], later, later); err != nil {
		t.Fatal(err)
	}
	if got := fingerprint(t, dir, cache); got != want {
		t.Error("a shard was touched, and the old fingerprint is believed")
	}
	if got := fingerprint(t, dir, filepath.Join(cache, "no", "such")); got != want {
		t.Error("without a cache it is another")
	}
}

func TestTheOldestOfTooManyFingerprintsAreForgotten(t *testing.T) {
	dir, cache := made(t, fabricate.Options{Seed: 5}), t.TempDir()
	const there, most = 300, 256
	name := func(i int) string { return filepath.Join(cache, fmt.Sprintf("fingerprint-%d", i*7919%there)) }
	for i := range there {
		if err := os.WriteFile(name(i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-there) * time.Minute)
		if err := os.Chtimes(name(i), at, at); err != nil {
			t.Fatal(err)
		}
	}
	want := fingerprint(t, dir, cache)
	left, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(left) != most {
		t.Fatalf("%d are left, %v", len(left), err)
	}
	for i := range there {
		if _, err := os.Stat(name(i)); (err == nil) != (i > there-most) {
			t.Errorf("number %d of %d by age: %v", i, there, err)
		}
	}
	if got := fingerprint(t, dir, cache); got != want {
		t.Errorf("then %v", got)
	}
}

func TestFilesThatChangedHaveNoFingerprint(t *testing.T) {
	for name, do := range map[string]func(path string) error{
		"touched":   func(path string) error { return os.Chtimes(path, time.Now(), time.Now().Add(time.Minute)) },
		"longer":    func(path string) error { return os.Truncate(path, 1<<20) },
		"gone":      os.Remove,
		"exchanged": func(path string) error { return exchange(path) },
	} {
		dir := made(t, fabricate.Options{Seed: 6})
		m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := m.Changed(); err != nil {
			t.Fatal(err)
		}
		shards, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		if err := do(shards[1]); err != nil {
			t.Fatal(name, err)
		}
		if err := m.Changed(); !errors.Is(err, disk.ErrChanged) || !strings.Contains(fmt.Sprint(err), filepath.Base(shards[1])) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := m.Fingerprint(t.Context(), ""); !errors.Is(err, disk.ErrChanged) {
			t.Errorf("%s: the fingerprint gives %v", name, err)
		}
	}
}

// exchange puts a copy with the same size and times into a file's place, as rsync does.
func exchange(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	if err := os.Chtimes(path+".new", info.ModTime(), info.ModTime()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// A text model that was published anew has shorter names and, perhaps, another word for the type of its scales.
func TestAReuploadHasTheSameFingerprint(t *testing.T) {
	dir := made(t, fabricate.Options{Seed: 9, Shards: 1})
	want := fingerprint(t, dir, "")
	shards, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	path := shards[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	length := binary.LittleEndian.Uint64(data)
	header := string(data[8 : 8+length])
	header = strings.ReplaceAll(header, `"language_model.`, `"`)
	header = regexp.MustCompile(`(weight_scale"\s*:\s*\{\s*"dtype"\s*:\s*)"U8"`).ReplaceAllString(header, `$1"F8_E8M0"`)
	again := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	again = append(append(again, header...), data[8+length:]...)
	if err := os.WriteFile(path, again, 0o600); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(header, "F8_E8M0") || strings.Contains(header, "language_model") {
		t.Fatal("the header is not as this test expects")
	}
	os.Remove(filepath.Join(dir, "model.safetensors.index.json"))
	sum(t, dir)
	if got := fingerprint(t, dir, ""); !got.Matches(want) || got.Exact == "" {
		t.Errorf("it is %v, was %v", got, want)
	}
}
