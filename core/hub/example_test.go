package hub_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/hub/hubtest"
)

// A plan says what a download will fetch, before anything is written.
func ExampleClient_Download() {
	server := hubtest.New(map[string][]byte{
		"config.json": []byte("{}"), "model.safetensors": make([]byte, 1000), "logo.png": nil,
	})
	defer server.Close()
	dir, err := os.MkdirTemp("", "hub")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx := context.Background()
	client, err := hub.New(hub.Options{Endpoint: server.URL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	snapshot, err := client.Snapshot(ctx, server.Repo, server.Commit)
	if err != nil {
		log.Fatal(err)
	}
	plan, err := client.MakePlan(ctx, snapshot, hub.Request{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(plan.Items), "files,", plan.Fetch, "bytes to fetch")
	result, err := client.Download(ctx, plan, hub.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Files, "files,", result.Received, "bytes received")
	// Output:
	// 2 files, 1002 bytes to fetch
	// 2 files, 1002 bytes received
}
