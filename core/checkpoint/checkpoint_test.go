package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

const fixtures = "../../../shared/fixtures/"

// open is Open for a checkpoint that must be fine.
func open(t testing.TB, files disk.Files) *Model {
	t.Helper()
	m, err := Open(context.Background(), files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func needs(t testing.TB, path string) string {
	t.Helper()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		t.Skip("no ", path)
	}
	return path
}

func TestOpensCheckpointsOfEveryForm(t *testing.T) {
	for _, c := range []struct {
		name, dir string
		quantized bool
		tensors   int
	}{
		{"demo", "../../presets/demo/checkpoint", true, 2634},
		{"plain experts", fixtures + "checkpoints/anchor-1", false, 0},
		{"mx-small", fixtures + "checkpoints/mx-small", true, 0},
		{"mx-odd", fixtures + "checkpoints/mx-odd", true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := needs(t, c.dir)
			for _, files := range []disk.Files{disk.Dir(dir), disk.FS(os.DirFS(dir), "embedded")} {
				m := open(t, files)
				t.Log(m.Index.Len(), m.StopIDs, m.Quantized, len(m.Index.shards))
				if m.Quantized != c.quantized {
					t.Errorf("quantized %v", m.Quantized)
				}
			}
		})
	}
}
