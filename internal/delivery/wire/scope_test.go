package wire_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// Each window keeps its scope and the ancestors, whatever the window before has.
func TestScopes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBatch(t)
		for i := range b.Windows {
			b.Windows[i].Extent = rapid.SampledFrom([]usage.Extent{{}, {Scope: usage.Machine}, {Scope: usage.ScopeOf(7)},
				{Scope: usage.ScopeOf(7), Ancestors: "0:"}, {Scope: usage.ScopeOf(7), Ancestors: "3:9,8"}, {Scope: usage.ScopeOf(8), Ancestors: "3:9,8"}}).Draw(t, "part")
		}
		got := decode(t, encode(t, b))
		for i := range b.Windows {
			if got.Windows[i].Extent != b.Windows[i].Extent {
				t.Fatalf("window %d is of %v, want %v", i, got.Windows[i].Extent, b.Windows[i].Extent)
			}
		}
	})
}

func TestScopeIsRefused(t *testing.T) {
	for _, p := range []usage.Extent{{Scope: "/etc"}, {Scope: usage.Machine, Ancestors: "a"}} {
		sent := encode(t, &batch.Batch{Windows: []usage.Window{{Boot: "b", End: 1, Extent: p}}})
		if _, err := wire.Decode(sent, wire.Default()); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v: %v", p, err)
		}
	}
}
