package fabricate_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	_ "github.com/k3infer/k3/policies"
)

// tiny is the tiny geometry after changes.
func tiny(change func(*fabricate.Options)) fabricate.Options {
	o := fabricate.Options{Config: fabricate.Geometry("tiny"), Seed: 1}
	if change != nil {
		change(&o)
	}
	return o
}

// write makes a checkpoint in a new directory.
func write(t testing.TB, o fabricate.Options) (string, fabricate.Result) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	r, err := fabricate.Write(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return dir, r
}

// text is what a model answers to a prompt, and how.
type text struct {
	ids     []int
	spread  float64         // mean deviation of the logits of a position
	perplex float64         // mean perplexity of the distribution over the next id
	experts map[[2]int]int  // times that each expert of each layer was chosen
	choices map[string]bool // different sets of experts, of all layers and rows
}

func generate(t testing.TB, dir string, tokens int, prompts ...[]int) []text {
	t.Helper()
	var now *text
	e, err := core.Open(t.Context(), core.Options{Files: disk.Dir(dir), Context: 64, Routed: func(layer int, experts []int) {
		for _, x := range experts {
			now.experts[[2]int{layer, x}]++
		}
		now.choices[fmt.Sprint(layer, experts)] = true
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var all []text
	for _, prompt := range prompts {
		s, err := e.NewSequence()
		if err != nil {
			t.Fatal(err)
		}
		positions := 0
		x := text{experts: map[[2]int]int{}, choices: map[string]bool{}}
		now = &x
		measure := func(_ int, logits []float32) error {
			var sum, square, most float64
			for _, l := range logits {
				sum += float64(l)
				square += float64(l) * float64(l)
				most = max(most, float64(l))
			}
			n := float64(len(logits))
			if math.IsNaN(square) || math.IsInf(square, 0) {
				return errors.New("logits are not finite")
			}
			x.spread += math.Sqrt(square/n - sum*sum/n/n)
			var z, weighted float64
			for _, l := range logits {
				p := math.Exp(float64(l) - most)
				z += p
				weighted += p * (float64(l) - most)
			}
			x.perplex += math.Exp(math.Log(z) - weighted/z)
			positions++
			return nil
		}
		out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: tokens, OnLogits: measure}, nil)
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
		x.ids = out.IDs
		x.spread /= float64(positions)
		x.perplex /= float64(positions)
		all = append(all, x)
	}
	return all
}

func distinct(ids []int) int {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return len(slices.Compact(ids))
}

// A test on weights that compute nothing proves nothing: every form of checkpoint answers different prompts differently,
// at length, without saying the same all the time, and asks for most of its experts.
func TestModelsAreLively(t *testing.T) {
	for name, change := range map[string]func(*fabricate.Options){
		"as released": nil,
		"bf16 experts, f32 trunk, one shard": func(o *fabricate.Options) {
			o.Experts, o.Trunk, o.Shards = checkpoint.BF16, checkpoint.F32, 1
		},
		"f32 experts, f16 trunk, 40 shards": func(o *fabricate.Options) {
			o.Experts, o.Trunk, o.Shards = checkpoint.F32, checkpoint.F16, 40
		},
		"another seed": func(o *fabricate.Options) { o.Seed = 1 << 63 },
		"other sizes": func(o *fabricate.Options) {
			c := o.Config
			c.Hidden, c.Layers, c.Vocab, c.DenseLayers, c.ResidualBlock = 61, 5, 301, 2, 2
			c.FullAttention = []bool{true, false, false, true, false}
			c.KDA.Heads, c.KDA.HeadDim, c.KDA.ConvKernel = 5, 3, 2
			c.MLA.OutputGate, c.MoE.LatentNorm, c.MoE.Renormalize, c.MoE.Shared = false, false, false, 1
			c.MoE.Experts, c.MoE.TopK, c.MoE.Latent, c.MoE.Intermediate = 9, 2, 32, 64
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := tiny(change)
			dir, _ := write(t, o)
			texts := generate(t, dir, 24, []int{1, 2, 3, 4, 5}, []int{1, 2, 3, 4, 6}, []int{9, 2, 3, 4, 5})
			for i, x := range texts {
				if distinct(x.ids) < 16 {
					t.Errorf("text %d repeats itself: %v", i, x.ids)
				}
				if x.spread < 1 || x.spread > 10 || x.perplex < 1.5 || x.perplex > float64(o.Config.Vocab)/4 {
					t.Errorf("text %d: logits deviate by %.2f, perplexity %.1f of %d ids", i, x.spread, x.perplex, o.Config.Vocab)
				}
				all := (o.Config.Layers - o.Config.DenseLayers) * o.Config.MoE.Experts
				if len(x.experts) < all*3/5 {
					t.Errorf("text %d asks for %d of %d experts", i, len(x.experts), all)
				}
				for j := range i {
					if slices.Equal(x.ids[:8], texts[j].ids[:8]) {
						t.Errorf("texts %d and %d are alike: %v", i, j, x.ids)
					}
				}
			}
		})
	}
}

