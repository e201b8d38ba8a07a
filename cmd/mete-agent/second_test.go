package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestSecondAgent checks a second agent on one kernel. One for the same ledger is refused, whatever
// its state directory. One for another ledger is refused at the socket of the first, unless it gets
// its own socket; then each ledger has the whole machine once, energy included.
func TestSecondAgent(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	dir, _ := plantZones(t)
	one, two := newSite(t), newSite(t)
	one.serve()
	two.serve()
	one.measure("-powercap", dir, "-reader", "files")
	before := map[*site]float64{one: stolen(t)}

	refused := func(what string, s *site, token, want, hint string, flags ...string) {
		t.Helper()
		c := s.agent(flags...)
		c.Env = append(c.Env, "METE_TOKEN="+token)
		p := s.start(what, c)
		p.wait()
		log := p.log.String()
		if code := c.ProcessState.ExitCode(); code != 1 || !strings.Contains(log, want) || !strings.Contains(log, "hint: "+hint) || strings.Contains(log, "msg=measuring") {
			t.Errorf("%s: exit code %d, %s\nwant %q, and what to do", what, code, log, want)
		}
	}
	other := filepath.Join(one.dir, "other")
	refused("agent for the same ledger", one, one.token, "measures this machine for this ledger already: conflict", "one meter is enough",
		"-state", other, "-socket", filepath.Join(other, "s"))
	refused("agent for the same ledger, without a socket", one, one.token, "measures this machine for this ledger already: conflict", "one meter is enough",
		"-state", other, "-socket", "")
	socket := filepath.Join(one.dir, "s")
	refused("agent at the same socket", two, two.token, socket+": another agent listens: conflict", "stop it, or set METE_SOCKET to another path", "-socket", socket)

	// mete up is server and agent of its own ledger.
	cfg := up.DefaultAllInOne(filepath.Join(one.dir, "up"))
	cfg.Agent.Machine = sources.Config{Config: sampler.Default(), Reader: sources.Files}
	cfg.Agent.Socket = socket
	_, err := up.OpenAllInOne(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if !errors.Is(err, fault.ErrConflict) || !strings.Contains(fmt.Sprint(err), "another agent listens") || !strings.HasPrefix(fault.Hint(err), "stop it") {
		t.Errorf("mete up beside an agent: %v, hint %q", err, fault.Hint(err))
	}

	two.measure("-powercap", dir, "-reader", "files")
	before[two] = stolen(t)
	for _, s := range []*site{one, two} {
		s.server.await("energy of two seconds, booked", func() bool { return energyOf(t, s).seconds >= 2 })
	}
	away := map[*site]float64{}
	for _, s := range []*site{one, two} {
		s.node.stop() // with its last window
		away[s] = stolen(t) - before[s]
	}
	for _, s := range []*site{one, two} {
		e := energyOf(t, s)
		if math.Abs(e.rows-e.whole) > 1e-5 {
			t.Errorf("the rows sum to %.6f J, the machine had %.6f J", e.rows, e.whole)
		}
	}
	t.Run("power", func(t *testing.T) {
		testkit.Stage(t, "timing", "compares power with real time")
		for _, s := range []*site{one, two} {
			// The zones also count the CPU time stolen by the host, which no row has.
			e := energyOf(t, s)
			watts := e.whole / (e.seconds + away[s]/float64(stat(t).CPUs))
			t.Logf("%s: %.1f J of packages in %.2f s: %.1f W", s.url, e.whole, e.seconds, watts)
			if want := float64(len(troubles) * zoneWatts); watts < want*.7 || watts > want*1.3 {
				t.Errorf("%.1f W, the zones show %.0f W: not the double", watts, want)
			}
		}
	})
}

// booked is the energy of packages in a ledger, in J: of all rows and of the machine, and the time.
type booked struct{ rows, whole, seconds float64 }

// energyOf returns the energy in the ledger of a site.
func energyOf(t *testing.T, s *site) (b booked) {
	t.Helper()
	out := s.run("usage", "--by", "kind", "-o", "json", "--server", s.url, "--token", s.viewer, "--from", "-1h")
	var a struct {
		Groups []struct {
			Package *float64 `json:"energy_package_joules"`
		}
		Whole *struct {
			Package float64 `json:"energy_package_joules"`
			CPU     float64 `json:"cpu_seconds"`
		}
	}
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if a.Whole == nil || a.Whole.Package == 0 {
		return b
	}
	for _, g := range a.Groups {
		if g.Package != nil {
			b.rows += *g.Package
		}
	}
	b.whole, b.seconds = a.Whole.Package, a.Whole.CPU/float64(stat(t).CPUs)
	return b
}

// stolen returns the CPU time stolen by the host since boot, in seconds.
func stolen(t *testing.T) float64 {
	t.Helper()
	return float64(stat(t).Steal) / 1e9
}

// stat reads /proc/stat.
func stat(t *testing.T) procfmt.System {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	s, err := procfmt.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
