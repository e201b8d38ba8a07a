package sampler_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// gauge is a meter of 10 W.
type gauge struct {
	start time.Time
	fails string
}

func (g *gauge) Read(into []power.Reading) ([]power.Reading, error) {
	up := int64(time.Since(g.start))
	return append(into, power.Reading{At: up + int64(time.Hour), Value: up / 100, Err: g.fails}), nil
}

// Meters are read around the groups and booked. A fault is logged once with its end,
// however often it recurs within an hour; while the meter is not used its learned model is
// used.
func TestMeters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		g := &gauge{start: time.Now()}
		accounts := attribute.New("node")
		accounts.SetMeters(energy.New(energy.Config{Meters: []power.Meter{{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap}}}))
		s := sampler.NewSampler(sampler.Config{Tick: time.Second, Window: 10 * time.Second}, accounts, "boot", &clock{start: g.start},
			[]sampler.Source{newGroups()}, slog.New(slog.NewTextHandler(&log, nil)))
		s.SetMeters(g)
		var w usage.Window
		for i := range 3800 {
			if g.fails = ""; i%100 >= 50 && i%100 < 55 {
				g.fails = "it is gone"
			}
			b, err := s.Tick()
			if err != nil {
				t.Fatal(err)
			}
			if uJ := b.Whole.Get(usage.EnergyPackage); i > 0 && uJ != 10_000_000 {
				t.Fatalf("tick %d: booked %d uJ, want 10 W for a second", i, uJ)
			}
			if snap := s.Snapshot(); len(snap.Before) != 1 || len(snap.After) != 1 {
				t.Fatalf("%d readings before, %d after", len(snap.Before), len(snap.After))
			}
			time.Sleep(time.Second)
		}
		accounts.CloseWindow(&w)
		text := log.String()
		if n := strings.Count(text, "level=WARN"); n != 2 {
			t.Errorf("%d warnings in an hour and some minutes, want 2:\n%s", n, text)
		}
		if n := strings.Count(text, "meter is used again\""); n != 2 || !strings.Contains(text, `why=gone err="it is gone"`) || !strings.Contains(text, "for=6s") {
			t.Errorf("%d recoveries, want 2:\n%s", n, text)
		}
	})
}
