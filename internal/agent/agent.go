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
	Sender  sender.Config
	// Socket is the path of the unix socket at which jobs are registered; ""
	// is none.
	Socket string
	// PowerModel is the file that keeps what is learned of the machine's power; "" is
	// none. It is the machine's, whichever node it is.
	PowerModel string
	// Retired is what this machine left as other nodes; its zero value is nothing.
	Retired RetiredSpools
	// OnWindow is shown each window as it closes, from the loop that owns the machine,
	// before it is kept, and can ask then what a workload is called. The window is
	// not its own. nil is nobody.
	OnWindow func(w *usage.Window, name func(*workload.Workload) string)
	// SelfAccess gives a workload of this node what it needs to ask the server for its own
	// use, which may be nothing. nil gives nobody anything.
	SelfAccess func(workload.ID) token.SelfAccess
	// Handover says how virtual machines of this machine are given their energy.
	Handover relay.Config
}

// Default measures once a second and sends every ten.
func Default() Config {
	return Config{
		Machine: machine.Config{Config: sampler.Default(), Reader: machine.Auto},
		Spool:   spool.Default(),
		Sender:  sender.Default(),
	}
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	return errors.Join(c.Machine.Validate(), c.Spool.Validate(), c.Sender.Validate(), c.Handover.Validate())
}

// flushTimeout is how long an agent that ends tries to send what it has not sent.
const flushTimeout = 3 * time.Second

// An Agent measures one machine for one server.
type Agent struct {
	Machine    *machine.Machine
	Spool      *spool.Spool
	Sender     *sender.Sender
	GuestRelay *GuestRelay

	node       string
	host       *hostfs.FS
	socket     *socket.Server // nil without
	names      *nameTracker
	retired    RetiredSpools // not yet told of
	powerModel powerModelFile
	onWindow   func(*usage.Window, func(*workload.Workload) string) // nil is nobody
	selfAccess selfAccess
	unsaved    *usage.Window // could not be made durable; the next one is merged into it
	log        *slog.Logger
	windows    atomic.Int64 // kept
	rows       atomic.Int64

	violated, missed atomic.Int64 // the books' violations, and births and deaths not seen

	mu         sync.Mutex
	jobNames   map[string]batch.Name // of jobs, not yet taken by the sampler's loop
	openJobs   map[string]batch.Name // jobs that have not ended
	spoolError string                // why the spool does not take windows; "" where it does
}

// Open takes up the spool, goes on with the books that are in it, and opens the
// sources of this machine. It starts nothing. The caller closes it.
func Open(cfg Config, node string, server sender.Server, log *slog.Logger) (_ *Agent, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{node: node, retired: cfg.Retired, onWindow: cfg.OnWindow, selfAccess: selfAccess{issue: cfg.SelfAccess, dir: filepath.Dir(cfg.Socket), log: log}, names: newNameTracker(), powerModel: powerModelFile{file: cfg.PowerModel, log: log}, jobNames: map[string]batch.Name{}, openJobs: map[string]batch.Name{}, log: log}
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
	cfg.Machine.Node, cfg.Machine.Checkpoint, cfg.Machine.PowerModels = node, a.Spool.Checkpoint(), a.powerModel.read()
	if a.Machine, err = machine.Open(cfg.Machine, log.With("part", "machine")); err != nil {
		return nil, err
	}
	a.powerModel.handleRefusal(a.Machine.PowerModelsError())
	if a.GuestRelay, err = NewGuestRelay(cfg.Handover, a.Machine, log.With("part", "handover")); err != nil {
		return nil, err
	}
	a.Sender = sender.New(cfg.Sender, a.Spool, server, a.clock, log.With("part", "ship"))
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
			a.GuestRelay.Tick()
			if tick != nil {
				tick()
			}
		}, a.storeWindow)
	})
	g.Go(func() error { return a.GuestRelay.Run(gctx) })
	g.Go(func() error { return a.Sender.Run(sending) })
	g.Go(func() error { return a.maintainSpool(gctx) })
	if a.socket != nil {
		g.Go(func() error { return a.socket.Run(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	a.powerModel.save(a.Machine)
	if w := a.unsaved; w != nil {
		a.log.Warn("the last windows are not on the disk: when the agent is back their counters are complete, and their memory is a gap",
			"from", time.Unix(0, w.Start+w.Offset).UTC(), "to", time.Unix(0, w.End+w.Offset).UTC())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := a.Sender.Flush(last); err != nil {
		a.log.Info("what is left is sent when the agent runs again", "why", err)
	}
	return nil
}

// storeWindow makes a window durable. One that cannot be, as the disk is full, is held
// and becomes part of the next: so nothing is lost while the agent lives, and
// after its end the kernel's counters are compared with the last checkpoint.
func (a *Agent) storeWindow(w *usage.Window) {
	a.countDefects(&w.Balance)
	now := time.Now()
	a.applyJobNames(now)
	if a.onWindow != nil {
		a.onWindow(w, a.names.displayName)
	}
	a.powerModel.saveIfDue(w.End, a.Machine)
	if a.unsaved != nil {
		a.unsaved.Merge(w)
		w = a.unsaved
	}
	foldEnded(w, maxEnded)
	a.names.markWanted(a.Sender.Wanted())
	names := a.names.collectDue(w, now)
	sent := wire.Prepare(w)
	err := a.Spool.Append(&sent, names, slices.Concat(w.Gaps, a.retired.gaps), func(full bool) []byte { return a.Machine.Accounts().Checkpoint(nil, full) })
	a.reportSpool(err)
	if err != nil {
		if a.unsaved == nil {
			a.unsaved = w.Clone()
		}
		return
	}
	a.unsaved = nil
	a.retired.remove(a.log)
	a.retired = RetiredSpools{}
	a.Machine.Accounts().MarkSaved()
	a.forgetJobs(a.names.markSent(w, now))
	a.windows.Add(1)
	a.rows.Add(int64(len(sent.Rows)))
}

// countDefects counts what is wrong in a window's books, and logs when that begins.
func (a *Agent) countDefects(b *usage.Balance) {
	if b.Violations > 0 && a.violated.Add(b.Violations) == b.Violations {
		a.log.Error("the books do not add up: a defect; more is counted in the metrics", "violations", b.Violations)
	}
	if b.Lost > 0 && a.missed.Add(b.Lost) == b.Lost {
		a.log.Warn("births or deaths of groups were not seen; more are counted in the metrics", "lost", b.Lost)
	}
}

// reportSpool logs when the spool begins to fail, and when it works again.
func (a *Agent) reportSpool(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && a.spoolError == "":
		a.log.Error("the spool takes no windows; they are held in memory", "err", err, "hint", fault.Hint(err))
		a.spoolError = err.Error()
	case err == nil && a.spoolError != "":
		a.log.Info("the spool takes windows again")
		a.spoolError = ""
	}
}

// maintainSpool merges and forgets in the spool, now and once a minute: so that a spool is
// kept in order too where no agent lives for a minute.
func (a *Agent) maintainSpool(ctx context.Context) error {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for fails := false; ; {
		err := a.Spool.Maintain(time.Now())
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
