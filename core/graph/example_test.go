package graph_test

import (
	"context"
	"fmt"
	"log"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
	_ "github.com/k3infer/k3/policies"
)

// A model computes with resources that others made: the tape and the experts bring weights, the pool multiplies.
// Package core puts them together in a given amount of memory.
func ExampleModel_Pass() {
	ctx := context.Background()
	source, err := checkpoint.Open(ctx, disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	defer source.Close()
	matrices, err := graph.Layout(source)
	if err != nil {
		log.Fatal(err)
	}
	tiles, err := tape.Cut(matrices, tape.Shards(source), 0)
	if err != nil {
		log.Fatal(err)
	}
	var account memory.Account
	readers := disk.NewPool(disk.Config{Readers: 2})
	defer readers.Close()
	trunk, err := tape.Open(tiles, tape.Options{Pool: readers, Account: &account, Ring: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer trunk.Close()
	store, err := experts.Open(source, experts.Options{Pool: readers, Account: &account, Slots: 16, Policy: "lru"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	backend, err := kernel.Select("auto")
	if err != nil {
		log.Fatal(err)
	}
	threads := kernel.NewPool(backend, 2)
	defer threads.Close()
	model, err := graph.New(graph.Options{
		Source: source, Pool: threads, Account: &account, Tape: trunk, Experts: store, MaxRows: 4, Context: 8,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	state, err := model.NewState()
	if err != nil {
		log.Fatal(err)
	}
	defer state.Free()
	logits := make([]float32, source.Config.Vocab)
	rows := []graph.Row{{State: state, Token: 5}, {State: state, Token: 6, Logits: true}}
	if err := model.Pass(ctx, rows, logits, graph.Hooks{}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(state.Len(), "tokens in the state,", len(logits) == source.Config.Vocab)
	// Output:
	// 2 tokens in the state, true
}
