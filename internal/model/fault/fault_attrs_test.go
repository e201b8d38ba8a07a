package fault_test

import (
	"errors"
	"slices"
	"testing"

	"mete.dev/mete/internal/model/fault"
)

func TestAttrs(t *testing.T) {
	plain := errors.New("x")
	if got := fault.Attrs(plain, "node", "n"); !slices.Equal(got, []any{"node", "n", "err", plain}) {
		t.Errorf("attributes without a hint are %v", got)
	}
	hinted := fault.WithHint(plain, "look")
	if got := fault.Attrs(hinted); !slices.Equal(got, []any{"err", hinted, "hint", "look"}) {
		t.Errorf("attributes with a hint are %v", got)
	}
}
