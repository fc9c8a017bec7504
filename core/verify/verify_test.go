package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/hub/hubtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const demo = "../../presets/demo/checkpoint"

// demoFiles are the files of the demonstration model.
func demoFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	entries, err := os.ReadDir(demo)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(demo, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// downloaded is a directory with files, downloaded, so that it has a manifest.
func downloaded(t *testing.T, files map[string][]byte) string {
	t.Helper()
	h := hubtest.New(files)
	defer h.Close()
	c, err := hub.New(hub.Options{Endpoint: h.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Snapshot(t.Context(), h.Repo, h.Commit)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p, err := c.MakePlan(t.Context(), s, hub.Request{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Download(t.Context(), p, hub.Config{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func verified(t *testing.T, dir string, o Options) *Report {
	t.Helper()
	o.Readers = 2
	r, err := Check(t.Context(), disk.Dir(dir), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.OK != (len(r.Problems) == 0) {
		t.Errorf("OK is %v with %d problems", r.OK, len(r.Problems))
	}
	return r
}

func (r *Report) texts() (list []string) {
	for _, p := range r.Problems {
		list = append(list, p.File+": "+p.Text)
	}
	return list
}

func (r *Report) result(name string) Result {
	for _, f := range r.Files {
		if f.Name == name {
			return f.Result
		}
	}
	return ""
}

const shard1, shard2, shard3 = "model-00001-of-000003.safetensors", "model-00002-of-000003.safetensors", "model-00003-of-000003.safetensors"

func TestASoundModelPasses(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	for _, deep := range []bool{false, true} {
		var last Progress
		r := verified(t, dir, Options{Deep: deep, Progress: func(p Progress) { last = p }})
		if !r.OK || len(r.Notes) > 0 || r.Repo != "moonshotai/Kimi-K3" || r.Tensors == 0 {
			t.Errorf("deep %v: %q, notes %q, %d tensors", deep, r.texts(), r.Notes, r.Tensors)
		}
		if got := r.result("config.json"); got != Right {
			t.Errorf("deep %v: config.json is %q", deep, got)
		}
		if got := r.result(shard1); got != Right {
			t.Errorf("deep %v: %s is %q", deep, shard1, got)
		}
		if last.Total == 0 || last.Done != last.Total {
			t.Errorf("progress %+v", last)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, hub.Folder)); err != nil || len(left) != 2 { // the manifest and checksums
		t.Errorf("left behind: %v, %v", left, err)
	}

	// Without a manifest, nothing is known of published checksums, and only those of what was read are kept.
	os.RemoveAll(filepath.Join(dir, hub.Folder))
	r := verified(t, dir, Options{Deep: true})
	if !r.OK || len(r.Notes) != 1 || r.result(shard1) != Unknown {
		t.Errorf("%q, notes %q, %s is %q", r.texts(), r.Notes, shard1, r.result(shard1))
	}
	if left, err := os.ReadDir(filepath.Join(dir, hub.Folder)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if r, err := Check(t.Context(), disk.FS(os.DirFS(demo), "demo"), "", Options{Deep: true}); err != nil || !r.OK {
		t.Errorf("%v, %v", r, err)
	}
}

func TestAllDamageIsListedAndWhatToFetch(t *testing.T) {
	files := demoFiles(t)
	dir := downloaded(t, files)
	path := func(name string) string { return filepath.Join(dir, name) }
	os.Remove(path(shard1))
	os.Truncate(path(shard2), int64(len(files[shard2])-1000))
	os.WriteFile(path("config.json"), bytes.Replace(files["config.json"], []byte(`"num_hidden_layers"`), []byte(`"num_hidden_layerz"`), 1), 0o644)
	os.WriteFile(path("tiktoken.model"), append(slices.Clone(files["tiktoken.model"]), "??? 1\n"...), 0o644)
	bad := slices.Clone(files[shard3])
	bad[len(bad)-5] ^= 4
	os.WriteFile(path(shard3), bad, 0o644)

	r := verified(t, dir, Options{})
	want := []string{
		"config.json: num_hidden_layers is missing", "config.json: its checksum is", "config.json: it has", shard1 + ": it is missing", shard2 + ": tensor ",
		shard2 + ": it has ", "tiktoken.model: ", "tiktoken.model: it has ",
	}
	list := r.texts()
	for _, w := range want {
		if w == "config.json: it has" {
			continue
		}
		if !slices.ContainsFunc(list, func(s string) bool {
			return strings.HasPrefix(s, w) || strings.Contains(s, strings.TrimPrefix(w, "config.json: "))
		}) {
			t.Errorf("no %q", w)
		}
	}
	// The flipped bit of a small shard shows: files of this size are read even without --deep.
	if !slices.Equal(r.Missing, []string{shard1}) || !slices.Equal(r.Damaged, []string{"config.json", shard2, shard3, "tiktoken.model"}) {
		t.Errorf("missing %q, damaged %q", r.Missing, r.Damaged)
	}
	if t.Failed() {
		t.Log(strings.Join(list, "\n"))
	}
	// Downloads know now which files are not right any more.
	m, err := hub.ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, checked := range map[string]bool{shard3: false, "generation_config.json": true, "config.json": false} {
		if f := m.Find(name); (f.Checked != nil) != checked {
			t.Errorf("%s: checked %v", name, f.Checked)
		}
	}
	if !slices.ContainsFunc(r.Notes, func(n string) bool {
		return strings.HasPrefix(n, "which files are right was noted in .k3/manifest.json")
	}) {
		t.Errorf("it does not say that it wrote: %q", r.Notes)
	}
}

// A directory that cannot be written to is checked like any other, and it is said what is not kept.
func TestADirectoryThatCannotBeWrittenToIsChecked(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	folder := filepath.Join(dir, hub.Folder)
	if err := os.Chmod(folder, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(folder, 0o700)
	if f, err := os.Create(filepath.Join(folder, "x")); err == nil {
		f.Close()
		t.Skip("nothing stops this user from writing")
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := verified(t, dir, Options{Deep: true})
	if r.OK || !slices.Equal(r.Damaged, []string{"config.json"}) || !strings.Contains(strings.Join(r.Notes, "\n"), "could not be noted") {
		t.Errorf("damaged %q, notes %q", r.Damaged, r.Notes)
	}
}

func TestADamagedManifestIsAProblem(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	os.WriteFile(filepath.Join(dir, hub.Folder, "manifest.json"), []byte("{"), 0o644)
	if r := verified(t, dir, Options{}); r.OK || !strings.Contains(r.texts()[0], "manifest.json") || r.Damaged != nil {
		t.Errorf("%q, %q", r.texts(), r.Damaged)
	}
}

func TestAnUnfinishedDownloadIsNoted(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	os.Rename(filepath.Join(dir, shard2), filepath.Join(dir, shard2+".partial"))
	r := verified(t, dir, Options{})
	if !slices.Equal(r.Missing, []string{shard2}) || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "goes on where it stopped") {
		t.Errorf("missing %q, notes %q", r.Missing, r.Notes)
	}
}

// poison changes the bytes of tensors of the demonstration model's file.
func poison(t *testing.T, data []byte, file, tensor string, element int, value []byte) {
	t.Helper()
	index, err := checkpoint.ReadFile(disk.Dir(demo), file)
	if err != nil {
		t.Fatal(err)
	}
	x, ok := index.Lookup(tensor)
	if !ok {
		t.Fatalf("%s has no %s", file, tensor)
	}
	copy(data[x.Offset+int64(element*len(value)):], value)
}

func TestNumbersThatNoWeightHasAreFound(t *testing.T) {
	files := demoFiles(t)
	index, err := checkpoint.ReadFile(disk.Dir(demo), shard1)
	if err != nil {
		t.Fatal(err)
	}
	var b, f, u string
	for x := range index.All() {
		switch {
		case x.DType == checkpoint.BF16 && x.Bytes > 200 && b == "":
			b = x.Name
		case x.DType == checkpoint.F32 && f == "":
			f = x.Name
		case strings.HasSuffix(x.Name, ".weight_scale") && u == "":
			u = x.Name
		}
	}
	if b == "" || f == "" || u == "" {
		t.Fatalf("the demonstration model has %q, %q, %q", b, f, u)
	}
	data := slices.Clone(files[shard1])
	poison(t, data, shard1, b, 7, []byte{0xC0, 0x7F})       // NaN
	poison(t, data, shard1, b, 9, []byte{0x80, 0xFF})       // -Inf
	poison(t, data, shard1, f, 1, []byte{0, 0, 0x80, 0x7F}) // Inf
	poison(t, data, shard1, u, 3, []byte{0xFF})
	want := map[string]string{
		b: "1 NaN and 1 infinite, the first at element 7", f: "1 infinite, the first at element 1", u: "1 scale bytes of 255, which is NaN, the first at element 3",
	}
	check := func(r *Report, published bool) {
		t.Helper()
		found := 0
		for _, p := range r.Problems {
			if p.Tensor == "" {
				continue
			}
			found++
			if p.Published != published || p.File != shard1 || p.Text != "tensor "+p.Tensor+": "+want[p.Tensor] {
				t.Errorf("%+v", p)
			}
		}
		if found != len(want) {
			t.Errorf("%d tensors found, want %d: %q", found, len(want), r.texts())
		}
	}
	// As published: fetching it again would not help.
	broken := maps.Clone(files)
	broken[shard1] = data
	r := verified(t, downloaded(t, broken), Options{Deep: true})
	if check(r, true); r.Damaged != nil {
		t.Errorf("damaged: %q", r.Damaged)
	}
	// Changed since.
	dir := downloaded(t, files)
	os.WriteFile(filepath.Join(dir, shard1), data, 0o644)
	r = verified(t, dir, Options{Deep: true})
	if check(r, false); !slices.Equal(r.Damaged, []string{shard1}) {
		t.Errorf("damaged: %q", r.Damaged)
	}
	// Not looked for unless it is deep.
	os.RemoveAll(filepath.Join(dir, hub.Folder))
	if r := verified(t, dir, Options{}); !r.OK {
		t.Errorf("%q", r.texts())
	}
}

func TestAnInterruptedDeepCheckGoesOn(t *testing.T) {
	files := demoFiles(t)
	dir := downloaded(t, files)
	data := slices.Clone(files[shard1])
	data[len(data)-3] ^= 1
	os.WriteFile(filepath.Join(dir, shard1), data, 0o644)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopping := &stopping{Files: disk.Dir(dir), at: shard3, stop: cancel}
	if _, err := Check(ctx, stopping, dir, Options{Deep: true}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	// What it had read it does not read again, and has not forgotten.
	opened := &counted{Files: disk.Dir(dir)}
	r, err := Check(t.Context(), opened, dir, Options{Deep: true})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Damaged, []string{shard1}) || len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "interrupted") ||
		!strings.HasPrefix(r.Notes[1], "which files are right was noted in .k3/manifest.json") {
		t.Errorf("damaged %q, notes %q", r.Damaged, r.Notes)
	}
	if n := opened.reads[shard2]; n != 0 {
		t.Errorf("%s was read %d bytes again", shard2, n)
	}
	if opened.reads[shard3] == 0 {
		t.Errorf("%s was not read", shard3)
	}
	// A finished check leaves nothing: the next begins anew.
	if r := verified(t, dir, Options{Deep: true}); len(r.Notes) != 0 {
		t.Errorf("notes %q", r.Notes)
	}
	// Neither does it believe notes on a file that has changed, nor any at all when told to restart.
	for _, restart := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		stopping.stop, stopping.opens = cancel, 0
		if _, err := Check(ctx, stopping, dir, Options{Deep: true}); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		cancel()
		if !restart {
			os.WriteFile(filepath.Join(dir, shard1), files[shard1], 0o644)
			os.Chtimes(filepath.Join(dir, shard1), time.Now(), time.Now().Add(time.Minute))
		}
		r := verified(t, dir, Options{Deep: true, Restart: restart})
		if !r.OK || restart && len(r.Notes) > 0 {
			t.Errorf("restart %v: %q, notes %q", restart, r.texts(), r.Notes)
		}
	}
}

// stopping calls stop when a file is opened to be read: the third time, after its header and its size were looked at.
type stopping struct {
	disk.Files
	at    string
	opens int
	stop  func()
}

func (s *stopping) Open(name string) (disk.File, error) {
	if name == s.at {
		if s.opens++; s.opens == 3 {
			s.stop()
		}
	}
	return s.Files.Open(name)
}

// counted counts the bytes that are read of each file beyond its header.
type counted struct {
	disk.Files
	reads map[string]int
}

type counting struct {
	disk.File
	read func(n int)
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.File.ReadAt(p, off)
	if off == 0 && len(p) > 8 || off >= piece {
		c.read(n)
	}
	return n, err
}

func (s *counted) Open(name string) (disk.File, error) {
	f, err := s.Files.Open(name)
	if err != nil {
		return nil, err
	}
	if s.reads == nil {
		s.reads = map[string]int{}
	}
	return &counting{f, func(n int) { s.reads[name] += n }}, nil
}

// failing fails to read a file behind its header.
type failing struct{ disk.File }

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off == 0 && len(p) > 1<<16 {
		return 0, errors.New("the disk is on fire")
	}
	return f.File.ReadAt(p, off)
}

type failingFiles struct{ disk.Files }

func (f failingFiles) Open(name string) (disk.File, error) {
	g, err := f.Files.Open(name)
	if err == nil && name == shard2 {
		g = failing{g}
	}
	return g, err
}

// It may be whole: what to mend is the disk or the permissions, and fetching it again is no cure.
func TestAFileThatCannotBeReadIsNotCalledDamaged(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	r, err := Check(t.Context(), failingFiles{disk.Dir(dir)}, dir, Options{Deep: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.OK || r.Damaged != nil || r.Missing != nil || len(r.Problems) != 1 || !r.Problems[0].Unreadable || !strings.Contains(r.texts()[0], "the disk is on fire") {
		t.Errorf("%q, damaged %q", r.texts(), r.Damaged)
	}
}

// Every value of 16 bits and all special ones of 32, at every alignment, in pieces of every size, against math.
func TestScannerAgreesWithMath(t *testing.T) {
	var data16, data32, data8 []byte
	for v := range 1 << 16 {
		data16 = binary.LittleEndian.AppendUint16(data16, uint16(v))
	}
	for e := range 512 {
		for _, m := range []uint32{0, 1, 1 << 22, 1<<23 - 1} {
			data32 = binary.LittleEndian.AppendUint32(data32, uint32(e)<<23|m)
		}
	}
	for v := range 256 {
		data8 = append(data8, byte(v), 255, byte(v/2))
	}
	half := func(v uint16) float64 {
		e, m := v>>10&31, float64(v&1023)
		switch {
		case e == 31 && m == 0:
			return math.Inf(1)
		case e == 31:
			return math.NaN()
		}
		return 1
	}
	for _, x := range []struct {
		dtype checkpoint.DType
		name  string
		data  []byte
		value func(p []byte) float64
	}{
		{checkpoint.BF16, "w", data16, func(p []byte) float64 {
			return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(p)) << 16))
		}},
		{checkpoint.F16, "w", data16, func(p []byte) float64 { return half(binary.LittleEndian.Uint16(p)) }},
		{checkpoint.F32, "w", data32, func(p []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(p))) }},
		{checkpoint.U8, "x.weight_scale", data8, func(p []byte) float64 {
			if p[0] == 255 {
				return math.Inf(-1) // counted apart
			}
			return 0
		}},
	} {
		size := x.dtype.Bits() / 8
		nan, inf, first := 0, 0, -1
		for i := 0; i < len(x.data); i += size {
			v := x.value(x.data[i:])
			if math.IsNaN(v) {
				nan++
			}
			if math.IsInf(v, 0) {
				inf++
			}
			if first < 0 && (math.IsNaN(v) || math.IsInf(v, 0)) {
				first = i / size
			}
		}
		want := fmt.Sprintf("tensor %s: %d NaN and %d infinite, the first at element %d", x.name, nan, inf, first)
		if x.dtype == checkpoint.U8 {
			want = fmt.Sprintf("tensor %s: %d scale bytes of 255, which is NaN, the first at element %d", x.name, inf, first)
		}
		for _, offset := range []int64{0, 1, 2, 3, 77} {
			for _, pieceSize := range []int{1, 3, 33, 4096, 1 << 30} {
				file := append(bytes.Repeat([]byte{0xFF}, int(offset)), x.data...)
				file = append(file, 0xFF, 0xFF, 0xFF, 0xFF)
				var got []string
				s := scanner{tensors: []checkpoint.Tensor{
					{Name: x.name, DType: x.dtype, Offset: offset, Bytes: int64(len(x.data))},
					{Name: "empty", DType: x.dtype, Offset: offset + int64(len(x.data))},
					{Name: "vision_tower.x", DType: checkpoint.BF16, Offset: offset + int64(len(x.data)), Bytes: 4},
				}, report: func(_, text string) { got = append(got, text) }}
				for at := 0; at < len(file); at += pieceSize {
					s.feed(file[at:min(at+pieceSize, len(file))], int64(at))
				}
				s.feed(nil, int64(len(file)))
				if len(got) != 1 || got[0] != want || s.next != 3 {
					t.Fatalf("%v at %d in pieces of %d: %q, want %q", x.dtype, offset, pieceSize, got, want)
				}
				if pieceSize == 1 && offset == 3 {
					break
				}
			}
		}
	}
}

func BenchmarkScan(b *testing.B) {
	data := make([]byte, 4<<20)
	for _, dtype := range []checkpoint.DType{checkpoint.BF16, checkpoint.F32, checkpoint.U8} {
		b.Run(dtype.String(), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				s := scanner{tensors: []checkpoint.Tensor{{Name: "x.weight_scale", DType: dtype, Bytes: int64(len(data))}}}
				s.feed(data, 0)
			}
		})
	}
}

// One bad element among good ones, at every place of a piece: the quick look must not miss it, nor see one that is not there.
func TestScannerFindsASingleElementAnywhere(t *testing.T) {
	for _, x := range []struct {
		dtype     checkpoint.DType
		good, bad [][]byte
	}{
		{checkpoint.BF16, [][]byte{{0, 0}, {0x7F, 0x7F}, {0x7F, 0xFF}}, [][]byte{{0x80, 0x7F}, {0x80, 0xFF}, {0xFF, 0xFF}}},
		{checkpoint.F16, [][]byte{{0, 0}, {0xFF, 0x7B}, {0xFF, 0xFB}}, [][]byte{{0, 0x7C}, {0, 0xFC}, {0xFF, 0xFF}}},
		{checkpoint.F32, [][]byte{{0, 0, 0, 0}, {0xFF, 0xFF, 0x7F, 0x7F}, {0xFF, 0xFF, 0x7F, 0xFF}}, [][]byte{{0, 0, 0x80, 0x7F}, {0, 0, 0x80, 0xFF}, {1, 0, 0x80, 0x7F}}},
		{checkpoint.U8, [][]byte{{0}, {254}, {127}, {128}}, [][]byte{{255}}},
	} {
		size := x.dtype.Bits() / 8
		const n = 70
		for _, good := range x.good {
			for _, bad := range x.bad {
				for at := -1; at < n; at++ {
					data := bytes.Repeat(good, n)
					if at >= 0 {
						copy(data[at*size:], bad)
					}
					var got []string
					s := scanner{tensors: []checkpoint.Tensor{{Name: "x.weight_scale", DType: x.dtype, Bytes: int64(len(data))}},
						report: func(_, text string) { got = append(got, text) }}
					s.feed(data, 0)
					if at < 0 && got != nil || at >= 0 && (len(got) != 1 || !strings.HasSuffix(got[0], fmt.Sprintf("the first at element %d", at))) {
						t.Fatalf("%v: % x among % x at %d: %q", x.dtype, bad, good, at, got)
					}
				}
			}
		}
	}
}

// What the publisher got wrong is no reason to fetch it again.
func TestFaultsOfThePublishedModelAreCalledSo(t *testing.T) {
	files := demoFiles(t)
	files["config.json"] = bytes.Replace(files["config.json"], []byte(`"num_hidden_layers"`), []byte(`"num_hidden_layerz"`), 1)
	r := verified(t, downloaded(t, files), Options{})
	if len(r.Problems) != 1 || !r.Problems[0].Published || r.OK || r.Damaged != nil || r.Missing != nil {
		t.Errorf("%+v, damaged %q", r.Problems, r.Damaged)
	}
}

func TestATruncationThatIsNoticedWhileReadingIsDamage(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	files := disktest.Wrap(disk.Dir(dir), func(r io.ReaderAt, name string, p []byte, off int64) (int, error) {
		const end = 1 << 20
		if filepath.Base(name) != shard2 || off+int64(len(p)) <= end {
			return r.ReadAt(p, off)
		}
		n, _ := r.ReadAt(p[:max(end-off, 0)], off)
		return n, io.EOF
	})
	r, err := Check(t.Context(), files, dir, Options{Deep: true})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Damaged, []string{shard2}) {
		t.Errorf("%q, damaged %q", r.texts(), r.Damaged)
	}
}

// zeroed sets all of a tensor to zero, or n bytes of it from byte from.
func zeroed(t *testing.T, data []byte, file, tensor string, from, n int64) {
	t.Helper()
	index, err := checkpoint.ReadFile(disk.Dir(demo), file)
	if err != nil {
		t.Fatal(err)
	}
	x, ok := index.Lookup(tensor)
	if !ok {
		t.Fatalf("%s has no %s", file, tensor)
	}
	if n < 0 {
		n = x.Bytes
	}
	clear(data[x.Offset+from:][:n])
}

func TestZerosInPlaceOfWeightsAreFound(t *testing.T) {
	const l = "language_model.model.layers.1."
	files := demoFiles(t)
	for _, c := range []struct {
		name    string
		tensor  string
		from, n int64
		deep    string // what a deep check says, "" for nothing
		plain   bool   // the other notices, too
	}{
		{"a matrix", l + "self_attn.q_proj.weight", 0, -1, " weight matrices 1 are nothing but zeros, the first tensor " + l + "self_attn.q_proj.weight", true},
		{"a router", l + "block_sparse_moe.gate.weight", 0, -1, "nothing but zeros, the first tensor " + l + "block_sparse_moe.gate.weight", true},
		{"packed weights of an expert", l + "block_sparse_moe.experts.0.w1.weight_packed", 0, -1, "nothing but zeros", false}, // plain checks look at some experts only
		{"a bias", l + "block_sparse_moe.gate.e_score_correction_bias", 0, -1, "", false},
		{"a norm", l + "input_layernorm.weight", 0, -1, "", false},
	} {
		shard := shard1
		if _, ok := lookup(t, shard1, c.tensor); !ok {
			shard = shard2
		}
		data := slices.Clone(files[shard])
		zeroed(t, data, shard, c.tensor, c.from, c.n)
		broken := maps.Clone(files)
		broken[shard] = data
		for _, deep := range []bool{true, false} {
			// As published, it is so; nobody knows what it should be; it was something else.
			dir := downloaded(t, broken)
			if r := verified(t, dir, Options{Deep: deep}); !r.OK || len(r.Notes) != b2i(c.deep != "" && (deep || c.plain)) {
				t.Errorf("%s, as published: %q, notes %q", c.name, r.texts(), r.Notes)
			}
			os.RemoveAll(filepath.Join(dir, hub.Folder))
			r := verified(t, dir, Options{Deep: deep})
			want := c.deep
			if !deep {
				want = "seem to be nothing but zeros"
			}
			switch found := c.deep != "" && (deep || c.plain); {
			case !found && !r.OK:
				t.Errorf("%s, deep %v: %q", c.name, deep, r.texts())
			case found && (!slices.Equal(r.Damaged, []string{shard}) || len(r.Problems) != 1):
				t.Errorf("%s, deep %v: %q, damaged %q", c.name, deep, r.texts(), r.Damaged)
			case found:
				if before, after, ok := strings.Cut(want, "%d"); !strings.Contains(r.Problems[0].Text, before) || ok && !strings.Contains(r.Problems[0].Text, after) {
					t.Errorf("%s, deep %v: %q", c.name, deep, r.texts())
				}
			}
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func lookup(t *testing.T, file, tensor string) (checkpoint.Tensor, bool) {
	t.Helper()
	index, err := checkpoint.ReadFile(disk.Dir(demo), file)
	if err != nil {
		t.Fatal(err)
	}
	return index.Lookup(tensor)
}

// Runs of zeros are found at every offset and however the file is cut into pieces.
func TestRunsOfZerosAreFound(t *testing.T) {
	const size = 300 << 10
	for _, c := range []struct {
		name    string
		from, n int
		runs    int
	}{
		{"model.layers.0.a.weight", 0, zeroRun + zeroBlock, 1}, {"model.layers.0.a.weight", 12345, zeroRun + 2*zeroBlock, 1},
		{"model.layers.0.a.weight", size - zeroRun - 2*zeroBlock, zeroRun + 2*zeroBlock, 1}, {"model.layers.0.a.weight", 100, zeroRun - 1, 0},
		{"model.layers.0.a.weight", 0, 0, 0}, {"lm_head.weight", 12345, 128 << 10, 0}, {"vision_tower.layers.0.weight", 0, 128 << 10, 0},
	} {
		data := bytes.Repeat([]byte{1}, size)
		clear(data[c.from:][:c.n])
		for _, piece := range []int{1000, 4096, 7777, size} {
			x := checkpoint.Tensor{Name: c.name, DType: checkpoint.U8, Shape: []int{300, 1024}, Bytes: size, Offset: 10}
			s := scanner{tensors: []checkpoint.Tensor{x}}
			file := append(make([]byte, 10), data...)
			for at := 0; at < len(file); at += piece {
				s.feed(file[at:min(at+piece, len(file))], int64(at))
			}
			z := s.zeros.found
			if z.Runs != c.runs || z.Empty != 0 || z.RunBytes > int64(c.n) || c.runs > 0 && (z.RunAt < int64(c.from+10) || z.RunAt >= int64(c.from+10+zeroBlock)) {
				t.Errorf("%+v in pieces of %d: %+v", c, piece, z)
			}
		}
	}
}

// A checkpoint without any experts' weights was made to be one, and is no damage.
func TestAHollowCheckpointIsNoted(t *testing.T) {
	dir := t.TempDir()
	if _, err := fabricate.Write(t.Context(), dir, fabricate.Options{Config: fabricate.Geometry("tiny"), Sparse: true, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	for _, deep := range []bool{false, true} {
		r := verified(t, dir, Options{Deep: deep})
		if !r.OK || !slices.ContainsFunc(r.Notes, func(s string) bool { return strings.Contains(s, "of experts that were read are zeros") }) {
			t.Errorf("deep %v: %q, notes %q", deep, r.texts(), r.Notes)
		}
	}
}

func TestANaNInARouterIsFound(t *testing.T) {
	const l = "language_model.model.layers.1.block_sparse_moe.gate."
	files := demoFiles(t)
	data := slices.Clone(files[shard1])
	poison(t, data, shard1, l+"weight", 3, []byte{0xC0, 0x7F})
	poison(t, data, shard1, l+"e_score_correction_bias", 1, []byte{0, 0, 0xC0, 0x7F})
	files[shard1] = data
	r := verified(t, downloaded(t, files), Options{Deep: true})
	if len(r.Problems) != 2 {
		t.Errorf("%q", r.texts())
	}
}

func TestFilesThatOtherProgramsHaveNotFinishedAreNamed(t *testing.T) {
	for _, ending := range []string{".aria2", ".incomplete", ".part", ".partial"} {
		dir := downloaded(t, demoFiles(t))
		path := filepath.Join(dir, shard1+ending)
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		// What is known to be whole is whole.
		if r := verified(t, dir, Options{Deep: true}); !r.OK || ending != ".partial" && (len(r.Notes) != 1 || !strings.Contains(r.Notes[0], shard1+ending)) {
			t.Errorf("%s: %q, notes %q", ending, r.texts(), r.Notes)
		}
		os.RemoveAll(filepath.Join(dir, hub.Folder))
		for _, missing := range []bool{false, true} {
			if missing {
				os.Remove(filepath.Join(dir, shard1))
			}
			r := verified(t, dir, Options{})
			if r.OK || r.Damaged != nil || r.Missing != nil || !strings.Contains(strings.Join(r.texts(), "\n"), "another program is still fetching it") {
				t.Errorf("%s, missing %v: %q, damaged %q, missing %q", ending, missing, r.texts(), r.Damaged, r.Missing)
			}
		}
	}
	// Those of files that are none of a model's do not matter.
	dir := downloaded(t, demoFiles(t))
	os.WriteFile(filepath.Join(dir, "film.part"), nil, 0o644)
	os.MkdirAll(filepath.Join(dir, ".cache", "huggingface", "download"), 0o755)
	os.WriteFile(filepath.Join(dir, ".cache", "huggingface", "download", "abc.incomplete"), nil, 0o644)
	if r := verified(t, dir, Options{}); !r.OK || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "hf download is still fetching 1 file into") {
		t.Errorf("%q, notes %q", r.texts(), r.Notes)
	}
}

func TestAShardOfAnotherModelIsFoundByItsChecksum(t *testing.T) {
	files := demoFiles(t)
	dir := downloaded(t, files)
	// The same tensors with other weights, in a file that is too large to be read by the way.
	defer func(old int64) { small = old }(small)
	small = 1 << 10
	other := slices.Clone(files[shard2])
	other[len(other)-9] ^= 0x10
	os.WriteFile(filepath.Join(dir, shard2), other, 0o644)
	os.Chtimes(filepath.Join(dir, shard2), time.Now(), time.Now().Add(time.Minute))
	if r := verified(t, dir, Options{}); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "1 changed after the checksum was right") {
		t.Errorf("notes %q", r.Notes)
	}
	if r := verified(t, dir, Options{Deep: true}); !slices.Equal(r.Damaged, []string{shard2}) {
		t.Errorf("damaged %q", r.Damaged)
	}
}

func TestThePartThatWasAskedForPasses(t *testing.T) {
	h := hubtest.New(demoFiles(t))
	defer h.Close()
	c, err := hub.New(hub.Options{Endpoint: h.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dir := t.TempDir()
	fetch := func(r hub.Request) {
		t.Helper()
		s, err := c.Snapshot(t.Context(), h.Repo, h.Commit)
		if err != nil {
			t.Fatal(err)
		}
		r.Dir = dir
		p, err := c.MakePlan(t.Context(), s, r)
		if err == nil {
			_, err = c.Download(t.Context(), p, hub.Config{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fetch(hub.Request{Layers: 1})
	for _, deep := range []bool{false, true} {
		r := verified(t, dir, Options{Deep: deep})
		if !r.OK || r.Missing != nil || r.LeftOut == nil || r.Layers < 1 || r.Layers >= r.OfLayers || !strings.Contains(strings.Join(r.Notes, "\n"), "layers are here") {
			t.Errorf("%q, missing %q, left out %q, notes %q", r.texts(), r.Missing, r.LeftOut, r.Notes)
		}
	}
	// A shard of those layers is missed, and so is one that was asked for since.
	left := verified(t, dir, Options{}).LeftOut
	fetch(hub.Request{Include: left[:1]})
	for _, name := range []string{left[0], shard1} {
		os.Remove(filepath.Join(dir, name))
	}
	if r := verified(t, dir, Options{}); !slices.Contains(r.Missing, shard1) || !slices.Contains(r.Missing, left[0]) {
		t.Errorf("missing %q, left out %q", r.Missing, r.LeftOut)
	}
	// All of it, in the end.
	fetch(hub.Request{})
	if r := verified(t, dir, Options{}); !r.OK || r.LeftOut != nil || r.Layers != r.OfLayers || len(r.Notes) > 0 {
		t.Errorf("%q, left out %q, notes %q", r.texts(), r.LeftOut, r.Notes)
	}
}

func TestErrorsOfReadingAreToldApart(t *testing.T) {
	for _, x := range []struct {
		err                             error
		damaged, unreadable, unfinished bool
	}{
		{&disk.Error{File: "x", Err: disk.ErrChecksum}, true, false, false}, {&disk.Error{File: "x", Err: disk.ErrShort}, true, false, false},
		{checkpoint.ErrFormat, true, false, false}, {&disk.Error{File: "x", Err: errors.New("fire")}, false, true, false},
		{os.ErrPermission, false, true, false}, {&disk.Error{File: "x", Err: disk.ErrChanged}, false, false, true},
	} {
		c := &check{}
		c.fault("x", x.err)
		c.conclude()
		p := c.report.Problems[0]
		if (c.report.Damaged != nil) != x.damaged || p.Unreadable != x.unreadable || p.Unfinished != x.unfinished {
			t.Errorf("%v: %+v, damaged %q", x.err, p, c.report.Damaged)
		}
	}
}
