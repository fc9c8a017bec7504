package sample_test

import (
	"fmt"
	"log"

	"github.com/k3infer/k3/core/sample"
)

// The draw depends on the seed and the position alone, so the same call gives the same token anywhere.
func ExampleSampler_Next() {
	logits := []float32{1, 3, 2.5, -1}
	for _, p := range []sample.Params{{}, {Temperature: 1, Seed: 7}, {Temperature: 1, Seed: 7, TopK: 1}} {
		s, err := sample.New(p)
		if err != nil {
			log.Fatal(err)
		}
		var ids []int
		for position := range 6 {
			id, err := s.Next(logits, make([]int, position))
			if err != nil {
				log.Fatal(err)
			}
			ids = append(ids, id)
		}
		fmt.Println(ids)
	}
	// Output:
	// [1 1 1 1 1 1]
	// [2 2 0 1 2 1]
	// [1 1 1 1 1 1]
}

// A stopper holds back what may become a stop string.
func ExampleStopper() {
	s, err := sample.NewStopper([]string{"END"})
	if err != nil {
		log.Fatal(err)
	}
	for _, piece := range []string{"an E", "gg, the EN", "D and more"} {
		text, stopped := s.Feed(piece)
		fmt.Printf("%q %v\n", text, stopped)
	}
	// Output:
	// "an " false
	// "Egg, the " false
	// "" true
}
