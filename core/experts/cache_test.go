package experts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	_ "github.com/k3infer/k3/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const config = `{"model_type":"kimi_k3","text_config":{"hidden_size":16,"num_hidden_layers":4,"vocab_size":20,"rms_norm_eps":1e-5,
"num_attention_heads":2,"q_lora_rank":8,"kv_lora_rank":8,"qk_nope_head_dim":4,"qk_rope_head_dim":2,"v_head_dim":4,
"num_experts":%d,"num_experts_per_token":4,"num_shared_experts":1,"routed_expert_hidden_size":64,"moe_intermediate_size":32,
"routed_scaling_factor":1.0,"first_k_dense_replace":1,"intermediate_size":16,"attn_res_block_size":2,
"activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"moe_router_activation_func":"sigmoid",
"linear_attn_config":{"num_heads":2,"head_dim":8,"short_conv_kernel_size":4,"gate_lower_bound":-5.0,"full_attn_layers":[3]}}}`

// fixture is a small checkpoint with random experts in three shards.
type fixture struct {
	*checkpoint.Model
	files *disktest.Faulty
	data  disktest.Memory
}

func newFixture(t testing.TB, r *rand.Rand, perLayer int, quantized bool) *fixture {
	t.Helper()
	return newFixtureAs(t, r, perLayer, quantized, r.IntN(2) == 0)
}

// newFixtureAs strews the tensors over all shards, or, as released, makes an expert's one run.
func newFixtureAs(t testing.TB, r *rand.Rand, perLayer int, quantized, strewn bool) *fixture {
	t.Helper()
	data := disktest.Memory{"config.json": fmt.Appendf(nil, config, perLayer)}
	c, err := checkpoint.ParseConfig(data["config.json"])
	if err != nil {
		t.Fatal(err)
	}
	var shards [3][]checkpoint.Named
	for s := range checkpoint.Required(c, quantized) {
		n := 1
		for _, d := range s.Shape {
			n *= d
		}
		switch s.DType {
		case checkpoint.BF16:
			n *= 2
		case checkpoint.F32:
			n *= 4
		}
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		shard := max(s.Layer-1, 0)
		if strewn {
			shard = r.IntN(3)
		}
		shards[shard] = append(shards[shard], checkpoint.Named{Name: s.Name(), DType: s.DType, Shape: s.Shape, Data: checkpoint.Bytes(p)})
	}
	for i, tensors := range shards {
		if strewn {
			r.Shuffle(len(tensors), func(a, b int) { tensors[a], tensors[b] = tensors[b], tensors[a] })
		}
		var b bytes.Buffer
		if err := checkpoint.WriteFile(&b, tensors); err != nil {
			t.Fatal(err)
		}
		data[fmt.Sprintf("model-0000%d-of-00003.safetensors", i+1)] = b.Bytes()
	}
	f := &fixture{data: data, files: disktest.Wrap(data, nil)}
	f.files.Direct = disktest.Direct(r.IntN(4))
	if f.Model, err = checkpoint.Open(t.Context(), f.files); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// verify compares an expert with the files.
func (f *fixture) verify(layer int, x experts.Expert) error {
	var got [][]byte
	c := f.Config.MoE
	for i, w := range []kernel.Tile{x.W1, x.W2, x.W3} {
		rows, cols := c.Intermediate, c.Latent
		if i == 1 {
			rows, cols = cols, rows
		}
		if w.Rows != rows || w.Cols != cols || w.Stride != cols || (w.Format == kernel.MXFP4) != f.Quantized {
			return fmt.Errorf("matrix %d is %v %dx%d", i, w.Format, w.Rows, w.Cols)
		}
		got = append(got, w.Data)
		if f.Quantized {
			got = append(got, w.Scale)
		}
	}
	parts := f.Index.Expert(layer, x.ID, nil)
	if len(parts) != len(got) {
		return fmt.Errorf("%d tensors", len(got))
	}
	for i, p := range parts {
		if !bytes.Equal(got[i], f.data[f.Shard(p.Shard).Name()][p.Offset:][:p.Bytes]) {
			return fmt.Errorf("%s has other bytes", p)
		}
	}
	return nil
}

// collect takes up to n experts of a request and checks each.
func (f *fixture) collect(ctx context.Context, s experts.Store, layer int, ids []int, n int) error {
	b, err := s.Request(ctx, layer, ids)
	if err != nil {
		return err
	}
	defer b.Close()
	var got []int
	for range min(n, len(ids)) {
		x, err := b.Next()
		if err != nil {
			return err
		}
		for range 2 {
			if err := f.verify(layer, x); err != nil {
				return fmt.Errorf("expert %d: %w", x.ID, err)
			}
		}
		got = append(got, x.ID)
		x.Release()
		x.Release()
	}
	if n < len(ids) {
		return nil
	}
	if _, err := b.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the last came %v", err)
	}
	slices.Sort(got)
	want := slices.Sorted(slices.Values(ids))
	if !slices.Equal(got, want) {
		return fmt.Errorf("experts %v came, want %v", got, want)
	}
	return nil
}

func some(r *rand.Rand, n, of int) []int { return r.Perm(of)[:n] }

func online() (names []string) {
	for _, name := range experts.Policies() {
		if experts.CheckPolicy(name) == nil {
			names = append(names, name)
		}
	}
	return names
}

func TestEveryPolicyAndNumberOfSlotsGivesTheSameExperts(t *testing.T) {
	for n, policy := range online() {
		t.Run(policy, func(t *testing.T) {
			seeds := 6
			if testing.Short() {
				seeds = 2
			}
			for seed := range seeds {
				r := random.New(t, uint64(seed), uint64(n))
				const perLayer = 24
				f := newFixture(t, r, perLayer, seed%2 == 0)
				for _, slots := range []int{2, 3, 4, 9, 30, 71, 72, 1000} {
					pool := disk.NewPool(disk.Config{Readers: 1 + r.IntN(4), Piece: 1 << (12 + r.IntN(4))})
					var account memory.Account
					var traced int
					s, err := experts.Open(f.Model, experts.Options{Pool: pool, Account: &account, Slots: slots, Policy: policy,
						Seed: uint64(seed), Trace: func(_ int, ids []int) { traced += len(ids) }})
					if err != nil {
						t.Fatal(err)
					}
					asked := 0
					for range 12 {
						for layer := 1; layer < 4; layer++ {
							ids := some(r, 1+r.IntN(4), perLayer)
							if r.IntN(6) == 0 {
								ids = some(r, perLayer, perLayer) // a chunk of a prompt may touch them all
							}
							n := len(ids)
							if r.IntN(5) == 0 {
								n = r.IntN(n + 1)
							}
							asked += len(ids)
							if err := f.collect(t.Context(), s, layer, ids, n); err != nil {
								t.Fatalf("%d slots: layer %d: %v", slots, layer, err)
							}
						}
					}
					requests, hits := 0, 0
					for _, l := range s.Stats() {
						requests, hits = requests+l.Requests, hits+l.Hits
					}
					if requests != asked || traced != asked || slots >= 72 && hits < asked/3 {
						t.Errorf("%d slots: %d requests, %d traced, %d hits; %d were made", slots, requests, traced, hits, asked)
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
					pool.Close()
					if left := account.Bytes(); len(left) != 0 {
						t.Errorf("not given back: %v", left)
					}
				}
			}
		})
	}
}

// scripted is a policy that does what its functions say.
type scripted struct {
	miss    func(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision)
	hits    []experts.Key
	removed []experts.Key
}

func (p *scripted) Hit(key experts.Key)    { p.hits = append(p.hits, key) }
func (p *scripted) Remove(key experts.Key) { p.removed = append(p.removed, key) }
func (p *scripted) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	return p.miss(key, evictable)
}

var script atomic.Pointer[scripted]

func init() {
	experts.RegisterPolicy("scripted", func(experts.Config) (experts.Policy, error) {
		if p := script.Load(); p != nil {
			return p, nil
		}
		return nil, experts.ErrOffline // not for the tests over all policies
	})
}

func fill(experts.Key, func(experts.Key) bool) (experts.Key, experts.Decision) {
	return experts.Key{}, experts.Fill
}

func openScripted(t *testing.T, f *fixture, slots int, p *scripted) *experts.Cache {
	t.Helper()
	script.Store(p)
	pool := disk.NewPool(disk.Config{Readers: 2, Piece: 4096})
	s, err := experts.Open(f.Model, experts.Options{Pool: pool, Account: new(memory.Account), Slots: slots, Policy: "scripted"})
	script.Store(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); pool.Close() })
	return s
}

func TestThePolicyHearsEveryRequestOnceAndInOrder(t *testing.T) {
	f := newFixture(t, random.New(t, 1, 1), 24, true)
	var missed []experts.Key
	p := &scripted{}
	p.miss = func(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
		missed = append(missed, key)
		victim := experts.Key{Layer: 1, Expert: 5}
		switch {
		case len(missed) <= 6:
			return experts.Key{}, experts.Fill
		case evictable(victim):
			return victim, experts.Swap
		}
		return experts.Key{}, experts.Bypass
	}
	s := openScripted(t, f, 8, p) // 6 to keep, 2 in transit
	for _, ids := range [][]int{{5, 4, 3, 2, 1, 0}, {7, 5, 8}, {9, 10}} {
		if err := f.collect(t.Context(), s, 1, ids, len(ids)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.collect(t.Context(), s, 1, []int{5, 9, 10, 0}, 4); err != nil {
		t.Fatal(err)
	}
	// 5 was in the request of 7 and 8, which therefore could not take its place; 9 took it, 10 found nobody to leave.
	keys := func(ids ...int32) (k []experts.Key) {
		for _, id := range ids {
			k = append(k, experts.Key{Layer: 1, Expert: id})
		}
		return k
	}
	if want := keys(5, 4, 3, 2, 1, 0, 7, 8, 9, 10, 5, 10); !slices.Equal(missed, want) {
		t.Errorf("missed %v, want %v", missed, want)
	}
	if want := keys(5, 9, 0); !slices.Equal(p.hits, want) {
		t.Errorf("hit %v, want %v", p.hits, want)
	}
}

func TestResidentExpertsAreLentFirstAndOthersAsTheyArrive(t *testing.T) {
	f := newFixture(t, random.New(t, 3, 1), 24, true)
	s := openScripted(t, f, 24, &scripted{miss: fill})
	if err := f.collect(t.Context(), s, 1, []int{7, 8}, 2); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	slow := f.Index.Expert(1, 2, nil)
	f.files.Set(func(r io.ReaderAt, name string, p []byte, off int64) (int, error) {
		for _, x := range slow {
			if f.Shard(x.Shard).Name() == name && off < x.Offset+x.Bytes && x.Offset < off+int64(len(p)) {
				<-gate
			}
		}
		return r.ReadAt(p, off)
	})
	b, err := s.Request(t.Context(), 1, []int{2, 7, 15, 8})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, want := range [][]int{{7}, {8}, {15, 2}, {2, 15}} {
		x, err := b.Next()
		if err != nil || !slices.Contains(want, x.ID) {
			t.Fatalf("expert %d came (%v), want %v", x.ID, err, want)
		}
		if x.Release(); x.ID == 8 {
			close(gate)
		}
	}
}

func TestAFailedLoadNamesFileOffsetAndTensorAndLeavesNothingBehind(t *testing.T) {
	broken := errors.New("broken")
	for _, policy := range []string{"keeps", "bypasses"} {
		t.Run(policy, func(t *testing.T) {
			f := newFixtureAs(t, random.New(t, 3, 1), 24, true, false)
			p := &scripted{miss: fill}
			if policy == "bypasses" {
				p.miss = func(experts.Key, func(experts.Key) bool) (experts.Key, experts.Decision) {
					return experts.Key{}, experts.Bypass
				}
			}
			s := openScripted(t, f, 24, p)
			bad := f.Index.Expert(2, 9, nil)[3]
			file, off := f.Shard(bad.Shard).Name(), bad.Offset+bad.Bytes-1
			for _, fault := range []disktest.Fault{disktest.FailAt(file, off, broken), disktest.Truncate(file, off)} {
				f.files.Set(fault)
				ids := []int{1, 2, 9, 4}
				err := f.collect(t.Context(), s, 2, ids, len(ids))
				var e *disk.Error
				if !errors.As(err, &e) || e.File != file || e.Off > off || !errors.Is(err, broken) && !errors.Is(err, disk.ErrShort) {
					t.Fatalf("got %v", err)
				}
				if e.Off == off && !strings.Contains(err.Error(), bad.String()+":") {
					t.Errorf("%v does not name %s", err, bad)
				}
				f.files.Set(nil)
				hits := s.Stats()[2].Hits
				if err := f.collect(t.Context(), s, 2, []int{9}, 1); err != nil {
					t.Fatal("the cache does not recover:", err)
				}
				if s.Stats()[2].Hits != hits {
					t.Error("an expert that failed to load was taken for resident")
				}
				if policy == "bypasses" {
					continue
				}
				if !slices.Contains(p.removed, experts.Key{Layer: 2, Expert: 9}) {
					t.Error("the policy was not told")
				}
				break // it is in memory now
			}
		})
	}
}

func TestCancellationStopsWaitingAndLeavesTheCacheUsable(t *testing.T) {
	f := newFixture(t, random.New(t, 3, 1), 24, true)
	p := &scripted{miss: fill}
	s := openScripted(t, f, 24, p)
	gate := make(chan struct{})
	f.files.Set(func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
		<-gate
		return r.ReadAt(p, off)
	})
	ctx, cancel := context.WithCancel(t.Context())
	b, err := s.Request(ctx, 1, []int{1, 2, 3, 4, 5, 6})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(5*time.Millisecond, cancel)
	if _, err := b.Next(); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	time.AfterFunc(5*time.Millisecond, func() { close(gate) })
	b.Close()
	f.files.Set(nil)
	if len(p.removed) == 0 {
		t.Error("the policy keeps experts that never came")
	}
	if err := f.collect(t.Context(), s, 1, []int{6, 5, 4, 3, 2, 1}, 6); err != nil {
		t.Fatal("the cache does not recover:", err)
	}
}

// Close, of a request as of the cache, leaves out the loads that no reader has begun and waits for the others.
func TestClosingCancelsLoadsAndWaitsForThoseUnderWay(t *testing.T) {
	for _, what := range []string{"the request", "the cache"} {
		f := newFixture(t, random.New(t, 3, 1), 24, true)
		s := openScripted(t, f, 24, &scripted{miss: fill}) // of two readers
		gate := make(chan struct{})
		var begun, under atomic.Int64
		f.files.Set(func(r io.ReaderAt, _ string, p []byte, off int64) (int, error) {
			begun.Add(1)
			under.Add(1)
			defer under.Add(-1)
			<-gate
			return r.ReadAt(p, off)
		})
		b, err := s.Request(t.Context(), 1, []int{1, 2, 3, 4, 5, 6})
		if err != nil {
			t.Fatal(err)
		}
		for begun.Load() < 2 {
			time.Sleep(time.Millisecond)
		}
		closed := make(chan bool)
		go func() {
			defer close(closed)
			if what == "the cache" {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			} else {
				b.Close()
			}
		}()
		select {
		case <-closed:
			t.Errorf("%s is closed while %d loads write to its memory", what, under.Load())
		case <-time.After(20 * time.Millisecond):
		}
		close(gate)
		<-closed
		// A reader whose direct read was refused reads the same piece again.
		if n := begun.Load(); n > 4 || under.Load() > 0 {
			t.Errorf("%s is closed: %d reads were begun by two readers, %d go on", what, n, under.Load())
		}
		if _, err := b.Next(); err == nil {
			t.Errorf("%s is closed, and the request goes on", what)
		}
		if _, err := s.Request(t.Context(), 1, []int{1}); (err == nil) != (what == "the request") {
			t.Errorf("a request after %s was closed: %v", what, err)
		}
	}
}

func TestAPolicyThatBreaksItsRulesIsAnError(t *testing.T) {
	f := newFixture(t, random.New(t, 3, 1), 24, true)
	for name, victim := range map[string]experts.Key{
		"absent": {Layer: 1, Expert: 20}, "just loading": {Layer: 1, Expert: 1}, "nonsense": {Layer: -9, Expert: 1 << 30},
	} {
		p := &scripted{}
		p.miss = func(key experts.Key, _ func(experts.Key) bool) (experts.Key, experts.Decision) {
			if key.Expert == 1 {
				return key, experts.Fill
			}
			return victim, experts.Swap
		}
		if err := f.collect(t.Context(), openScripted(t, f, 8, p), 1, []int{1, 2}, 2); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := f.collect(t.Context(), openScripted(t, f, 4, &scripted{miss: fill}), 1, []int{1, 2, 3, 4, 5}, 5); err == nil {
		t.Error("more were kept than there is room for")
	}
}

func TestAPolicyThatPanicsLeavesTheCacheUsable(t *testing.T) {
	f := newFixture(t, random.New(t, 3, 1), 24, true)
	p := &scripted{miss: fill}
	s := openScripted(t, f, 24, p)
	p.miss = func(key experts.Key, _ func(experts.Key) bool) (experts.Key, experts.Decision) {
		if key.Expert == 3 {
			panic("no decision")
		}
		return key, experts.Fill
	}
	func() {
		defer func() {
			if recover() != "no decision" {
				t.Error("no panic")
			}
		}()
		s.Request(t.Context(), 1, []int{1, 2, 3, 4})
	}()
	p.miss = fill
	if err := f.collect(t.Context(), s, 1, []int{4, 3, 2, 1}, 4); err != nil {
		t.Error(err)
	}
}

func TestMisuseIsAnError(t *testing.T) {
	f := newFixture(t, random.New(t, 3, 1), 24, true)
	s := openScripted(t, f, 8, &scripted{miss: fill})
	for _, bad := range []struct {
		layer int
		ids   []int
	}{{0, []int{1}}, {-1, []int{1}}, {4, []int{1}}, {1, []int{24}}, {1, []int{-1}}, {1, []int{3, 3}}} {
		if _, err := s.Request(t.Context(), bad.layer, bad.ids); err == nil {
			t.Errorf("layer %d, experts %v were accepted", bad.layer, bad.ids)
		}
	}
	b, err := s.Request(t.Context(), 1, []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Request(t.Context(), 1, []int{3}); err == nil {
		t.Error("two requests at a time")
	}
	x, err := b.Next()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Next(); err == nil {
		t.Error("two experts were lent at a time")
	}
	b.Close()
	b.Close()
	if _, err := s.Request(t.Context(), 1, []int{3}); err == nil {
		t.Error("a request began while an expert of the one before was lent")
	}
	x.Release()
	if err := f.collect(t.Context(), s, 1, []int{3, 1}, 2); err != nil {
		t.Error(err)
	}
	if _, err := b.Next(); err == nil {
		t.Error("a closed request goes on")
	}
	for _, slots := range []int{-1, 0, 1} {
		if _, err := experts.Open(f.Model, experts.Options{Account: new(memory.Account), Slots: slots, Policy: "lru"}); err == nil {
			t.Errorf("a cache of %d slots was opened", slots)
		}
	}
	if _, err := experts.Open(f.Model, experts.Options{Account: new(memory.Account), Slots: 8,
		Policy: "belady"}); !errors.Is(err, experts.ErrOffline) {
		t.Errorf("an offline policy: %v", err)
	}
}
