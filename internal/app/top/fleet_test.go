package top

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
)

const (
	someNodes = `{"nodes":[{"node":"1","name":"web-1","cluster":"lab","state":"live"},{"node":"2","name":"db-1","cluster":"lab","state":"silent"}]}`
	someRates = `{"nodes":[{"node":"1","name":"web-1","cluster":"lab","from":"2026-03-01T12:00:00Z","to":"2026-03-01T12:00:10Z","cpus":4,"workloads":[
{"id":"a","kind":"service","name":"nginx.service","cpu_cores":1,"power_watts":7,"power_error_watts":2,"quality":{"cpu":"measured","power":"modelled"}},
{"id":"i","kind":"idle","name":"idle","cpu_cores":3,"quality":{"cpu":"measured"}}]}]}`
)

// TestServerIsLostAndRecovers checks that the screen reports a lost server and keeps its last
// figures, and continues when the server is back.
func TestServerIsLostAndRecovers(t *testing.T) {
	var gone atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case gone.Load():
			panic(http.ErrAbortHandler)
		case r.URL.Path == "/v1/nodes":
			_, _ = w.Write([]byte(someNodes))
		default:
			_, _ = w.Write([]byte(someRates))
		}
	}))
	defer s.Close()
	s.Config.ErrorLog = nil
	m, err := openFleet(t.Context(), remoteFlags{Target: client.Target{URL: s.URL}}, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	screen := open(t, 120, 30)
	step := 0
	err = pump(ctx, &config{tick: 10 * time.Millisecond}, m, func(msg tea.Msg) {
		screen.m.Update(msg)
		_, lost := msg.(errorMsg)
		switch {
		case step == 0 && !lost:
			screen.expect(true, "2 nodes (1 not heard)", "▸ web-1 +2", "db-1 silent", "= what is heard")
			screen.press("*")
			screen.expect(true, "nginx.service", "≈7.00W")
			gone.Store(true)
			step = 1
		case step == 1 && lost:
			screen.expect(true, "reading: server http://", "trying again", "nginx.service")
			gone.Store(false)
			step = 2
		case step == 2 && !lost:
			screen.expect(false, "trying again")
			screen.expect(true, "nginx.service")
			step = 3
			cancel()
		}
	})
	if err != nil || step != 3 {
		t.Fatalf("step %d: %v", step, err)
	}
}

// TestFleetDetails checks that rows of machines are selected by keys like all others and have a
// details page.
func TestFleetDetails(t *testing.T) {
	s := open(t, 120, 40)
	one, v := 1.0, 7.0
	m := &live.Machine{Host: "s", Fleet: &live.Fleet{Server: "s", Nodes: 1}, Rows: []live.Row{{ID: "node:1", Name: "web-1", Group: live.Node, State: "behind for 3m"},
		{ID: "a", Parent: "node:1", Name: "nginx", Node: "web-1", Rates: live.Rates{CPU: &one, Power: &v, PowerError: &one}}}}
	s.m.Update(tickMsg{m})
	s.expect(true, "web-1 behind for 3m", "nginx")
	s.press("i")
	s.expect(true, "Nodes have nothing of their own", "behind for 3m")
	s.press("esc", "down", "i")
	s.expect(true, "IN THE LATEST WINDOW", "7.00 W ±1.00 W", "1.000 cores")
	s.press("esc", "t")
	s.expect(true, "web-1: nginx")
	s.press("/", "b", "e", "h", "i", "n", "d", "enter", "t")
	s.expect(true, "web-1 behind")
}

func TestNoServer(t *testing.T) {
	_, err := openFleet(t.Context(), remoteFlags{Target: client.Target{URL: "http://127.0.0.1:1"}}, time.Second)
	if !errors.Is(err, fault.ErrUnavailable) || fault.Hint(err) == "" {
		t.Errorf("unreachable server: %v", err)
	}
}
