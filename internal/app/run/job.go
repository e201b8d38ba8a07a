package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/archive"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/meter"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/scope"
	"mete.dev/mete/internal/job/standalone"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/statedir"
)

// job is a command and its report.
type job struct {
	cfg    *config
	h      *hostfs.FS
	report report.Report
	stderr io.Writer
	power  *powerMeters
	sender *standalone.Sender // nil if the job does not send its figures
	unsent error              // why it does not, despite --server
}

// run runs the command of c and returns with its exit code.
func run(c *config, stdout, stderr io.Writer) error {
	defer delayCollection()()
	path, err := launch.LookPath(c.command[0], os.Getenv("PATH"))
	if err != nil {
		return failed(err)
	}
	h, err := hostfs.Open("/")
	if err != nil {
		return &Exit{codeFailed, err}
	}
	defer func() { _ = h.Close() }() // read only
	out, err := openOutput(c, stdout, stderr)
	if err != nil {
		return &Exit{codeFailed, err}
	}
	defer out.discard()

	j := &job{cfg: c, h: h, stderr: stderr}
	j.report = report.Report{ID: newID(), Name: c.name, Labels: c.labels, Command: c.command, MemoryLimit: c.limits.Memory}
	if err := j.openSender(); err != nil {
		return &Exit{codeFailed, err}
	}
	exit, err := j.run(launch.Command{Path: path, Args: c.command, Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return failed(err)
	}
	j.report.ExitCode, j.report.Signal = exit.Code(), exit.Signal()
	j.report.Meter.CPU, j.report.Meter.MemoryPeak = launch.SelfUsage(h)

	// From here on the exit code is fixed: the command has run.
	if err := j.storeReport(); err != nil {
		j.notify(fmt.Sprintf("cannot store the report: %v", err))
	}
	if lives := j.report.Survivors(); c.quiet && lives != "" {
		j.printLine("%s: still running: %s", report.Clean(c.name), lives) // the other formats contain it
	}
	if named := j.report.InLedgerByName; c.quiet && named != nil && !*named {
		j.printLine("%s: %s", report.Clean(c.name), report.NotInLedger)
	}
	if err := out.write(&j.report); err != nil {
		j.printLine("cannot write the report: %v", err)
	}
	if code := exit.Code(); code != 0 {
		return &Exit{Code: code}
	}
	return nil
}

// startTime is how long mete itself has memory to spare, rather than CPU time to collect it: a
// short job ends before.
const startTime = time.Second

// delayCollection makes the garbage collector rare for startTime, or until the caller calls cancel:
// 6 of 42 ms of CPU time of a job that does nothing were for collecting, and without it no more
// memory is in use. A GOGC of the user's stays.
func delayCollection() (cancel func() bool) {
	if os.Getenv("GOGC") != "" {
		return func() bool { return true }
	}
	percent := debug.SetGCPercent(400)
	return time.AfterFunc(startTime, func() { debug.SetGCPercent(percent) }).Stop
}

// run starts the command in its own groups or, if that fails and no limit is set, as a process
// tree, and watches it until it ends.
func (j *job) run(c launch.Command) (launch.Exit, error) {
	counter := openCounter(j.h, j.cfg.reader)
	defer counter.close()
	j.power = openPower(j.h, j.cfg.powercap)
	defer j.power.close()
	signals := listen()
	defer signals.close()

	if j.cfg.reader == "bpf" {
		if err := counter.err(); err != nil {
			return launch.Exit{}, fault.WithHint(fmt.Errorf("--reader bpf: %s", explainRefusal(err)), "--reader auto uses the best available")
		}
	}
	group, err := j.group()
	if err == nil {
		defer group.Remove()
		var exit launch.Exit
		if exit, err = j.watch(group, group, c, counter, signals); err == nil {
			return exit, nil
		}
	}
	_, taken := errors.AsType[*exclusive.ConflictError](err)
	_, denied := errors.AsType[*projectError](err)
	switch {
	case taken, denied, !launch.IsGroupError(err):
		return launch.Exit{}, err
	case j.cfg.limits != launch.Limits{}:
		return launch.Exit{}, fault.WithHint(fmt.Errorf("limits need a control group: %w", err), needGroup)
	}
	if j.cfg.reader == "bpf" {
		return launch.Exit{}, fault.WithHint(fmt.Errorf("--reader bpf needs a control group: %w", err), needGroup+"; --reader auto uses the best available")
	}
	j.addNotes(fmt.Sprintf("no control group for the job (%v): its processes are followed instead, and their figures are apportioned; %s for exact ones", err, needGroup))
	tree, err := launch.OpenTree(j.h)
	if err != nil {
		return launch.Exit{}, err
	}
	return j.watch(tree, nil, c, counter, signals)
}

// needGroup says how a job gets a control group.
const needGroup = "run mete as root, or in a control group delegated to you"

// group creates the job's groups: where systemd manages cgroup v2, in a delegated scope, unless
// this process is within another job, whose groups count this one too.
func (j *job) group() (*launch.Group, error) {
	ys, err := j.h.Hierarchies()
	if err != nil {
		return nil, err
	}
	// Version 2 is first.
	if scope.IsUseful(j.h, ys) && !launch.InJob(ys[0].Self) {
		if group, err := scope.Enter(context.Background(), j.h, ys[0], j.report.ID); err != nil {
			j.addNotes(fmt.Sprintf("no systemd scope for the job: %v", err))
		} else {
			ys[0].Self = group
		}
	}
	return launch.Open(j.h, ys, j.report.ID, j.cfg.limits)
}

// watch runs the command in its place and fills the report; group is nil without groups.
func (j *job) watch(place launch.Job, group *launch.Group, c launch.Command, n *counter, s *signals) (launch.Exit, error) {
	own, err := j.startLedgerRun(group)
	if err != nil {
		return launch.Exit{}, err
	}
	n.attachTo(group)
	agent, err := j.register(group)
	defer agent.close()
	if err != nil {
		own.cancel()
		return launch.Exit{}, err
	}
	own.explainUnsent(agent)
	c.Env = withSelfAccess(c.Env, j.selfAccess(own, agent))
	agent.startSearch()
	m, err := meter.Open(j.h, place, n.read)
	if err != nil {
		own.cancel()
		return launch.Exit{}, err
	}
	defer func() { _ = m.Close() }() // read only
	c.Before = func() error {
		// The thread that becomes the job only waits.
		ready := make(chan error)
		go func() {
			n.wait()
			j.power.addTo(m)
			ready <- m.Begin()
		}()
		return <-ready
	}
	measured, exit, err := launch.Run(j.h, place, c, launch.Watch{
		WaitAll: j.cfg.waitAll, Signals: s.c, NeedsSignal: s.needsSignal,
		Sample: func(at launch.Moment) bool {
			seen := m.Sample(at)
			if at == launch.Full {
				own.sampled(m)
			}
			return seen
		},
	})
	if err != nil {
		own.cancel()
		return exit, err
	}
	j.report.InLedgerByName = agent.end(measured, exit, s.c)
	last := m.CloseWindow()
	own.end(&last, measured, exit, s.c)
	metered := m.Metered()
	j.report.Fill(measured)
	j.report.FillUse(&metered)
	j.power.explain(&j.report, m.Events())
	j.report.Reader = n.reader()
	if group != nil {
		j.report.Group = group.Path()
		j.addNotes(group.Notes()...)
	}
	j.addNotes(n.notes(metered.Use.Present)...)
	return exit, nil
}

func (j *job) storeReport() error {
	dir, err := statedir.Default(os.Getenv, os.Geteuid())
	if err != nil {
		return err
	}
	return archive.New(dir).Put(&j.report)
}

// addNotes adds notes to the report, each on one line.
func (j *job) addNotes(notes ...string) {
	for _, n := range notes {
		j.report.Notes = append(j.report.Notes, firstLine(n))
	}
}

// notify adds a note to the report if the output is a document that an extra line would break; else
// it prints a line.
func (j *job) notify(s string) {
	if j.cfg.quiet || j.cfg.output == "text" {
		j.printLine("%s", s)
		return
	}
	j.addNotes(s)
}

// printLine prints one line to standard error.
func (j *job) printLine(form string, a ...any) {
	// Standard error may be closed.
	_, _ = fmt.Fprintf(j.stderr, "mete: "+form+"\n", a...)
}
