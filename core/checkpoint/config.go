package checkpoint

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/k3infer/k3/core/internal/content"
	"github.com/k3infer/k3/core/internal/fault"
	"github.com/k3infer/k3/core/internal/strictjson"
)

// Config is the validated geometry of a model. All sizes are at least 1 unless their comment says otherwise; products of
// sizes that describe a tensor fit an int.
type Config struct {
	ModelType string // "kimi_k3" or "kimi_linear"; "" in a flat file that has none

	Hidden  int     // E, hidden_size
	Layers  int     // num_hidden_layers
	Vocab   int     // vocab_size
	NormEps float32 // rms_norm_eps, above 0

	KDA struct {
		Heads          int     // Hk, linear_attn_config.num_heads
		HeadDim        int     // D, width of a head's keys and values
		ConvKernel     int     // K, short_conv_kernel_size
		GateLowerBound float32 // lb, below 0
	}
	MLA struct {
		Heads      int  // Hm, num_attention_heads
		QueryRank  int  // q_lora_rank
		LatentRank int  // kv_lora_rank
		NopeDim    int  // qk_nope_head_dim
		RopeDim    int  // qk_rope_head_dim
		ValueDim   int  // v_head_dim
		OutputGate bool // mla_use_output_gate
	}
	MoE struct {
		Experts       int     // N, num_experts
		TopK          int     // num_experts_per_token, at most Experts
		Shared        int     // S, num_shared_experts
		Latent        int     // L, routed_expert_hidden_size
		Intermediate  int     // I', moe_intermediate_size
		ScalingFactor float32 // routed_scaling_factor, above 0
		Renormalize   bool    // moe_renormalize
		LatentNorm    bool    // latent_moe_use_norm
	}
	DenseLayers       int     // first_k_dense_replace, from 0 to Layers
	DenseIntermediate int     // I, intermediate_size
	ResidualBlock     int     // attn_res_block_size
	SituBeta          float32 // b1, activation_situ_beta, above 0
	SituLinearBeta    float32 // b2, activation_situ_linear_beta, above 0

	FullAttention []bool // by zero-based layer: true is MLA, false is KDA
	MaxPositions  int    // max_position_embeddings, 0 when the file has none
	BOS           int    // bos_token_id, -1 when the file has none
	EOS           []int  // eos_token_id, in order and without repeats; may be empty
	Quantized     bool   // a quantization_config is there: routed experts are announced as MXFP4
}

// KDAWidth is P, the width of all KDA heads together.
func (c *Config) KDAWidth() int { return c.KDA.Heads * c.KDA.HeadDim }

// ParseConfig reads config.json, in the released nested shape or the flat one. The error lists every problem there is and
// matches ErrConfig.
func ParseConfig(data []byte) (*Config, error) { return parseConfig("config.json", data) }

