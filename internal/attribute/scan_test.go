package attribute

import (
	"testing"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestScanLevel checks the smallest and the largest level that a record may have.
func TestScanLevel(t *testing.T) {
	for v, ok := range map[int64]bool{0: true, levelLimit - 1: true, levelLimit: false, -1: false} {
		var s scanner
		if got := s.level(v); s.bad == ok || ok && got != v {
			t.Errorf("level %d: %d, accepted %t", v, got, !s.bad)
		}
	}
}

// TestRestoreRefusesSplit checks that a record is refused whose split of CPU time would give a
// negative part, or more than the whole.
func TestRestoreRefusesSplit(t *testing.T) {
	for _, c := range []struct {
		part, whole int64
		ok          bool
	}{{0, 0, true}, {3, 3, true}, {0, 3, true}, {4, 3, false}, {-1, 3, false}} {
		acc := New("n")
		s := &usage.Snapshot{Boot: "b", At: 1e9, Mono: 1e9, Node: usage.Node{CPUs: 1}}
		g := &usage.Group{Parent: usage.NoSlot, Life: workload.Life{ID: 1}}
		g.Put(usage.CPU, 7)
		g.Put(usage.CPUUser, 4)
		g.Put(usage.CPUSystem, 3)
		s.Groups = []*usage.Group{g}
		acc.Tick(s)
		acc.current[0].userPart, acc.current[0].userWhole = c.part, c.whole
		if _, err := Restore("n", [][]byte{acc.Checkpoint(nil, true)}); (err == nil) != c.ok {
			t.Errorf("%d of %d: %v", c.part, c.whole, err)
		}
	}
}
