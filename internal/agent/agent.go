// Package agent is the loops of an agent: it measures its machine, keeps each
// window in the spool, and sends what is there to a server.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/guest/relay"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/token"
)

// A Config says how to measure, keep and send.
type Config struct {
	Machine machine.Config
	Spool   spool.Config
	Ship    sender.Config
	// Socket is the path of the unix socket at which jobs are registered; ""
	// is none.
	Socket string
	// Laws is the file that keeps what is learned of the machine's power; "" is
	// none. It is the machine's, whichever node it is.
	Laws string
	// Past is what this machine left as other nodes; its zero value is nothing.
	Past Past
	// Look is shown each window as it closes, from the loop that owns the machine,
	// before it is kept, and can ask then what a workload is called. The window is
	// not its own. nil is nobody.
	Look func(w *usage.Window, name func(*workload.Workload) string)
	// Self gives a workload of this node what it needs to ask the server for its own
	// use, which may be nothing. nil gives nobody anything.
	Self func(workload.ID) token.Self
	// Handover says how virtual machines of this machine are given their energy.
	Handover relay.Config
}

// Default measures once a second and sends every ten.
func Default() Config {
	return Config{
		Machine: machine.Config{Config: sampler.Default(), Reader: machine.Auto},
		Spool:   spool.Default(),
		Ship:    sender.Default(),
	}
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	return errors.Join(c.Machine.Validate(), c.Spool.Validate(), c.Ship.Validate(), c.Handover.Validate())
}

// farewell is how long an agent that ends tries to send what it has not sent.
const farewell = 3 * time.Second

// An Agent measures one machine for one server.
type Agent struct {
	Machine *machine.Machine
	Spool   *spool.Spool
	Shipper *sender.Shipper
	Hand    *Hand

	node    string
	host    *hostfs.FS
	socket  *socket.Server // nil without
	names   *names
	past    Past // not yet told of
	laws    laws
	look    func(*usage.Window, func(*workload.Workload) string) // nil is nobody
	self    selves
	held    *usage.Window // could not be made durable; the next one is merged into it
	log     *slog.Logger
	windows atomic.Int64 // kept
	rows    atomic.Int64

	violated, missed atomic.Int64 // the books' violations, and births and deaths not seen

	mu    sync.Mutex
	said  map[string]batch.Name // of jobs, not yet taken by the sampler's loop
	open  map[string]batch.Name // jobs that have not ended
	fails string                // why the spool does not take windows; "" where it does
}

