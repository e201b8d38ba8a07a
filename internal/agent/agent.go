// Package agent runs an agent: it measures its machine, stores each window in the spool, and sends
// the spool to a server.
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

	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/token"
)

// A Config configures measuring, storing and sending.
type Config struct {
	Machine sources.Config
	Spool   spool.Config
	Sender  sender.Config
	// Socket is the path of the unix socket on which jobs register; "" disables it.
	Socket string
	// Projects is the file with the projects of users, see [socket.ReadProjects]; "" is none.
	Projects string
	// PowerModel is the file that stores what is learned of the machine's power; "" disables it. It
	// belongs to the machine, not to a node.
	PowerModel string
	// Directives configures following the server; an empty File keeps its directives in memory only.
	Directives directives.Config
	// Retired holds the spools of this machine's former node ids.
	Retired RetiredSpools
	// Containers are the sockets of the daemons that name containers: Docker and Podman.
	Containers []string
	// Domains is the directory in which libvirt keeps its running virtual machines, which names them; see [libvirt.New].
	Domains string
	// OnWindow is called with each window as it closes, before it is stored, on the goroutine that
	// owns the machine. name returns the display name of a workload. OnWindow must not keep w. It
	// may be nil.
	OnWindow func(w *usage.Window, name func(*workload.Workload) string)
	// SelfAccess returns what a workload of this node needs to query its own use, which may be
	// nothing. It may be nil.
	SelfAccess func(workload.ID) token.SelfAccess
	// Handover configures how energy is given to virtual machines of this machine.
	Handover publish.Config
}

// Default measures once a second and sends every ten seconds.
func Default() Config {
	return Config{
		Machine: sources.Config{Config: sampler.Default(), Reader: sources.Auto},
		Spool:   spool.Default(),
		Sender:  sender.Default(),

		Directives: directives.Default(),
		Projects:   socket.ProjectsFile,
		Containers: docker.Sockets(),
		Domains:    libvirt.Directory,
	}
}

func (c Config) Validate() error {
	return errors.Join(c.Machine.Validate(), c.Spool.Validate(), c.Sender.Validate(), c.Directives.Validate(), c.Handover.Validate())
}

// flushTimeout is how long an agent that stops tries to send the rest.
const flushTimeout = 3 * time.Second

// keepContainers is for how long the name of a removed container or virtual machine is kept, in addition to two windows: its
// group may end later than its daemon says so.
const keepContainers = 5 * time.Minute

// An Agent measures one machine for one server.
type Agent struct {
	Machine    *sources.Machine
	Spool      *spool.Spool
	Sender     *sender.Sender
	GuestRelay *GuestRelay
	Directives *directives.Follower

	node       string
	host       *hostfs.FS
	socket     *socket.Server // nil without
	containers *docker.Watcher
	names      *nameTracker
	earlier    []batch.BootEnd // boots before this one of which the spool held windows
	retired    RetiredSpools   // not yet reported
	powerModel powerModelFile
	onWindow   func(*usage.Window, func(*workload.Workload) string) // may be nil
	selfAccess selfAccess
	projects   socket.Projects
	unsaved    *usage.Window // not durable yet; the next window is merged into it
	gaps       []usage.Gap   // that an earlier agent noted, for the next window
	started    bool          // the first tick was recorded
	asked      bool          // for the names of the first tick's containers
	log        *slog.Logger
	windows    atomic.Int64 // stored

	violated, missed atomic.Int64 // conservation violations; births and deaths of groups that were missed

	mu         sync.Mutex
	jobNames   map[string]batch.Name // of jobs by key, for the next window
	openJobs   map[string]batch.Name // jobs that have not ended, by key
	spoolError string                // why the spool rejects windows, or ""
	// recordError is why ends of jobs and groups are not recorded at once, or nil. Only the
	// goroutine that owns the machine sets it.
	recordError error
}

// A Server takes what the agent measures, and has directives for it.
type Server interface {
	sender.Server
	directives.Server
}

