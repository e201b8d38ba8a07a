package spool

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
)

// TestBoots checks that the last waiting window of each boot is stated, in the order of boots.
func TestBoots(t *testing.T) {
	s := &Spool{}
	if got := s.Boots(); got != nil {
		t.Errorf("of no windows: %v", got)
	}
	for _, h := range []windowHead{{Boot: "b", End: 5, Offset: 1}, {Boot: "b", End: 9, Offset: 2}, {Boot: "a", End: 3, Offset: 7}} {
		s.index = append(s.index, window{windowHead: h})
	}
	want := []batch.BootEnd{{Boot: "b", End: 9, Offset: 2}, {Boot: "a", End: 3, Offset: 7}}
	if d := cmp.Diff(want, s.Boots()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
