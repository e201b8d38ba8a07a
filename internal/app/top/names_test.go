package top

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
)

// jobMeter shows jobs by the groups of the map, which have the names that groups have.
type jobMeter struct{ paths []string }

func (m *jobMeter) Next(context.Context) (*live.Machine, error) {
	l := &live.Machine{}
	for _, p := range m.paths {
		l.Rows = append(l.Rows, live.Row{Kind: workload.Job, Name: "run xxxxxx", Path: p})
	}
	l.Rows = append(l.Rows, live.Row{Kind: workload.System, Name: "system", Path: "/"})
	return l, nil
}

func (m *jobMeter) Close() error { return nil }

// TestNameJobs checks that a job has its registered name in its first tick, that the meter requests
// the names once for a job that the agent knows and seldom for one that it does not.
func TestNameJobs(t *testing.T) {
	const a, b = "01m8bbv84mrbx1gh178pvz8s15", "01m8bbv9y28bykrgtcqnahb50w"
	known, asked := []socket.Named{{ID: a, Name: "hog", User: "ann", Project: "shop"}}, 0
	inner := &jobMeter{}
	m := &namedMeter{Meter: inner, ask: func(context.Context) []socket.Named { asked++; return known },
		named: map[string]socket.Named{}, wait: map[string]int{}}
	next := func() []live.Row {
		t.Helper()
		l, err := m.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l.Rows
	}
	if next(); asked != 0 {
		t.Errorf("%d requests without a job", asked)
	}
	inner.paths = []string{"/x/mete-run-" + a}
	for range 5 {
		if r := next()[0]; r.Name != "hog" || r.User != "ann" || r.Project != "shop" || asked != 1 {
			t.Fatalf("%q of %q in %q after %d requests", r.Name, r.User, r.Project, asked)
		}
	}
	inner.paths = append(inner.paths, "/mete-run-"+b+".scope")
	for range askAgain {
		if r := next(); r[0].Name != "hog" || r[1].Name != "run xxxxxx" {
			t.Fatalf("names %q, %q", r[0].Name, r[1].Name)
		}
	}
	if asked != 2 {
		t.Errorf("%d requests for a job that the agent does not know, in %d ticks", asked-1, askAgain)
	}
	known = append(known, socket.Named{ID: b, Name: "late"})
	for range askAgain {
		next()
	}
	if r := next()[1]; r.Name != "late" {
		t.Errorf("a job that registered late is %q", r.Name)
	}
	if r := next()[2]; r.Name != "system" {
		t.Errorf("system is %q", r.Name)
	}
}

// TestNamedContainers checks that a container has its name in the first tick.
func TestNamedContainers(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listed := make(chan struct{})
	daemon := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/containers/json" {
			_, _ = fmt.Fprintf(w, `[{"Id": %q, "Names": ["/web"]}]`, id)
			return
		}
		close(listed) // the watcher has read the list
		<-r.Context().Done()
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = daemon.Serve(l) }()
	w := docker.New([]string{path}, time.Minute, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(ctx) }()
	defer func() { _ = daemon.Close(); <-served }()
	m := &namedMeter{Meter: &containerMeter{id}, containers: w, stop: func() { stop(); <-ended }, settle: func(context.Context) { <-listed }}
	for range 2 {
		if got, err := m.Next(t.Context()); err != nil || got.Rows[0].Name != "web" {
			t.Errorf("%v, %v; want the name web", got, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// A containerMeter shows a container.
type containerMeter struct{ id string }

func (m *containerMeter) Next(context.Context) (*live.Machine, error) {
	return &live.Machine{Rows: []live.Row{{Kind: workload.Container, Key: m.id, Name: m.id[:12], Path: "/docker/" + m.id}}}, nil
}

func (m *containerMeter) Close() error { return nil }
