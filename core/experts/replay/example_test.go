package replay_test

import (
	"bytes"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/experts/replay"
	_ "github.com/k3infer/k3/policies"
)

// A recorded trace shows how a policy would have done with any number of slots.
func ExampleRun() {
	var file []byte
	for range 3 { // three passes that choose the same experts of two layers
		file = replay.Append(file, experts.Key{Layer: 1, Expert: 4}, experts.Key{Layer: 1, Expert: 7})
		file = replay.Append(file, experts.Key{Layer: 2, Expert: 4})
	}
	trace, err := replay.Read(bytes.NewReader(file), "example.trace")
	if err != nil {
		log.Fatal(err)
	}
	for _, slots := range []int{2, 3} {
		r, err := replay.Run(trace, "lru", slots, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d slots: %d hits of %d in %d passes\n", slots, r.Hits, r.Requests, trace.Passes())
	}
	// Output:
	// 2 slots: 0 hits of 9 in 3 passes
	// 3 slots: 6 hits of 9 in 3 passes
}
