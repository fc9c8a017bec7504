package main

import (
	"fmt"
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
)

// geometry is a model's configuration and what follows from it, for reports.
type geometry struct {
	ModelType         string          `json:"model_type"`
	Hidden            int             `json:"hidden_size"`
	Layers            int             `json:"num_hidden_layers"`
	Vocab             int             `json:"vocab_size"`
	NormEps           float32         `json:"rms_norm_eps"`
	KDA               kdaGeometry     `json:"kda"`
	MLA               mlaGeometry     `json:"mla"`
	Experts           expertsGeometry `json:"experts"`
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

type kdaGeometry struct {
	Layers         int     `json:"layers"`
	Heads          int     `json:"heads"`
	HeadDim        int     `json:"head_dim"`
	ConvKernel     int     `json:"short_conv_kernel_size"`
	GateLowerBound float32 `json:"gate_lower_bound"`
}

type mlaGeometry struct {
	Layers     int  `json:"layers"`
	Heads      int  `json:"heads"`
	QueryRank  int  `json:"q_lora_rank"`
	LatentRank int  `json:"kv_lora_rank"`
	NopeDim    int  `json:"qk_nope_head_dim"`
	RopeDim    int  `json:"qk_rope_head_dim"`
	ValueDim   int  `json:"v_head_dim"`
	OutputGate bool `json:"output_gate"`
}

type expertsGeometry struct {
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

// newGeometry describes c; quantized says whether the routed experts are MXFP4.
func newGeometry(c *checkpoint.Config, quantized bool) geometry {
	g := geometry{
		ModelType: c.ModelType, Hidden: c.Hidden, Layers: c.Layers, Vocab: c.Vocab, NormEps: c.NormEps,
		KDA: kdaGeometry{0, c.KDA.Heads, c.KDA.HeadDim, c.KDA.ConvKernel, c.KDA.GateLowerBound},
		MLA: mlaGeometry{0, c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim,
			c.MLA.OutputGate},
		Experts: expertsGeometry{c.Layers - c.DenseLayers, c.MoE.Experts, c.MoE.TopK, c.MoE.Shared, c.MoE.Latent, c.MoE.Intermediate,
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
	const float = 4
	heads, width := int64(c.KDA.Heads), int64(c.KDAWidth())
	matrices, history := heads*int64(c.KDA.HeadDim)*int64(c.KDA.HeadDim), 3*width*int64(c.KDA.ConvKernel-1)
	g.StateBytes = int64(g.KDA.Layers) * float * (matrices + history)
	g.PositionBytes = int64(g.MLA.Layers) * float * int64(c.MLA.LatentRank+c.MLA.RopeDim)
	return g
}

// count adds up the parameters. Experts are all alike, so one of each layer is enough.
func (g *geometry) count(c *checkpoint.Config) {
	one := *c // the same model with one expert a layer
	one.MoE.Experts, one.MoE.TopK = 1, 1
	for s := range checkpoint.Required(&one, false) {
		n := int64(1)
		for _, d := range s.Shape {
			n *= int64(d)
		}
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

// lines describes the geometry in words, as pairs of a title and a text.
func (g *geometry) lines() [][2]string {
	name := g.ModelType
	if name == "" {
		name = "a model without a type"
	}
	mlp := ""
	if g.DenseLayers > 0 {
		first := "layer is"
		if g.DenseLayers > 1 {
			first = fmt.Sprintf("%d layers are", g.DenseLayers)
		}
		mlp = fmt.Sprintf("; the first %s dense, %d wide", first, g.DenseIntermediate)
	}
	form, gate := "plain", ""
	if g.Experts.Quantized {
		form = "MXFP4"
	}
	if g.MLA.OutputGate {
		gate = ", gated"
	}
	lines := [][2]string{
		{"model", fmt.Sprintf("%s, %s of width %d, vocabulary of %d", name, plural(g.Layers, "layer", "layers"), g.Hidden, g.Vocab)},
		{"parameters", fmt.Sprintf("%s, of which %s work on each token", count(g.Parameters), count(g.ActiveParameters))},
		{"KDA", fmt.Sprintf("%s: %s of %d, convolution over %d, decay bound %g",
			plural(g.KDA.Layers, "layer", "layers"), plural(g.KDA.Heads, "head", "heads"), g.KDA.HeadDim, g.KDA.ConvKernel, g.KDA.GateLowerBound)},
		{"MLA", fmt.Sprintf("%s: %s, keys %d + %d, values %d, query rank %d, latent rank %d%s",
			plural(g.MLA.Layers, "layer", "layers"), plural(g.MLA.Heads, "head", "heads"), g.MLA.NopeDim, g.MLA.RopeDim, g.MLA.ValueDim, g.MLA.QueryRank,
			g.MLA.LatentRank, gate)},
		{"experts", fmt.Sprintf("%s: top %d of %d and %d shared, latent width %d, inner width %d, %s%s",
			plural(g.Experts.Layers, "layer", "layers"), g.Experts.TopK, g.Experts.Experts, g.Experts.Shared, g.Experts.Latent,
			g.Experts.Intermediate, form, mlp)},
		{"residuals", fmt.Sprintf("a snapshot every %s", plural(g.ResidualBlock, "layer", "layers"))},
		{"sequence", fmt.Sprintf("%s of state, and %s a position", size(g.StateBytes), size(g.PositionBytes))},
	}
	if g.MaxPositions > 0 {
		lines = append(lines, [2]string{"context", plural(g.MaxPositions, "position", "positions")})
	}
	return lines
}

// layerMap is the map in rows of one residual block, or of a width that fits a terminal.
func (g *geometry) layerMap() []string {
	width := g.ResidualBlock
	if width > 64 {
		width = 64
	}
	var rows []string
	for i := 0; i < len(g.LayerMap); i += width {
		rows = append(rows, fmt.Sprintf("%4d  %s", i, g.LayerMap[i:min(len(g.LayerMap), i+width)]))
	}
	return rows
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// count writes a large number with three digits: 2.78T.
func count(n int64) string { return short(n, 1000, []string{"", "K", "M", "B", "T", "Q"}) }

// size writes a number of bytes on disk with three digits: 1.56 TB.
func size(n int64) string {
	return short(n, 1000, []string{" B", " KB", " MB", " GB", " TB", " PB", " EB"})
}

// inMemory writes a number of bytes of memory with three digits: 7.45 GiB.
func inMemory(n int64) string {
	return short(n, 1024, []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"})
}

func short(n int64, base float64, units []string) string {
	x, u := float64(n), 0
	for u+1 < len(units) && x >= base-0.5 {
		x, u = x/base, u+1
	}
	digits := 0
	if u > 0 && x < 99.95 {
		digits = 1
		if x < 9.995 {
			digits = 2
		}
	}
	return fmt.Sprintf("%.*f%s", digits, x, units[u])
}
