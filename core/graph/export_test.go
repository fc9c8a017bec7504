package graph

import "github.com/k3infer/k3/core/memory"

// Snapshot is everything a state remembers: the recurrent part, and the latents of its positions.
func (s *State) Snapshot() []float32 {
	var all []float32
	_ = s.eachLayer(false, func(_ int, part []byte) error {
		all = append(all, memory.Float32s(part)...)
		return nil
	})
	rank := s.model.config.MLA.LatentRank + s.model.config.MLA.RopeDim
	for layer := range s.model.mlaLayers {
		for p := range s.length {
			all = append(all, s.latent(layer, p/latentRows)[p%latentRows*rank:][:rank]...)
		}
	}
	return all
}
