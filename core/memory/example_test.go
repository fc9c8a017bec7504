package memory_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/memory"
)

// An account counts memory outside the Go heap by purpose.
func ExampleAccount() {
	var account memory.Account
	block, err := account.Allocate(memory.Latents, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	block.Float32s()[0] = 1
	fmt.Println(account.Bytes()[memory.Latents])
	block.Free()
	fmt.Println(account.Bytes()[memory.Latents])
	// Output:
	// 1048576
	// 0
}

// Make divides a promised total, or says that it is too small.
func ExampleMake() {
	request := memory.Request{
		Total: 1 << 30, Workspace: func(rows, context int) int64 { return int64(rows) << 16 },
		Sequences: 1, Context: 1000, PrefillRows: 16, Position: 1 << 10,
		TrunkBytes: 2 << 30, TileBuffer: 16 << 20, ExpertSlot: 1 << 20, ExpertsAll: 1000, TopK: 8,
	}
	plan, err := memory.Make(request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Bytes(memory.Latents), "bytes of latents")
	fmt.Println("the trunk fits:", plan.Pinned == plan.Trunk)
	request.Total = 1 << 20
	_, err = memory.Make(request)
	fmt.Println(errors.Is(err, memory.ErrNoFit))
	// Output:
	// 1024000 bytes of latents
	// the trunk fits: false
	// true
}