// Open takes up the spool, goes on with the books that are in it, and opens the
// sources of this machine. It starts nothing. The caller closes it.
func Open(cfg Config, node string, server sender.Server, log *slog.Logger) (_ *Agent, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{node: node, past: cfg.Past, look: cfg.Look, self: selves{give: cfg.Self, dir: filepath.Dir(cfg.Socket), log: log}, names: newNames(), laws: laws{file: cfg.Laws, log: log}, said: map[string]batch.Name{}, open: map[string]batch.Name{}, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.host, err = hostfs.Open("/"); err != nil {
		return nil, err
	}
	if a.Spool, err = spool.Open(cfg.Spool, log.With("part", "spool")); err != nil {
		return nil, err
	}
	cfg.Machine.Node, cfg.Machine.Checkpoint, cfg.Machine.Laws = node, a.Spool.Checkpoint(), a.laws.read()
	if a.Machine, err = machine.Open(cfg.Machine, log.With("part", "machine")); err != nil {
		return nil, err
	}
	a.laws.refused(a.Machine.LawsRefused())
	if a.Hand, err = NewHand(cfg.Handover, a.Machine, log.With("part", "handover")); err != nil {
		return nil, err
	}
	a.Shipper = sender.New(cfg.Ship, a.Spool, server, a.clock, log.With("part", "ship"))
	if cfg.Socket != "" {
		a.socket, err = socket.Listen(cfg.Socket, hooks{a}, log.With("part", "socket"))
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Close gives back what Open took. Run has to have returned.
func (a *Agent) Close() error {
	var err error
	if a.socket != nil {
		err = a.socket.Close()
	}
	if a.Machine != nil {
		err = errors.Join(err, a.Machine.Close())
	}
	if a.Spool != nil {
		e := a.Spool.Close()
		if errors.Is(e, syscall.ENOSPC) || errors.Is(e, syscall.EDQUOT) {
			// All that is lost is what the server said to have: it is offered again,
			// and known.
			a.log.Warn("the disk is full; what the server has is offered again when the agent is back", "err", e)
			e = nil
		}
		err = errors.Join(err, e)
	}
	if a.host != nil {
		err = errors.Join(err, a.host.Close())
	}
	return err
}

// Run measures, keeps and sends until ctx ends. Then it closes a last window
// and tries for a moment to send that too. After each tick it calls tick, if
// that is not nil, from the loop that owns the machine.
func (a *Agent) Run(ctx context.Context, tick func()) error {
	// What measures ends first, so that what sends can send its last window.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop()
		return a.Machine.Run(gctx, func() {
			a.Hand.Tick()
			if tick != nil {
				tick()
			}
		}, a.keep)
	})
	g.Go(func() error { return a.Hand.Run(gctx) })
	g.Go(func() error { return a.Shipper.Run(sending) })
	g.Go(func() error { return a.tidy(gctx) })
	if a.socket != nil {
		g.Go(func() error { return a.socket.Run(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	a.laws.keep(a.Machine)
	if w := a.held; w != nil {
		a.log.Warn("the last windows are not on the disk: when the agent is back their counters are complete, and their memory is a gap",
			"from", time.Unix(0, w.Start+w.Offset).UTC(), "to", time.Unix(0, w.End+w.Offset).UTC())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := a.Shipper.Flush(last); err != nil {
		a.log.Info("what is left is sent when the agent runs again", "why", err)
	}
	return nil
}

// keep makes a window durable. One that cannot be, as the disk is full, is held
// and becomes part of the next: so nothing is lost while the agent lives, and
// after its end the kernel's counters are compared with the last checkpoint.
func (a *Agent) keep(w *usage.Window) {
	a.check(&w.Balance)
	now := time.Now()
	a.hear(now)
	if a.look != nil {
		a.look(w, a.names.name)
	}
	a.laws.at(w.End, a.Machine)
	if a.held != nil {
		a.held.Merge(w)
		w = a.held
	}
	fold(w, maxEnded)
	a.names.want(a.Shipper.Wanted())
	names := a.names.of(w, now)
	sent := wire.FromWindow(w, func(*usage.Row) bool { return true })
	err := a.Spool.Append(&sent, names, slices.Concat(w.Gaps, a.past.gaps), func(full bool) []byte { return a.Machine.Books().Checkpoint(nil, full) })
	a.report(err)
	if err != nil {
		if a.held == nil {
			a.held = w.Clone()
		}
		return
	}
	a.held = nil
	a.past.remove(a.log)
	a.past = Past{}
	a.Machine.Books().Saved()
	a.forget(a.names.sent(w, now))
	a.windows.Add(1)
	a.rows.Add(int64(len(sent.Rows)))
}

// check counts what is wrong in a window's books, and logs when that begins.
func (a *Agent) check(b *usage.Balance) {
	if b.Violations > 0 && a.violated.Add(b.Violations) == b.Violations {
		a.log.Error("the books do not add up: a defect; more is counted in the metrics", "violations", b.Violations)
	}
	if b.Lost > 0 && a.missed.Add(b.Lost) == b.Lost {
		a.log.Warn("births or deaths of groups were not seen; more are counted in the metrics", "lost", b.Lost)
	}
}

// report logs when the spool begins to fail, and when it works again.
func (a *Agent) report(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && a.fails == "":
		a.log.Error("the spool takes no windows; they are held in memory", "err", err, "hint", fault.Hint(err))
		a.fails = err.Error()
	case err == nil && a.fails != "":
		a.log.Info("the spool takes windows again")
		a.fails = ""
	}
}

// tidy merges and forgets in the spool, now and once a minute: so that a spool is
// kept in order too where no agent lives for a minute.
func (a *Agent) tidy(ctx context.Context) error {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for fails := false; ; {
		err := a.Spool.Tidy(time.Now())
		if err != nil && !fails {
			a.log.Warn("the spool cannot be tidied; it is tried again", "err", err)
		}
		fails = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// clock reads this machine's clocks as they are sent along.
func (a *Agent) clock() (batch.Clock, error) {
	boot, wall, err := a.Machine.Clock()
	return batch.Clock{Boot: a.Machine.Boot(), Boottime: boot, Wall: wall}, err
}
