package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/meter"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/job/standalone"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/secretenv"
	"mete.dev/mete/internal/x/statedir"
)

// makeToken is the hint on how to get a token.
const makeToken = "make one with `mete token create --role job` on the server, and give it by --token-file or METE_TOKEN; if this machine's agent sends to that server, omit --server"

// openSender loads or requests the job's identity at the server before the job starts. It fails
// only for what a person must fix; an unreachable server is not an error.
func (j *job) openSender() error {
	c := j.cfg
	if c.server == "" {
		return nil
	}
	state, err := statedir.Default(os.Getenv, os.Geteuid())
	if err != nil {
		return err
	}
	cfg := standalone.Default()
	cfg.Dir, cfg.Server, cfg.Token, cfg.Wait = filepath.Join(state, "origin"), c.server, c.readToken, c.wait
	info, _ := debug.ReadBuildInfo() // nil unless built by the go command
	cfg.Version = cli.Version(info)
	o, err := standalone.Open(context.Background(), cfg, j.h)
	switch {
	case err == nil:
		j.sender = o
	case errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrInvalid):
		if _, missing := c.readToken(); errors.Is(missing, fault.ErrNotFound) && errors.Is(err, fault.ErrDenied) && !strings.HasPrefix(c.server, "http:") { // without TLS a token does not help
			err = fault.WithHint(fmt.Errorf("not enrolled at %s: %w", c.server, missing), makeToken)
		}
		return fmt.Errorf("--server: %w", err)
	default:
		j.unsent = err
	}
	return nil
}

// readToken reads the token. It returns fault.ErrNotFound if there is none: an enrolled user needs
// none.
func (c *config) readToken() (token.Token, error) {
	text := os.Getenv(secretenv.Token)
	if c.tokenFile != "" {
		b, err := os.ReadFile(c.tokenFile)
		if errors.Is(err, fs.ErrNotExist) {
			return token.Token{}, fmt.Errorf("--token-file: %w: %w", err, fault.ErrNotFound)
		}
		if err != nil {
			return token.Token{}, fmt.Errorf("--token-file: %w: %w", err, fault.ErrInvalid)
		}
		text = string(b)
	}
	if text = strings.TrimSpace(text); text == "" {
		return token.Token{}, fmt.Errorf("no token: %w", fault.ErrNotFound)
	}
	return token.Parse(text)
}

// ledgerRun is a job that sends its own figures. The zero value does nothing.
type ledgerRun struct {
	j             *job
	run           *standalone.Run // nil if it does not send
	claim         *exclusive.Claim
	machineHolder exclusive.Holder // the process that measures the machine for the ledger; none if it has no scope
	handedOff     bool             // to an agent that started while the job ran
}

// startLedgerRun claims the job's scope for the ledger and starts measuring for it. It fails if
// another job already measures a part of the scope.
func (j *job) startLedgerRun(group *launch.Group) (*ledgerRun, error) {
	l := &ledgerRun{j: j}
	if j.sender == nil {
		return l, nil
	}
	scope, err := j.scope(group)
	if err != nil {
		return nil, err
	}
	var ignored []exclusive.Holder
	if l.claim, err = exclusive.Acquire(j.h, j.sender.LedgerID(), scope); err == nil {
		ignored, err = l.claim.Conflicts()
	}
	if by, taken := errors.AsType[*exclusive.ConflictError](err); taken {
		l.releaseClaim()
		if holder, ok := by.MachineHolder(); ok {
			l.machineHolder = holder
			return l, nil // the agent knows the job from register
		}
		return nil, fault.WithHint(err, "this command is part of that job, whose use is in the ledger: omit --server here or there")
	}
	for _, dir := range socket.MarkDirs(os.Getenv, os.Geteuid()) {
		if file, away := exclusive.Marked(dir, j.sender.LedgerID()); away {
			l.releaseClaim()
			j.notify(fmt.Sprintf("not sending the job to %s: the agent that measures this machine for it is down and will book the job's use without its name when it is back; if that agent will not return, remove %s", j.cfg.server, file))
			return l, nil
		}
	}
	if err != nil {
		j.addNotes("cannot check whether another process measures the job for the ledger: " + err.Error())
	}
	for _, h := range ignored {
		j.addNotes(fmt.Sprintf("%v claims to measure %s for the ledger; ignoring it, because it belongs neither to root nor to this user", h, h.Scope))
	}
	path := ""
	if group != nil {
		path = group.Path()
	}
	l.run, err = j.sender.Begin(standalone.Job{ID: j.report.ID, Name: j.report.Name, Labels: j.report.Labels, Path: path, Extent: j.measuredExtent(group), UID: os.Getuid()})
	if err != nil {
		j.notify(fmt.Sprintf("the job is not in the ledger of %s: %v", j.cfg.server, err))
		l.releaseClaim()
	}
	return l, nil
}

