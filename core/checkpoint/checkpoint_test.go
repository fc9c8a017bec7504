package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

const (
	fixtures = "../../../shared/fixtures/"
	demo     = "../../presets/demo/checkpoint"
)

// open is Open for a checkpoint that must be fine.
func open(t testing.TB, files disk.Files) *Model {
	t.Helper()
	m, err := Open(context.Background(), files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func needs(t testing.TB, path string) string {
	t.Helper()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		t.Skip("no ", path)
	}
	return path
}

// refuses checks that Open fails with one line that has all of want, matches kind, and leaves no file open.
func refuses(t *testing.T, files memFiles, kind error, want ...string) {
	t.Helper()
	opened := 0
	for _, f := range files {
		f.opened = &opened
	}
	_, err := Open(context.Background(), files)
	if !errors.Is(err, kind) {
		t.Errorf("%v, want one that is %q", err, kind)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v, want %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "memory") {
		t.Errorf("not one line that says where: %q", err)
	}
	x, err := Examine(context.Background(), files)
	switch {
	case err != nil:
		t.Error("examine:", err)
	case len(x.Problems) == 0:
		t.Error("examined, it has no problems")
	default:
		x.Close()
	}
	if opened != 0 {
		t.Errorf("%d files are left open", opened)
	}
}

// A checkpoint is made of shards of tensors; edit changes it before it is written.
type shards [][]Named

func (s shards) find(t testing.TB, name string) *Named {
	t.Helper()
	for i := range s {
		for j := range s[i] {
			if s[i][j].Name == name {
				return &s[i][j]
			}
		}
	}
	t.Fatal("no ", name)
	return nil
}

func (s shards) reshape(t testing.TB, name string, dtype DType, shape ...int) {
	t.Helper()
	size, _ := byteSize(dtype, shape)
	*s.find(t, name) = Named{name, dtype, shape, Bytes(make([]byte, size))}
}

func (s shards) remove(t testing.TB, name string) {
	s.find(t, name)
	for i := range s {
		s[i] = slices.DeleteFunc(s[i], func(n Named) bool { return n.Name == name })
	}
}

func shardName(i, n int) string { return fmt.Sprintf("model-%05d-of-%06d.safetensors", i+1, n) }

// small is a checkpoint of testdata/small.json in three shards. Each tensor's bytes begin with its number.
func small(t testing.TB, quantized bool, edit func(shards)) memFiles {
	t.Helper()
	m := memFiles{}
	config := testdata(t, "small.json")
	if !quantized {
		config = testdata(t, "flat.json")
	}
	m.put("config.json", config)
	c, err := ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s := make(shards, 3)
	n := 0
	for spec := range Required(c, quantized) {
		size, _ := byteSize(spec.DType, spec.Shape)
		data := make([]byte, size)
		copy(data, binary.LittleEndian.AppendUint32(nil, uint32(n)))
		i := min(2, (spec.Layer+5)%5/2)
		s[i] = append(s[i], Named{spec.Name(), spec.DType, spec.Shape, Bytes(data)})
		n++
	}
	s[2] = append(s[2], Named{"vision_tower.patch_embed.proj.weight", BF16, []int{3, 3}, Bytes(make([]byte, 18))})
	if edit != nil {
		edit(s)
	}
	index := []string{}
	for i := range s {
		var b bytes.Buffer
		if err := WriteFile(&b, s[i]); err != nil {
			t.Fatal(err)
		}
		m.put(shardName(i, 3), b.Bytes())
		for _, x := range s[i] {
			index = append(index, fmt.Sprintf("%q: %q", x.Name, shardName(i, 3)))
		}
	}
	m.put(indexFile, []byte(`{"metadata": {"total_size": 1}, "weight_map": {`+strings.Join(index, ", ")+`}}`))
	return m
}

func TestOpensCheckpointsOfEveryForm(t *testing.T) {
	for _, c := range []struct {
		name, dir string
		quantized bool
		tensors   int
		stop      []int
	}{
		{"demo", demo, true, 2644, []int{1282}},
		{"plain experts", fixtures + "checkpoints/anchor-1", false, 4668, []int{251}},
		{"mx-small", fixtures + "checkpoints/mx-small", true, 916, []int{379}},
		{"mx-odd", fixtures + "checkpoints/mx-odd", true, 756, []int{510}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := needs(t, c.dir)
			for _, files := range []disk.Files{disk.Dir(dir), disk.FS(os.DirFS(dir), "embedded")} {
				m := open(t, files)
				if m.Quantized != c.quantized || m.Index.Len() != c.tensors || !slices.Equal(m.StopIDs, c.stop) {
					t.Errorf("quantized %v, %d tensors, stop %v", m.Quantized, m.Index.Len(), m.StopIDs)
				}
				n := 0
				for range Required(m.Config, m.Quantized) {
					n++
				}
				if n != c.tensors {
					t.Errorf("%d tensors are required", n)
				}
			}
		})
	}
}

