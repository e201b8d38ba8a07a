package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/archive"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/scope"
	"mete.dev/mete/internal/job/standalone"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/statedir"
)

// job is a command on its way to a report.
type job struct {
	cfg    *config
	h      *hostfs.FS
	report report.Report
	stderr io.Writer
	energy *energyMeter
	sender *standalone.Sender // nil where the job does not send its figures itself
	unsent error              // why it does not, though it was asked to
}

// run runs the command of c, and ends as it ends.
func run(c *config, stdout, stderr io.Writer) error {
	path, err := launch.LookPath(c.command[0], os.Getenv("PATH"))
	if err != nil {
		return failed(err)
	}
	h, err := hostfs.Open("/")
	if err != nil {
		return &Exit{codeFailed, err}
	}
	defer func() { _ = h.Close() }() // of files that were only read
	out, err := openOutput(c, stdout, stderr)
	if err != nil {
		return &Exit{codeFailed, err}
	}
	defer out.discard()

	j := &job{cfg: c, h: h, stderr: stderr}
	j.report = report.Report{ID: newID(), Name: c.name, Labels: c.labels, Command: c.command}
	if err := j.openSender(); err != nil {
		return &Exit{codeFailed, err}
	}
	exit, err := j.run(launch.Command{Path: path, Args: c.command, Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return failed(err)
	}
	j.report.ExitCode, j.report.Signal = exit.Code(), exit.Signal()
	j.report.Meter.CPU, j.report.Meter.MemoryPeak = launch.SelfUsage(h)

	// From here on nothing changes the exit code: the command has run.
	if err := j.storeReport(); err != nil {
		j.notify(fmt.Sprintf("the report is not kept: %v", err))
	}
	if lives := j.report.Survivors(); c.quiet && lives != "" {
		j.printLine("%s: lives on: %s", report.Clean(c.name), lives) // every other form has it
	}
	if err := out.write(&j.report); err != nil {
		j.printLine("the report is not written: %v", err)
	}
	if code := exit.Code(); code != 0 {
		return &Exit{Code: code}
	}
	return nil
}

// run starts the command in groups of its own or, where that cannot be and no
// limit was asked for, as a process tree, and watches it to its end.
func (j *job) run(c launch.Command) (launch.Exit, error) {
	counter := openCounter(j.h, j.cfg.reader)
	defer counter.close()
	j.energy = openEnergyMeter(j.h, j.cfg.powercap)
	defer j.energy.close()
	signals := listen()
	defer signals.close()

	if j.cfg.reader == "bpf" {
		if err := counter.err(); err != nil {
			return launch.Exit{}, fault.WithHint(fmt.Errorf("--reader bpf: %s", explainRefusal(err)), "--reader auto takes what there is")
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
	switch {
	case taken, !launch.IsGroupError(err):
		return launch.Exit{}, err
	case j.cfg.limits != launch.Limits{}:
		return launch.Exit{}, fault.WithHint(fmt.Errorf("limits need a control group: %w", err), "run as root, or where a part of the control groups is delegated to you")
	}
	if j.cfg.reader == "bpf" {
		return launch.Exit{}, fault.WithHint(fmt.Errorf("--reader bpf needs a control group: %w", err), "--reader auto takes what there is")
	}
	j.addNotes(fmt.Sprintf("no control group for the job (%v): its processes are followed instead, and their figures are apportioned", err))
	tree, err := launch.OpenTree(j.h)
	if err != nil {
		return launch.Exit{}, err
	}
	return j.watch(tree, nil, c, counter, signals)
}

// group makes the job's groups: where systemd manages cgroup v2, in a scope that
// it delegates.
func (j *job) group() (*launch.Group, error) {
	ys, err := j.h.Hierarchies()
	if err != nil {
		return nil, err
	}
	if scope.IsUseful(j.h, ys) {
		// Version 2 comes first.
		if group, err := scope.Enter(context.Background(), j.h, ys[0], j.report.ID); err != nil {
			j.addNotes(fmt.Sprintf("no scope of systemd for the job: %v", err))
		} else {
			ys[0].Self = group
		}
	}
	return launch.Open(j.h, ys, j.report.ID, j.cfg.limits)
}

// watch runs the command in its place and fills the report; group is nil where
// there is none.
func (j *job) watch(place launch.Job, group *launch.Group, c launch.Command, n *counter, s *signals) (launch.Exit, error) {
	own, err := j.startLedgerRun(group)
	if err != nil {
		return launch.Exit{}, err
	}
	n.attachTo(group)
	books := j.register(group)
	defer books.close()
	own.explainUnsent(books)
	c.Env = withSelfAccess(c.Env, j.selfAccess(own, books))
	books.startSearch()
	c.Before = func() {
		// The thread that is to become the job does nothing but wait.
		ready := make(chan struct{})
		go func() {
			defer close(ready)
			n.wait()
			j.energy.begin()
		}()
		<-ready
	}
	measured, exit, err := launch.Run(j.h, place, c, launch.Watch{
		WaitAll: j.cfg.waitAll, ReadMore: n.read, Signals: s.c, NeedsSignal: s.needsSignal,
		OnSample: func(at hostfs.Clocks, m *report.Measurement) {
			j.energy.tick(at, m)
			own.onSample(at, m)
		},
	})
	if err != nil {
		own.cancel()
		return exit, err
	}
	books.end(measured, exit)
	own.end(measured, exit, s.c)
	j.report.Fill(measured)
	j.energy.fillReport(&j.report)
	j.report.Reader = n.reader()
	if group != nil {
		j.report.Group = group.Path()
		j.addNotes(group.Notes()...)
	}
	j.addNotes(n.notes(&measured.Final)...)
	return exit, nil
}

// storeReport stores the report.
func (j *job) storeReport() error {
	dir, err := statedir.Default(os.Getenv, os.Geteuid())
	if err != nil {
		return err
	}
	return archive.New(dir).Put(&j.report)
}

// addNotes adds notes to the report, each in one line.
func (j *job) addNotes(notes ...string) {
	for _, n := range notes {
		j.report.Notes = append(j.report.Notes, firstLine(n))
	}
}

// notify says something for people in the report where it is a document that a
// line beside it would spoil, else in a line of its own.
func (j *job) notify(s string) {
	if j.cfg.quiet || j.cfg.output == "text" {
		j.printLine("%s", s)
		return
	}
	j.addNotes(s)
}

// printLine prints one line for people.
func (j *job) printLine(form string, a ...any) {
	// Where standard error is gone there is nobody to tell.
	_, _ = fmt.Fprintf(j.stderr, "mete: "+form+"\n", a...)
}
