package energy_test

import (
	"math"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
)

// A job's part of idle energy is that of its CPU time. Errors add up.
func TestIdleShare(t *testing.T) {
	var s energy.IdleShare
	s.Add(100, 12, 0, 0) // nothing was used
	s.Add(100, 12, 1, 4)
	if s != (energy.IdleShare{Energy: 25, Error: 3}) {
		t.Errorf("a quarter: %+v", s)
	}
	s.Add(100, 12, 5, 3) // the whole was read before the part
	if s != (energy.IdleShare{Energy: 125, Error: 15}) {
		t.Errorf("all: %+v", s)
	}
	s.Add(math.MaxInt64, math.MaxInt64, 1, 1)
	if s != (energy.IdleShare{Energy: math.MaxInt64, Error: math.MaxInt64}) {
		t.Errorf("more than fits: %+v", s)
	}
}
