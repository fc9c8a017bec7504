package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// patience is how long the work may take to notice that it was cancelled.
const patience = 2 * time.Second

// interrupts watches for Ctrl-C and its like: the first closes first, the second cancels the context, and if the program is
// then still there after a moment, leave is called and it ends. stop ends the watch.
func interrupts(parent context.Context, leave ...func()) (ctx context.Context, first <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals, done, once := make(chan os.Signal, 2), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
			close(once)
		case <-done:
			return
		}
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		select {
		case <-time.After(patience):
			for _, l := range leave {
				l()
			}
			os.Exit(exitInterrupted)
		case <-done:
		}
	}()
	return ctx, once, func() {
		signal.Stop(signals)
		close(done)
		cancel()
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
