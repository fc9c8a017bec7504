//go:build !unix

package ui

import (
	"io"
	"os"
	"sync/atomic"

	"github.com/peterh/liner"
)

// keys does nothing here: the line editor reads the console itself.
type keys struct {
	in    *os.File
	typed atomic.Bool // always false: nobody sees what is typed
}

func openKeys(in *os.File, _ io.Writer) *keys { return &keys{in: in} }

func (k *keys) reader(bool) *os.File  { return k.in }
func (*keys) openLiner() *liner.State { return liner.NewLiner() }
func (*keys) begin()                  {}
func (*keys) end()                    {}
func (*keys) interrupt() bool         { return false }
