package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/prom/exposition"
)

// statusOf returns the status of an agent that sends to a server.
func statusOf(a *agent.Agent, shown *machineMetrics) status {
	return status{failing: func() string { return a.State().Failing }, notes: func() []string { return notesOf(a.Machine.Partial(), a.Directives.Status()) }, metrics: func() string { return metrics(a.State()) }, machine: shown}
}

// runLocal measures without a server until ctx ends: it stores nothing, and serves metrics.
func runLocal(ctx context.Context, cfg Config, log *slog.Logger) (err error) {
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	name, err := cfg.nameOf(h)
	if err != nil {
		return err
	}
	m, err := sources.New(h, cfg.Machine, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	log.Info("measuring", "reader", m.Reader, "scope", string(m.Scope()), "tick", cfg.Machine.Tick, "window", cfg.Machine.Window)
	log.Warn("no server: windows are not stored", "metrics", cfg.Status, "hint", "name one with --server or METE_SERVER")
	guestRelay, err := agent.NewGuestRelay(cfg.Agent.Handover, m, log)
	if err != nil {
		return err
	}
	// Without a server the machine has no id: use its name.
	var count defects
	shown := cfg.newMachineMetrics(name)
	containers := docker.New(cfg.Agent.Containers, 2*cfg.Machine.Window, log)
	domains := libvirt.New(h, cfg.Agent.Domains, 2*cfg.Machine.Window, log)
	nameOf := func(w *workload.Workload) string {
		if name, ok := domains.DisplayName(w); ok {
			return name
		}
		return containers.DisplayName(w)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return m.Run(gctx, guestRelay.Tick, func(w *usage.Window) {
			count.add(&w.Balance)
			if b := w.Balance; b.Violations > 0 || b.Lost > 0 {
				log.Warn("window", "violations", b.Violations, "lost", b.Lost)
			}
			m.Accounts().EachLiving(func(w *workload.Workload) { containers.Want(w); domains.Find(w.Kind, w.Path, true) })
			shown.addWindow(w, nameOf, m.Accounts().Meters())
		})
	})
	g.Go(func() error { return guestRelay.Run(gctx) })
	g.Go(func() error { return containers.Run(gctx) })
	if cfg.Status != "" {
		g.Go(func() error {
			return serveStatus(gctx, cfg.Status, status{failing: func() string { return "" }, notes: func() []string { return notesOf(m.Partial(), nil) }, metrics: func() string { return count.text(m.Partial(), guestRelay.Status()) }, machine: shown})
		})
	}
	g.Go(func() error { return releaseIdleMemory(gctx, cfg.Machine.Window) })
	return g.Wait()
}

// defects counts failed checks of windows.
type defects struct{ violations, missed atomic.Int64 }

func (d *defects) add(b *usage.Balance) {
	d.violations.Add(b.Violations)
	d.missed.Add(b.Lost)
}

// text returns the counters, whether groups cannot be seen, and the state of the guest relay as
// metrics.
func (d *defects) text(partial string, s agent.GuestRelayStatus) string {
	var t exposition.Text
	writeDefects(&t, d.violations.Load(), d.missed.Load())
	writePartial(&t, partial)
	writeGuestRelayMetrics(&t, s)
	return t.String()
}

// writeDefects writes the counters of defects.
func writeDefects(t *exposition.Text, violations, missed int64) {
	t.Counter("mete_conservation_violations_total", "Failed conservation checks: always a bug.", float64(violations))
	t.Counter("mete_agent_missed_total", "Missed births and deaths of groups.", float64(missed))
}