func TestEveryTensorIsFoundWithItsBytes(t *testing.T) {
	for _, quantized := range []bool{true, false} {
		for _, index := range []bool{true, false} {
			files := small(t, quantized, nil)
			if !index {
				delete(files, indexFile)
			}
			m := open(t, files)
			n := uint32(0)
			for s := range Required(m.Config, quantized) {
				x, ok := m.Index.Lookup(s.Name())
				if !ok || !s.Accepts(x.DType, x.Shape) || x.String() != s.Name() {
					t.Fatalf("%s: %v %+v", s.Name(), ok, x)
				}
				var p [4]byte
				want := binary.LittleEndian.AppendUint32(nil, n)
				if err := m.Read(p[:min(4, x.Bytes)], x, 0); err != nil || !bytes.Equal(p[:min(4, x.Bytes)], want[:min(4, x.Bytes)]) {
					t.Fatalf("%s: %v %v, want %v", s.Name(), err, p, want)
				}
				n++
			}
			if m.Index.Len() != int(n)+1 || m.Quantized != quantized {
				t.Errorf("%d of %d tensors", m.Index.Len(), n)
			}
			if x, ok := m.Index.Lookup("vision_tower.patch_embed.proj.weight"); !ok || x.Bytes != 18 {
				t.Error("what the text model ignores is not indexed")
			}
			if m.Shard(1).Name() != "memory/"+m.Index.Shards()[1].Name || m.Index.Shards()[1].Name != shardName(1, 3) {
				t.Error(m.Index.Shards())
			}
			last := Tensor{}
			for x := range m.Index.All() {
				if x.Shard < last.Shard || x.Shard == last.Shard && x.Offset < last.Offset+last.Bytes {
					t.Fatalf("%v comes after %v", x, last)
				}
				last = x
			}
		}
	}
}

