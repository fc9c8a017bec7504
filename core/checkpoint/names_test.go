package checkpoint

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// withoutPrefix renames the text model's tensors as checkpoints of the text model alone do.
func withoutPrefix(s shards) {
	for i := range s {
		for j := range s[i] {
			s[i][j].Name = strings.TrimPrefix(s[i][j].Name, prefix)
		}
	}
}

func TestAModelWithoutThePrefixIsTheSameModel(t *testing.T) {
	for _, quantized := range []bool{true, false} {
		a, b := small(t, quantized, nil), small(t, quantized, withoutPrefix)
		if !bytes.Contains(b[indexFile].data, []byte(`"lm_head.weight"`)) || bytes.Contains(b[indexFile].data, []byte(prefix)) {
			t.Fatal("nothing was renamed")
		}
		for _, withIndex := range []bool{true, false} {
			if !withIndex {
				delete(a, indexFile)
				delete(b, indexFile)
			}
			if list, _ := examined(t, b); len(list) > 0 {
				t.Errorf("problems: %v", list)
			}
			want, got := open(t, a), open(t, b)
			names := func(m *Model) (list []string) {
				for x := range m.Index.All() {
					list = append(list, x.Name)
				}
				return list
			}
			if !slices.Equal(names(want), names(got)) {
				t.Errorf("the names differ: %v", names(got))
			}
			for x := range want.Index.All() {
				y, ok := got.Index.Lookup(x.Name)
				p, q := make([]byte, x.Bytes), make([]byte, x.Bytes)
				if !ok || want.Read(p, x, 0) != nil || got.Read(q, y, 0) != nil || !bytes.Equal(p, q) {
					t.Fatalf("%s differs", x.Name)
				}
			}
			if n := len(got.Index.Expert(2, 1, nil)); n == 0 {
				t.Error("no experts")
			}
		}
		// A single file is shown as it is, whatever its tensors are called.
		x, err := ReadFile(b, shardName(2, 3))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := x.Lookup("lm_head.weight"); !ok {
			t.Error("the name of a tensor is not the one in the file")
		}
	}
}

func TestNamesWithAndWithoutThePrefixAreNotMixed(t *testing.T) {
	const norm = "language_model.model.layers.3.input_layernorm.weight"
	bare := strings.TrimPrefix(norm, prefix)
	for _, withIndex := range []bool{true, false} {
		mixed := func(edit func(shards)) memFiles {
			files := small(t, true, edit)
			if !withIndex {
				delete(files, indexFile)
			}
			return files
		}
		refuses(t, mixed(func(s shards) { s.find(t, norm).Name = bare }), ErrFormat, "tensor "+bare+": it does not begin with language_model.")
		refuses(t, mixed(func(s shards) { withoutPrefix(s); s.find(t, bare).Name = norm }), ErrFormat,
			"tensor "+norm+": it begins with language_model.")
	}
	files := small(t, true, nil)
	files.put(indexFile, small(t, true, withoutPrefix)[indexFile].data)
	refuses(t, files, ErrFormat, "it begins with language_model., which the names before it do not")
}

func TestNamesOfTensorsAreReadInBothForms(t *testing.T) {
	const layer = "model.layers.12."
	for _, c := range []struct {
		name string
		want Name
		ok   bool
	}{
		{"model.norm.weight", Name{-1, -1, "model.norm.weight"}, true},
		{"lm_head.weight", Name{-1, -1, "lm_head.weight"}, true},
		{layer + "self_attn.A_log", Name{12, -1, "self_attn.A_log"}, true},
		{layer + "block_sparse_moe.gate.weight", Name{12, -1, "block_sparse_moe.gate.weight"}, true},
		{layer + "block_sparse_moe.experts.7.w1.weight_scale", Name{12, 7, "w1.weight_scale"}, true},
		{"model.layers.x.norm", Name{-1, -1, "model.layers.x.norm"}, true},
		{"model.layers.-1.norm", Name{-1, -1, "model.layers.-1.norm"}, true},
		{"model.layers.99999999999.norm", Name{-1, -1, "model.layers.99999999999.norm"}, true},
		{"vision_tower.patch_embed.proj.weight", Name{-1, -1, "vision_tower.patch_embed.proj.weight"}, false},
		{"", Name{-1, -1, ""}, false},
	} {
		names := []string{c.name}
		if c.ok {
			names = append(names, TextName(c.name))
		}
		for _, name := range names {
			if got, ok := ParseName(name); got != c.want || ok != c.ok {
				t.Errorf("%s is %+v %v", name, got, ok)
			}
		}
	}
	for s := range Required(released(), true) {
		n, ok := ParseName(s.Name())
		if !ok || n.Layer != s.Layer || n.Expert != s.Expert {
			t.Fatalf("%s is %+v %v", s.Name(), n, ok)
		}
	}
}

func TestScalesMayBeCalledE8M0(t *testing.T) {
	const w1 = "language_model.model.layers.1.block_sparse_moe.experts.0.w1."
	for name, ok := range map[string]bool{w1 + "weight_scale": true, w1 + "weight_packed": false} {
		files := small(t, true, func(s shards) { s.find(t, name).DType = F8E8M0 })
		if list, _ := examined(t, files); (len(list) == 0) != ok {
			t.Errorf("%s as F8_E8M0: %v", name, list)
		}
		if !ok {
			continue
		}
		if parts := open(t, files).Index.Expert(1, 0, nil); len(parts) != 6 || parts[1].DType != U8 {
			t.Errorf("the expert has %v", parts)
		}
	}
}