// Open opens the spool, restores the accounts in it, and opens the sources of this machine. It
// starts nothing. The caller closes the agent.
func Open(cfg Config, node string, server Server, log *slog.Logger) (_ *Agent, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	keep := keepContainers + 2*cfg.Machine.Window
	containers := docker.New(cfg.Containers, keep, log.With("part", "containers"))
	a := &Agent{node: node, containers: containers, retired: cfg.Retired, onWindow: cfg.OnWindow, selfAccess: selfAccess{issue: cfg.SelfAccess, dir: filepath.Dir(cfg.Socket), log: log}, names: newNameTracker(containers), powerModel: powerModelFile{file: cfg.PowerModel, log: log}, jobNames: map[string]batch.Name{}, openJobs: map[string]batch.Name{}, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.host, err = hostfs.Open("/"); err != nil {
		return nil, err
	}
	a.names.domains = libvirt.New(a.host, cfg.Domains, keep, log.With("part", "domains"))
	if cfg.Machine.Scope != sources.ScopeOwn {
		_ = a.host.ShowRoots() // the machine logs why it sees only a part
	}
	if a.Spool, err = spool.Open(cfg.Spool, log.With("part", "spool")); err != nil {
		return nil, err
	}
	cfg.Machine.Node, cfg.Machine.Checkpoint, cfg.Machine.PowerModels = node, a.Spool.Checkpoint(), a.powerModel.read()
	if a.Machine, err = sources.Open(cfg.Machine, log.With("part", "machine")); err != nil {
		return nil, err
	}
	a.earlier = slices.DeleteFunc(a.Spool.Boots(), func(b batch.BootEnd) bool { return b.Boot == a.Machine.Boot() })
	a.restoreTexts()
	a.Machine.OnBooked(a.record)
	a.powerModel.handleRefusal(a.Machine.PowerModelsError())
	if a.GuestRelay, err = NewGuestRelay(cfg.Handover, a.Machine, log.With("part", "relay")); err != nil {
		return nil, err
	}
	a.Sender = sender.New(cfg.Sender, a.Spool, server, a.clock, log.With("part", "sender"))
	cfg.Directives.Node = node
	classes := classSections{set: a.Machine.SetDirectedClasses}
	a.Directives = directives.New(cfg.Directives, server, classes.follow(), a.clock, log.With("part", "directives"))
	if cfg.Socket != "" {
		if cfg.Projects != "" {
			if a.projects, err = socket.ReadProjects(cfg.Projects); err != nil {
				return nil, err
			}
		}
		a.socket, err = socket.Listen(cfg.Socket, jobHooks{a}, log.With("part", "socket"))
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Close releases what Open opened. Run must have returned.
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
			// Only acknowledgments are lost: the batches are offered again and the server reports
			// duplicates.
			a.log.Warn("the disk is full; acknowledged batches are offered again after the next start", "err", e)
			e = nil
		}
		err = errors.Join(err, e)
	}
	if a.host != nil {
		err = errors.Join(err, a.host.Close())
	}
	return err
}

// Run measures, stores and sends until ctx ends. Then it closes a last window and tries briefly to
// send it. It calls tick, if not nil, after each tick on the goroutine that owns the machine.
func (a *Agent) Run(ctx context.Context, tick func()) error {
	// Measuring ends before sending, so that the last window can be sent.
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
	g.Go(func() error { return a.Directives.Run(gctx) })
	g.Go(func() error { return a.maintainSpool(gctx) })
	g.Go(func() error { return a.containers.Run(gctx) })
	if a.socket != nil {
		g.Go(func() error { return a.socket.Run(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	a.powerModel.save(a.Machine)
	if w := a.unsaved; w != nil {
		a.log.Warn("the last windows are not on disk: after the next start their counters are complete, and their memory is a gap",
			"from", time.Unix(0, w.Start+w.Offset).UTC(), "to", time.Unix(0, w.End+w.Offset).UTC())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := a.Sender.Flush(last); err != nil {
		a.log.Info("unsent windows are sent after the next start", "why", err)
	}
	return nil
}

// storeWindow makes a window durable. If that fails because the disk is full, it is merged into the
// next window: nothing is lost while the agent runs, and after its end the kernel's counters are
// compared with the last checkpoint.
func (a *Agent) storeWindow(w *usage.Window) {
	w.Extent = a.Machine.Extent()
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
	err := a.Spool.Append(w, names, slices.Concat(w.Gaps, a.retired.gaps, a.gaps),
		func(full bool) []byte { return a.Machine.Accounts().Checkpoint(nil, full) }, a.names.text)
	a.reportSpool(err)
	if err != nil {
		if a.unsaved == nil {
			a.unsaved = w.Clone()
		}
		return
	}
	a.reportRecord(nil) // the window has what was not recorded
	a.unsaved, a.gaps = nil, nil
	a.retired.remove(a.log)
	a.retired = RetiredSpools{}
	a.Machine.Accounts().MarkSaved()
	a.forgetJobs(a.names.markSent(w, now))
	a.windows.Add(1)
}

// countDefects counts violations and missed groups of a window, and logs the first of each.
func (a *Agent) countDefects(b *usage.Balance) {
	if b.Violations > 0 && a.violated.Add(b.Violations) == b.Violations {
		a.log.Error("conservation check failed (bug); further ones are counted in the metrics", "violations", b.Violations)
	}
	if b.Lost > 0 && a.missed.Add(b.Lost) == b.Lost {
		a.log.Warn("births or deaths of groups were missed; further ones are counted in the metrics", "lost", b.Lost)
	}
}

// reportSpool logs when the spool begins to fail and when it recovers.
func (a *Agent) reportSpool(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && a.spoolError == "":
		a.log.Error("the spool rejects windows; they are held in memory", fault.Attrs(err)...)
		a.spoolError = err.Error()
	case err == nil && a.spoolError != "":
		a.log.Info("the spool accepts windows again")
		a.spoolError = ""
	}
}

// maintainSpool merges and expires batches in the spool, once at the start and then once a minute,
// so that short runs maintain it too.
func (a *Agent) maintainSpool(ctx context.Context) error {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for fails := false; ; {
		err := a.Spool.Maintain(time.Now())
		if err != nil && !fails {
			a.log.Warn("spool maintenance failed; retrying", "err", err)
		}
		fails = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// clock reads this machine's clocks for the server.
func (a *Agent) clock() (batch.Clock, error) {
	boot, wall, err := a.Machine.Clock()
	return batch.Clock{Boot: a.Machine.Boot(), Boottime: boot, Wall: wall, Earlier: a.earlier}, err
}
