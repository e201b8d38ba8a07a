package run

import (
	"context"
	"errors"
	"os"
	"time"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/launch"
	"mete.dev/mete/internal/report"
	"mete.dev/mete/internal/socket"
)

// An account is a job's place in the books of this machine's agent, where one
// runs: the agent measures the job's group as it does every other, and mete run
// tells it what the job is called and when to look.
type account struct {
	client *socket.Client // nil where there is no agent
	job    socket.Job
	note   func(...string)
}

// register tells this machine's agent of the job, before it starts. Without an
// agent, or with one that does not answer, the job runs all the same.
func (j *job) register(group *launch.Group) *account {
	a := &account{job: socket.Job{
		ID: j.report.ID, Name: j.report.Name, Labels: j.report.Labels, Command: j.report.Command,
	}, note: j.note}
	for _, why := range a.find(group) {
		j.note(why)
	}
	return a
}

// find looks for an agent that can be told of the job, and tells it. What it
// returns is for people.
func (a *account) find(group *launch.Group) (notes []string) {
	if group == nil {
		return nil // the agent counts groups
	}
	a.job.Groups, a.job.Started = []string{group.Path()}, time.Now().UTC()
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
func (a *account) end(m *report.Measured, e launch.Exit) {
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
func (a *account) close() {
	if a.client != nil {
		_ = a.client.Close() // nothing is left to be said
	}
}
