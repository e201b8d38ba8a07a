package top

import (
	"context"
	"os"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
)

// A namedMeter gives the rows of jobs the names by which mete run registered them at this machine's
// agent. Groups show an id only.
type namedMeter struct {
	Meter
	ask   func(context.Context) []socket.Named
	named map[string]socket.Named // by the job's id
	wait  map[string]int          // ticks until the next request for a job that the agent did not know
}

// askAgain is the number of ticks until the next request for a job that the agent did not know: it may
// be one that registers late, or one without an agent.
const askAgain = 10

// NameJobs returns a meter of this machine whose jobs have their names, as far as this user's agent or
// that of the machine knows them.
func NameJobs(m Meter) Meter {
	return &namedMeter{Meter: m, ask: registeredJobs, named: map[string]socket.Named{}, wait: map[string]int{}}
}

// Next waits for the next tick.
func (m *namedMeter) Next(ctx context.Context) (*live.Machine, error) {
	l, err := m.Meter.Next(ctx)
	if err != nil {
		return l, err
	}
	named, wait := map[string]socket.Named{}, map[string]int{}
	var jobs []*live.Row
	due := false
	for i := range l.Rows {
		row := &l.Rows[i]
		if row.Kind != workload.Job {
			continue
		}
		id := idOfJob(row.Path)
		jobs = append(jobs, row)
		if n, ok := m.named[id]; ok {
			named[id] = n
			continue
		}
		left, asked := m.wait[id]
		due = due || !asked || left <= 1
		wait[id] = max(left-1, 0)
	}
	if due {
		for _, n := range m.ask(ctx) {
			named[n.ID] = n
		}
		for id := range wait {
			wait[id] = askAgain
		}
	}
	m.named, m.wait = named, wait
	for _, row := range jobs {
		if n, ok := named[idOfJob(row.Path)]; ok {
			row.Name, row.User, row.Project = n.Name, n.User, n.Project
		}
	}
	return l, nil
}

// idOfJob returns the id of the job in whose group a path ends.
func idOfJob(path string) string {
	n, _ := workload.Recognize(path)
	return n.Key
}

// registeredJobs asks the agents of this machine that serve this user.
func registeredJobs(ctx context.Context) (all []socket.Named) {
	for _, path := range socket.Paths(os.Getenv, os.Geteuid()) {
		c, err := socket.Dial(path)
		if err != nil {
			continue // none listens there
		}
		list, err := c.Jobs(ctx)
		_ = c.Close() // nothing left to send
		if err == nil {
			all = append(all, list...)
		}
	}
	return all
}

// Watch implements watcher.
func (m *namedMeter) Watch(id workload.ID) {
	if w, ok := m.Meter.(watcher); ok {
		w.Watch(id)
	}
}