// digest is a hash of all files of a directory.
func digest(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %d\n", e.Name(), len(data))
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// The hashes were made on amd64 under Linux; they are those of every system.
func TestSameOptionsSameBytes(t *testing.T) {
	for _, k := range []struct {
		name, want string
		change     func(*fabricate.Options)
	}{
		{"tiny", "37fde04ad2cf98207011e4434197144850337408c036d6326fb6cab682384963", nil},
		{"other types", "ee705e58b423ff87eaf13f261f7d06dbf62b22d74712dc0720b27d1009742419", func(o *fabricate.Options) {
			o.Experts, o.Trunk, o.Seed, o.Shards = checkpoint.BF16, checkpoint.F16, 7, 3
		}},
		{"sparse", "ea4006b49ae7dbdec7ee2fa53ef4cb79ef6c89dd667db199399eb4d033c0756a", func(o *fabricate.Options) {
			o.Sparse, o.Trunk, o.Config.Hidden = true, checkpoint.F32, 1100
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			for _, threads := range []int{1, 5} {
				func() {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
					dir, _ := write(t, tiny(k.change))
					if got := digest(t, dir); got != k.want {
						t.Errorf("%d threads: %s, not %s", threads, got, k.want)
					}
				}()
			}
		})
	}
	one, _ := write(t, tiny(nil))
	two, _ := write(t, tiny(func(o *fabricate.Options) { o.Seed = 2 }))
	if digest(t, one) == digest(t, two) {
		t.Error("two seeds give the same bytes")
	}
}

// However many shards there are, the weights are the same, a layer's trunk is one run of bytes, and so is each expert.
func TestShardsKeepRunsTogether(t *testing.T) {
	for _, experts := range []checkpoint.DType{checkpoint.U8, checkpoint.BF16} {
		t.Run(experts.String(), func(t *testing.T) { shardsKeepRunsTogether(t, experts) })
	}
}

func shardsKeepRunsTogether(t *testing.T, experts checkpoint.DType) {
	var want []int
	for _, n := range []int{0, 1, 4, 10, 181} {
		dir, r := write(t, tiny(func(o *fabricate.Options) { o.Shards, o.Experts = n, experts }))
		if n > 0 && r.Shards != n {
			t.Fatalf("%d shards, not %d", r.Shards, n)
		}
		m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		if m.Index.Len() != r.Tensors || len(m.Index.Shards()) != r.Shards {
			t.Errorf("%d tensors in %d shards, not %d in %d", m.Index.Len(), len(m.Index.Shards()), r.Tensors, r.Shards)
		}
		parts := map[string][]checkpoint.Tensor{}
		for s := range checkpoint.Required(m.Config, m.Quantized) {
			x, ok := m.Index.Lookup(s.Name())
			if !ok {
				t.Fatal(s.Name())
			}
			if s.Layer >= 0 {
				key := fmt.Sprint(s.Layer, s.Expert)
				parts[key] = append(parts[key], x)
			}
		}
		for key, p := range parts {
			slices.SortFunc(p, func(a, b checkpoint.Tensor) int { return int(a.Offset - b.Offset) })
			for i := 1; i < len(p); i++ {
				if p[i].Shard != p[0].Shard || p[i].Offset != p[i-1].Offset+p[i-1].Bytes {
					t.Errorf("%d shards: layer and expert %s: %s is apart", n, key, p[i])
				}
			}
		}
		m.Close()
		got := generate(t, dir, 6, []int{3, 1, 4})[0].ids
		if want == nil {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("%d shards give %v, not %v", n, got, want)
		}
	}
}

// A sparse checkpoint is the dense one with holes, and still tells ids apart.
func TestSparseIsTheDenseOneWithHoles(t *testing.T) {
	change := func(o *fabricate.Options) {
		c := o.Config
		c.Hidden, c.Layers, c.Vocab, c.FullAttention = 2048, 3, 1800, []bool{false, true, false}
		c.MoE.Experts, c.MoE.TopK = 256, 8
	}
	dense, _ := write(t, tiny(change))
	sparse, r := write(t, tiny(func(o *fabricate.Options) { change(o); o.Sparse = true }))
	entries, err := os.ReadDir(dense)
	if err != nil {
		t.Fatal(err)
	}
	realBytes := int64(0)
	for _, e := range entries {
		a, err := os.ReadFile(filepath.Join(dense, e.Name()))
		b, err2 := os.ReadFile(filepath.Join(sparse, e.Name()))
		if err := errors.Join(err, err2); err != nil || len(a) != len(b) {
			t.Fatalf("%s: %d and %d bytes, %v", e.Name(), len(a), len(b), err)
		}
		for i := range b {
			if b[i] != 0 {
				realBytes++
			}
			if b[i] != 0 && b[i] != a[i] {
				t.Fatalf("%s: byte %d is %d, in the dense one %d", e.Name(), i, b[i], a[i])
			}
		}
	}
	if realBytes > r.Written || realBytes < r.Written*8/10 {
		t.Errorf("%d bytes are not zero, %d were written", realBytes, r.Written)
	}
	texts := generate(t, sparse, 20, []int{5, 6, 7}, []int{8, 6, 7}, []int{5, 6, 900})
	for i, x := range texts {
		if distinct(x.ids) < 5 || len(x.choices) < 20 || len(x.experts) < 60 {
			t.Errorf("text %d: %v, %d experts in %d choices", i, x.ids, len(x.experts), len(x.choices))
		}
		for j := range i {
			if i == 2 && slices.Equal(x.ids, texts[j].ids) {
				t.Errorf("texts %d and %d are alike: %v", i, j, x.ids)
			}
		}
	}
}

// The full geometry is the released checkpoint in names and sizes, takes next to no room, and opens in no time.
func TestFullSparseHasTheReleasedSize(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 190 MB")
	}
	start := time.Now()
	dir, r := write(t, fabricate.Options{Config: fabricate.Geometry("full"), Vision: true, Sparse: true, Seed: 1})
	t.Logf("made in %v, %d bytes written", time.Since(start), r.Written)
	if r.Tensors != 497_220 || r.Shards != 96 || r.Bytes != 1_560_936_091_448 {
		t.Errorf("%d tensors in %d shards of %d bytes", r.Tensors, r.Shards, r.Bytes)
	}
	sizes := map[string]int64{
		"model-00093-of-000096.safetensors": 16_567_507_176, "model-00095-of-000096.safetensors": 92_289_328,
		"model-00096-of-000096.safetensors": 802_448_352, "model.safetensors.index.json": 59_764_096,
	}
	total, occupied := int64(0), int64(0)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if want, ok := sizes[e.Name()]; ok && info.Size() != want {
			t.Errorf("%s has %d bytes, not %d", e.Name(), info.Size(), want)
		}
		if strings.HasSuffix(e.Name(), ".safetensors") {
			total += info.Size()
		}
		occupied += allocated(info)
	}
	if total != r.Bytes {
		t.Errorf("the files have %d bytes, not %d", total, r.Bytes)
	}
	if occupied > 200_000_000 {
		t.Errorf("they take %d bytes of the disk", occupied)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start = time.Now()
	m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	defer m.Close()
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("opened in %v; the index takes %d bytes of heap; %d bytes of the disk", took, after.HeapAlloc-before.HeapAlloc, occupied)
	if m.Index.Len() != r.Tensors || m.Config.Layers != 93 {
		t.Errorf("opened %d tensors of %d layers", m.Index.Len(), m.Config.Layers)
	}
	parts := m.Index.Expert(92, 0, nil)
	if from, to := parts[0].Offset, parts[5].Offset+parts[5].Bytes; from != 845_158_632 || to-from != 17_547_264 {
		t.Errorf("expert 0 of the last layer is %d bytes at %d", to-from, from)
	}
}

