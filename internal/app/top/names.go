package top

import (
	"context"
	"log/slog"
	"os"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/sleep"
)

// A namedMeter gives the rows of jobs the names by which mete run registered them at this machine's
// agent, and the rows of containers and virtual machines those of their daemons. Groups show an id only.
type namedMeter struct {
	Meter
	containers *docker.Watcher
	domains    *libvirt.Reader
	stop       func()                // stops the watcher; may be nil
	settle     func(context.Context) // gives the daemons time to answer the first request; nil after it

	ask   func(context.Context) []socket.Named
	named map[string]socket.Named // by the job's id
	wait  map[string]int          // ticks until the next request for a job that the agent did not know
}

// askAgain is the number of ticks until the next request for a job that the agent did not know: it may
// be one that registers late, or one without an agent.
const askAgain = 10

// settleTime is how long the first tick waits for the names of containers.
const settleTime = 300 * time.Millisecond

// Named returns a meter of this machine whose jobs have their names, as far as this user's agent or
// that of the machine knows them, and whose containers and virtual machines have those of the daemons that this user may ask.
func Named(m Meter) Meter {
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	var domains *libvirt.Reader
	closeHost := func() {}
	if h, err := hostfs.Open("/"); err == nil {
		domains, closeHost = libvirt.New(h, libvirt.Directory, time.Minute, log), func() { _ = h.Close() } // it was only read
	}
	w := docker.New(docker.Sockets(), time.Minute, log)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(ctx) }() // it returns no error
	return &namedMeter{Meter: m, containers: w, domains: domains, stop: func() { cancel(); <-ended; closeHost() }, settle: func(ctx context.Context) { _ = sleep.For(ctx, settleTime) }, ask: registeredJobs, named: map[string]socket.Named{}, wait: map[string]int{}}
}

// Close implements Meter.
func (m *namedMeter) Close() error {
	if m.stop != nil {
		m.stop()
	}
	return m.Meter.Close()
}

// Next waits for the next tick.
func (m *namedMeter) Next(ctx context.Context) (*live.Machine, error) {
	l, err := m.Meter.Next(ctx)
	if err != nil {
		return l, err
	}
	if all := m.containers.Name(l.Rows); !all && m.settle != nil {
		m.settle(ctx)
		m.containers.Name(l.Rows)
	}
	m.settle = nil
	m.domains.Name(l.Rows)
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
