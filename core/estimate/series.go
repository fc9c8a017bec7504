package estimate

import (
	"math"
	"slices"
)

// Series is one figure, measured several times.
type Series struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"` // as they came
}

// Add takes one more value.
func (s *Series) Add(x float64) {
	s.Values = append(s.Values, x)
	sorted := slices.Sorted(slices.Values(s.Values))
	n := len(sorted)
	s.Min, s.Max = sorted[0], sorted[n-1]
	s.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Spread is how far the values lie apart, as a share of the median; 0 if the median is 0.
func (s Series) Spread() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.Max - s.Min) / math.Abs(s.Median)
}
