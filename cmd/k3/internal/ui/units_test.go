package ui

import (
	"math"
	"testing"
	"time"
)

func TestQuantitiesHaveThreeDigits(t *testing.T) {
	for want, got := range map[string]string{
		"0": Count(0), "999": Count(999), "1.00K": Count(1000), "7.21M": Count(7208384), "2.78T": Count(2779000000000),
		"1.00M":   Count(999999),
		"1.56 TB": Size(1560936091448), "55.3 KB": Size(55296), "512 B": Size(512), "9.22 EB": Size(math.MaxInt64),
		"8.00 GiB": InMemory(8 << 30), "1000 MiB": InMemory(1000 << 20), "1.00 GiB": InMemory(1<<30 - 1),
		"1.23ms": Seconds(0.001234), "12.3s": Seconds(12.345), "226ms": Seconds(0.2263), "3h25m45s": Seconds(12345.4),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPaceSaysHowFastAndHowLong(t *testing.T) {
	var p Pace
	p.Start(1)
	now := time.Unix(1000, 0)
	if s := p.Update(now, 0, 1e9); s != "" {
		t.Errorf("at first %q", s)
	}
	for i := 1; i <= 100; i++ {
		s := p.Update(now.Add(time.Duration(i)*time.Second), int64(i)*1e6, 1e9)
		if want := ", 1.00 MB/s, " + LongTime(time.Duration(1000-i)*time.Second) + " left"; s != want {
			t.Fatalf("after %d s %q, want %q", i, s, want)
		}
	}
	if len(p.at) > 35 {
		t.Errorf("%d samples are kept", len(p.at))
	}
	for d, want := range map[time.Duration]string{59 * time.Second: "59s", 90 * time.Minute: "1h30m", 50 * time.Hour: "2d2h"} {
		if got := LongTime(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
