package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
)

// patience is how long the work may take to notice that it was cancelled.
const patience = 2 * time.Second

// errTerminated is the cause of a context that was cancelled because the program was told to end, or its terminal has gone.
var errTerminated = errors.New("terminated")

// terminated reports whether that is why ctx was cancelled.
func terminated(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errTerminated) }

// endings are the signals that ask the program to end.
func endings() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// interrupts watches for the signals that ask the program to end. The first Ctrl-C closes first; the second cancels the context,
// as SIGTERM and SIGHUP do at once, which wait for nobody: terminated tells. If another comes then, and the program is still there
// after a moment, leave is called and it ends. stop ends the watch.
func interrupts(parent context.Context, leave ...func()) (ctx context.Context, first <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals, done, once := make(chan os.Signal, 2), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, endings()...)
	go func() {
		for n := 0; ; n++ {
			var s os.Signal
			select {
			case s = <-signals:
			case <-done:
				return
			}
			if n == 0 {
				close(once)
			}
			last := ctx.Err() != nil // it was cancelled before, and is on its way
			switch {
			case s != os.Interrupt:
				cancel(errTerminated)
			case n > 0:
				cancel(nil)
				last = true
			}
			if last {
				break
			}
		}
		select {
		case <-time.After(patience):
			for _, l := range leave {
				l()
			}
			os.Exit(ui.ExitInterrupted)
		case <-done:
		}
	}()
	return ctx, once, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}

// interruptible is for work that the first Ctrl-C may cancel, because nothing is lost by it.
func interruptible(parent context.Context) (ctx context.Context, stop func()) {
	ctx, first, end := interrupts(parent)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-first:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		end()
	}
}

// keepPipe has a write to a pipe that nobody reads fail instead of ending the program on the spot.
func keepPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// outlet passes on what is written and remembers the first error, which tells a reader that has gone from other failures.
type outlet struct {
	io.Writer
	lenient bool // nothing depends on it: errors end nothing
	err     error
}

func (o *outlet) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if o.err == nil {
		o.err = err
	}
	if o.lenient {
		return len(p), nil
	}
	return n, err
}

// closed reports whether whoever read what is written has gone.
func (o *outlet) closed() bool {
	if runtime.GOOS == "windows" {
		const brokenPipe, noData = syscall.Errno(109), syscall.Errno(232)
		return errors.Is(o.err, brokenPipe) || errors.Is(o.err, noData)
	}
	return errors.Is(o.err, syscall.EPIPE)
}
