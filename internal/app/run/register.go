package run

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/sleep"
)

// An agentJob is a job's place in the books of this machine's agent, where one
// runs: the agent measures the job's group as it does every other, and mete run
// tells it what the job is called and when to look.
type agentJob struct {
	client *socket.Client // nil where there is no agent; that of the search until it has ended
	job    socket.Job
	note   func(...string)

	stop      context.CancelFunc // of startSearch, nil where it is not needed
	searching sync.WaitGroup
}

// register tells this machine's agent of the job, before it starts. Without an
// agent, or with one that does not answer, the job runs all the same.
func (j *job) register(group *launch.Group) *agentJob {
	a := &agentJob{job: socket.Job{
		ID: j.report.ID, Name: j.report.Name, Labels: j.report.Labels, Command: j.report.Command,
	}, note: j.addNotes}
	if group == nil {
		return a // the agent counts groups
	}
	a.job.Groups, a.job.Started = []string{group.Path()}, time.Now().UTC()
	for _, why := range a.registerOnce() {
		j.addNotes(why)
	}
	return a
}

// startSearch goes on to look for an agent, where none was found: one that comes while the
// job runs is told its name too.
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

// stopSearch ends the looking, with a last look.
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

// registerOnce looks for an agent that can be told of the job, and tells it. What it
// returns is for people.
func (a *agentJob) registerOnce() (notes []string) {
	ctx := context.Background() // the client has time limits of its own
	for _, path := range socket.Paths(os.Getenv, os.Geteuid()) {
		c, err := socket.Dial(path)
		if errors.Is(err, fault.ErrUnavailable) {
			continue
		}
		if err != nil {
			notes = append(notes, "the agent of this machine is not told of the job: "+err.Error())
			continue
		}
		err = c.Register(ctx, a.job)
		if err == nil {
			// The group is in the books before anything is in the group.
			err = c.Snapshot(ctx, a.job.ID)
		}
		a.client = c
		if err != nil {
			notes = append(notes, "the agent of this machine does not know the job's name: "+err.Error())
		}
		break
	}
	return notes
}

// end tells the agent how the job ended, and returns when the agent has read
// the group for the last time, so that it can be removed.
func (a *agentJob) end(m *report.Measurement, e launch.Exit) {
	a.stopSearch()
	if a.client == nil {
		return
	}
	o := socket.Outcome{Ended: m.Ended, Exit: e.Code()}
	if e.Status.Signaled() {
		o.Signal = int(e.Status.Signal())
	}
	err := a.client.End(context.Background(), a.job.ID, o)
	if err != nil {
		a.note("the agent of this machine does not know how the job ended: " + err.Error())
	}
}

// close gives the connection back.
func (a *agentJob) close() {
	if a.stop != nil { // the job did not start
		a.stop()
		a.searching.Wait()
	}
	if a.client != nil {
		_ = a.client.Close() // nothing is left to be said
	}
}
