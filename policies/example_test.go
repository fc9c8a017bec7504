package policies_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/experts"
	_ "github.com/k3infer/k3/policies"
)

// Importing the package registers its policies; the engine, or a simulation, picks one by name.
func Example() {
	fmt.Println(experts.CheckPolicy("lru"))
	fmt.Println(errors.Is(experts.CheckPolicy("belady"), experts.ErrOffline))
	fmt.Println(errors.Is(experts.CheckPolicy("mru"), experts.ErrUnknownPolicy))
	lru, err := experts.NewPolicy("lru", experts.Config{Layers: 1, Experts: 8, Capacity: 2})
	if err != nil {
		log.Fatal(err)
	}
	for _, expert := range []int32{3, 5} {
		lru.Miss(experts.Key{Expert: expert}, nil)
	}
	lru.Hit(experts.Key{Expert: 3})
	victim, decision := lru.Miss(experts.Key{Expert: 6}, nil)
	fmt.Println(decision == experts.Swap, victim.Expert)
	// Output:
	// <nil>
	// true
	// true
	// true 5
}
