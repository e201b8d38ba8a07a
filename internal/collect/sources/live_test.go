package sources_test

import (
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/ui/top"
)

// On a machine without meters the power is modelled: it has an error and the name of its
// curve, and the rows sum to it.
func TestLivePowerModelled(t *testing.T) {
	cfg := everyTick(sources.Files)
	cfg.Energy.Powercap = t.TempDir()
	hosttest.Need(t, "root")
	hosttest.LockExclusive(t, "guests") // a guest that starts or stops is part of one tick only
	m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	liveTick(t, m)
	if e := m.Live().Energy; e != nil {
		t.Errorf("energy %+v before any time passed, want it absent", e)
	}
	liveTick(t, m)
	l := m.Live()
	e := l.Energy
	if e == nil || len(e.Domains) != 1 || e.Quality != usage.Modelled {
		t.Fatalf("energy %+v, want one domain, modelled", e)
	}
	if d := e.Domains[0]; d.Name != "rest" || !strings.Contains(d.Source, "SPECpower_ssj2008") || d.Watts != e.Watts || d.Error <= 0 {
		t.Errorf("domain %+v, want the whole machine by a curve", d)
	}
	if part := e.Error / e.Watts; e.Watts <= 0 || part < 0.05 || part > 1 {
		t.Errorf("%v W +-%v, want an error", e.Watts, e.Error)
	}
	guests := slices.ContainsFunc(m.Snapshot().Groups, func(g *usage.Group) bool { return g.Guest != nil })
	var sum, off float64
	for _, r := range l.Rows {
		if r.Power == nil {
			continue
		}
		sum += *r.Power
		if r.PowerError == nil || *r.PowerError < 0 || r.Quality["power"] != usage.Modelled {
			t.Errorf("%s: %v W +-%v, %v", r.Name, *r.Power, r.PowerError, r.Quality["power"])
		}
		if r.PowerError != nil {
			off += *r.PowerError
		}
		// Virtual machines on this machine take part of the idle energy.
		if r.Kind == workload.Idle && (math.Abs(*r.Power-e.Idle) > 1e-9) != guests {
			t.Errorf("row idle: %v W of the machine's %v; with virtual machines: %v", *r.Power, e.Idle, guests)
		}
	}
	if math.Abs(sum-e.Watts) > 1e-6*e.Watts {
		t.Errorf("rows sum to %v W of %v", sum, e.Watts)
	}
	if math.Abs(off-e.Error) > 1e-6*e.Error {
		t.Errorf("the errors of rows sum to %v W of %v", off, e.Error)
	}
	head := top.Text(l, 0, top.Options{})
	if !strings.Contains(head, "\nPower ≈") || !strings.Contains(head, " modelled: SPECpower_ssj2008") {
		t.Errorf("mete top does not name the source of the power:\n%s", head)
	}
}
