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

// Each window keeps its scope, whatever the window before has.
func TestScopes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBatch(t)
		for i := range b.Windows {
			b.Windows[i].Scope = rapid.SampledFrom([]usage.Scope{"", usage.Machine, usage.ScopeOf(7)}).Draw(t, "scope")
		}
		got := decode(t, encode(t, b))
		for i := range b.Windows {
			if got.Windows[i].Scope != b.Windows[i].Scope {
				t.Fatalf("window %d has scope %q, want %q", i, got.Windows[i].Scope, b.Windows[i].Scope)
			}
		}
	})
}

func TestScopeIsRefused(t *testing.T) {
	sent := encode(t, &batch.Batch{Windows: []usage.Window{{Boot: "b", End: 1, Scope: "/etc"}}})
	if _, err := wire.Decode(sent, wire.Default()); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a scope that is none: %v", err)
	}
}
