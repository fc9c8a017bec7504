package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Plural is a number of things: 1 token, 2 tokens.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Count writes a large number with three digits: 2.78T.
func Count(n int64) string { return short(n, 1000, []string{"", "K", "M", "B", "T", "Q"}) }

// Size writes a number of bytes on disk with three digits: 1.56 TB.
func Size(n int64) string {
	return short(n, 1000, []string{" B", " KB", " MB", " GB", " TB", " PB", " EB"})
}

// InMemory writes a number of bytes of memory with three digits: 7.45 GiB.
func InMemory(n int64) string {
	return short(n, 1024, []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"})
}

func short(n int64, base float64, units []string) string {
	x, u := float64(n), 0
	for u+1 < len(units) && x >= base-0.5 {
		x, u = x/base, u+1
	}
	digits := 0
	if u > 0 && x < 99.95 {
		digits = 1
		if x < 9.995 {
			digits = 2
		}
	}
	return fmt.Sprintf("%.*f%s", digits, x, units[u])
}

// Seconds writes a time with three digits.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	for unit := time.Duration(1); unit <= time.Minute; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}

// Percent is a share: 12.5%.
func Percent(done, total int64) string {
	if total <= 0 {
		return "100%"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(done)/float64(total))
}

// Pace says how fast something goes and when it will be done, by its last half minute.
type Pace struct {
	of   int64 // what the samples are of
	at   []time.Time
	done []int64
}

// Start forgets the samples when something else begins.
func (p *Pace) Start(of int64) {
	if p.of != of {
		*p = Pace{of: of}
	}
}

// Update is ", RATE, TIME left", or nothing yet.
func (p *Pace) Update(now time.Time, done, total int64) string {
	const window = 30 * time.Second
	p.at, p.done = append(p.at, now), append(p.done, done)
	for len(p.at) > 2 && now.Sub(p.at[1]) > window {
		p.at, p.done = p.at[1:], p.done[1:]
	}
	elapsed, bytes := now.Sub(p.at[0]).Seconds(), done-p.done[0]
	if elapsed < 1 || bytes <= 0 {
		return ""
	}
	rate := float64(bytes) / elapsed
	left := time.Duration(float64(total-done) / rate * float64(time.Second))
	return fmt.Sprintf(", %s/s, %s left", Size(int64(rate)), LongTime(left))
}

// LongTime writes a time that may be days.
func LongTime(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.Round(time.Second).String()
}

// WriteJSON writes v on a line of its own, without escaping HTML.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
