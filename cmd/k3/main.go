// Command k3 runs Moonshot's Kimi K3 and models of its architecture on the machine at hand.
//
// Results go to stdout, progress, reports and errors to stderr. The exit code is 0 when it is done, 1 when the run failed,
// 2 for wrong usage or configuration, 3 for a damaged, incomplete or unsuitable checkpoint or other input file, 4 for a
// request that does not fit the memory given, 130 when it was interrupted, 141 when the reader of stdout went away.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/pack"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
)

func main() {
	err := addressSpace()
	if err == nil {
		err = execute(os.Args[1:])
	}
	if err != nil {
		for _, text := range messages(err) {
			if errors.Is(err, ui.ErrPipe) {
				break // nobody is there to read it, or wants to
			}
			fmt.Fprintf(os.Stderr, "k3: %s\n", text)
		}
		var partial *checkpoint.Partial
		switch hint := ui.Hint(err); {
		case hint != "":
			fmt.Fprintf(os.Stderr, "k3: %s\n", hint)
		case errors.As(err, &partial):
			fmt.Fprintf(os.Stderr, "k3: %s fetches the rest\n", goOn(partial.Files, partial.Missing...))
		}
	}
	os.Exit(exitCode(err))
}

// messages are the lines that say what went wrong: one, or one for each file of a download.
func messages(err error) []string {
	var files hub.Failures
	if !errors.As(err, &files) {
		return []string{ui.OneLine(err)}
	}
	var list []string
	for _, err := range files {
		list = append(list, ui.OneLine(err))
	}
	return list
}

// addressSpace refuses to begin where the Go runtime would soon get no memory: it ends a program with pages of its own state then.
func addressSpace() error {
	const needed = 96 << 20 // an arena of the heap, threads, and what lies around
	if left, limited := memory.AddressSpace(); limited && left < needed {
		return fmt.Errorf("%w: ulimit -v leaves %d MiB of address space, and the program itself needs %d MiB more", core.ErrNoFit,
			max(left, 0)>>20, needed>>20)
	}
	return nil
}

// unreadable reports whether a file is there that could not be read: nobody knows whether it is damaged.
func unreadable(err error) bool {
	var read *disk.Error
	return errors.Is(err, fs.ErrPermission) || errors.As(err, &read) && !errors.Is(err, disk.ErrShort)
}

// exitCode is the one place that knows what kind of failure an error is.
func exitCode(err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	damaged := is(checkpoint.ErrConfig, checkpoint.ErrFormat, tokenizer.ErrFormat, core.ErrSession,
		core.ErrChecksum, checksum.ErrFormat, pack.ErrNone, pack.ErrFormat, pack.ErrOther, disk.ErrShort, disk.ErrFile)
	code, given := ui.Code(err)
	switch {
	case err == nil:
		return 0
	case given && code == ui.ExitInput && !damaged && unreadable(err):
		return ui.ExitFailed
	case given:
		return code
	case is(presets.ErrConfig, sample.ErrParams, kernel.ErrBackend, experts.ErrUnknownPolicy, experts.ErrOffline, core.ErrContext, core.ErrToken, core.ErrPrompt,
		tokenizer.ErrUnknownID, tokenizer.ErrInvalidUTF8):
		return ui.ExitUsage
	case damaged:
		return ui.ExitInput
	case is(core.ErrNoFit):
		return ui.ExitNoFit
	case is(context.Canceled):
		return ui.ExitInterrupted
	}
	return ui.ExitFailed
}
