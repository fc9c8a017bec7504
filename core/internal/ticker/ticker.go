// Package ticker reports progress while work goes on.
package ticker

import "time"

// interval is short enough for a figure to seem to move.
const interval = 200 * time.Millisecond

// Start calls report now and then, until the function it returns is called, which calls it a last time. Calls do not overlap.
// A nil report is never called.
func Start(report func()) (stop func()) {
	if report == nil {
		return func() {}
	}
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				report()
			case <-ended:
				return
			}
		}
	}()
	return func() {
		close(ended)
		<-gone
		report()
	}
}
