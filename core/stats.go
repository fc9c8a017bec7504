package core

import (
	"slices"
	"time"
)

// Cost is what computing took: wall time, what came from the disk, and how long computing waited for it.
type Cost struct {
	Time                   time.Duration
	TrunkRead, ExpertRead  int64 // bytes of weights
	TrunkWait, ExpertWait  time.Duration
	ExpertAsked, ExpertHit int // experts asked for, and those of them that were in memory
}

// Wait is the time computing waited for the disk.
func (c Cost) Wait() time.Duration { return c.TrunkWait + c.ExpertWait }

// Read is the bytes of weights that came from the disk.
func (c Cost) Read() int64 { return c.TrunkRead + c.ExpertRead }

// read is the bytes of weights that all layers read.
func read(layers []Cost) (n int64) {
	for _, c := range layers {
		n += c.Read()
	}
	return n
}

func (c *Cost) add(x Cost, sign int) {
	c.Time += time.Duration(sign) * x.Time
	c.TrunkRead += int64(sign) * x.TrunkRead
	c.ExpertRead += int64(sign) * x.ExpertRead
	c.TrunkWait += time.Duration(sign) * x.TrunkWait
	c.ExpertWait += time.Duration(sign) * x.ExpertWait
	c.ExpertAsked += sign * x.ExpertAsked
	c.ExpertHit += sign * x.ExpertHit
}

// share is what a text with some of a pass's rows is told of its cost.
func (c Cost) share(own, rows int) Cost {
	if own == rows {
		return c
	}
	part := func(n int64) int64 { return int64(float64(n) * float64(own) / float64(rows)) }
	c.TrunkRead, c.ExpertRead = part(c.TrunkRead), part(c.ExpertRead)
	c.ExpertAsked, c.ExpertHit = int(part(int64(c.ExpertAsked))), int(part(int64(c.ExpertHit)))
	return c
}

// Costs returns what all passes so far took, layer by layer, lm_head last. Bytes that were read ahead of a pass count when
// they are read; a layer's time counts when it is done.
func (e *Engine) Costs() []Cost {
	all := make([]Cost, e.model.Config.Layers+1)
	for i := range e.layerTime {
		all[i].Time = time.Duration(e.layerTime[i].Load())
	}
	for i, m := range e.tape.Stats().Matrices {
		c := &all[e.matrices[i].Layer]
		c.TrunkRead += m.Read
		c.TrunkWait += m.Wait
	}
	for i, x := range e.experts.Stats() {
		c := &all[i]
		c.ExpertRead, c.ExpertWait, c.ExpertAsked, c.ExpertHit = x.Read, x.Wait, x.Requests, x.Hits
	}
	return all
}

// spent returns what was spent since it was last called, layer by layer. Whoever calls it has the turn: what is read ahead between
// two passes counts for the second.
func (e *Engine) spent() []Cost {
	now := e.Costs()
	since := slices.Clone(now)
	if e.counted != nil {
		subtract(since, e.counted)
	}
	e.counted = now
	return since
}

// clock measures the layers of one pass.
type clock struct {
	engine *Engine
	layer  int // -1 before the first
	since  time.Time
}

func (c *clock) enter(layer int) {
	now := time.Now()
	if c.layer >= 0 {
		c.engine.layerTime[c.layer].Add(int64(now.Sub(c.since)))
	}
	c.layer, c.since = layer, now
}

// subtract returns a less b, layer by layer.
func subtract(a, b []Cost) []Cost {
	for i := range a {
		a[i].add(b[i], -1)
	}
	return a
}
