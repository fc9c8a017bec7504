package experts

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

type nothing struct{ Policy }

// emptyRegistry keeps a test's policies from the other tests.
func emptyRegistry(t *testing.T) {
	before := factories
	factories = map[string]Factory{}
	t.Cleanup(func() { factories = before })
}

func TestPoliciesAreListedSortedAndFoundByName(t *testing.T) {
	emptyRegistry(t)
	for _, name := range []string{"test-b", "test-a"} {
		RegisterPolicy(name, func(Config) (Policy, error) { return nothing{}, nil })
	}
	RegisterPolicy("test-offline", func(c Config) (Policy, error) {
		if c.Future == nil {
			return nil, ErrOffline
		}
		return nothing{}, nil
	})
	names := Policies()
	if want := []string{"test-a", "test-b", "test-offline"}; !slices.Equal(names, want) {
		t.Errorf("policies %v, not %v", names, want)
	}
	sound := Config{Layers: 1, Experts: 1, Capacity: 1}
	if p, err := NewPolicy("test-a", sound); err != nil || p != (nothing{}) {
		t.Errorf("%v, %v", p, err)
	}
	if err := CheckPolicy("test-offline"); !errors.Is(err, ErrOffline) {
		t.Errorf("a policy that needs the future, checked for a run: %v", err)
	}
	sound.Future = []Key{{}}
	if _, err := NewPolicy("test-offline", sound); err != nil {
		t.Errorf("a policy that needs the future, given it: %v", err)
	}
	if err := CheckPolicy("test-c"); !errors.Is(err, ErrUnknownPolicy) || !strings.Contains(err.Error(), "test-a, test-b") {
		t.Errorf("a policy nobody registered: %v", err)
	}
	for _, c := range []Config{{0, 1, 1, 0, nil}, {1, 0, 1, 0, nil}, {1, 1, 0, 0, nil}} {
		if _, err := NewPolicy("test-a", c); err == nil {
			t.Errorf("a policy for %+v", c)
		}
	}
}

func TestRegisterPolicyPanicsOnNilAndDuplicates(t *testing.T) {
	emptyRegistry(t)
	panics := func(name string, f Factory) (did bool) {
		defer func() { did = recover() != nil }()
		RegisterPolicy(name, f)
		return
	}
	f := func(Config) (Policy, error) { return nothing{}, nil }
	if !panics("test-nil", nil) {
		t.Error("a nil factory was taken")
	}
	if panics("test-once", f) || !panics("test-once", f) {
		t.Error("a name was taken twice, or not once")
	}
}
