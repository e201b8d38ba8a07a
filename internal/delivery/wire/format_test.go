package wire_test

import (
	"testing"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

func TestFormatReads(t *testing.T) {
	f := wire.Format{Layout: 2, Resource: 30}
	for _, c := range []struct {
		used wire.Format
		want bool
	}{
		{wire.Format{Layout: 1, Resource: 30}, true},
		{wire.Format{Layout: 2, Resource: 0}, true},
		{wire.Format{Layout: 3, Resource: 1}, false},
		{wire.Format{Layout: 1, Resource: 45}, false},
	} {
		if got := f.CanRead(c.used); got != c.want {
			t.Errorf("%v reads %v: %t, want %t", f, c.used, got, c.want)
		}
	}
	if !wire.LatestFormat().CanRead(wire.BaseFormat()) {
		t.Error("this program does not read the first format")
	}
}

func TestFormatText(t *testing.T) {
	for _, f := range []wire.Format{wire.BaseFormat(), wire.LatestFormat(), {Layout: 12, Resource: 63}} {
		if got, ok := wire.ParseFormat(f.String()); !ok || got != f {
			t.Errorf("ParseFormat(%q) = %v, %t", f, got, ok)
		}
	}
	for _, s := range []string{"", "layout=1", "layout=0; resource=3", "layout=1; resource=300", "layout=x; resource=1", "layout=-1; resource=1"} {
		if f, ok := wire.ParseFormat(s); ok {
			t.Errorf("ParseFormat(%q) = %v", s, f)
		}
	}
}

// TestFormatOf checks that a resource counts wherever a batch has it.
func TestFormatOf(t *testing.T) {
	var used usage.Usage
	used.Put(usage.PIDsPeak, 1, usage.Measured)
	for name, w := range map[string]usage.Window{
		"in a row":       {Rows: []usage.Row{{Usage: used}}},
		"in totals":      {Rows: []usage.Row{{Has: usage.SetOf(usage.PIDsPeak)}}},
		"of the machine": {Total: used},
	} {
		if got := wire.FormatOf(&batch.Batch{Windows: []usage.Window{{}, w}}); got != (wire.Format{Layout: 1, Resource: usage.PIDsPeak}) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
