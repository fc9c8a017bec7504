package main

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// chart is a diagram of lines over two axes; the vertical one begins at 0.
type chart struct {
	title, x, y string
	note        string  // small print below
	logX        bool    // each doubling of x takes the same width; x must be above 0
	top         float64 // of the vertical axis, at least; 0: what the points need
	lines       []chartLine
}

type chartLine struct {
	name   string
	points []chartPoint // from left to right
}

// chartPoint is a point, with a bar from low to high where they differ.
type chartPoint struct{ x, y, low, high float64 }

// chartColors can be told apart by those who see few colours, too (Okabe and Ito).
var chartColors = []string{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8F8F8F", "#7F4F24", "#5B5EA6"}

// Where things are in the drawing.
const (
	chartWidth, chartHeight = 860, 500
	chartLeft, chartRight   = 70, 650 // of the axes; the legend is to their right
	chartTop, chartBottom   = 50, 420
)

// writeSVG draws the chart.
func (c chart) writeSVG(out io.Writer) error {
	low, high, top, named := math.Inf(1), math.Inf(-1), c.top, false
	for _, l := range c.lines {
		named = named || l.name != ""
		for _, p := range l.points {
			low, high, top = min(low, p.x), max(high, p.x), max(top, p.y, p.high)
		}
	}
	if math.IsInf(low, 0) || math.IsInf(high, 0) {
		low, high = 1, 2 // no points
	}
	if top <= 0 {
		top = 1
	}
	if low == high {
		low, high = low/2, high*1.5
	}
	scale := func(x float64) float64 { return x }
	var ticks []float64
	if c.logX {
		scale = math.Log2
		ticks = doublings(low, high)
	} else {
		low = min(low, 0)
		ticks = roundTicks(low, high, 6)
		high = max(high, ticks[len(ticks)-1])
	}
	across := func(x float64) float64 {
		return chartLeft + (chartRight-chartLeft)*(scale(x)-scale(low))/(scale(high)-scale(low))
	}
	levels := roundTicks(0, top, 6)
	top = max(top, levels[len(levels)-1])
	up := func(y float64) float64 { return chartBottom - (chartBottom-chartTop)*y/top }

	w := bufio.NewWriter(out)
	text := func(x, y float64, anchor, more, s string) {
		fmt.Fprintf(w, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>`, x, y, anchor, more)
		xml.EscapeText(w, []byte(s)) // an error stays with w until Flush
		fmt.Fprintln(w, "</text>")
	}
	line := func(x1, y1, x2, y2 float64, style string) {
		fmt.Fprintf(w, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, style)
	}
	width := chartWidth
	if !named {
		width = chartRight + 30
	}
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#222">`+"\n",
		width, chartHeight)
	fmt.Fprintf(w, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, chartHeight)
	text(chartLeft, 28, "start", ` font-size="16" font-weight="bold"`, c.title)
	for _, v := range levels {
		line(chartLeft, up(v), chartRight, up(v), `stroke="#ddd"`)
		text(chartLeft-8, up(v)+4, "end", "", number(v))
	}
	for _, v := range ticks {
		line(across(v), chartBottom, across(v), chartBottom+5, `stroke="#222"`)
		text(across(v), chartBottom+20, "middle", "", number(v))
	}
	line(chartLeft, chartBottom, chartRight, chartBottom, `stroke="#222"`)
	line(chartLeft, chartTop, chartLeft, chartBottom, `stroke="#222"`)
	text((chartLeft+chartRight)/2, chartBottom+42, "middle", "", c.x)
	middle := (chartTop + chartBottom) / 2.0
	text(20, middle, "middle", fmt.Sprintf(` transform="rotate(-90 20 %.1f)"`, middle), c.y)
	text(chartLeft, chartHeight-14, "start", ` font-size="10" fill="#666"`, c.note)
	for i, l := range c.lines {
		color := chartColors[i%len(chartColors)]
		dash := ""
		if i >= len(chartColors) {
			dash = ` stroke-dasharray="5 3"`
		}
		var path strings.Builder
		for _, p := range l.points {
			fmt.Fprintf(&path, "%.1f,%.1f ", across(p.x), up(p.y))
		}
		fmt.Fprintf(w, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="%s"/>`+"\n", color, dash, strings.TrimSpace(path.String()))
		for _, p := range l.points {
			if p.low < p.high {
				line(across(p.x), up(p.low), across(p.x), up(p.high), `stroke="`+color+`"`)
			}
			fmt.Fprintf(w, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>`, across(p.x), up(p.y), color)
			xml.EscapeText(w, []byte(strings.TrimSpace(fmt.Sprintf("%s %s: %s", l.name, number(p.x), number(p.y)))))
			fmt.Fprintln(w, "</title></circle>")
		}
		if l.name != "" {
			y := float64(chartTop + 10 + 20*i)
			line(chartRight+20, y, chartRight+44, y, `stroke="`+color+`" stroke-width="2"`+dash)
			text(chartRight+50, y+4, "start", "", l.name)
		}
	}
	fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

// number writes a number with at most three digits that matter.
func number(x float64) string {
	if math.Abs(x) >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// roundTicks are about n round numbers from low to high, or just above.
func roundTicks(low, high float64, n int) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (high-low)/(m*step) <= float64(n) {
			step *= m
			break
		}
	}
	var ticks []float64
	for i := math.Ceil(low / step); ; i++ {
		ticks = append(ticks, i*step)
		if i*step >= high*(1-1e-9) || len(ticks) > 4*n {
			return ticks
		}
	}
}

// doublings are powers of two from low to high, at most ten of them, or the ends where there are none between.
func doublings(low, high float64) []float64 {
	var ticks []float64
	for e := math.Ceil(math.Log2(low)); e <= math.Log2(high); e++ {
		ticks = append(ticks, math.Exp2(e))
	}
	if len(ticks) < 2 {
		return []float64{low, high}
	}
	for len(ticks) > 10 {
		half := ticks[:0]
		for i := 0; i < len(ticks); i += 2 {
			half = append(half, ticks[i])
		}
		ticks = half
	}
	return ticks
}
