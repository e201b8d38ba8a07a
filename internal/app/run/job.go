package run

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/host"
	"mete.dev/mete/internal/keep"
	"mete.dev/mete/internal/launch"
	"mete.dev/mete/internal/report"
)

// job is a command on its way to a report.
type job struct {
	cfg    *config
	h      *host.Host
	report report.Report
	stderr io.Writer
}

// run runs the command of c, and ends as it ends.
func run(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	path, err := launch.Look(c.command[0], os.Getenv("PATH"))
	if err != nil {
		return failed(err)
	}
	h, err := host.Open("/")
	if err != nil {
		return &Exit{codeFailed, err}
	}
	defer h.Close()
	out, err := openOutput(c, stdout, stderr)
	if err != nil {
		return &Exit{codeFailed, err}
	}
	defer out.discard()

	j := &job{cfg: c, h: h, stderr: stderr}
	j.report = report.Report{ID: newID(), Name: c.name, Labels: c.labels, Command: c.command}
	exit, err := j.run(ctx, launch.Command{Path: path, Args: c.command, Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return failed(err)
	}
	j.report.ExitCode, j.report.Signal = exit.Code(), exit.Signal()
	j.report.Meter.CPU, j.report.Meter.MemoryPeak = launch.Self(h)

	// From here on nothing changes the exit code: the command has run.
	if err := j.keep(); err != nil {
		j.say("the report is not kept: %v", err)
	}
	if err := out.write(&j.report); err != nil {
		j.say("the report is not written: %v", err)
	}
	if code := exit.Code(); code != 0 {
		return &Exit{Code: code}
	}
	return nil
}

// run makes the job's place, starts the command and watches it to its end.
func (j *job) run(ctx context.Context, c launch.Command) (launch.Exit, error) {
	counter := openCounter(j.h, j.cfg.reader)
	defer counter.close()

	place, err := j.place()
	if err != nil {
		return launch.Exit{}, err
	}
	group, _ := place.(*launch.Group)
	if group != nil {
		defer group.Remove()
	}
	counter.count(group)
	c.Before = counter.wait
	watch := launch.Watch{All: j.cfg.waitAll, More: counter.read}
	signals := listen()
	defer signals.close()
	watch.Signals, watch.Pass = signals.c, signals.pass

	if j.cfg.reader == "bpf" {
		if err := counter.err(); err != nil {
			return launch.Exit{}, fault.WithHint(fmt.Errorf("--reader bpf: %w", err), "try --reader auto")
		}
	}
	// The job may be waiting for a processor: collecting garbage, of which
	// there is little left, can wait for it.
	debug.SetGCPercent(400)
	measured, exit, err := launch.Run(j.h, place, c, watch)
	if err != nil {
		return exit, err
	}
	j.report.Fill(measured)
	if group != nil {
		j.report.Group = group.Path()
		j.report.Notes = append(j.report.Notes, group.Notes()...)
	}
	j.report.Reader = counter.reader(group)
	j.report.Notes = append(j.report.Notes, counter.notes(group, &measured.Final)...)
	return exit, nil
}

// place makes the job's groups or, where there can be none and no limit was
// asked for, takes the process tree.
func (j *job) place() (launch.Job, error) {
	ys, err := j.h.Hierarchies()
	var group *launch.Group
	if err == nil {
		group, err = launch.Open(j.h, ys, j.report.ID, j.cfg.limits)
	}
	switch {
	case err == nil:
		return group, nil
	case !launch.Refused(err):
		return nil, fault.WithHint(err, "without the limit the job would start")
	case j.cfg.limits != launch.Limits{}:
		return nil, fault.WithHint(fmt.Errorf("limits need a control group: %w", err), "run as root, or where a part of the control groups is delegated to you")
	}
	why := fmt.Sprintf("no control group for the job (%v): its processes are followed instead, and all figures are apportioned", err)
	j.report.Notes = append(j.report.Notes, why)
	if !j.cfg.quiet && j.cfg.output != "text" {
		j.say("%s", why) // the table has its notes
	}
	return launch.OpenTree(j.h)
}

// keep stores the report.
func (j *job) keep() error {
	dir, err := keep.Default(os.Getenv, os.Geteuid())
	if err != nil {
		return err
	}
	return keep.New(dir).Put(&j.report)
}

// say prints one line for people.
func (j *job) say(form string, a ...any) {
	// Where standard error is gone there is nobody to tell.
	_, _ = fmt.Fprintf(j.stderr, "mete: "+form+"\n", a...)
}
