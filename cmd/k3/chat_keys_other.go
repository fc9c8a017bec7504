//go:build !unix

package main

import (
	"io"
	"os"
)

// keys does nothing here: the line editor reads the console itself.
type keys struct{}

func openKeys(*os.File, io.Writer) *keys { return &keys{} }

func (*keys) opened() {}
func (*keys) begin()  {}
func (*keys) end()    {}
