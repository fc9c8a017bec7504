package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	"github.com/k3infer/k3/core/disk"
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
	if !slices.Equal(r.Damaged, []string{shard1}) || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "interrupted") {
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

func TestAFileThatCannotBeReadIsDamaged(t *testing.T) {
	dir := downloaded(t, demoFiles(t))
	r, err := Check(t.Context(), failingFiles{disk.Dir(dir)}, dir, Options{Deep: true})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Damaged, []string{shard2}) || !strings.Contains(r.texts()[0], "the disk is on fire") {
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
