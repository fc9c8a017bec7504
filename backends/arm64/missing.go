//go:build !arm64 || noasm

package arm64

import (
	"runtime"

	"github.com/k3infer/k3/core/kernel"
)

func init() {
	reason := "an arm64 processor; this program is for " + runtime.GOARCH
	if runtime.GOARCH == "arm64" {
		reason = "assembly, which this program was built without (tag noasm)"
	}
	kernel.Register(kernel.Driver{
		Name:    "neon",
		Missing: func() string { return reason },
		New:     func() kernel.Backend { panic("arm64: neon needs " + reason) },
	})
}
