package graph

// Snapshot is everything a state remembers: the recurrent part, and the latents of its positions.
func (s *State) Snapshot() []float32 {
	all := append([]float32(nil), s.recurrent.Float32s()...)
	rank := s.model.config.MLA.LatentRank + s.model.config.MLA.RopeDim
	for layer := range s.model.mlaLayers {
		for p := range s.length {
			all = append(all, s.latent(layer, p/latentRows)[p%latentRows*rank:][:rank]...)
		}
	}
	return all
}
