package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/prom/exposition"
)

// statusOf is what an agent that sends to a server answers of itself.
func statusOf(a *agent.Agent, shown *machineMetrics) status {
	return status{failing: func() string { return a.State().Failing }, metrics: func() string { return metrics(a.State()) }, machine: shown}
}

// runLocal measures until ctx ends without a server: nothing is kept, and who wants
// to know asks for metrics.
func runLocal(ctx context.Context, cfg Config, log *slog.Logger) (err error) {
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	name, err := h.Hostname()
	if err != nil {
		return err
	}
	m, err := machine.New(h, cfg.Machine, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	log.Info("measuring", "reader", m.Reader, "tick", cfg.Machine.Tick, "window", cfg.Machine.Window)
	log.Warn("there is no server: nothing is kept", "metrics", cfg.Status, "hint", "name one with -server or METE_SERVER")
	hand, err := agent.NewGuestRelay(cfg.Agent.Handover, m, log)
	if err != nil {
		return err
	}
	// Without a server the machine has no id: it goes by its name.
	var count defects
	shown := cfg.newMachineMetrics(name)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return m.Run(gctx, hand.Tick, func(w *usage.Window) {
			count.add(&w.Balance)
			if b := w.Balance; b.Violations > 0 || b.Lost > 0 {
				log.Warn("window", "violations", b.Violations, "lost", b.Lost)
			}
			shown.addWindow(w, nil, m.Accounts().Meters())
		})
	})
	g.Go(func() error { return hand.Run(gctx) })
	if cfg.Status != "" {
		g.Go(func() error {
			return serveStatus(gctx, cfg.Status, status{failing: func() string { return "" }, metrics: func() string { return count.text(hand.Status()) }, machine: shown})
		})
	}
	g.Go(func() error { return releaseStartupMemory(gctx, cfg.Machine.Window) })
	return g.Wait()
}

// defects is what should not be in windows.
type defects struct{ violations, missed atomic.Int64 }

func (c *defects) add(b *usage.Balance) {
	c.violations.Add(b.Violations)
	c.missed.Add(b.Lost)
}

// text is the counts as metrics, with how energy is passed on.
func (c *defects) text(s agent.GuestRelayStatus) string {
	var t exposition.Text
	writeDefects(&t, c.violations.Load(), c.missed.Load())
	writeGuestRelayMetrics(&t, s)
	return t.String()
}

// writeDefects writes what there should be none of.
func writeDefects(t *exposition.Text, violations, missed int64) {
	t.Counter("mete_conservation_violations_total", "Books that did not add up: always a defect.", float64(violations))
	t.Counter("mete_agent_missed_total", "Births and deaths of groups that were not seen.", float64(missed))
}
