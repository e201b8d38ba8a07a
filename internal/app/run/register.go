package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/sleep"
)

// An agentJob is the registration of a job at this machine's agent: the agent measures the job's
// group like every other, and mete run reports the job's name and when to read the group.
type agentJob struct {
	client *socket.Client // nil without an agent; the search sets it until it has ended
	job    socket.Job
	note   func(...string)
	denied error // why the user may not use the project
	away   bool  // an agent's socket exists, and no agent answers, or the job has no group

	stop      context.CancelFunc // of startSearch; nil if there is no search
	searching sync.WaitGroup
}

// register registers the job at this machine's agent, before the job starts. The job also runs
// without an agent, or if it does not answer.
// The error says that its user may not use the project of --project.
func (j *job) register(group *launch.Group) (*agentJob, error) {
	a := &agentJob{job: socket.Job{
		ID: j.report.ID, Name: j.report.Name, Project: j.cfg.project, Labels: j.report.Labels,
	}, note: j.addNotes}
	if group == nil { // the agent measures groups
		for _, path := range socket.Paths(os.Getenv, os.Geteuid()) {
			a.away = a.away || isSocket(path)
		}
		j.explainProject(a)
		return a, nil
	}
	a.job.Groups, a.job.Started = []string{group.Path()}, time.Now().UTC()
	for _, why := range a.registerOnce() {
		j.addNotes(why)
	}
	if a.denied != nil {
		return a, &projectError{a.denied}
	}
	j.explainProject(a)
	return a, nil
}

// A projectError says why a job may not use the project of --project.
type projectError struct{ err error }

func (e *projectError) Error() string { return "--project: " + e.err.Error() }
func (e *projectError) Unwrap() error { return e.err }

// explainProject says that nothing books the job to the project of --project.
func (j *job) explainProject(a *agentJob) {
	if a.job.Project != "" && a.client == nil {
		j.notify(fmt.Sprintf("the job is not booked to project %s: only an agent of this machine does that, and none has its name", a.job.Project))
	}
}

// isOf reports whether the agent with which the job is registered belongs to the server at an address, as
// that of mete up does.
func (a *agentJob) isOf(server string) bool {
	if a.client == nil {
		return false
	}
	self, ok := a.client.SelfAccess(a.job.ID)
	return ok && isSameServer(self.URL, server)
}

// isSameServer reports whether two URLs name the same port of the same host. All names of the loopback
// interface are one host.
func isSameServer(a, b string) bool {
	x, err := url.Parse(a)
	y, err2 := url.Parse(b)
	if err != nil || err2 != nil || x.Host == "" || x.Scheme != y.Scheme || x.Port() != y.Port() {
		return false
	}
	return strings.EqualFold(x.Hostname(), y.Hostname()) || isLoopback(x.Hostname()) && isLoopback(y.Hostname())
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// startSearch keeps looking for an agent, to register the job at one that starts while the job
// runs.
func (a *agentJob) startSearch() {
	if a.client != nil || a.job.Groups == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.searching.Go(func() {
		for a.client == nil {
			if err := sleep.For(ctx, time.Second); err != nil {
				return
			}
			a.registerOnce()
		}
	})
}

// stopSearch ends the search with a last attempt.
func (a *agentJob) stopSearch() {
	if a.stop == nil {
		return
	}
	a.stop()
	a.searching.Wait()
	a.stop = nil
	if a.client == nil {
		a.registerOnce()
	}
}

// dial connects to an agent. Tests replace it.
var dial = socket.Dial

// registerOnce looks for an agent and registers the job. It returns notes for the report.
func (a *agentJob) registerOnce() (notes []string) {
	ctx := context.Background() // the client has its own timeouts
	for _, path := range socket.Paths(os.Getenv, os.Geteuid()) {
		c, err := dial(path)
		if errors.Is(err, fault.ErrUnavailable) {
			a.away = a.away || isSocket(path) // a killed agent leaves it
			continue
		}
		if err != nil {
			notes = append(notes, "cannot register the job at this machine's agent: "+err.Error())
			continue
		}
		err = c.Register(ctx, a.job)
		if a.job.Project != "" && errors.Is(err, fault.ErrDenied) {
			a.denied = err
		}
		if err == nil {
			// The agent reads the group before it has any process.
			err = c.Snapshot(ctx, a.job.ID)
		}
		a.client = c
		if err != nil {
			notes = append(notes, "this machine's agent does not know the job's name: "+err.Error())
		}
		break
	}
	return notes
}

func isSocket(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

// endWait is how long end waits for an agent that does not answer, such as one that is restarted.
// Tests raise it.
var endWait = 10 * time.Second

// endRetry is the time between two attempts.
const endRetry = 100 * time.Millisecond

// end reports to the agent how the job ended. It returns when the agent has the last values of the
// group, which can then be removed, and the job's name on its disk. named says whether it has; it is
// nil if the machine has no agent. A signal ends the wait.
func (a *agentJob) end(m *report.Measurement, e launch.Exit, signals <-chan os.Signal) (named *bool) {
	a.stopSearch()
	if a.client == nil {
		if !a.away {
			return nil
		}
		if a.job.Groups == nil {
			a.note("this machine's agent knows a job by its control group: " + needGroup + " for its name to be in the ledger")
		} else {
			a.note("this machine's agent is down")
		}
		return new(bool)
	}
	o := socket.Outcome{Ended: m.Ended, Exit: e.Code()}
	if e.Status.Signaled() {
		o.Signal = int(e.Status.Signal())
	}
	ctx, stop := context.WithTimeout(context.Background(), endWait)
	defer stop()
	go cancelOnSignal(ctx, stop, signals)
	for {
		err := a.client.End(ctx, a.job.ID, o)
		done := err == nil
		if !done && errors.Is(err, fault.ErrUnavailable) && sleep.For(ctx, endRetry) == nil {
			continue
		}
		if !done {
			a.note("this machine's agent does not know how the job ended: " + err.Error())
		}
		return &done
	}
}

// close closes the connection.
func (a *agentJob) close() {
	if a.stop != nil { // the job did not start
		a.stop()
		a.searching.Wait()
	}
	if a.client != nil {
		_ = a.client.Close() // nothing left to send
	}
}
