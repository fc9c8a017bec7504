package estimate

import (
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/graph"
)

// Geometry is a model's configuration and what follows from it, for reports.
type Geometry struct {
	ModelType         string          `json:"model_type"`
	Hidden            int             `json:"hidden_size"`
	Layers            int             `json:"num_hidden_layers"`
	Vocab             int             `json:"vocab_size"`
	NormEps           float32         `json:"rms_norm_eps"`
	KDA               KDAGeometry     `json:"kda"`
	MLA               MLAGeometry     `json:"mla"`
	Experts           ExpertsGeometry `json:"experts"`
	DenseLayers       int             `json:"dense_layers"`
	DenseIntermediate int             `json:"dense_intermediate_size"`
	ResidualBlock     int             `json:"attn_res_block_size"`
	SituBeta          float32         `json:"situ_beta"`
	SituLinearBeta    float32         `json:"situ_linear_beta"`
	MaxPositions      int             `json:"max_position_embeddings,omitempty"`
	EOS               []int           `json:"eos_token_id"`
	LayerMap          string          `json:"layer_map"` // a letter a layer: K is KDA, M is MLA, small with a dense MLP
	Parameters        int64           `json:"parameters"`
	ActiveParameters  int64           `json:"active_parameters"` // multiplied with for each token
	StateBytes        int64           `json:"state_bytes"`       // of a sequence, whatever its length
	PositionBytes     int64           `json:"position_bytes"`    // of a sequence, for each position more
}

// KDAGeometry is what a Geometry says of the KDA layers.
type KDAGeometry struct {
	Layers         int     `json:"layers"`
	Heads          int     `json:"heads"`
	HeadDim        int     `json:"head_dim"`
	ConvKernel     int     `json:"short_conv_kernel_size"`
	GateLowerBound float32 `json:"gate_lower_bound"`
}

// MLAGeometry is what a Geometry says of the MLA layers.
type MLAGeometry struct {
	Layers     int  `json:"layers"`
	Heads      int  `json:"heads"`
	QueryRank  int  `json:"q_lora_rank"`
	LatentRank int  `json:"kv_lora_rank"`
	NopeDim    int  `json:"qk_nope_head_dim"`
	RopeDim    int  `json:"qk_rope_head_dim"`
	ValueDim   int  `json:"v_head_dim"`
	OutputGate bool `json:"output_gate"`
}

// ExpertsGeometry is what a Geometry says of the layers with routed experts.
type ExpertsGeometry struct {
	Layers        int     `json:"layers"`
	Experts       int     `json:"experts"`
	TopK          int     `json:"top_k"`
	Shared        int     `json:"shared"`
	Latent        int     `json:"latent_size"`
	Intermediate  int     `json:"intermediate_size"`
	ScalingFactor float32 `json:"scaling_factor"`
	Renormalize   bool    `json:"renormalize"`
	LatentNorm    bool    `json:"latent_norm"`
	Quantized     bool    `json:"mxfp4"`
}

// GeometryOf describes c; quantized says whether the routed experts are MXFP4.
func GeometryOf(c *checkpoint.Config, quantized bool) Geometry {
	g := Geometry{
		ModelType: c.ModelType, Hidden: c.Hidden, Layers: c.Layers, Vocab: c.Vocab, NormEps: c.NormEps,
		KDA: KDAGeometry{0, c.KDA.Heads, c.KDA.HeadDim, c.KDA.ConvKernel, c.KDA.GateLowerBound},
		MLA: MLAGeometry{0, c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim,
			c.MLA.OutputGate},
		Experts: ExpertsGeometry{c.Layers - c.DenseLayers, c.MoE.Experts, c.MoE.TopK, c.MoE.Shared, c.MoE.Latent, c.MoE.Intermediate,
			c.MoE.ScalingFactor, c.MoE.Renormalize, c.MoE.LatentNorm, quantized},
		DenseLayers: c.DenseLayers, DenseIntermediate: c.DenseIntermediate, ResidualBlock: c.ResidualBlock,
		SituBeta: c.SituBeta, SituLinearBeta: c.SituLinearBeta, MaxPositions: c.MaxPositions, EOS: append([]int{}, c.EOS...),
	}
	letters := make([]byte, c.Layers)
	for i, full := range c.FullAttention {
		letters[i] = 'K'
		if full {
			letters[i] = 'M'
			g.MLA.Layers++
		}
		if i < c.DenseLayers {
			letters[i] += 'a' - 'A'
		}
	}
	g.LayerMap = string(letters)
	g.KDA.Layers = c.Layers - g.MLA.Layers
	g.count(c)
	fixed, position := graph.StateBytes(c)
	g.StateBytes, g.PositionBytes = int64(fixed), int64(position)
	return g
}

// count adds up the parameters. Experts are all alike, so one of each layer is enough.
func (g *Geometry) count(c *checkpoint.Config) {
	one := *c // the same model with one expert a layer
	one.MoE.Experts, one.MoE.TopK = 1, 1
	for s := range checkpoint.Required(&one, false) {
		n := s.Elements()
		all, active := n, n
		switch {
		case s.Expert >= 0:
			all, active = n*int64(c.MoE.Experts), n*int64(c.MoE.TopK)
		case strings.HasSuffix(s.Name(), "block_sparse_moe.gate.weight"), strings.HasSuffix(s.Name(), "e_score_correction_bias"):
			all *= int64(c.MoE.Experts)
			active = all
		case strings.HasSuffix(s.Name(), "embed_tokens.weight"):
			active = int64(c.Hidden) // one row of it
		}
		g.Parameters += all
		g.ActiveParameters += active
	}
}