func parseConfig(name string, data []byte) (*Config, error) {
	p := &configParser{problems{where: "checkpoint: parse " + name}}
	var c *Config
	if root, ok := p.object(data); ok {
		if what := otherModel(root); what != "" {
			return nil, &otherError{p.where + ": ", "this is " + what}
		}
		c = p.config(scope{value: root})
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// parseGeneration reads the stop ids of generation_config.json.
func parseGeneration(name string, data []byte, vocab int) ([]int, error) {
	p := &configParser{problems{where: "checkpoint: parse " + name}}
	var ids []int
	if root, ok := p.object(data); ok {
		ids = p.ids(scope{value: root}, "eos_token_id", vocab)
	}
	return ids, p.err()
}

func (p *configParser) object(data []byte) (strictjson.Value, bool) {
	if what := content.Recognise(data[:min(len(data), content.Head)]); what != "" {
		p.failf("this is %s", what)
		return strictjson.Value{}, false
	}
	root, err := strictjson.Parse(data)
	switch {
	case err != nil:
		p.failf("%v", err)
	case root.Kind != strictjson.Object:
		p.failf("%s where an object is needed", root.Kind)
	default:
		return root, true
	}
	return root, false
}

// scope is an object of the file and the path to it.
type scope struct {
	path  string // "" or "text_config."
	value strictjson.Value
}

// Limits on single sizes, far above any model: what is larger is a damaged file.
const (
	maxLayers    = 1 << 12
	maxExperts   = 1 << 16
	maxHeads     = 1 << 16
	maxHeadDim   = 1 << 16
	maxShared    = 1 << 10
	maxKernel    = 1 << 10
	maxWidth     = 1 << 20
	maxInner     = 1 << 24
	maxVocab     = 1 << 24
	maxPositions = math.MaxInt32
)

type configParser struct{ problems }

func (p *configParser) failf(format string, args ...any) {
	p.add(fault.Errorf(ErrConfig, format, args...))
}

// get finds a field under the first of its spellings that is there.
func (p *configParser) get(s scope, names ...string) (string, strictjson.Value, bool) {
	for _, name := range names {
		if v, ok := s.value.Get(name); ok {
			return s.path + name, v, true
		}
	}
	return "", strictjson.Value{}, false
}

// required is get for a field that must be there.
func (p *configParser) required(s scope, names []string) (string, strictjson.Value, bool) {
	path, v, ok := p.get(s, names...)
	if !ok {
		p.failf("%s is missing", s.path+strings.Join(names, " or "))
	}
	return path, v, ok
}

// optional is get for a field of the model's code that this engine only checks; null counts as absent.
func (p *configParser) optional(s scope, name string) (string, strictjson.Value, bool) {
	path, v, ok := p.get(s, name)
	return path, v, ok && v.Kind != strictjson.Null
}

func describe(v strictjson.Value) string {
	switch v.Kind {
	case strictjson.String:
		return quote(v.Text)
	case strictjson.Number, strictjson.Bool:
		return show(v.Text)
	}
	return v.Kind.String()
}

// integer gives the value of a number written as an integer.
func integer(v strictjson.Value) (int64, bool) {
	n, err := strconv.ParseInt(v.Text, 10, 64)
	return n, v.Kind == strictjson.Number && err == nil
}

func (p *configParser) size(s scope, low, high int, names ...string) int {
	path, v, ok := p.required(s, names)
	if !ok {
		return 0
	}
	n, ok := integer(v)
	if !ok || n < int64(low) || n > int64(high) {
		p.failf("%s is %s, not an integer from %d to %d", path, describe(v), low, high)
		return 0
	}
	return int(n)
}

func (p *configParser) float(s scope, want string, ok func(float32) bool, names ...string) float32 {
	path, v, found := p.required(s, names)
	if !found {
		return 0
	}
	f, err := strconv.ParseFloat(v.Text, 32)
	if v.Kind != strictjson.Number || err != nil || !ok(float32(f)) {
		p.failf("%s is %s, not a finite number %s", path, describe(v), want)
	}
	return float32(f)
}

func above(x float32) bool { return x > 0 }
func below(x float32) bool { return x < 0 }

// flag reads one of the three booleans that have a default, which is true.
func (p *configParser) flag(s scope, name string) bool {
	path, v, ok := p.get(s, name)
	if ok && v.Kind != strictjson.Bool {
		p.failf("%s is %s, not true or false", path, describe(v))
	}
	return !ok || v.Text == "true"
}

// only checks a field that has one value this engine knows.
func (p *configParser) only(s scope, name, want string, kind strictjson.Kind) {
	if path, v, ok := p.optional(s, name); ok && (v.Kind != kind || v.Text != want) {
		p.failf("%s is %s, only %s is supported", path, describe(v), describe(strictjson.Value{Kind: kind, Text: want}))
	}
}

func (p *configParser) config(root scope) *Config {
	c := &Config{BOS: -1}
	text := root
	if v, nested := root.value.Get("text_config"); nested {
		text = scope{"text_config.", v}
		if v.Kind != strictjson.Object {
			p.failf("text_config is %s, not an object", describe(v))
			return c
		}
		p.modelType(text, true)
		c.ModelType = p.modelType(root, false)
	} else {
		c.ModelType = p.modelType(root, true)
	}

	c.Hidden = p.size(text, 1, maxWidth, "hidden_size")
	c.Layers = p.size(text, 1, maxLayers, "num_hidden_layers")
	c.Vocab = p.size(text, 1, maxVocab, "vocab_size")
	c.NormEps = p.float(text, "above 0", above, "rms_norm_eps")

	// The flat shape has its own names, so that a head_dim or num_heads beside them is never taken for these.
	linear, heads, dim := text, "kda_num_heads", "kda_head_dim"
	if v, ok := text.value.Get("linear_attn_config"); ok {
		linear, heads, dim = scope{text.path + "linear_attn_config.", v}, "num_heads", "head_dim"
		if v.Kind != strictjson.Object {
			p.failf("%slinear_attn_config is %s, not an object", text.path, describe(v))
		}
	}
	c.KDA.Heads = p.size(linear, 1, maxHeads, heads)
	c.KDA.HeadDim = p.size(linear, 1, maxHeadDim, dim)
	c.KDA.ConvKernel = p.size(linear, 1, maxKernel, "short_conv_kernel_size")
	c.KDA.GateLowerBound = p.float(linear, "below 0", below, "gate_lower_bound")
	p.only(linear, "use_full_rank_gate", "true", strictjson.Bool)
	c.FullAttention = p.layerKinds(linear, c.Layers)

	c.MLA.Heads = p.size(text, 1, maxHeads, "num_attention_heads")
	c.MLA.QueryRank = p.size(text, 1, maxWidth, "q_lora_rank")
	c.MLA.LatentRank = p.size(text, 1, maxWidth, "kv_lora_rank")
	c.MLA.NopeDim = p.size(text, 1, maxHeadDim, "qk_nope_head_dim")
	c.MLA.RopeDim = p.size(text, 1, maxHeadDim, "qk_rope_head_dim")
	c.MLA.ValueDim = p.size(text, 1, maxHeadDim, "v_head_dim")
	c.MLA.OutputGate = p.flag(text, "mla_use_output_gate")
	p.only(text, "mla_use_nope", "true", strictjson.Bool)

	c.MoE.Experts = p.size(text, 1, maxExperts, "num_experts")
	most := c.MoE.Experts
	if most == 0 {
		most = maxExperts // num_experts has its own message
	}
	c.MoE.TopK = p.size(text, 1, most, "num_experts_per_token")
	c.MoE.Shared = p.size(text, 1, maxShared, "num_shared_experts")
	c.MoE.Latent = p.size(text, 1, maxWidth, "routed_expert_hidden_size")
	c.MoE.Intermediate = p.size(text, 1, maxInner, "moe_intermediate_size")
	c.MoE.ScalingFactor = p.float(text, "above 0", above, "routed_scaling_factor")
	c.MoE.Renormalize = p.flag(text, "moe_renormalize")
	c.MoE.LatentNorm = p.flag(text, "latent_moe_use_norm")
	p.only(text, "moe_router_activation_func", "sigmoid", strictjson.String)
	p.only(text, "num_expert_group", "1", strictjson.Number)
	p.only(text, "moe_layer_freq", "1", strictjson.Number)

	most = c.Layers
	if most == 0 {
		most = maxLayers
	}
	c.DenseLayers = p.size(text, 0, most, "first_k_dense_replace")
	c.DenseIntermediate = p.size(text, 1, maxInner, "intermediate_size")
	c.ResidualBlock = p.size(text, 1, maxWidth, "attn_res_block_size")
	c.SituBeta = p.float(text, "above 0", above, "activation_situ_beta", "situ_beta")
	c.SituLinearBeta = p.float(text, "above 0", above, "activation_situ_linear_beta", "situ_linear_beta")
	p.only(text, "hidden_act", "situ", strictjson.String)

	if path, v, ok := p.optional(text, "max_position_embeddings"); ok {
		n, ok := integer(v)
		if !ok || n < 1 || n > maxPositions {
			p.failf("%s is %s, not an integer from 1 to %d", path, describe(v), maxPositions)
		}
		c.MaxPositions = int(n)
	}

	// These may stand at the top, in text_config or in both.
	scopes := []scope{root}
	if text.path != "" {
		scopes = append(scopes, text)
	}
	for _, s := range scopes {
		p.only(s, "tie_word_embeddings", "false", strictjson.Bool)
		if _, v, ok := p.optional(s, "quantization_config"); ok {
			c.Quantized = true
			p.quantization(scope{s.path + "quantization_config.", v}, c)
		}
		c.EOS = union(c.EOS, p.ids(s, "eos_token_id", c.Vocab))
		if ids := p.ids(s, "bos_token_id", c.Vocab); len(ids) > 0 && c.BOS < 0 {
			c.BOS = ids[0]
		}
	}
	if len(p.list) == 0 {
		p.products(c)
	}
	return c
}

func (p *configParser) modelType(s scope, mayMiss bool) string {
	v, ok := s.value.Get("model_type")
	switch {
	case !ok && mayMiss:
	case !ok:
		p.failf("%smodel_type is missing", s.path)
	case v.Kind != strictjson.String || v.Text != "kimi_k3" && v.Text != "kimi_linear":
		p.failf("%smodel_type is %s, not \"kimi_k3\" or \"kimi_linear\"", s.path, describe(v))
	}
	return v.Text
}

// layerKinds reads the one-based lists of MLA layers and, if it is there, of KDA layers.
func (p *configParser) layerKinds(s scope, layers int) []bool {
	path, v, ok := p.required(s, []string{"full_attn_layers"})
	if !ok {
		return nil
	}
	before := len(p.list)
	full := p.layerSet(path, v, layers)
	if full == nil {
		return nil
	}
	kda, has := full, false
	if path, v, ok := p.optional(s, "kda_layers"); ok {
		kda, has = p.layerSet(path, v, layers), true
	}
	if layers == 0 || len(p.list) > before {
		return full // num_hidden_layers has its own message
	}
	n := 0
	for i, mla := range full {
		if mla {
			n++
		}
		if has && kda[i] == mla {
			p.failf("%skda_layers contradicts full_attn_layers about layer %d", s.path, i+1)
			break
		}
	}
	if n == 0 || n == layers {
		p.failf("%s marks %d of %d layers; both kinds of attention are needed", path, n, layers)
	}
	return full
}

// layerSet marks the layers a list names. With layers 0, not known, it only checks that the list has positive integers.
func (p *configParser) layerSet(path string, v strictjson.Value, layers int) []bool {
	if v.Kind != strictjson.Array {
		p.failf("%s is %s, not a list of layer numbers", path, describe(v))
		return nil
	}
	high := layers
	if high == 0 {
		high = maxLayers
	}
	set := make([]bool, high)
	for _, item := range v.Items {
		n, ok := integer(item)
		switch {
		case !ok || n < 1 || n > int64(high):
			p.failf("%s has %s, not an integer from 1 to %d", path, describe(item), high)
			return nil
		case set[n-1]:
			p.failf("%s has layer %d twice", path, n)
			return nil
		}
		set[n-1] = true
	}
	return set[:layers]
}

// ids reads a token id, a list of them, or nothing.
func (p *configParser) ids(s scope, name string, vocab int) []int {
	path, v, ok := p.optional(s, name)
	if !ok {
		return nil
	}
	items := []strictjson.Value{v}
	if v.Kind == strictjson.Array {
		items = v.Items
	}
	if vocab == 0 {
		vocab = maxVocab
	}
	var ids []int
	for _, item := range items {
		n, ok := integer(item)
		if !ok || n < 0 || n >= int64(vocab) {
			p.failf("%s has %s, not a token id from 0 to %d", path, describe(item), vocab-1)
			return nil
		}
		ids = append(ids, int(n))
	}
	return ids
}

// union appends to a what of b it does not have yet.
func union(a, b []int) []int {
	for _, id := range b {
		if !slices.Contains(a, id) {
			a = append(a, id)
		}
	}
	return a
}

const (
	mxfp4Format = "mxfp4-pack-quantized"
	mxfp4Group  = 32 // weights that share one scale byte
)

func (p *configParser) quantization(s scope, c *Config) {
	if s.value.Kind != strictjson.Object {
		p.failf("%s is %s, not an object", strings.TrimSuffix(s.path, "."), describe(s.value))
		return
	}
	p.required(s, []string{"format"})
	p.only(s, "format", mxfp4Format, strictjson.String)
	if path, groups, ok := p.optional(s, "config_groups"); ok {
		if groups.Kind != strictjson.Object {
			p.failf("%s is %s, not an object", path, describe(groups))
		}
		for _, m := range groups.Members {
			group := scope{path + "." + show(m.Key) + ".", m.Value}
			p.only(group, "format", mxfp4Format, strictjson.String)
			if path, weights, ok := p.optional(group, "weights"); ok {
				w := scope{path + ".", weights}
				p.only(w, "group_size", strconv.Itoa(mxfp4Group), strictjson.Number)
				p.only(w, "num_bits", "4", strictjson.Number)
				p.only(w, "type", "float", strictjson.String)
			}
		}
	}
	if c.MoE.Latent%mxfp4Group != 0 || c.MoE.Intermediate%mxfp4Group != 0 {
		p.failf("%s", unevenGroups(c))
	}
}

func unevenGroups(c *Config) string {
	return fmt.Sprintf("routed_expert_hidden_size %d and moe_intermediate_size %d must be multiples of %d for MXFP4 experts",
		c.MoE.Latent, c.MoE.Intermediate, mxfp4Group)
}

// products refuses a geometry whose tensors, all together, have more bytes in float32 than an int64 counts; every product
// the engine forms is smaller.
func (p *configParser) products(c *Config) {
	total := uint64(0)
	add := func(factors ...int) {
		n := uint64(4)
		for _, f := range factors {
			hi, lo := bits.Mul64(n, uint64(f))
			if hi != 0 {
				lo = math.MaxUint64
			}
			n = lo
		}
		if sum, carry := bits.Add64(total, n, 0); carry == 0 {
			total = sum
		} else {
			total = math.MaxUint64
		}
	}
	g := groups(c, false)
	for _, part := range []struct {
		rows  []row
		times int
	}{{g.global, 1}, {g.layer, c.Layers}, {g.kda, c.Layers}, {g.mla, c.Layers}, {g.dense, c.Layers}, {g.moe, c.Layers}} {
		for _, r := range part.rows {
			add(append([]int{part.times}, r.shape...)...)
		}
	}
	for _, r := range g.expert {
		add(append([]int{c.Layers, c.MoE.Experts}, r.shape...)...)
	}
	add(c.Layers, c.KDA.Heads, c.KDA.HeadDim, c.KDA.HeadDim)
	if total > math.MaxInt64 {
		p.failf("the sizes give more than 2^63 bytes of weights and state")
	}
}