// files are the names and sizes in a directory.
func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestNothingIsOverwrittenUnasked(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := fabricate.Write(t.Context(), dir, tiny(nil))
	if !errors.Is(err, fabricate.ErrExists) || !strings.Contains(err.Error(), "notes.txt") {
		t.Errorf("into a directory that is in use: %v", err)
	}
	if got := files(t, dir); got != "notes.txt" {
		t.Errorf("left %s", got)
	}
	force := func(o *fabricate.Options) {
		o.Force, o.Extra = true, map[string][]byte{"tiktoken.model": []byte("YQ== 0\n")}
	}
	if _, err := fabricate.Write(t.Context(), dir, tiny(force)); err != nil {
		t.Fatal(err)
	}
	fresh, _ := write(t, tiny(func(o *fabricate.Options) { o.Shards = 2 }))
	// What a killed attempt may have left does not stay, and neither do shards of the old checkpoint.
	if err := os.Mkdir(filepath.Join(dir, "partial"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".k3-fabricate", "config.json", "model-00007-of-000009.safetensors"} {
		if err := os.WriteFile(filepath.Join(dir, "partial", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := fabricate.Write(t.Context(), dir, tiny(func(o *fabricate.Options) { o.Force, o.Shards = true, 2 })); err != nil {
		t.Fatal(err)
	}
	if got, want := files(t, dir), files(t, fresh)+" notes.txt"; got != want {
		t.Errorf("has %s, not %s", got, want)
	}
	if err := os.Remove(filepath.Join(dir, "notes.txt")); err != nil {
		t.Fatal(err)
	}
	if digest(t, dir) != digest(t, fresh) {
		t.Error("replacing gives other files than making anew")
	}
}

// Force replaces what was fabricated and nothing else, whatever its name.
func TestAForeignPartialIsNeverRemoved(t *testing.T) {
	for name, marked := range map[string]bool{"model-00001-of-000002.safetensors": false, "notes.txt": true} {
		dir, _ := write(t, tiny(nil))
		mine := filepath.Join(dir, "partial", name)
		if err := os.Mkdir(filepath.Dir(mine), 0o755); err != nil {
			t.Fatal(err)
		}
		if marked {
			if err := os.WriteFile(filepath.Join(dir, "partial", ".k3-fabricate"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := fabricate.Write(t.Context(), dir, tiny(func(o *fabricate.Options) { o.Force, o.Seed = true, 9 }))
		if !errors.Is(err, fabricate.ErrForeign) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if data, err := os.ReadFile(mine); err != nil || string(data) != "mine" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if !strings.HasPrefix(files(t, dir), "config.json") {
			t.Errorf("%s: the checkpoint has gone: %s", name, files(t, dir))
		}
	}
}

// Two at once never mix: one of them makes the checkpoint, the other is refused.
func TestOneAtATimeMakesACheckpoint(t *testing.T) {
	for _, force := range []bool{false, true} {
		dir := t.TempDir()
		want := map[string]bool{}
		for seed := range uint64(4) {
			fresh, _ := write(t, tiny(func(o *fabricate.Options) { o.Seed = seed }))
			want[digest(t, fresh)] = true
		}
		var wait sync.WaitGroup
		var made atomic.Int32
		for seed := range uint64(4) {
			wait.Go(func() {
				_, err := fabricate.Write(t.Context(), dir, tiny(func(o *fabricate.Options) { o.Seed, o.Force = seed, force }))
				switch {
				case err == nil:
					made.Add(1)
				case !errors.Is(err, fabricate.ErrBusy) && !errors.Is(err, fabricate.ErrExists) && !(force && errors.Is(err, fabricate.ErrForeign)):
					t.Errorf("force %v: %v", force, err)
				}
			})
		}
		wait.Wait()
		if n := made.Load(); n < 1 || !force && n > 1 {
			t.Errorf("force %v: %d were made", force, n)
		}
		if !want[digest(t, dir)] {
			t.Errorf("force %v: it is a mixture: %s", force, files(t, dir))
		}
	}
}

func TestImpossibleOptionsAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	every, twice := slices.Repeat([]bool{true}, 8), map[string][]byte{"config.json": nil}
	for name, k := range map[string]struct {
		change func(*fabricate.Options)
		err    error
		text   string
	}{
		"top-k above experts": {func(o *fabricate.Options) { o.Config.MoE.TopK = 25 }, checkpoint.ErrConfig, "num_experts_per_token"},
		"no layers":           {func(o *fabricate.Options) { o.Config.Layers = 0 }, checkpoint.ErrConfig, "num_hidden_layers"},
		"all attention":       {func(o *fabricate.Options) { o.Config.FullAttention = every }, checkpoint.ErrConfig, "full_attn_layers"},
		"uneven groups":       {func(o *fabricate.Options) { o.Config.MoE.Latent = 48 }, checkpoint.ErrConfig, "multiples of 32"},
		"a NaN":               {func(o *fabricate.Options) { o.Config.SituBeta = float32(math.NaN()) }, fabricate.ErrOptions, "NaN"},
		"negative sizes":      {func(o *fabricate.Options) { o.Config.Hidden = -1 }, checkpoint.ErrConfig, "hidden_size"},
		"too many tensors": {func(o *fabricate.Options) {
			o.Config.MoE.Experts, o.Config.Layers, o.Config.FullAttention = 1<<16, 4096, fabricate.FullAttention(4096)
		}, fabricate.ErrOptions, "tensors"},
		"too many shards":  {func(o *fabricate.Options) { o.Shards = 182 }, fabricate.ErrOptions, "182 shards, not 1 to 181"},
		"negative shards":  {func(o *fabricate.Options) { o.Shards = -1 }, fabricate.ErrOptions, "shards"},
		"a trunk of U8":    {func(o *fabricate.Options) { o.Trunk = checkpoint.U8 }, fabricate.ErrOptions, "U8"},
		"experts of I64":   {func(o *fabricate.Options) { o.Experts = checkpoint.I64 }, fabricate.ErrOptions, "I64"},
		"a path as a file": {func(o *fabricate.Options) { o.Extra = map[string][]byte{"../x": nil} }, fabricate.ErrOptions, "../x"},
		"a file twice":     {func(o *fabricate.Options) { o.Extra = twice }, fabricate.ErrOptions, "config.json"},
		"a huge model": {func(o *fabricate.Options) {
			o.Config.MoE.Latent, o.Config.MoE.Intermediate, o.Config.MoE.Experts = 1<<16, 1<<20, 1000
		}, fabricate.ErrSpace, "needed"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			_, err := fabricate.Write(t.Context(), dir, tiny(k.change))
			if !errors.Is(err, k.err) || !strings.Contains(fmt.Sprint(err), k.text) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
				t.Error("it made a directory")
			}
		})
	}
}

func TestCancelledLeavesNothing(t *testing.T) {
	for name, at := range map[string]float64{"at once": 0, "in the middle": 0.5, "at the end": 1} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			o := tiny(func(o *fabricate.Options) {
				o.Config.MoE.Experts = 400
				o.Progress = func(done, total int64) {
					if float64(done) >= at*float64(total) {
						cancel()
					}
				}
			})
			if at == 0 {
				cancel()
			}
			dir := filepath.Join(t.TempDir(), "model")
			if _, err := fabricate.Write(ctx, dir, o); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left %s", files(t, dir))
			}
		})
	}
	t.Run("a checkpoint that was there stays", func(t *testing.T) {
		dir, _ := write(t, tiny(nil))
		before := digest(t, dir)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := fabricate.Write(ctx, dir, tiny(func(o *fabricate.Options) {
			o.Force, o.Seed, o.Progress = true, 9, func(done, total int64) { cancel() }
		}))
		if !errors.Is(err, context.Canceled) || digest(t, dir) != before {
			t.Errorf("%v, now %s", err, files(t, dir))
		}
	})
}

