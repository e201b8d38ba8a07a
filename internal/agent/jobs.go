package agent

import (
	"context"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
)

// hooks is the agent as jobs see it through the socket.
type hooks struct{ *Agent }

// Owns reports whether a peer may speak for the job of this id: its group
// belongs to the peer's user, or the peer is in it.
func (h hooks) Owns(p socket.Peer, id string) bool {
	return owns(h.host, p, id)
}

// Register takes the name of a job, which is sent with its next window, and gives
// it what it needs to ask for its own use.
func (h hooks) Register(j socket.Job) (socket.Registered, error) {
	n := batch.Name{Name: j.Name, Job: j.Name, User: j.User, Project: j.Project, Labels: j.Labels, Started: j.Started}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said[j.ID], h.open[j.ID] = n, n
	return socket.Registered{Self: h.self.of(workload.NewID(h.node, workload.Job, j.ID))}, nil
}

// Snapshot takes a tick now.
func (h hooks) Snapshot(ctx context.Context) error { return h.Machine.Ask(ctx) }

// End takes a last tick of a job, so that its group can be removed. Where that
// fails the job stays open, and its end can be told again.
func (h hooks) End(ctx context.Context, id string, o socket.Outcome) error {
	h.mu.Lock()
	n := h.open[id]
	n.Ended, n.Exit = o.Ended, &o.Exit
	h.said[id] = n
	h.mu.Unlock()
	if err := h.Machine.Ask(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, id)
	return nil
}

// hear hands over to the sampler's loop what was said of jobs.
func (a *Agent) hear(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, n := range a.said {
		a.names.say(id, n, now)
	}
	clear(a.said)
}

// forget closes jobs whose groups are gone, though perhaps nobody said how they
// ended, as their mete run was killed.
func (a *Agent) forget(ids []string) {
	for _, id := range ids {
		a.mu.Lock()
		delete(a.open, id)
		a.mu.Unlock()
		if a.socket != nil {
			a.socket.Forget(id)
		}
	}
}

// A Status is how an agent is doing.
type Status struct {
	Node    string    `json:"node"`
	Reader  string    `json:"reader"`
	Time    time.Time `json:"time"`
	Jobs    int       `json:"jobs"` // that are registered and have not ended
	Windows int64     `json:"windows"`
	Rows    int64     `json:"rows"`
	// Violations and Missed count what should not be: books that do not add up,
	// and births and deaths of groups that the reader knows it did not see.
	Violations int64          `json:"violations"`
	Missed     int64          `json:"missed"`
	Failing    string         `json:"failing,omitempty"` // why windows cannot be kept
	Ship       sender.Status  `json:"ship"`
	Spool      spool.Stats    `json:"spool"`
	Streams    []spool.Status `json:"streams"`
	Hand       HandStatus     `json:"handover"`
}

// Status returns how the agent is doing. Any goroutine may call it.
func (a *Agent) Status() any { return a.State() }

// State is Status with its type.
func (a *Agent) State() Status {
	s := Status{Node: a.node, Reader: a.Machine.Reader, Time: time.Now().UTC(), Windows: a.windows.Load(), Rows: a.rows.Load(),
		Violations: a.violated.Load(), Missed: a.missed.Load(),
		Ship: a.Shipper.Status(), Spool: a.Spool.Stats(), Streams: a.Spool.Streams()}
	if a.Hand != nil {
		s.Hand = a.Hand.Status()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Jobs, s.Failing = len(a.open), a.fails
	return s
}
