package main

import (
	"fmt"

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