// scope returns the scope of the job's figures.
func (j *job) scope(group *launch.Group) (exclusive.Scope, error) {
	if group != nil {
		return exclusive.Scope{Path: group.Path()}, nil
	}
	ys, err := j.h.Hierarchies()
	if err != nil {
		return exclusive.Scope{}, err
	}
	for _, y := range ys {
		if y.V2 || y.Has("cpuacct") {
			return exclusive.Scope{Path: y.Self, Tree: os.Getpid()}, nil
		}
	}
	return exclusive.Scope{Path: "/", Tree: os.Getpid()}, nil
}

// measuredExtent returns what of the machine the job's windows measure: its group, or some of the one that
// mete run is in. The server thus knows what of the job agents, or another job, measure too. It is zero if
// it cannot be read.
func (j *job) measuredExtent(group *launch.Group) usage.Extent {
	var y hostfs.Hierarchy
	dir, ok := "", false
	if group != nil {
		y, dir, ok = group.Hierarchy("cpuacct")
	} else if ys, err := j.h.Hierarchies(); err == nil {
		for _, other := range ys {
			if other.V2 || other.Has("cpuacct") {
				y = other
			}
		}
		dir, ok = y.Dir(y.Self)
	}
	if !ok {
		return usage.Extent{}
	}
	ids, err := j.h.GroupIDs(y, dir)
	if err != nil {
		return usage.Extent{}
	}
	p := usage.Extent{Scope: usage.ScopeOf(ids[0])}
	if group != nil {
		ids = ids[1:]
	}
	p.Ancestors = usage.AncestorsOf(y.ID, ids...)
	return p
}

// explainUnsent adds a note if the job does not send its figures despite --server. An agent may
// still book them, such as that of mete up, which accepts figures of no other sender.
func (l *ledgerRun) explainUnsent(agent *agentJob) {
	switch err := l.j.unsent; {
	case err != nil && agent.isOf(l.j.cfg.server): // its ledger gets the job
	case err != nil && agent.client != nil:
		l.j.notify(fmt.Sprintf("this machine's agent books the job in its own ledger; not sending it to %s: %v", l.j.cfg.server, err))
	case err != nil:
		l.j.notify(fmt.Sprintf("the job is not in the ledger of %s: %v", l.j.cfg.server, err))
	}
	if l.machineHolder.Scope == exclusive.Machine && agent.client == nil {
		l.j.notify(fmt.Sprintf("the job is in the ledger of %s without its name: %v measures this machine for it and answers at none of its sockets (METE_SOCKET)", l.j.cfg.server, l.machineHolder))
	}
}

// sampled stores the job's window if one is due. Then it checks whether an agent for the same ledger
// has started: that one measures the job from then on, and what the job used before stays booked.
func (l *ledgerRun) sampled(m *meter.Meter) {
	if l.run == nil || l.handedOff || !l.run.IsReady() || !m.IsDue(l.run.Window()) {
		return
	}
	w := m.CloseWindow()
	_, err := l.claim.Conflicts()
	by, taken := errors.AsType[*exclusive.ConflictError](err)
	if taken {
		_, taken = by.MachineHolder()
	}
	if !taken {
		l.run.Add(&w)
		return
	}
	l.run.HandOff(&w)
	l.releaseClaim()
	l.handedOff = true
}

// end sends the rest, the last window w included.
func (l *ledgerRun) end(w *usage.Window, m *report.Measurement, e launch.Exit, signals <-chan os.Signal) {
	if l.run == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go cancelOnSignal(ctx, stop, signals)
	var err error
	if l.handedOff {
		l.j.notify("an agent that sends to " + l.j.cfg.server + " started while the job ran, and measured the rest of it")
		err = l.run.FinishHandOff(ctx)
	} else {
		err = l.run.End(ctx, w, standalone.Outcome{At: m.Ended, Code: e.Code()})
	}
	l.releaseClaim()
	if err != nil {
		l.j.notify(fmt.Sprintf("what the job used is not in the ledger of %s yet: %v", l.j.cfg.server, err))
	}
}

// cancelOnSignal stops waiting for the server on a signal.
func cancelOnSignal(ctx context.Context, stop context.CancelFunc, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			if launch.Ends(s) {
				stop()
			}
		}
	}
}

// cancel undoes startLedgerRun if the job did not start.
func (l *ledgerRun) cancel() {
	if l.run == nil {
		return
	}
	if err := l.run.Cancel(); err != nil {
		l.j.addNotes("the ledger: " + err.Error())
	}
	l.releaseClaim()
}

// releaseClaim gives the claim up.
func (l *ledgerRun) releaseClaim() {
	_ = l.claim.Close() // never written to
	l.claim = nil
}
