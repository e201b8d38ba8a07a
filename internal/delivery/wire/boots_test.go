package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
)

// TestBoots checks that what is stated of earlier boots is read again, and nothing else.
func TestBoots(t *testing.T) {
	boots := []batch.BootEnd{{Boot: "7f4e4a9e-6d2f", End: 1, Offset: -1}, {Boot: "b", End: 1 << 62, Offset: 1<<63 - 1}}
	if got := wire.ParseBoots(wire.FormatBoots(boots)); cmp.Diff(boots, got) != "" {
		t.Errorf("%+v, want %+v", got, boots)
	}
	if got := wire.FormatBoots([]batch.BootEnd{{Boot: "a,b"}, {Boot: ""}, {Boot: strings.Repeat("x", 129)}}); got != "" {
		t.Errorf("boots without a proper id are written as %q", got)
	}
	longest := []batch.BootEnd{{Boot: strings.Repeat("x", 128)}}
	if got := wire.ParseBoots(wire.FormatBoots(longest)); cmp.Diff(longest, got) != "" {
		t.Errorf("the longest id is read as %+v", got)
	}
	var many []batch.BootEnd
	for i := range 100 {
		many = append(many, batch.BootEnd{Boot: fmt.Sprint(i)})
	}
	if got := wire.ParseBoots(wire.FormatBoots(many)); len(got) != 64 || got[63].Boot != "99" {
		t.Errorf("of 100 boots %d are read, want the last 64", len(got))
	}
	for _, bad := range []string{"", "a", "a=", "a=1", "a=1/", "a=1/2,", "=1/2", "a b=1/2", "a=x/2", strings.Repeat("a=1/2,", 64) + "a=1/2"} {
		if got := wire.ParseBoots(bad); got != nil {
			t.Errorf("%.30q is read as %v", bad, got)
		}
	}
}