// Whatever stops the last step, what is left is not taken for a checkpoint.
func TestConfigComesLast(t *testing.T) {
	dir, _ := write(t, tiny(nil))
	if err := os.MkdirAll(filepath.Join(dir, "extra", "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := fabricate.Write(t.Context(), dir, tiny(func(o *fabricate.Options) {
		o.Force, o.Extra = true, map[string][]byte{"extra": nil}
	}))
	if err == nil {
		t.Fatal("a directory was replaced by a file")
	}
	if got := files(t, dir); strings.HasPrefix(got, "config.json") || strings.Contains(got, "partial") {
		t.Errorf("%v, left %s", err, got)
	}
}

func TestProgressCountsWhatIsWritten(t *testing.T) {
	last, all := int64(0), int64(0)
	_, r := write(t, tiny(func(o *fabricate.Options) {
		o.Progress = func(done, total int64) {
			if done <= last || total != all && all != 0 {
				t.Errorf("%d of %d after %d of %d", done, total, last, all)
			}
			last, all = done, total
		}
	}))
	if last != all || all == 0 || all > r.Bytes {
		t.Errorf("ended with %d of %d", last, all)
	}
}

// The named geometries are the sizes they are said to have; an expert of the middle one has a few megabytes, as a disk likes it.
func TestGeometriesHaveTheirSizes(t *testing.T) {
	for name, bounds := range map[string][2]float64{"tiny": {1e6, 1e7}, "small": {1.8e8, 2.2e8}, "mid": {5.5e9, 6.5e9}} {
		c := fabricate.Geometry(name)
		dir, r := write(t, fabricate.Options{Config: c, Sparse: true, Seed: 1})
		if b := float64(r.Bytes); b < bounds[0] || b > bounds[1] {
			t.Errorf("%s has %.0f bytes", name, b)
		}
		m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		experts := int64(0)
		for x := range m.Index.All() {
			if strings.Contains(x.Name, ".experts.") {
				experts += x.Bytes
			}
		}
		each := experts / int64(c.MoE.Experts*(c.Layers-c.DenseLayers))
		t.Logf("%s: %d bytes, %.0f%% of them experts of %d bytes", name, r.Bytes, 100*float64(experts)/float64(r.Bytes), each)
		if name == "mid" && (each < 2e6 || each > 8e6 || float64(experts) < 0.6*float64(r.Bytes)) {
			t.Errorf("mid: experts of %d bytes, %d in all", each, experts)
		}
		m.Close()
	}
	if fabricate.Geometry("huge") != nil {
		t.Error("there is a huge geometry")
	}
}

// config.json says what Config said.
func TestConfigSurvives(t *testing.T) {
	c := fabricate.Geometry("tiny")
	c.BOS, c.EOS, c.NormEps, c.MoE.ScalingFactor = 7, []int{9}, 3e-6, 2.25
	c.MLA.OutputGate, c.MoE.Renormalize = false, false
	dir, _ := write(t, fabricate.Options{Config: c})
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := checkpoint.ParseConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	c.Quantized = true
	if a, b := fmt.Sprintf("%+v", *got), fmt.Sprintf("%+v", *c); a != b {
		t.Errorf("%s\nwas\n%s", a, b)
	}
	if !bytes.Contains(data, []byte("text_config")) {
		t.Error("not the nested shape")
	}
}
