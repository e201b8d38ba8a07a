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
	"syscall"

	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/job/standalone"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/secretenv"
	"mete.dev/mete/internal/x/statedir"
)

// makeToken is how to get a token.
const makeToken = "make one with `mete token create --role agent` on the server, and give it by --token-file or METE_TOKEN; where an agent of this machine sends to that server, leave --server out"

// openSender finds out before the job starts as whom its figures are sent. What
// only a person can mend is an error; that a server is away is none.
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
	info, _ := debug.ReadBuildInfo() // nil where the go command did not build it
	cfg.Version = cli.Version(info)
	o, err := standalone.Open(context.Background(), cfg, j.h)
	switch {
	case err == nil:
		j.sender = o
	case errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrInvalid):
		if _, missing := c.readToken(); errors.Is(missing, fault.ErrNotFound) && errors.Is(err, fault.ErrDenied) {
			err = fault.WithHint(fmt.Errorf("not enrolled at %s: %w", c.server, missing), makeToken)
		}
		return fmt.Errorf("--server: %w", err)
	default:
		j.unsent = err
	}
	return nil
}

// readToken reads the token, as it is now. It is fault.ErrNotFound where there is
// none: who has enrolled needs none.
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
		return token.Token{}, fmt.Errorf("there is no token: %w", fault.ErrNotFound)
	}
	return token.Parse(text)
}

// ledgerRun is a job that sends its figures itself. Its zero value does nothing.
type ledgerRun struct {
	j             *job
	run           *standalone.Run // nil where it does not send
	claim         *exclusive.Claim
	machineHolder exclusive.Holder // who measures the machine for the ledger; where that has no scope, nobody
	at            hostfs.Clocks    // of the last sample
	handedOff     bool             // to an agent that came while the job ran
}

// startLedgerRun claims the job's scope for the ledger, and begins to measure for it. An
// error says that a part of it is measured already, by another job.
func (j *job) startLedgerRun(group *launch.Group) (*ledgerRun, error) {
	o := &ledgerRun{j: j}
	if j.sender == nil {
		return o, nil
	}
	scope, err := j.scope(group)
	if err != nil {
		return nil, err
	}
	var ignored []exclusive.Holder
	if o.claim, err = exclusive.Acquire(j.h, j.sender.LedgerID(), scope); err == nil {
		ignored, err = o.claim.Conflicts()
	}
	if by, taken := errors.AsType[*exclusive.ConflictError](err); taken {
		o.releaseClaim()
		if holder, ok := by.MachineHolder(); ok {
			o.machineHolder = holder
			return o, nil // and knows of the job by register
		}
		return nil, fault.WithHint(err, "this command is part of that job, which has its use in the ledger: leave --server out here, or there")
	}
	for _, path := range socket.Paths(os.Getenv, os.Geteuid()) {
		if file, away := exclusive.Marked(filepath.Dir(path), j.sender.LedgerID()); away {
			o.releaseClaim()
			j.notify(fmt.Sprintf("the job is not sent to %s: an agent that measures this machine for it is away, and books what the job uses when it is back, without its name; if it is gone for good, remove %s", j.cfg.server, file))
			return o, nil
		}
	}
	if err != nil {
		j.addNotes("that nobody else measures the job for the ledger is not known: " + err.Error())
	}
	for _, h := range ignored {
		j.addNotes(fmt.Sprintf("%v claims to measure %s for the ledger, which does not count: it is neither root's nor this user's", h, h.Scope))
	}
	path := ""
	if group != nil {
		path = group.Path()
	}
	o.run, err = j.sender.Begin(standalone.Job{ID: j.report.ID, Name: j.report.Name, Labels: j.report.Labels, Path: path, UID: os.Getuid()})
	if err != nil {
		j.notify(fmt.Sprintf("the job is not in the ledger of %s: %v", j.cfg.server, err))
		o.releaseClaim()
	}
	return o, nil
}

// scope is what the job's figures are of.
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

// explainUnsent says what is to be known where the job does not send its figures itself,
// though it was asked to: perhaps an agent has it in the ledger all the same, as
// that of mete up has, which takes figures of no other.
func (o *ledgerRun) explainUnsent(books *agentJob) {
	switch err := o.j.unsent; {
	case err != nil && books.client != nil:
		o.j.notify(fmt.Sprintf("the agent of this machine has the job in its ledger; it is not sent to %s: %v", o.j.cfg.server, err))
	case err != nil:
		o.j.notify(fmt.Sprintf("the job is not in the ledger of %s: %v", o.j.cfg.server, err))
	}
	if o.machineHolder.Scope == exclusive.Machine && books.client == nil {
		o.j.notify(fmt.Sprintf("the job is in the ledger of %s without its name: %v measures this machine for it, and cannot be told at any of its sockets (METE_SOCKET)", o.j.cfg.server, o.machineHolder))
	}
}

// onSample takes what there is of the job. When it closes a window it looks
// whether an agent has come for the same ledger: that measures the job from then
// on, and what it used before stays as it is.
func (o *ledgerRun) onSample(at hostfs.Clocks, m *report.Measurement) {
	if o.run == nil || o.handedOff {
		return
	}
	o.at = at
	if !o.run.Sample(at, m) {
		return
	}
	_, err := o.claim.Conflicts()
	by, taken := errors.AsType[*exclusive.ConflictError](err)
	if !taken {
		return
	}
	if _, ok := by.MachineHolder(); !ok {
		return
	}
	o.run.HandOff(at, m)
	o.releaseClaim()
	o.handedOff = true
}

// end sends what is left, and makes the report say what was booked.
func (o *ledgerRun) end(m *report.Measurement, e launch.Exit, signals <-chan os.Signal) {
	if o.run == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go cancelOnSignal(ctx, stop, signals)
	var err error
	if o.handedOff {
		o.j.notify("an agent that sends to " + o.j.cfg.server + " came while the job ran, and measured the rest of it")
		err = o.run.FinishHandOff(ctx)
	} else {
		err = o.run.End(ctx, o.at, m, standalone.Outcome{At: m.Ended, Code: e.Code()})
	}
	o.releaseClaim()
	if err != nil {
		o.j.notify(fmt.Sprintf("what the job used is not in the ledger of %s yet: %v", o.j.cfg.server, err))
	}
}

// cancelOnSignal ends the waiting for a server when the caller wants an end.
func cancelOnSignal(ctx context.Context, stop context.CancelFunc, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			switch s {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
				stop()
			}
		}
	}
}

// cancel takes everything back: the job did not start.
func (o *ledgerRun) cancel() {
	if o.run == nil {
		return
	}
	if err := o.run.Cancel(); err != nil {
		o.j.addNotes("the ledger: " + err.Error())
	}
	o.releaseClaim()
}

// releaseClaim gives the claim up.
func (o *ledgerRun) releaseClaim() {
	_ = o.claim.Close() // a socket that nothing is written to
	o.claim = nil
}
