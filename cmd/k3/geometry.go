package main

import (
	"fmt"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/estimate"
)

// geometryLines describes a geometry in words, as pairs of a title and a text.
func geometryLines(g *estimate.Geometry) [][2]string {
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
		{"model", fmt.Sprintf("%s, %s of width %d, vocabulary of %d", name, ui.Plural(g.Layers, "layer", "layers"), g.Hidden, g.Vocab)},
		{"parameters", fmt.Sprintf("%s, of which %s work on each token", ui.Count(g.Parameters), ui.Count(g.ActiveParameters))},
		{"KDA", fmt.Sprintf("%s: %s of %d, convolution over %d, decay bound %g",
			ui.Plural(g.KDA.Layers, "layer", "layers"), ui.Plural(g.KDA.Heads, "head", "heads"), g.KDA.HeadDim, g.KDA.ConvKernel, g.KDA.GateLowerBound)},
		{"MLA", fmt.Sprintf("%s: %s, keys %d + %d, values %d, query rank %d, latent rank %d%s",
			ui.Plural(g.MLA.Layers, "layer", "layers"), ui.Plural(g.MLA.Heads, "head", "heads"), g.MLA.NopeDim, g.MLA.RopeDim, g.MLA.ValueDim, g.MLA.QueryRank,
			g.MLA.LatentRank, gate)},
		{"experts", fmt.Sprintf("%s: top %d of %d and %d shared, latent width %d, inner width %d, %s%s",
			ui.Plural(g.Experts.Layers, "layer", "layers"), g.Experts.TopK, g.Experts.Experts, g.Experts.Shared, g.Experts.Latent,
			g.Experts.Intermediate, form, mlp)},
		{"residuals", fmt.Sprintf("a snapshot every %s", ui.Plural(g.ResidualBlock, "layer", "layers"))},
		{"sequence", fmt.Sprintf("%s of state, and %s a position", ui.Size(g.StateBytes), ui.Size(g.PositionBytes))},
	}
	if g.MaxPositions > 0 {
		lines = append(lines, [2]string{"context", ui.Plural(g.MaxPositions, "position", "positions")})
	}
	return lines
}

// layerMap is the map of a geometry in rows of one residual block, or of a width that fits a terminal.
func layerMap(g *estimate.Geometry) []string {
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
