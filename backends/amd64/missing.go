//go:build !amd64 || noasm

package amd64

import (
	"runtime"

	"github.com/k3infer/k3/core/kernel"
)

func init() {
	reason := "an amd64 processor; this program is for " + runtime.GOARCH
	if runtime.GOARCH == "amd64" {
		reason = "assembly, which this program was built without (tag noasm)"
	}
	for _, name := range []string{"avx2", "avx512"} {
		kernel.Register(kernel.Driver{
			Name:    name,
			Missing: func() string { return reason },
			New:     func() kernel.Backend { panic("amd64: " + name + " needs " + reason) },
		})
	}
}
