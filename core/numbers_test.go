package core_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
)

// damaged is a checkpoint in which the bytes of one tensor are others, once on is set.
type damaged struct {
	disk.Files
	tensor checkpoint.Tensor
	shard  string
	on     atomic.Bool
	fill   byte  // they are all this: 0xff makes NaN of BF16, F16 and F32
	err    error // instead of the bytes
}

func damage(t *testing.T, dir, tensor string) *damaged {
	t.Helper()
	m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	x, ok := m.Index.Lookup(tensor)
	if !ok {
		t.Fatal("no tensor ", tensor)
	}
	d := &damaged{Files: disk.Dir(dir), tensor: x, shard: m.Index.Shards()[x.Shard].Name, fill: 0xff}
	d.on.Store(true)
	return d
}

func (d *damaged) Open(name string) (disk.File, error) {
	f, err := d.Files.Open(name)
	if err == nil && name == d.shard {
		f = &damagedFile{f, d}
	}
	return f, err
}

type damagedFile struct {
	disk.File
	d *damaged
}

func (f *damagedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if !f.d.on.Load() {
		return n, err
	}
	for i := range p[:n] {
		if at := off + int64(i) - f.d.tensor.Offset; at >= 0 && at < f.d.tensor.Bytes {
			if f.d.err != nil {
				return i, f.d.err
			}
			p[i] = f.d.fill
		}
	}
	return n, err
}

// NaN in any weight ends the pass with the layer it shows in, and no token is made of it.
func TestNumbersThatAreNoneEndThePassWithTheirLayer(t *testing.T) {
	const dir = "../conformance/testdata/tiny-mx"
	for tensor, where := range map[string]string{
		"language_model.model.layers.0.input_layernorm.weight":  "layer 0",
		"language_model.model.layers.3.self_attn.o_proj.weight": "layer 3",
		"language_model.model.layers.4.mlp_res_norm.weight":     "layer 4",
		"language_model.lm_head.weight":                         "lm_head",
		"language_model.model.norm.weight":                      "lm_head",
	} {
		e := open(t, core.Options{Files: damage(t, dir, tensor)})
		s := sequence(t, e)
		out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 2}, func(id int) error {
			t.Errorf("%s: token %d", tensor, id)
			return nil
		})
		if !errors.Is(err, core.ErrNumbers) || !strings.Contains(err.Error(), where) || len(out.IDs) != 0 || !errors.Is(s.Err(), core.ErrBroken) {
			t.Errorf("%s: %v, %v", tensor, err, out.IDs)
		}
	}
}

// A score that is not a number is one that no expert is chosen by, which must not pass for a choice.
func TestARouterWhoseScoresAreNoNumbersEndsThePass(t *testing.T) {
	const dir, tensor = "../conformance/testdata/tiny-mx", "language_model.model.layers.2.block_sparse_moe.gate."
	for fill, what := range map[byte]string{0xff: "NaN", 0x7f: "infinity, as the sum of numbers"} {
		files := damage(t, dir, tensor+"weight")
		files.fill = fill
		files.tensor.Bytes /= 7 // those of one expert, which nobody would miss
		files.tensor.Offset += 5 * files.tensor.Bytes
		chosen := 0
		e := open(t, core.Options{Files: files, Routed: func(layer int, _ []int) {
			if layer == 2 {
				chosen++
			}
		}})
		s := sequence(t, e)
		out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 2}, nil)
		if !errors.Is(err, core.ErrNumbers) || !strings.Contains(err.Error(), "layer 2") ||
			!strings.Contains(err.Error(), "router's scores of row 0") {
			t.Errorf("%s: %v", what, err)
		}
		if len(out.IDs) != 0 || chosen != 0 || !errors.Is(s.Err(), core.ErrBroken) {
			t.Errorf("%s: ids %v, %d choices, %v", what, out.IDs, chosen, s.Err())
		}
	}
	const bias = tensor + "e_score_correction_bias"
	files := damage(t, dir, bias)
	e, err := core.Open(t.Context(), core.Options{Files: files})
	if !errors.Is(err, core.ErrNumbers) || !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), bias) {
		t.Errorf("a bias of NaN: %v", err)
		if err == nil {
			e.Close()
		}
	}
}

func TestLogitsThatAreAllEqualAreNoAnswer(t *testing.T) {
	files := damage(t, "../conformance/testdata/tiny-mx", "language_model.lm_head.weight")
	files.fill = 0
	e := open(t, core.Options{Files: files})
	s := sequence(t, e)
	out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 2}, nil)
	if !errors.Is(err, core.ErrNumbers) || !strings.Contains(err.Error(), "all logits are equal") {
		t.Errorf("%v", err)
	}
	if len(out.IDs) != 0 || !errors.Is(s.Err(), core.ErrBroken) {
		t.Errorf("%v, %v", err, out.IDs)
	}
}

// A disk that fails in the middle of a text: a named error, no token after it, what was saved before is good, and other
// sequences go on once the disk does.
func TestAFailingDiskEndsTheTextAndNothingElse(t *testing.T) {
	const dir = "../conformance/testdata/tiny-mx"
	broken := errors.New("input/output error")
	for _, tensor := range []string{
		"language_model.model.layers.3.self_attn.o_proj.weight",
		"language_model.model.layers.2.block_sparse_moe.shared_experts.up_proj.weight",
		"language_model.lm_head.weight",
	} {
		files := damage(t, dir, tensor)
		files.err = broken
		files.on.Store(false)
		e := open(t, core.Options{Files: files, Sequences: 3, TileBytes: 8 << 10, TrunkMemory: 100 << 10}) // nearly everything streams
		s, other := sequence(t, e), sequence(t, e)
		if _, err := e.Generate(t.Context(), other, prompt, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
			t.Fatal(err)
		}
		saved := t.TempDir() + "/saved"
		out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 9}, func(int) error {
			if len(s.IDs()) == len(prompt)+3 {
				err := s.Save(saved, nil)
				files.on.Store(true)
				return err
			}
			return nil
		})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), tensor) || len(out.IDs) != 3 {
			t.Errorf("%s: %v after %d tokens", tensor, err, len(out.IDs))
		}
		if _, err := e.Generate(t.Context(), s, nil, core.GenerateOptions{MaxTokens: 1}, nil); !errors.Is(err, core.ErrBroken) {
			t.Errorf("%s: going on: %v", tensor, err)
		}
		files.on.Store(false)
		if _, err := e.Generate(t.Context(), other, nil, core.GenerateOptions{MaxTokens: 3}, nil); err != nil {
			t.Errorf("%s: another sequence: %v", tensor, err)
		}
		restored, _, err := e.LoadSequence(saved)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Generate(t.Context(), restored, nil, core.GenerateOptions{MaxTokens: 3}, nil); err != nil {
			t.Errorf("%s: the saved sequence: %v", tensor, err)
		}
		restored.Close()
	}
}
