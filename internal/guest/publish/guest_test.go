package publish_test

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
)

// TestGuest runs this machine as a guest, with all parts of an agent, of a host that consists of
// accounts alone: it books what it is given, and acknowledges that.
func TestGuest(t *testing.T) {
	r, _ := start(t, publish.Config{})
	l := listenLocal(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, l) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	them := newSimHost(t, 2)
	them.slow = 30e9 // so that no share is stale before the next one
	given := func() {
		gs := them.tick()
		gs[0].Guest.UUID, gs[0].Share.Guest = "", "" // it may be this machine's
		r.Publish(gs[:1])
	}
	given()
	given()
	go func() { // every connection is the first guest
		for {
			select {
			case l.next <- 100:
			case <-ctx.Done():
				return
			}
		}
	}()
	log := &record{}
	cfg := sources.Config{Config: sampler.Config{Tick: 100 * time.Millisecond, Window: time.Second}, Reader: sources.Files,
		Energy: energy.Config{Powercap: t.TempDir(), Shares: filepath.Join(t.TempDir(), "none"), Dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", l.Addr().String())
		}}}
	m, err := sources.Open(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	hand, err := agent.NewGuestRelay(publish.Config{}, m, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var first int64
	testkit.Eventually(t, "the host's first share is here", func() bool {
		s, ok := m.Power().Meters.HostShare()
		first = s.N
		return ok && s.Seen
	})
	// Until the next one the host's pace is unknown, and the first would be stale after five seconds.
	testkit.Eventually(t, "the next one is here", func() bool {
		given()
		s, _ := m.Power().Meters.HostShare()
		return s.N > first
	})
	var booked int64
	windows, n := 0, 0
	testkit.Eventually(t, "30 ticks, three windows, and ten answers that are equal", func() bool {
		if n%3 == 0 { // another pace than the guest's
			given()
		}
		n++
		if _, err := m.Tick(); err != nil {
			t.Fatal(err)
		}
		hand.Tick()
		if w := m.ClosedWindow(); w != nil {
			windows++
			if w.Balance.Violations > 0 {
				t.Errorf("%d violations", w.Balance.Violations)
			}
			var in, out int64
			for _, o := range w.Handovers {
				if o.Workload == "" { // else it is of a guest of this machine
					in += o.Booked
				}
			}
			for i := range w.Rows {
				for d := power.Package; d < power.DomainLimit; d++ {
					e := w.Rows[i].Usage.Amount[usage.EnergyOf(d)]
					if out += e; e > 0 && d != power.Rest {
						t.Errorf("window %d: %d uJ of the domain %v, by a model", windows, e, d)
					}
				}
			}
			if in != out {
				t.Errorf("window %d: %d uJ by the host, and rows with %d uJ", windows, in, out)
			}
			booked += in
		}
		return n >= 30 && windows >= 3 && r.Status()[0].Equal >= 10
	})
	s := r.Status()[0]
	t.Logf("%+v; %d uJ in %d windows", s, booked, windows)
	if s.Equal < 10 || s.Differing > 0 || s.Unknown > 0 || s.Streams != 1 {
		t.Errorf("%+v: want that all is equal", s)
	}
	if windows < 3 || booked <= 0 {
		t.Errorf("%d windows with %d uJ by the host", windows, booked)
	}
	if st := hand.Status(); st.Host == nil || st.Host.From != "vsock" || st.Host.Refused != "" {
		t.Errorf("%+v", st.Host)
	}
	if log.count("the host gives this machine its energy") != 1 || log.count("level=WARN") > log.count("powercap: no counter") {
		t.Errorf("log:\n%s", log.text.String())
	}
}
