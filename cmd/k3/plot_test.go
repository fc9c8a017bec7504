package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
)

// svgShapes parses a drawing, so that it is well-formed, and returns the points of its circles.
func svgShapes(t *testing.T, data []byte) (circles [][2]float64, text string) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(data))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return circles, text
		}
		if err != nil {
			t.Fatalf("the drawing is no XML: %v\n%s", err, data)
		}
		switch x := token.(type) {
		case xml.CharData:
			text += string(x) + "\n"
		case xml.StartElement:
			at := map[string]float64{}
			for _, a := range x.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("<%s %s=%q>", x.Name.Local, a.Name.Local, a.Value)
				}
				if v, err := strconv.ParseFloat(a.Value, 64); err == nil {
					at[a.Name.Local] = v
				}
			}
			if x.Name.Local == "circle" {
				circles = append(circles, [2]float64{at["cx"], at["cy"]})
			}
		}
	}
}

func TestChartPutsPointsWhereTheyBelong(t *testing.T) {
	for _, logX := range []bool{false, true} {
		c := chart{title: "a <b> & c", x: "GB", y: "s", logX: logX, lines: []chartLine{
			{"one & two", []chartPoint{{1, 10, 9, 11}, {2, 5, 5, 5}, {4, 0, 0, 0}}},
			{"three", []chartPoint{{4, 10, 10, 10}}},
		}}
		var out bytes.Buffer
		if err := c.writeSVG(&out); err != nil {
			t.Fatal(err)
		}
		p, text := svgShapes(t, out.Bytes())
		if len(p) != 4 || !strings.Contains(text, "a <b> & c") || !strings.Contains(text, "one & two") {
			t.Fatalf("%d points, texts %q", len(p), text)
		}
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 0.11 {
				t.Errorf("logX %v: %s at %g, want %g", logX, what, got, want)
			}
		}
		near("right end", p[2][0], chartRight)
		near("zero", p[2][1], chartBottom)
		near("the same value in another line", p[3][1], p[0][1])
		first, second := p[1][0]-p[0][0], p[2][0]-p[1][0]
		if logX {
			near("left end", p[0][0], chartLeft)
			near("a doubling", first, second)
		} else {
			near("from 2 to 4", second, 2*first)
		}
	}
}

func TestChartBearsAnyPoints(t *testing.T) {
	for i, lines := range [][]chartLine{
		nil,
		{{"", nil}},
		{{"one", []chartPoint{{3, 0, 0, 0}}}},
		{{"tiny", []chartPoint{{1e-9, 1e-12, 0, 1}, {1e-8, 1e12, 0, 0}}}},
		{{"flat", []chartPoint{{5, 7, 7, 7}, {5, 7, 7, 7}}}},
	} {
		for _, logX := range []bool{false, true} {
			var out bytes.Buffer
			if err := (chart{logX: logX, lines: lines}).writeSVG(&out); err != nil {
				t.Fatal(err)
			}
			points, _ := svgShapes(t, out.Bytes())
			for _, p := range points {
				if p[0] < chartLeft-.1 || p[0] > chartRight+.1 || p[1] < chartTop-.1 || p[1] > chartBottom+.1 {
					t.Errorf("case %d, logX %v: a point at %v is outside the axes", i, logX, p)
				}
			}
		}
	}
}

func TestTicksAreRoundAndCoverTheRange(t *testing.T) {
	for _, x := range []struct {
		low, high float64
		want      string
	}{{0, 10, "[0 2 4 6 8 10]"}, {0, 0.35, "[0 0.1 0.2 0.3 0.4]"}, {0, 1, "[0 0.2 0.4 0.6 0.8 1]"}, {0, 61.3, "[0 20 40 60 80]"}} {
		var got []string
		for _, v := range roundTicks(x.low, x.high, 6) {
			got = append(got, number(v))
		}
		if s := fmt.Sprint(got); s != x.want {
			t.Errorf("%g to %g: %s, want %s", x.low, x.high, s, x.want)
		}
	}
}
