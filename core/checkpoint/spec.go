package checkpoint

import (
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Spec is one tensor that a model of some geometry must have.
type Spec struct {
	pattern string // the name with number in place of the layer and the expert
	Layer   int    // -1 outside the layers
	Expert  int    // -1 for the trunk
	DType   DType  // as released: BF16, F32 or U8
	Shape   []int  // as released; shared between specs, do not change
	loose   bool
	other   []int // another accepted shape
}

// Name is the tensor's full name.
func (s Spec) Name() string {
	name := s.pattern
	for _, n := range []int{s.Layer, s.Expert} {
		name = strings.Replace(name, number, strconv.Itoa(n), 1)
	}
	return name
}

// Elements is the number of values that the tensor has.
func (s Spec) Elements() int64 {
	n := int64(1)
	for _, d := range s.Shape {
		n *= int64(d)
	}
	return n
}

// Bytes is what the tensor takes, as released.
func (s Spec) Bytes() int64 { return s.Elements() * int64(s.DType.Bits()) / 8 }

// Accepts reports whether a tensor of this type and shape will do: U8 only where it is asked for, BF16, F16 or F32
// elsewhere; A_log per head or padded to the head width; A_log and convolutions with or without dimensions of one.
func (s Spec) Accepts(t DType, shape []int) bool {
	if (s.DType == U8) != (t == U8) || t != U8 && t != BF16 && t != F16 && t != F32 {
		return false
	}
	if s.loose {
		return slices.Equal(squeeze(shape), squeeze(s.Shape)) || s.other != nil && slices.Equal(squeeze(shape), squeeze(s.other))
	}
	return slices.Equal(shape, s.Shape)
}

// squeeze drops dimensions of one, which change nothing about the order of the data.
func squeeze(shape []int) []int {
	var out []int
	for _, n := range shape {
		if n != 1 {
			out = append(out, n)
		}
	}
	return out
}

// Required lists every tensor the text model of this geometry needs, layer by layer, with routed experts in MXFP4 or plain.
// It is the one place that knows names and shapes.
func Required(c *Config, quantized bool) iter.Seq[Spec] {
	return func(yield func(Spec) bool) {
		g := groups(c, quantized)
		for layer := range c.Layers {
			parts := [][]row{g.layer, g.kda, g.dense}
			if c.FullAttention[layer] {
				parts[1] = g.mla
			}
			if layer >= c.DenseLayers {
				parts[2] = g.moe
			}
			for _, rows := range parts {
				for _, r := range rows {
					if !yield(r.spec(layer, -1)) {
						return
					}
				}
			}
			if layer < c.DenseLayers {
				continue
			}
			for expert := range c.MoE.Experts {
				for _, r := range g.expert {
					if !yield(r.spec(layer, expert)) {
						return
					}
				}
			}
		}
		for _, r := range g.global {
			if !yield(r.spec(-1, -1)) {
				return
			}
		}
	}
}

// row is a Spec for any layer and expert.
type row struct {
	pattern string
	dtype   DType
	shape   []int
	loose   bool
	other   []int
}

func (r row) spec(layer, expert int) Spec {
	return Spec{r.pattern, layer, expert, r.dtype, r.shape, r.loose, r.other}
}

type rowGroups struct {
	global, layer []row // once; in every layer
	kda, mla      []row // by the layer's attention
	dense, moe    []row // by the layer's MLP
	expert        []row // of each routed expert
}

const (
	layers  = prefix + layerPart + number + "."
	moe     = layers + "block_sparse_moe."
	experts = layers + expertPart + number + "."
)

func groups(c *Config, quantized bool) rowGroups {
	bf16 := func(name string, shape ...int) row { return row{pattern: name + ".weight", dtype: BF16, shape: shape} }
	f32 := func(name string, shape ...int) row { return row{pattern: name, dtype: F32, shape: shape} }
	u8 := func(name string, shape ...int) row { return row{pattern: name, dtype: U8, shape: shape} }
	loose := func(r row, other ...int) row { r.loose, r.other = true, other; return r }

	e, p, kernel := c.Hidden, c.KDAWidth(), c.KDA.ConvKernel
	const attn = layers + "self_attn."
	g := rowGroups{
		global: []row{
			bf16(strings.TrimSuffix(Embedding, ".weight"), c.Vocab, e),
			bf16(prefix+"model.output_attn_res_norm", e),
			bf16(prefix+"model.output_attn_res_proj", 1, e),
			bf16(prefix+"model.norm", e),
			bf16(strings.TrimSuffix(Head, ".weight"), c.Vocab, e),
		},
		layer: []row{
			bf16(layers+"self_attention_res_norm", e),
			bf16(layers+"self_attention_res_proj", 1, e),
			bf16(layers+"input_layernorm", e),
			bf16(layers+"mlp_res_norm", e),
			bf16(layers+"mlp_res_proj", 1, e),
			bf16(layers+"post_attention_layernorm", e),
		},
		kda: []row{
			bf16(attn+"q_proj", p, e),
			bf16(attn+"k_proj", p, e),
			bf16(attn+"v_proj", p, e),
			loose(f32(attn+"q_conv1d.weight", p, 1, kernel)),
			loose(f32(attn+"k_conv1d.weight", p, 1, kernel)),
			loose(f32(attn+"v_conv1d.weight", p, 1, kernel)),
			bf16(attn+"b_proj", c.KDA.Heads, e),
			bf16(attn+"f_a_proj", c.KDA.HeadDim, e),
			bf16(attn+"f_b_proj", p, c.KDA.HeadDim),
			loose(f32(attn+"A_log", c.KDA.HeadDim), c.KDA.Heads),
			f32(attn+"dt_bias", p),
			f32(attn+"o_norm.weight", c.KDA.HeadDim),
			bf16(attn+"g_proj", p, e),
			bf16(attn+"o_proj", e, p),
		},
		dense: []row{
			bf16(layers+"mlp.gate_proj", c.DenseIntermediate, e),
			bf16(layers+"mlp.up_proj", c.DenseIntermediate, e),
			bf16(layers+"mlp.down_proj", e, c.DenseIntermediate),
		},
	}
	if c.KDA.HeadDim < c.KDA.Heads { // head_dim values cannot hold one for each head
		for i, r := range g.kda {
			if r.pattern == attn+"A_log" {
				g.kda[i] = loose(f32(attn+"A_log", c.KDA.Heads))
			}
		}
	}

	hm, ql, kvl, values := c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.Heads*c.MLA.ValueDim
	g.mla = []row{
		bf16(attn+"q_a_proj", ql, e),
		bf16(attn+"q_a_layernorm", ql),
		bf16(attn+"q_b_proj", hm*(c.MLA.NopeDim+c.MLA.RopeDim), ql),
		bf16(attn+"kv_a_proj_with_mqa", kvl+c.MLA.RopeDim, e),
		bf16(attn+"kv_a_layernorm", kvl),
		bf16(attn+"kv_b_proj", hm*(c.MLA.NopeDim+c.MLA.ValueDim), kvl),
		bf16(attn+"o_proj", e, values),
	}
	if c.MLA.OutputGate {
		g.mla = append(g.mla, bf16(attn+"g_proj", values, e))
	}

	n, l, inner, shared := c.MoE.Experts, c.MoE.Latent, c.MoE.Intermediate, c.MoE.Shared*c.MoE.Intermediate
	g.moe = []row{
		bf16(moe+"gate", n, e),
		f32(moe+"gate.e_score_correction_bias", n),
		bf16(moe+"routed_expert_down_proj", l, e),
		bf16(moe+"routed_expert_up_proj", e, l),
		bf16(moe+"shared_experts.gate_proj", shared, e),
		bf16(moe+"shared_experts.up_proj", shared, e),
		bf16(moe+"shared_experts.down_proj", e, shared),
	}
	if c.MoE.LatentNorm {
		g.moe = append(g.moe, bf16(moe+"routed_expert_norm", l))
	}
	for _, w := range []struct {
		name     string
		out, in_ int
	}{{"w1", inner, l}, {"w2", l, inner}, {"w3", inner, l}} {
		if quantized {
			g.expert = append(g.expert, u8(experts+w.name+".weight_packed", w.out, w.in_/2),
				u8(experts+w.name+scale, w.out, w.in_/mxfp4Group))
		} else {
			g.expert = append(g.expert, bf16(experts+w.name, w.out, w.in_))
		}
	}
	return g
}
