package main

// The backends and cache policies of this program register themselves.
import (
	_ "github.com/k3infer/k3/backends/all"
	_ "github.com/k3infer/k3/policies"
)
