// Package demo is the built-in demonstration model: a small network with the whole Kimi K3 graph, trained for this project so that
// everything can be tried without the released weights. README.md in its folder says what it knows and how it was made.
package demo

import (
	"embed"
	"io/fs"

	"github.com/k3infer/k3/core/disk"
)

//go:embed checkpoint
var checkpoint embed.FS

// Files returns the model's checkpoint directory, which is part of the program.
func Files() disk.Files {
	sub, err := fs.Sub(checkpoint, "checkpoint")
	if err != nil {
		panic(err) // the embedded folder has that name
	}
	return disk.FS(sub, "demo")
}
