package experts

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ErrOffline is returned when a policy that must know the future is asked for without one.
var ErrOffline = errors.New("policy needs to know the future: it serves simulation only")

// ErrUnknownPolicy is returned for a policy name that nobody registered.
var ErrUnknownPolicy = errors.New("unknown cache policy")

// Key names one routed expert of the model.
type Key struct {
	Layer  int32 // layer of the model, counted from 0
	Expert int32 // expert within the layer, counted from 0
}

// Config tells a policy what it is going to decide about. Everything is counted, not measured: an expert is one slot.
type Config struct {
	Layers   int    // layers of the model; every Key.Layer is below it
	Experts  int    // routed experts of one layer; every Key.Expert is below it
	Capacity int    // residents the cache can hold, at least 1
	Seed     uint64 // seed of policies that draw lots; the same seed makes the same decisions
	Future   []Key  // every request to come, in order; nil outside simulation
}

// Decision is what a policy does with an expert that was asked for and is missing.
type Decision uint8

const (
	Fill   Decision = iota // keep it in a free slot
	Swap                   // keep it in place of the victim named
	Bypass                 // keep it only as long as the engine computes with it
)

// Policy decides which experts stay in memory. It counts the residents itself, up to Config.Capacity; the owner of the slots
// keeps that account true by reporting every request exactly once, in the order the router made them, layer by layer and
// pass after pass, and by doing what the policy decides.
//
// The engine reports each distinct expert of a layer once a pass; a recorded trace may repeat one within a layer. A policy
// sees a new layer, and a new pass, by the layer of the keys. Calls allocate nothing and are never concurrent.
type Policy interface {
	// Hit reports a request for a resident expert.
	Hit(key Key)
	// Miss reports a request for an expert that is not resident, and decides. It fills only while fewer than
	// Config.Capacity are resident. A swap names the resident to leave; the engine cannot part with experts it is loading
	// or computing with, so only one for which evictable says true is named, nil meaning any. With nobody to name, or
	// nobody worth less than key, it is a bypass.
	Miss(key Key, evictable func(Key) bool) (victim Key, decision Decision)
	// Remove reports that a resident is gone for a reason of the engine's own, such as a load that failed.
	Remove(key Key)
}

// Factory makes a policy for one cache. It answers ErrOffline if it needs Config.Future and there is none.
type Factory func(Config) (Policy, error)

var (
	factoriesMu sync.RWMutex
	factories   = map[string]Factory{}
)

// RegisterPolicy makes a policy available under name. It is called from init of the package that holds the policy, and panics
// if factory is nil or the name is taken.
func RegisterPolicy(name string, factory Factory) {
	factoriesMu.Lock()
	defer factoriesMu.Unlock()
	if factory == nil {
		panic("experts: RegisterPolicy: factory of " + name + " is nil")
	}
	if _, taken := factories[name]; taken {
		panic("experts: RegisterPolicy: called twice for " + name)
	}
	factories[name] = factory
}

// Policies lists the names of all registered policies, sorted.
func Policies() []string {
	factoriesMu.RLock()
	defer factoriesMu.RUnlock()
	names := make([]string, 0, len(factories))
	for name := range factories {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// NewPolicy makes the named policy. The error is ErrUnknownPolicy or ErrOffline (wrapped), or says what is wrong with config.
func NewPolicy(name string, config Config) (Policy, error) {
	factoriesMu.RLock()
	factory := factories[name]
	factoriesMu.RUnlock()
	if factory == nil {
		return nil, fmt.Errorf("experts: make policy %q: %w (there are %s)", name, ErrUnknownPolicy, strings.Join(Policies(), ", "))
	}
	if config.Layers < 1 || config.Experts < 1 || config.Capacity < 1 {
		return nil, fmt.Errorf("experts: make policy %q: %d layers, %d experts, capacity %d: each must be at least 1",
			name, config.Layers, config.Experts, config.Capacity)
	}
	policy, err := factory(config)
	if err != nil {
		return nil, fmt.Errorf("experts: make policy %q: %w", name, err)
	}
	return policy, nil
}

// CheckPolicy says whether name can serve a running engine: nil, ErrUnknownPolicy or ErrOffline (wrapped).
func CheckPolicy(name string) error {
	_, err := NewPolicy(name, Config{Layers: 1, Experts: 1, Capacity: 1})
	return err
}
