package memory

import (
	"fmt"
	"math"
)

// Limit is a bound on the memory of this process.
type Limit struct {
	Source string `json:"source"` // what sets it: "host", "cgroup /a/b", "ulimit -v"
	Bytes  int64  `json:"bytes"`  // the bound
	Free   int64  `json:"free"`   // what of it this process could have now: what it holds already, and what nobody holds
}

// Machine is what memory there is.
type Machine struct {
	Limits   []Limit  // the host's memory first; never empty
	Warnings []string // what could not be found out, and what is assumed in its place
}

// assumed is the memory of a host that does not say how much it has.
const assumed = 4 << 30

// most is the size from which on a limit means none: nothing has that much memory, and version 1 of cgroups writes
// 0x7FFFFFFFFFFFF000 for "unlimited".
const most = 8 << 50

// Probe asks the operating system. It always has an answer: what cannot be found out is assumed, with a warning.
func Probe() Machine { return complete(probe()) }

func complete(m Machine) Machine {
	if len(m.Limits) == 0 || m.Limits[0].Source != "host" {
		m.Warnings = append(m.Warnings, fmt.Sprintf("the memory of this machine is not known; %d GiB are assumed", assumed>>30))
		m.Limits = append([]Limit{{"host", assumed, assumed}}, m.Limits...)
	}
	return m
}

// Limit is the smallest bound.
func (m Machine) Limit() Limit { return m.smallest(func(l Limit) int64 { return l.Bytes }) }

// Free is the bound with the least left for this process.
func (m Machine) Free() Limit { return m.smallest(func(l Limit) int64 { return l.Free }) }

func (m Machine) smallest(size func(Limit) int64) Limit {
	best := m.Limits[0]
	for _, l := range m.Limits[1:] {
		if size(l) < size(best) {
			best = l
		}
	}
	return best
}

// add notes a limit, unless it is none. Memory in use by others is taken off.
func (m *Machine) add(source string, bytes uint64, othersUse int64) {
	if bytes >= most {
		return
	}
	m.Limits = append(m.Limits, Limit{source, int64(bytes), max(int64(bytes)-max(othersUse, 0), 0)})
}

func (m *Machine) warn(format string, args ...any) {
	m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...))
}

// clip makes a size of the operating system's an int64.
func clip(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
