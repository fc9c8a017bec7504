package pack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
	"github.com/k3infer/k3/core/internal/strictjson"
)

// TestMain is, in a child process, a program that packs and kills itself at a given step.
func TestMain(m *testing.M) {
	if step := os.Getenv("K3_TEST_KILL_AT"); step != "" {
		n, _ := strconv.Atoi(step)
		o := Options{Compress: os.Getenv("K3_TEST_COMPRESS") != "", Progress: func(Progress) {
			if n--; n == 0 {
				p, _ := os.FindProcess(os.Getpid())
				p.Kill()
				select {}
			}
		}}
		model, err := checkpoint.Open(context.Background(), disk.Dir(os.Getenv("K3_TEST_MODEL")))
		if err == nil {
			_, err = Write(context.Background(), model, os.Getenv("K3_TEST_OUT"), o)
		}
		fmt.Println(err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const tinyMX = "../../conformance/testdata/tiny-mx"

func openModel(t testing.TB, files disk.Files) *checkpoint.Model {
	t.Helper()
	m, err := checkpoint.Open(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func tiny(t testing.TB) *checkpoint.Model { return openModel(t, disk.Dir(tinyMX)) }

// fabricated makes a checkpoint that no other test has.
func fabricated(t testing.TB, o fabricate.Options) *checkpoint.Model {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if o.Config == nil {
		o.Config = fabricate.Geometry("tiny")
	}
	if _, err := fabricate.Write(t.Context(), dir, o); err != nil {
		t.Fatal(err)
	}
	return openModel(t, disk.Dir(dir))
}

func write(t testing.TB, m *checkpoint.Model, dir string, o Options) Result {
	t.Helper()
	r, err := Write(t.Context(), m, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// names are the files of a directory, without those of checksums.
func names(t testing.TB, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if e.Name() != checksum.Folder {
			all = append(all, e.Name())
		}
	}
	return strings.Join(all, " ")
}

// The goldens were made by an independent program from the description of the format. The trunk of tiny-mx's layers is
// contiguous, as the released one; that of tiny-f16 is strewn over shards.
func TestAPackIsByteForByteThePublicFormat(t *testing.T) {
	for name, sum := range map[string]string{
		"tiny-mx":  "b95e88483953222b6615da3f48161996fc126f01ac9aa66e4e07b2eace62118f",
		"tiny-f16": "05c314af0799a749aa3bfcb9df8c30a4eaae743d69d0515072bcd01e083f1f18",
	} {
		dir := filepath.Join(t.TempDir(), "new", "pack")
		m := openModel(t, disk.Dir("../../conformance/testdata/"+name))
		r := write(t, m, dir, Options{Workers: 1 + len(name)%3})
		bin, list := read(t, filepath.Join(dir, "trunk.bin")), read(t, filepath.Join(dir, "trunk.json"))
		if want := read(t, "testdata/"+name+".json"); !bytes.Equal(list, want) {
			t.Errorf("%s: trunk.json is\n%s\nwant\n%s", name, list, want)
		}
		if got := hexSum(bin); got != sum {
			t.Errorf("%s: trunk.bin has checksum %s", name, got)
		}
		raw := r.Raw
		padding := r.Bytes - raw
		if padding < 0 || padding > int64(m.Config.Layers)*align || r != (Result{Layers: m.Config.Layers, Bytes: int64(len(bin)), Raw: raw}) {
			t.Errorf("%s: %+v", name, r)
		}
		if got := names(t, dir); got != "trunk.bin trunk.json trunk.sha256" {
			t.Errorf("%s: files %s", name, got)
		}
		want := fmt.Sprintf("%s  trunk.bin\n%s  trunk.json\n", sum, hexSum(list))
		if got := read(t, filepath.Join(dir, "trunk.sha256")); string(got) != want {
			t.Errorf("%s: trunk.sha256 is %q", name, got)
		}
	}
}

func TestEveryTrunkTensorOfALayerIsInThePack(t *testing.T) {
	for _, o := range []fabricate.Options{
		{}, {Shards: 1}, {Shards: 7, Trunk: checkpoint.F16}, {Trunk: checkpoint.F32, Experts: checkpoint.BF16},
	} {
		m := fabricated(t, o)
		for _, compress := range []bool{false, true} {
			dir := t.TempDir()
			r := write(t, m, dir, Options{Compress: compress})
			p, err := Open(t.Context(), disk.Dir(dir), m, "")
			if err != nil {
				t.Fatal(err)
			}
			compressed, frames := int64(0), 0
			for s := range checkpoint.Required(m.Config, m.Quantized) {
				x, _ := m.Index.Lookup(s.Name())
				_, _, f, ok := p.Locate(x)
				if want := s.Layer >= 0 && s.Expert < 0 || compress && x.Name == checkpoint.Head; ok != want {
					t.Errorf("%s is there: %v, want %v", x.Name, ok, want)
				} else if ok {
					got, want := make([]byte, x.Bytes), make([]byte, x.Bytes)
					if err := errors.Join(m.Read(want, x, 0), p.read(got, x, 0)); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s has other bytes (%v)", x.Name, err)
					}
				}
				if f != nil {
					compressed += x.Bytes
					frames += len(f.Ends)
				}
			}
			if n := p.Frames(); n != frames || (n > 0) != (compress && o.Trunk == 0) {
				t.Errorf("%+v, compressed %v: %d frames, want %d", o, compress, n, frames)
			}
			limit := r.Raw - compressed/4 + int64(m.Config.Layers+1)*align
			if compress && o.Trunk == 0 && (r.Bytes > limit || compressed < r.Raw/10*9) {
				t.Errorf("%d bytes, of which %d can be compressed, became %d", r.Raw, compressed, r.Bytes)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A re-upload that leaves language_model. out of its names is the same model, and so is its pack.
func TestAPackHasTheReleasedNames(t *testing.T) {
	model := t.TempDir()
	for _, name := range strings.Fields(names(t, tinyMX)) {
		if name == "expect" {
			continue
		}
		// JSON may have spaces there, so that the header keeps its length.
		data := bytes.ReplaceAll(read(t, filepath.Join(tinyMX, name)), []byte(`"language_model.`), []byte(strings.Repeat(" ", 15)+`"`))
		if err := os.WriteFile(filepath.Join(model, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	short := openModel(t, disk.Dir(model))
	for _, o := range []Options{{}, {Compress: true}} {
		want, got := t.TempDir(), t.TempDir()
		write(t, tiny(t), want, o)
		write(t, short, got, o)
		for _, name := range strings.Fields(names(t, want)) {
			if !bytes.Equal(read(t, filepath.Join(want, name)), read(t, filepath.Join(got, name))) {
				t.Errorf("%+v: %s differs", o, name)
			}
		}
		p, err := Open(t.Context(), disk.Dir(got), tiny(t), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// steps is how often a whole pack tells its progress.
func steps(t *testing.T, m *checkpoint.Model, o Options) (n int) {
	o.Progress = func(Progress) { n++ }
	write(t, m, t.TempDir(), o)
	return n
}

func TestAPackThatWasKilledIsContinued(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	m := tiny(t)
	for i, every := range []int{3, 4} {
		dir, want, o := t.TempDir(), t.TempDir(), Options{Compress: i == 1}
		write(t, m, want, o)
		n := steps(t, m, o)
		every = n / every
		for kills := 0; ; kills++ {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("K3_TEST_KILL_AT=%d", every), "K3_TEST_MODEL="+tinyMX, "K3_TEST_OUT="+dir)
			if o.Compress {
				cmd.Env = append(cmd.Env, "K3_TEST_COMPRESS=1")
			}
			out, err := cmd.Output()
			if err == nil {
				if kills < 2 || string(out) != "<nil>\n" {
					t.Errorf("after %d kills: %s", kills, out)
				}
				break
			}
			if kills > n {
				t.Fatal("it does not come to an end")
			}
			if got := names(t, dir); strings.Contains(got, ".json") {
				t.Fatalf("after %d kills there is %s", kills, got)
			}
			if _, err := Open(t.Context(), disk.Dir(dir), m, ""); !errors.Is(err, ErrNone) {
				t.Fatalf("after %d kills: %v", kills, err)
			}
		}
		same(t, dir, want)
	}
}

func same(t *testing.T, dir, want string) {
	t.Helper()
	if a, b := names(t, dir), names(t, want); a != b {
		t.Errorf("files %s, want %s", a, b)
	}
	for _, name := range strings.Fields(names(t, want)) {
		if !bytes.Equal(read(t, filepath.Join(dir, name)), read(t, filepath.Join(want, name))) {
			t.Errorf("%s differs", name)
		}
		if !strings.HasSuffix(name, dataEnding) {
			continue
		}
		f, err := checksum.Load(disk.Dir(dir), name)
		if err != nil {
			t.Errorf("checksums of %s: %v", name, err)
			continue
		}
		g, err := checksum.Load(disk.Dir(want), name)
		if err != nil || !reflect.DeepEqual(f.Sums, g.Sums) || !reflect.DeepEqual(f.Of, g.Of) {
			t.Errorf("the checksums of %s differ (%v)", name, err)
		}
	}
}

func TestACancelledPackIsContinuedWhereItStopped(t *testing.T) {
	m, want := tiny(t), t.TempDir()
	write(t, m, want, Options{})
	n := steps(t, m, Options{})
	stride := 1 + n/40
	if testing.Short() {
		stride = 1 + n/10
	}
	for at := 1; at <= n; at += stride {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		step := 0
		_, err := Write(ctx, m, dir, Options{Workers: 3, Progress: func(Progress) {
			if step++; step == at {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) && at < n {
			t.Fatalf("step %d: %v", at, err)
		}
		if err == nil {
			continue
		}
		if got := names(t, dir); strings.Contains(got, "trunk.json") {
			t.Errorf("step %d: %s", at, got)
		}
		left := 0
		r := write(t, m, dir, Options{Progress: func(Progress) { left++ }})
		if left > n-at+40 || (at > n/2) != (r.Continued > 2) && at > n/4 && at < n*9/10 {
			t.Errorf("cancelled at step %d of %d: %d steps were left, %+v", at, n, left, r)
		}
		same(t, dir, want)
	}
}

// What a continued attempt has written is not written again either.
func TestAPackThatIsCutOffTwiceKeepsWhatBothAttemptsWrote(t *testing.T) {
	m, want := tiny(t), t.TempDir()
	write(t, m, want, Options{})
	n := steps(t, m, Options{})
	after := func(attempts int) (Result, string) {
		dir := t.TempDir()
		for range attempts {
			ctx, cancel := context.WithCancel(t.Context())
			step := 0
			_, err := Write(ctx, m, dir, Options{Workers: 1, Progress: func(Progress) {
				if step++; step == n/4 {
					cancel()
				}
			}})
			if cancel(); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		return write(t, m, dir, Options{}), dir
	}
	one, _ := after(1)
	two, dir := after(2)
	if two.Continued <= one.Continued {
		t.Errorf("%d layers after two attempts of %d steps each, %d after one", two.Continued, n/4, one.Continued)
	}
	same(t, dir, want)
}

// Whatever a crash leaves of the last files, the next call ends with the same pack.
func TestACrashWhileThePackGetsItsNameIsNoHarm(t *testing.T) {
	m, want := tiny(t), t.TempDir()
	write(t, m, want, Options{})
	list := string(read(t, filepath.Join(want, "trunk.json")))
	w := writer{ctx: t.Context(), m: m}
	if err := w.collect(); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.of, err = m.Fingerprint(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	identity := w.identity()
	bin := read(t, filepath.Join(want, "trunk.bin"))
	lines := fmt.Sprintf("{\"pack\":%q}\n", identity)
	parsed := parseManifest(strictjson.New([]byte(list)))
	for _, l := range parsed.layers {
		lines += fmt.Sprintf("{\"layer\":%s,\"sha256\":%q}\n", l.text(), hexSum(bin[l.offset:l.offset+l.bytes]))
	}
	complete := lines + fmt.Sprintf("{\"sha256\":%q}\n", hexSum(bin))
	short := func(n int) []byte { return bin[:len(bin)-n] }
	for name, left := range map[string]struct {
		files     map[string][]byte
		continued int
	}{
		"written, not read back":      {map[string][]byte{"trunk.partial": []byte(lines), "trunk.bin.partial": bin}, 6},
		"read back":                   {map[string][]byte{"trunk.partial": []byte(complete), "trunk.bin.partial": bin}, 6},
		"renamed":                     {map[string][]byte{"trunk.partial": []byte(complete), "trunk.bin": bin}, 6},
		"listed":                      {map[string][]byte{"trunk.partial": []byte(complete), "trunk.bin": bin, "trunk.json": []byte(list)}, 6},
		"a torn line":                 {map[string][]byte{"trunk.partial": []byte(lines[:len(lines)-9]), "trunk.bin.partial": bin}, 5},
		"no line":                     {map[string][]byte{"trunk.partial": nil, "trunk.bin.partial": bin}, 0},
		"a torn first line":           {map[string][]byte{"trunk.partial": []byte(lines[:9]), "trunk.bin.partial": nil}, 0},
		"a file that lost its end":    {map[string][]byte{"trunk.partial": []byte(lines), "trunk.bin.partial": short(1)}, 0},
		"a file that is gone":         {map[string][]byte{"trunk.partial": []byte(lines)}, 0},
		"a renamed file that is gone": {map[string][]byte{"trunk.partial": []byte(complete)}, 0},
		"rubbish in the journal":      {map[string][]byte{"trunk.partial": []byte("{}\n[]\n"), "trunk.bin.partial": bin}, 0},
		"a file that is too long":     {map[string][]byte{"trunk.partial": []byte(lines), "trunk.bin.partial": append(bytes.Clone(bin), 1)}, 6},
	} {
		dir := t.TempDir()
		for file, data := range left.files {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Write(t.Context(), m, dir, Options{})
		if err != nil || r.Continued != left.continued || r.Before {
			t.Errorf("%s: %+v, %v", name, r, err)
			continue
		}
		same(t, dir, want)
	}
}

func TestWhatIsReadBackOtherThanItWasWrittenIsNoPack(t *testing.T) {
	m, want := tiny(t), t.TempDir()
	write(t, m, want, Options{})
	dir := t.TempDir()
	w := &writer{ctx: t.Context(), m: m, o: Options{Workers: 2}, base: filepath.Join(dir, plainName), files: disk.Dir(dir),
		freeSpace: disk.FreeSpace}
	w.written = func() { flip(t, filepath.Join(dir, "trunk.bin.partial"), 300000) }
	if _, err := w.run(dir); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "layer 3 was read back") {
		t.Errorf("%v", err)
	}
	if got := names(t, dir); got != "" {
		t.Errorf("left: %s", got)
	}
	write(t, m, dir, Options{})
	same(t, dir, want)
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyOneWritesAPack(t *testing.T) {
	m, dir, busy := tiny(t), t.TempDir(), 0
	o := Options{Progress: func(Progress) {
		_, err := Write(t.Context(), m, dir, Options{})
		if !errors.Is(err, ErrBusy) {
			t.Errorf("a second writer gets %v", err)
		}
		busy++
	}}
	if _, err := Write(t.Context(), m, dir, o); err != nil {
		t.Fatal(err)
	}
	if busy == 0 {
		t.Error("no progress was reported")
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.lock")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestNothingIsOverwrittenUnasked(t *testing.T) {
	m, want, dir := tiny(t), t.TempDir(), t.TempDir()
	other := fabricated(t, fabricate.Options{})
	write(t, m, want, Options{})
	write(t, m, dir, Options{})
	fails := func(m *checkpoint.Model, target error, text string) {
		t.Helper()
		if _, err := Write(t.Context(), m, dir, Options{}); !errors.Is(err, target) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %v, %q", err, target, text)
		}
	}
	if r := write(t, m, dir, Options{}); !r.Before || r.Bytes != 409600 {
		t.Errorf("a whole pack again: %+v", r)
	}
	fails(other, ErrExists, "another checkpoint")
	same(t, dir, want)

	flip(t, filepath.Join(dir, "trunk.bin"), 300)
	fails(m, ErrFormat, "trunk.bin is not what its checksum says")
	if r := write(t, m, dir, Options{Force: true}); r.Before {
		t.Errorf("%+v", r)
	}
	same(t, dir, want)

	if err := os.Remove(filepath.Join(dir, "trunk.sha256")); err != nil {
		t.Fatal(err)
	}
	fails(m, ErrExists, "without checksums")
	write(t, m, dir, Options{Force: true})

	if err := os.Remove(filepath.Join(dir, "trunk.json")); err != nil {
		t.Fatal(err)
	}
	fails(m, ErrExists, "trunk.bin, which is no whole pack")
	write(t, m, dir, Options{Force: true})
	same(t, dir, want)

	// A partial pack of another checkpoint, too.
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Write(ctx, other, dir, Options{Force: true, Progress: func(Progress) { cancel() }}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if p, err := Open(t.Context(), disk.Dir(dir), m, ""); err != nil {
		t.Errorf("the old pack went before the new one was whole: %v", err)
	} else {
		p.Close()
	}
	fails(m, ErrExists, "partial pack of another checkpoint")
	write(t, m, dir, Options{Force: true})
	same(t, dir, want)
}

// The room that is needed is that of what is still to be written, beside what is there; too little is said before anything is made.
func TestRoomIsAskedForBeforeAnythingIsWritten(t *testing.T) {
	const reserve = 16 << 20
	m := tiny(t)
	attempt := func(dir string, o Options, free int64, stopAfter int) (needed int64, err error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls, layers := 0, 0
		name := plainName
		if o.Compress {
			name = compressedName
		}
		o.Workers = 2
		o.Room = func(n, f int64) {
			calls++
			if needed = n; f != free {
				t.Errorf("%d bytes are free, and not %d", f, free)
			}
		}
		o.Progress = func(Progress) {
			if layers++; layers == stopAfter {
				cancel()
			}
		}
		w := &writer{ctx: ctx, m: m, o: o, base: filepath.Join(dir, name), files: disk.Dir(dir),
			freeSpace: func(string) (int64, error) { return free, nil }}
		_, err = w.run(dir)
		if calls != 1 {
			t.Errorf("the room was told %d times", calls)
		}
		return needed, err
	}
	dir := filepath.Join(t.TempDir(), "new", "pack")
	all, err := attempt(dir, Options{}, reserve, 0)
	if !errors.Is(err, ErrSpace) || isThere(filepath.Dir(dir)) {
		t.Fatalf("too little room: %v, there is a directory: %v", err, isThere(filepath.Dir(dir)))
	}
	if size := int64(len(read(t, "testdata/tiny-mx.json"))); all <= reserve+size {
		t.Errorf("%d bytes needed", all)
	}
	if compressed, err := attempt(dir, Options{Compress: true}, 0, 0); !errors.Is(err, ErrSpace) || compressed == all {
		t.Errorf("compressed: %d bytes needed, %d for a plain one, %v", compressed, all, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(dir, Options{}, all-1, 0); !errors.Is(err, ErrSpace) || names(t, dir) != "" {
		t.Errorf("a byte too little: %v, files %q", err, names(t, dir))
	}
	if _, err := attempt(dir, Options{}, all, 3); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, plainName+partial))
	if err != nil {
		t.Fatal(err)
	}
	if left, err := attempt(dir, Options{}, all-info.Size(), 0); err != nil || left != all-info.Size() || info.Size() == 0 {
		t.Errorf("%d of %d bytes were there: %d needed, %v", info.Size(), all, left, err)
	}
	if again, err := attempt(dir, Options{Force: true}, all-1, 0); !errors.Is(err, ErrSpace) || again != all {
		t.Errorf("to replace it: %d bytes needed beside it, want %d, %v", again, all, err)
	}
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestADamagedManifestIsRefused(t *testing.T) {
	m, dir := tiny(t), t.TempDir()
	write(t, m, dir, Options{})
	bin, list := read(t, filepath.Join(dir, "trunk.bin")), string(read(t, filepath.Join(dir, "trunk.json")))
	long := strings.Index(list, `"layers": [`)
	for _, c := range []struct {
		old, new string
		want     error
		text     string
	}{
		{"", "", nil, ""},
		{`"align": 4096, `, ``, nil, ""}, // what packs of others may lack
		{`"shard": "model-00001-of-000003.safetensors", "run_start": 18448, `, ``, nil, ""},
		{`, "shape": [44]`, ``, nil, ""},
		{`"off": 0, `, `"more": [{}], "off": 0, `, nil, ""},
		{list[long:], `"layers": []}`, ErrFormat, "no layers"},
		{list[long:], `"layers": null}`, ErrFormat, "a list is needed"},
		{list[long:], `"n": 1}`, ErrFormat, "no layers"},
		{list, ``, ErrFormat, "ends"},
		{list, `[]`, ErrFormat, "object"},
		{list, list + " x", ErrFormat, "after the end"},
		{`"n_layers": 6`, `"n_layers": 5`, ErrFormat, "n_layers is 5"},
		{`"n_layers": 6`, `"n_layers": 6.0`, ErrFormat, "6.0"},
		{`"n_layers": 6`, `"n_layers": 6, "n_layers": 6`, ErrFormat, "twice"},
		{`"n_layers": 6, `, ``, ErrFormat, "no n_layers"},
		{`"align": 4096`, `"align": 512`, ErrFormat, "align is 512"},
		{`"layer": 1,`, `"layer": 2,`, ErrFormat, "in the place"},
		{`"file_off": 0`, `"file_off": -4096`, ErrFormat, "-4096"},
		{`"file_off": 0`, `"file_off": 4096`, ErrFormat, "file_off 77824"},
		{`"file_off": 77824`, `"file_off": 77825`, ErrFormat, "file_off 77825"},
		{`"file_off": 77824`, `"file_off": 9223372036854771712`, ErrFormat, "leave the file"},
		{`"nbytes": 77824`, `"nbytes": 9223372036854775807`, ErrFormat, "leave the file"},
		{`"nbytes": 77824`, `"nbytes": 0`, ErrFormat, "leave the run"},
		{`"off": 56088, "nbytes": 6776`, `"off": 56089, "nbytes": 6776`, ErrFormat, "inside the one before"},
		{`"off": 56088, "nbytes": 6776`, `"off": 9223372036854775807, "nbytes": 6776`, ErrFormat, "leave the run"},
		{`"off": 56088, "nbytes": 6776`, `"off": 56088`, ErrFormat, "no nbytes"},
		{`"shape": [44]`, `"shape": [1,1,1,1,1,1,1,1,1]`, ErrFormat, "more than 8"},
		{`"shape": [44]`, `"shape": 44`, ErrFormat, "list"},
		{`"tensors": {"language`, `"tensors": {}, "old": {"language`, ErrFormat, "no tensors"},
		{`"shape": [44]`, `"shape": [22]`, ErrOther, "input_layernorm.weight is BF16 [22]"},
		{`"shape": [44]`, `"shape": [44, 1]`, ErrOther, "[44 1]"},
		{`"dtype": "BF16"`, `"dtype": "F16"`, ErrOther, "is F16"},
		{`"off": 56088, "nbytes": 6776`, `"off": 56088, "nbytes": 6774`, ErrOther, "of 6774 bytes"},
		{`layers.0.mlp.down_proj.weight`, `layers.0.mlp.down.weight`, ErrOther, "not in the checkpoint"},
		{`layers.0.mlp.down_proj.weight`, `layers.0.mlp.gate_proj.weight`, ErrFormat, "twice"},
		{`layers.0.input_layernorm.weight`, `layers.1.input_layernorm.weight`, ErrOther, "not of the trunk of layer 0"},
		{`layers.0.input_layernorm.weight`, `norm.weight`, ErrOther, "not of the trunk of layer 0"},
	} {
		files := disktest.Memory{"trunk.bin": bin, "trunk.json": []byte(strings.Replace(list, c.old, c.new, 1))}
		p, err := Open(t.Context(), files, m, "")
		if err == nil {
			p.Close()
		}
		if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%.60s -> %.60s: %v, want %v %q", c.old, c.new, err, c.want, c.text)
		}
	}
	for _, c := range []struct {
		files disktest.Memory
		want  error
		text  string
	}{
		{disktest.Memory{}, ErrNone, "trunk.json is missing"},
		{disktest.Memory{"trunk.bin": bin}, ErrNone, "trunk.json is missing"},
		{disktest.Memory{"trunk.json": []byte(list)}, ErrFormat, "trunk.bin is missing"},
		{disktest.Memory{"trunk.json": []byte(list), "trunk.bin": bin[:len(bin)-1]}, ErrFormat, "leave the file"},
		{disktest.Memory{"trunk.json": []byte(list), "trunk.bin": append(bytes.Clone(bin), make([]byte, 4096)...)}, ErrFormat, "4096 more"},
		{disktest.Memory{"trunk.json": make([]byte, maxManifest+1)}, ErrFormat, "at most"},
	} {
		if _, err := Open(t.Context(), c.files, m, ""); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v, want %v %q", err, c.want, c.text)
		}
	}
}

func TestAPackOfOtherWeightsIsRefused(t *testing.T) {
	a, b, dir := fabricated(t, fabricate.Options{Seed: 1}), fabricated(t, fabricate.Options{Seed: 2}), t.TempDir()
	write(t, a, dir, Options{})
	if _, err := Open(t.Context(), disk.Dir(dir), b, ""); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "other weights") {
		t.Errorf("of the same geometry: %v", err)
	}
	if _, err := Open(t.Context(), disk.Dir(dir), tiny(t), ""); !errors.Is(err, ErrOther) {
		t.Errorf("of another geometry: %v", err)
	}
	// The same weights in other shards are the same checkpoint.
	p, err := Open(t.Context(), disk.Dir(dir), fabricated(t, fabricate.Options{Seed: 1, Shards: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

// The model may be closed as soon as Write has returned.
func TestAPackThatFailsLeavesNobodyReading(t *testing.T) {
	files := disktest.Wrap(disk.Dir(tinyMX), nil)
	m := openModel(t, files)
	var reads, under atomic.Int64
	count := func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		reads.Add(1)
		return r.ReadAt(p, off)
	}
	files.Set(count)
	write(t, m, t.TempDir(), Options{})
	all := reads.Load()
	for failing := all / 4; failing < all; failing += all / 16 {
		reads.Store(0)
		files.Set(func(r io.ReaderAt, name string, p []byte, off int64) (int, error) {
			under.Add(1)
			defer under.Add(-1)
			n := reads.Add(1)
			if n == failing {
				return 0, syscall.EIO
			}
			if n > failing-3 {
				time.Sleep(20 * time.Millisecond)
			}
			return r.ReadAt(p, off)
		})
		_, err := Write(t.Context(), m, t.TempDir(), Options{Workers: 4})
		if n := under.Load(); err != nil && !errors.Is(err, syscall.EIO) || n > 0 {
			t.Errorf("read %d fails: %v, and %d reads are under way", failing, err, n)
		}
	}
}

func TestAFailingSourceIsNamedAndLeavesNoPack(t *testing.T) {
	files := disktest.Wrap(disk.Dir(tinyMX), nil)
	m, want := openModel(t, files), t.TempDir()
	write(t, m, want, Options{})
	x, _ := m.Index.Lookup("language_model.model.layers.3.self_attn.q_proj.weight")
	if x.Bytes == 0 {
		x, _ = m.Index.Lookup("language_model.model.layers.3.self_attn.o_proj.weight")
	}
	shard := m.Shard(x.Shard).Name()
	off := x.Offset + x.Bytes/2
	for name, fault := range map[string]disktest.Fault{
		"fails": disktest.FailAt(shard, off, syscall.EIO), "ends": disktest.Truncate(shard, off),
	} {
		dir := t.TempDir()
		files.Set(fault)
		_, err := Write(t.Context(), m, dir, Options{})
		text := fmt.Sprint(err)
		if !strings.Contains(text, x.Name) || !strings.Contains(text, filepath.Base(shard)) || !strings.Contains(text, strconv.Itoa(int(off))) {
			t.Errorf("%s: %v does not name %s, %s, %d", name, err, x.Name, shard, off)
		}
		if got := names(t, dir); got != "trunk.bin.partial trunk.partial" && got != "" {
			t.Errorf("%s: left %s", name, got)
		}
		files.Set(nil)
		write(t, m, dir, Options{})
		same(t, dir, want)
	}
	for name, fault := range map[string]disktest.Fault{
		"one byte": disktest.OneByte, "short": disktest.ShortByOne, "interrupted": disktest.Interrupt(),
	} {
		dir := t.TempDir()
		files.Set(fault)
		if _, err := Write(t.Context(), m, dir, Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		same(t, dir, want)
	}
}

func TestAFailingPackIsAnError(t *testing.T) {
	m, dir := tiny(t), t.TempDir()
	write(t, m, dir, Options{})
	files := disktest.Wrap(disk.Dir(dir), nil)
	for _, file := range []string{"trunk.bin", "trunk.json"} {
		files.Set(func(r io.ReaderAt, name string, p []byte, off int64) (int, error) {
			if filepath.Base(name) == file {
				return 0, syscall.EIO
			}
			return r.ReadAt(p, off)
		})
		if _, err := Open(t.Context(), files, m, ""); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", file, err)
		}
		if n := files.OpenFiles(); n != 0 {
			t.Errorf("%s: %d files are left open", file, n)
		}
	}
}

func FuzzManifest(f *testing.F) {
	for _, name := range []string{"tiny-mx", "tiny-f16"} {
		f.Add(read(f, "testdata/"+name+".json"), int64(409600))
	}
	f.Fuzz(func(t *testing.T, data []byte, size int64) {
		r := strictjson.New(data)
		list := parseManifest(r)
		if r.Err() != nil || list.check(size) != nil {
			return
		}
		// What is accepted stays within the file, and survives being written.
		for _, l := range list.layers {
			for _, e := range l.tensors {
				if from := l.offset + e.off; e.off < 0 || e.bytes < 0 || from < 0 || from+e.bytes > size || from+e.bytes < from {
					t.Fatalf("%s: %d bytes at %d of %d", e.name, e.bytes, from, size)
				}
			}
		}
		r = strictjson.New(list.text())
		again := parseManifest(r)
		if r.Err() != nil || again.check(size) != nil || !bytes.Equal(again.text(), list.text()) {
			t.Fatalf("%s became %s (%v)", list.text(), again.text(), r.Err())
		}
	})
}

// A layer that is replaced in place while a pack of it waits to be continued must not be mixed with what was packed before.
func TestAPackIsNotContinuedAfterTheModelChanged(t *testing.T) {
	m := fabricated(t, fabricate.Options{Seed: 11})
	model := m.Files.Name()
	for _, replaced := range []bool{false, true} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Write(ctx, m, dir, Options{Progress: func(p Progress) {
			if p.Done > p.Total/2 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if replaced {
			// A byte that no sample of a fingerprint has: the time of change tells.
			x, _ := m.Index.Lookup("language_model.model.layers.1.self_attn.q_proj.weight")
			if x.Bytes < 20_000 {
				t.Fatalf("%s has only %d bytes", x, x.Bytes)
			}
			path := filepath.Join(model, m.Index.Shards()[x.Shard].Name)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte{1, 2, 3, 4}, x.Offset+3000); err != nil {
				t.Fatal(err)
			}
			f.Close()
			later := time.Now().Add(time.Minute)
			if err := os.Chtimes(path, later, later); err != nil {
				t.Fatal(err)
			}
		}
		again := openModel(t, disk.Dir(model))
		r, err := Write(t.Context(), again, dir, Options{})
		if replaced != errors.Is(err, ErrExists) || !replaced && (err != nil || r.Continued == 0) {
			t.Errorf("replaced %v: %+v, %v", replaced, r, err)
		}
	}
}

func TestAModelThatChangesWhileItIsPackedIsNoPack(t *testing.T) {
	m, dir := fabricated(t, fabricate.Options{Seed: 12}), t.TempDir()
	path := filepath.Join(m.Files.Name(), m.Index.Shards()[0].Name)
	touched := false
	_, err := Write(t.Context(), m, dir, Options{Progress: func(p Progress) {
		if p.Done > p.Total/2 && !touched {
			touched = true
			later := time.Now().Add(time.Minute)
			if err := os.Chtimes(path, later, later); err != nil {
				t.Error(err)
			}
		}
	}})
	if !errors.Is(err, disk.ErrChanged) || strings.Contains(names(t, dir), listEnding) {
		t.Errorf("%v; there are %s", err, names(t, dir))
	}
}

// The list of a pack says where tensors lie: a number of it that is wrong would show other weights, each of them undamaged.
func TestADamagedListIsNotBelieved(t *testing.T) {
	for _, compress := range []bool{false, true} {
		m, dir := tiny(t), t.TempDir()
		write(t, m, dir, Options{Compress: compress})
		name := plainName
		if compress {
			name = compressedName
		}
		path := filepath.Join(dir, name+listEnding)
		whole := read(t, path)
		r := random.New(t, 1, 2)
		for range 200 {
			bad := bytes.Clone(whole)
			bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), disk.Dir(dir), m, ""); !errors.Is(err, ErrFormat) {
				t.Fatalf("compressed %v: a flipped bit gives %v", compress, err)
			}
		}
	}
}