func TestExpertsAreFoundWithoutNamesOrAllocation(t *testing.T) {
	for quantized, suffixes := range map[bool][]string{
		true:  {"w1.weight_packed", "w1.weight_scale", "w2.weight_packed", "w2.weight_scale", "w3.weight_packed", "w3.weight_scale"},
		false: {"w1.weight", "w2.weight", "w3.weight"},
	} {
		m := open(t, small(t, quantized, nil))
		parts := m.Index.Expert(3, 2, nil)
		if len(parts) != len(suffixes) {
			t.Fatal(parts)
		}
		for i, s := range suffixes {
			want, _ := m.Index.Lookup("language_model.model.layers.3.block_sparse_moe.experts.2." + s)
			if parts[i].Name != "" || parts[i].String() != want.Name {
				t.Errorf("%s is %s", s, parts[i])
			}
			parts[i].Name = want.Name
			if !reflect.DeepEqual(parts[i], want) {
				t.Errorf("%+v, want %+v", parts[i], want)
			}
		}
		for _, at := range [][2]int{{0, 0}, {3, 4}, {5, 0}, {-1, 0}, {1, -1}, {1<<32 + 1, 0}, {1, 1 << 32}} {
			if got := m.Index.Expert(at[0], at[1], parts[:1]); len(got) != 1 {
				t.Errorf("expert %v is there", at)
			}
		}
		if n := testing.AllocsPerRun(100, func() { parts = m.Index.Expert(4, 1, parts[:0]) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

func TestShardFaultsAreListedTogether(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		files := small(t, true, nil)
		delete(files, shardName(0, 3))
		delete(files, shardName(2, 3))
		refuses(t, files, ErrFormat, shardName(0, 3)+" is missing; "+shardName(2, 3)+" is missing")
	})
	t.Run("missing without an index", func(t *testing.T) {
		files := small(t, true, nil)
		delete(files, indexFile)
		delete(files, shardName(0, 3))
		delete(files, shardName(2, 3))
		refuses(t, files, ErrFormat, "2 of 3 shards are missing: "+shardName(0, 3)+", "+shardName(2, 3))
	})
	t.Run("truncated, grown, replaced and missing", func(t *testing.T) {
		files := small(t, true, func(s shards) {
			for i := range s {
				s[i] = append(s[i], Named{fmt.Sprintf("mm_projector.%d", i), U8, []int{3 << 20}, Bytes(make([]byte, 3<<20))})
			}
		})
		f := files[shardName(0, 3)]
		f.size -= 2 << 20
		files[shardName(1, 3)].size += 5
		files.put(shardName(2, 3), []byte("version https://git-lfs.github.com/spec/v1\n"))
		refuses(t, files, ErrFormat, shardName(0, 3)+": tensor mm_projector.0: it ends at byte", "2097152 bytes too short",
			shardName(1, 3)+": the file is 5 bytes longer", shardName(2, 3)+": this is a git-lfs pointer")
	})
	t.Run("all missing", func(t *testing.T) {
		files := small(t, true, nil)
		for i := range 3 {
			delete(files, shardName(i, 3))
		}
		refuses(t, files, ErrFormat, shardName(0, 3), shardName(1, 3), shardName(2, 3))
		delete(files, indexFile)
		refuses(t, files, ErrFormat, "no model.safetensors.index.json, model.safetensors or model-*.safetensors")
	})
	t.Run("a tensor in two shards", func(t *testing.T) {
		files := small(t, true, func(s shards) { s[1] = append(s[1], s[0][3]) })
		delete(files, indexFile)
		refuses(t, files, ErrFormat, shardName(1, 3)+": tensor language_model.model.layers.0.mlp_res_norm.weight: it is in "+shardName(0, 3)+" too")
	})
	t.Run("reading fails", func(t *testing.T) {
		files := small(t, true, nil)
		files[shardName(1, 3)].fail = 100
		refuses(t, files, errDisk, "memory/"+shardName(1, 3))
		if _, err := Open(context.Background(), files); errors.Is(err, ErrFormat) {
			t.Error("a disk's fault is called damage:", err)
		}
	})
}

func TestIndexFileIsHeldToItsWord(t *testing.T) {
	const norm = "language_model.model.norm.weight"
	edit := func(old, new string) memFiles {
		files := small(t, true, nil)
		text := string(files[indexFile].data)
		if !strings.Contains(text, old) {
			t.Fatal("no ", old)
		}
		files.put(indexFile, []byte(strings.Replace(text, old, new, 1)))
		return files
	}
	at2 := `"` + norm + `": "` + shardName(2, 3) + `"`
	for _, c := range []struct {
		name, old, new string
		want           []string
	}{
		{"tensor in another shard", at2, `"` + norm + `": "` + shardName(0, 3) + `"`,
			[]string{shardName(2, 3) + ": tensor " + norm, "puts it in " + shardName(0, 3)}},
		{"tensor nowhere", at2, at2 + `, "more.7.x": "` + shardName(1, 3) + `"`,
			[]string{"1 tensors are not in the shards", "more.7.x (" + shardName(1, 3) + ")"}},
		{"shard that is missing", at2, at2 + `, "more.7.x": "model-9.safetensors"`, []string{"model-9.safetensors is missing"}},
		{"tensor twice", at2, at2 + `, "language_model.model.norm.weigh\u0074": "` + shardName(2, 3) + `"`,
			[]string{indexFile + ": tensor " + norm + " a second time"}},
		{"weight_map twice", `"weight_map"`, `"weight_map": {}, "weight_map"`, []string{"a second weight_map"}},
		{"no weight_map", `"weight_map"`, `"Weight_map"`, []string{indexFile + ": no tensors in weight_map"}},
		{"empty file", `{"metadata"`, `{"weight_map": {}} {"metadata"`, []string{"after the end"}},
		{"truncated", `"}}`, ``, []string{indexFile + ": a string without its end"}},
		{"number for a file", at2, `"` + norm + `": 3`, []string{"where a string is needed"}},
		{"file elsewhere", at2, `"` + norm + `": "../x.safetensors"`, []string{`"../x.safetensors", which is not the name of a file beside`}},
		{"file in a folder", at2, `"` + norm + `": "a\\x.safetensors"`, []string{"not the name of a file beside"}},
		{"absolute file", at2, `"` + norm + `": "/etc/passwd"`, []string{"not the name of a file beside"}},
		{"drive", at2, `"` + norm + `": "C:x"`, []string{"not the name of a file beside"}},
		{"file without a name", at2, `"` + norm + `": ""`, []string{"not the name of a file beside"}},
		{"folder", at2, `"` + norm + `": ".."`, []string{"not the name of a file beside"}},
		{"line break in a file's name", at2, `"` + norm + `": "a\nb"`, []string{"not the name of a file beside"}},
		{"NUL in a name", at2, at2 + `, "a\u0000b": "` + shardName(2, 3) + `"`, []string{"a NUL in it"}},
	} {
		t.Run(c.name, func(t *testing.T) { refuses(t, edit(c.old, c.new), ErrFormat, c.want...) })
	}
	t.Run("line break in a tensor's name", func(t *testing.T) {
		refuses(t, edit(at2, at2+`, "a\nb": "`+shardName(2, 3)+`"`), ErrFormat, `"a\nb"`)
	})
	t.Run("many tensors nowhere", func(t *testing.T) {
		more := ""
		for i := range 50 {
			more += fmt.Sprintf(`, "more.%d.x": "%s"`, i, shardName(1, 3))
		}
		refuses(t, edit(at2, at2+more), ErrFormat, "50 tensors are not in", "more.19.x", " and 30 more")
	})
	t.Run("reading fails", func(t *testing.T) {
		files := edit(at2, at2)
		files[indexFile].fail = 50
		refuses(t, files, errDisk)
	})
	t.Run("other order, extra fields, unlisted tensors", func(t *testing.T) {
		files := edit(at2+",", "")
		files.put(indexFile, bytes.Replace(files[indexFile].data, []byte(`{"metadata"`), []byte(` {"x": [{}], "metadata"`), 1))
		open(t, files)
	})
}

func TestShardsAreFoundWithoutAnIndexFile(t *testing.T) {
	one := func() memFiles {
		files := small(t, true, func(s shards) { s[0] = append(append(s[0], s[1]...), s[2]...); s[1], s[2] = nil, nil })
		return memFiles{"config.json": files["config.json"], "x": files[shardName(0, 3)]}
	}
	for _, name := range []string{"model.safetensors", "model-1-of-1.safetensors", "model-00001-of-00001.safetensors", "model-all.safetensors"} {
		files := one()
		files[name] = files["x"]
		m := open(t, files)
		if s := m.Index.Shards(); len(s) != 1 || s[0].Name != name {
			t.Error(s)
		}
	}
	files := one()
	files["model.safetensors"] = files["x"]
	files.put("model-00001-of-00002.safetensors", []byte("left over"))
	open(t, files)
	for _, name := range []string{"other.safetensors", "model.safetensors.tmp", "model-00001-of-00001.bin", "Model.safetensors"} {
		files := one()
		files[name] = files["x"]
		refuses(t, files, ErrFormat, "no model.safetensors.index.json")
	}
	for want, names := range map[string][]string{
		"2 of 3 shards are missing: model-00001-of-000003.safetensors, model-00002-of-000003.safetensors": {"model-00003-of-000003.safetensors"},
		"beside shards of 00002":              {"model-00001-of-00002.safetensors", "model-00001-of-00003.safetensors"},
		"model-00000-of-00002.safetensors":    {"model-00000-of-00002.safetensors"},
		"not a shard number from 1 to 2":      {"model-3-of-2.safetensors"},
		"model-01-of-2.safetensors: shard 1 ": {"model-01-of-2.safetensors", "model-001-of-2.safetensors"},
		"from 1 to 999999999999":              {"model-1-of-999999999999.safetensors"},
		"99 of 100 shards are missing: ":      {"model-1-of-100.safetensors"},
		"model-21-of-100.safetensors and 79 ": {"model-1-of-100.safetensors"},
	} {
		files := one()
		for _, name := range names {
			files[name] = files["x"]
		}
		refuses(t, files, ErrFormat, want)
	}
}

func TestMissingAndMisshapenTensorsAreListedTogether(t *testing.T) {
	const l = "language_model.model.layers."
	files := small(t, true, func(s shards) {
		s.remove(t, "language_model.lm_head.weight")
		s.remove(t, l+"2.block_sparse_moe.experts.3.w2.weight_scale")
		s.reshape(t, l+"1.self_attn.o_proj.weight", BF16, 23, 24)
		s.reshape(t, l+"3.self_attn.q_a_proj.weight", I16, 12, 24)
		s.reshape(t, l+"4.block_sparse_moe.experts.0.w1.weight_packed", U8, 16, 64)
		s.reshape(t, l+"4.block_sparse_moe.experts.0.w1.weight_scale", F16, 64, 1)
		s.reshape(t, l+"0.input_layernorm.weight", U8, 24)
		s.reshape(t, l+"0.mlp_res_proj.weight", BF16, 24)
	})
	refuses(t, files, ErrFormat, "2 tensors that config.json asks for are missing: "+l+"2.block_sparse_moe.experts.3.w2.weight_scale, language_model.lm_head.weight",
		"6 tensors do not fit config.json: ",
		l+"1.self_attn.o_proj.weight is BF16 [23 24], not BF16 [24 24]",
		l+"3.self_attn.q_a_proj.weight is I16 [12 24], not BF16 [12 24]",
		l+"4.block_sparse_moe.experts.0.w1.weight_packed is U8 [16 64], not U8 [64 16]",
		l+"4.block_sparse_moe.experts.0.w1.weight_scale is F16 [64 1], not U8 [64 1]",
		l+"0.input_layernorm.weight is U8 [24], not BF16 [24]",
		l+"0.mlp_res_proj.weight is BF16 [24], not BF16 [1 24]")

	files = small(t, true, nil)
	files.put("config.json", bytes.Replace(files["config.json"].data, []byte(`"hidden_size": 24`), []byte(`"hidden_size": 23`), 1))
	refuses(t, files, ErrFormat, "tensors do not fit config.json", " more")

	files = small(t, true, nil)
	files.put("config.json", bytes.Replace(files["config.json"].data, []byte(`"num_experts": 4`), []byte(`"num_experts": 40`), 1))
	refuses(t, files, ErrFormat, "864 tensors that config.json asks for are missing", "experts.4.w1.weight_packed", "and 844 more")
}

func TestFormsOfTensorsThatAreAccepted(t *testing.T) {
	const attn = "language_model.model.layers.1.self_attn."
	for _, c := range []struct {
		name  string
		dtype DType
		shape []int
		ok    bool
	}{
		{"A_log", F32, []int{8}, true},
		{"A_log", F32, []int{3}, true},
		{"A_log", BF16, []int{1, 1, 3, 1}, true},
		{"A_log", F16, []int{1, 8}, true},
		{"A_log", F32, []int{4}, false},
		{"A_log", F32, []int{24}, false},
		{"A_log", F32, []int{3, 8}, false},
		{"A_log", F64, []int{8}, false},
		{"q_conv1d.weight", BF16, []int{24, 1, 4}, true},
		{"k_conv1d.weight", F32, []int{24, 4}, true},
		{"v_conv1d.weight", F32, []int{4, 24}, false},
		{"v_conv1d.weight", F32, []int{24, 1, 3}, false},
		{"dt_bias", BF16, []int{24}, true},
		{"dt_bias", F16, []int{24}, true},
		{"dt_bias", F32, []int{3, 8}, false},
		{"b_proj.weight", F32, []int{3, 24}, true},
		{"b_proj.weight", F16, []int{3, 24}, true},
		{"b_proj.weight", F8E4M3, []int{3, 24}, false},
		{"b_proj.weight", BF16, []int{24, 3}, false},
	} {
		files := small(t, true, func(s shards) { s.reshape(t, attn+c.name, c.dtype, c.shape...) })
		m, err := Open(context.Background(), files)
		if (err == nil) != c.ok {
			t.Errorf("%s as %s %v: %v", c.name, c.dtype, c.shape, err)
		}
		if m != nil {
			m.Close()
		}
	}
	// A head width below the number of heads has no room for one value a head.
	wide := released()
	wide.KDA.Heads = wide.KDA.HeadDim + 1
	for s := range Required(wide, true) {
		if strings.HasSuffix(s.Name(), "A_log") && (s.Accepts(F32, []int{128}) || !s.Accepts(F32, []int{129})) {
			t.Fatal("A_log may be too short")
		}
	}
	for _, dtype := range []DType{BF16, F16, F32, I8} {
		files := small(t, false, func(s shards) {
			s.reshape(t, "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight", dtype, 64, 32)
		})
		if _, err := Open(context.Background(), files); (err == nil) != (dtype != I8) {
			t.Errorf("plain expert as %s: %v", dtype, err)
		}
	}
}

func TestOptionalTensorsFollowTheConfig(t *testing.T) {
	files := small(t, true, func(s shards) {
		for i := range 5 {
			if i > 0 {
				s.remove(t, fmt.Sprintf("language_model.model.layers.%d.block_sparse_moe.routed_expert_norm.weight", i))
			}
			if i > 2 {
				s.remove(t, fmt.Sprintf("language_model.model.layers.%d.self_attn.g_proj.weight", i))
			}
		}
	})
	refuses(t, files.clone(), ErrFormat, "6 tensors that config.json asks for are missing")
	config := string(files["config.json"].data)
	for _, f := range []string{"mla_use_output_gate", "latent_moe_use_norm"} {
		config = strings.Replace(config, `"`+f+`": true`, `"`+f+`": false`, 1)
	}
	files.put("config.json", []byte(config))
	open(t, files)
}

func TestPackedExpertsNeedSizesOfWholeGroups(t *testing.T) {
	files := small(t, true, nil) // packed, while a flat config.json says nothing about it
	files.put("config.json", testdata(t, "flat.json"))
	open(t, files)
	files.put("config.json", bytes.Replace(testdata(t, "flat.json"), []byte(`"moe_intermediate_size": 64`), []byte(`"moe_intermediate_size": 48`), 1))
	refuses(t, files, ErrConfig, "moe_intermediate_size 48 must be multiples of 32")
}

func TestStopIdsComeFromBothConfigs(t *testing.T) {
	for text, want := range map[string][]int{
		`{"eos_token_id": 46}`:           {46},
		`{"eos_token_id": [7, 46, 7]}`:   {46, 7},
		`{"eos_token_id": null}`:         {46},
		`{"max_length": 5, "x": [null]}`: {46},
	} {
		files := small(t, true, nil)
		files.put("generation_config.json", []byte(text))
		if m := open(t, files); !slices.Equal(m.StopIDs, want) || !slices.Equal(m.Config.EOS, []int{46}) {
			t.Errorf("%s: %v", text, m.StopIDs)
		}
	}
	for _, text := range []string{`{"eos_token_id": "46"}`, `{"eos_token_id": 300}`, `{"eos_token_id": [46.0]}`, `{"eos_token_id": -1}`, `{`, ``, `[]`,
		`{"eos_token_id": 46, "eos_token_id": 46}`} {
		files := small(t, true, nil)
		files.put("generation_config.json", []byte(text))
		refuses(t, files, ErrConfig, "memory/generation_config.json: ")
	}
	if m := open(t, small(t, false, nil)); len(m.StopIDs) != 0 {
		t.Error(m.StopIDs)
	}
}

func TestConfigFaultsNameTheFile(t *testing.T) {
	files := small(t, true, nil)
	files.put("config.json", []byte("{}"))
	refuses(t, files, ErrConfig, "memory/config.json: ", "hidden_size is missing")
	files["config.json"] = &memFile{name: "config.json", size: 1 << 40}
	refuses(t, files, ErrConfig, "memory/config.json: 1099511627776 bytes")
	files.put("config.json", testdata(t, "small.json"))
	files["config.json"].fail = 3
	refuses(t, files, errDisk, "memory/config.json")
	delete(files, "config.json")
	refuses(t, files, ErrFormat, "config.json is missing")
	if _, err := Open(context.Background(), disk.Dir(filepath.Join(t.TempDir(), "none"))); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
}

func TestOpenStopsWhenItsContextDoes(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, drop := range []string{indexFile, ""} {
		files := small(t, true, nil)
		delete(files, drop)
		if _, err := Open(ctx, files); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestReadGivesExactBytesOrANamedError(t *testing.T) {
	files := small(t, true, nil)
	m := open(t, files)
	name := "language_model.model.layers.2.self_attn.q_proj.weight"
	x, ok := m.Index.Lookup(name)
	if !ok || x.Bytes != 24*24*2 {
		t.Fatal(x)
	}
	file := files[shardName(x.Shard, 3)]
	whole := file.data[x.Offset : x.Offset+x.Bytes]
	for i := range whole {
		whole[i] = byte(i * 7)
	}
	p := make([]byte, 100)
	for _, slow := range []bool{false, true} {
		file.slow = slow
		if err := m.Read(p, x, 1052); err != nil || !bytes.Equal(p, whole[1052:]) {
			t.Error(err)
		}
	}
	for from, n := range map[int64]int{-1: 1, 1053: 100, 1153: 0, 1 << 62: 100, -1 << 63: 100} {
		if err := m.Read(p[:n], x, from); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%d bytes at %d: %v", n, from, err)
		}
	}
	if err := m.Read(nil, x, x.Bytes); err != nil {
		t.Error(err)
	}
	file.fail = x.Offset + 5
	err := m.Read(p, x, 0)
	if !errors.Is(err, errDisk) {
		t.Error(err)
	}
	for _, want := range []string{name, "memory/" + shardName(x.Shard, 3), fmt.Sprint(x.Offset)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
	file.fail = 0
	file.data = file.data[:x.Offset+99] // cut while it is open
	parts := m.Index.Expert(2, 0, nil)
	if err := m.Read(p, x, 0); !errors.Is(err, disk.ErrShort) {
		t.Error(err)
	}
	if err := m.Read(p, parts[0], 0); !errors.Is(err, disk.ErrShort) || !strings.Contains(err.Error(), "experts.0.w1.weight_packed") {
		t.Error(err)
	}
}

func TestCloseClosesEveryShard(t *testing.T) {
	files := small(t, true, nil)
	opened := 0
	for _, f := range files {
		f.opened = &opened
	}
	m, err := Open(context.Background(), files)
	if err != nil || opened != 3 {
		t.Fatal(err, opened)
	}
	if err := m.Close(); err != nil || opened != 0 {
		t.Error(err, opened)
	}
	if err := m.Close(); err != nil || opened != 0 {
		t.Error("a second time:", err, opened)
	}
	x, _ := m.Index.Lookup("language_model.model.norm.weight")
	if err := m.Read(make([]byte, 1), x, 0); !errors.Is(err, fs.ErrClosed) {
		t.Error(err)
	}
}

func TestReleasedGeometryHasTheReleasedSizes(t *testing.T) {
	c := released()
	n, trunk, expert, all := 0, int64(0), int64(0), int64(0)
	for s := range Required(c, true) {
		size, ok := byteSize(s.DType, s.Shape)
		if !ok {
			t.Fatal(s.Name())
		}
		n++
		all += size
		switch {
		case s.Expert < 0 && s.Layer >= 0:
			trunk += size
		case s.Layer == 50 && s.Expert == 895:
			expert += size
		}
	}
	if expert != 17_547_264 || n != 497_052 {
		t.Errorf("an expert has %d bytes, the text model %d tensors", expert, n)
	}
	if trunk/1e8 != 1088 {
		t.Errorf("the trunk has %d bytes, not 108.8 GB", trunk)
	}
	if rest := 1_560_936_091_448 - all; rest < 0 || rest > 2<<30 {
		t.Errorf("%d bytes are left for the vision tower", rest)
	}
}

func TestIndexOfReleasedSizeIsSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes 60 MB of JSON")
	}
	files := releasedFiles(t, releasedConfig(t), false)
	before := heap()
	m := open(t, files)
	if per := float64(heap()-before) / float64(m.Index.Len()); per > 48 || m.Index.Len() != 497_220 {
		t.Errorf("%d tensors take %.1f bytes each", m.Index.Len(), per)
	}
	runtime.KeepAlive(m)
}
