package ticker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/k3infer/k3/core/internal/ticker"
)

func TestReportsComeWhileWorkGoesOnAndOnceAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		stop := ticker.Start(func() { n++ })
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if n != 5 {
			t.Errorf("%d reports in a second", n)
		}
		stop()
		if n != 6 {
			t.Errorf("%d reports after the end", n)
		}
		time.Sleep(time.Minute)
		if n != 6 {
			t.Error("reports go on after the end")
		}
	})
	ticker.Start(nil)()
}
