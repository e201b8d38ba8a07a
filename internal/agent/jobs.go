package agent

import (
	"context"
	"time"

	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
)

// hooks implements the socket's interface for jobs.
type jobHooks struct{ *Agent }

// Key returns the key of the job with this id that a peer may act for, or "".
func (h jobHooks) Key(p socket.Peer, id string) string { return jobKey(h.host, p, id) }

// Project returns the project of a peer's job.
func (h jobHooks) Project(p socket.Peer, wanted string) (string, error) {
	return h.projects.Of(p.UID, wanted)
}

// Register stores the name of a job, which is sent with its next window, and returns what the job
// needs to query its own use.
func (h jobHooks) Register(key string, j socket.Job) (socket.Registration, error) {
	n := batch.Name{Name: j.Name, Job: j.Name, User: j.User, Project: j.Project, Labels: j.Labels, Started: j.Started}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobNames[key], h.openJobs[key] = n, n
	return socket.Registration{Self: h.selfAccess.grant(workload.NewID(h.node, workload.Job, key))}, nil
}

// Snapshot requests a tick.
func (h jobHooks) Snapshot(ctx context.Context) error { return h.Machine.RequestTick(ctx) }

// End takes a last tick of a job and makes it durable with the job's name, so that its group can be
// removed. After an error the job stays open and End can be called again.
func (h jobHooks) End(ctx context.Context, key string, o socket.Outcome) error {
	h.mu.Lock()
	n := h.openJobs[key]
	n.Ended, n.Exit = o.Ended, &o.Exit
	h.jobNames[key] = n
	h.mu.Unlock()
	if err := h.Machine.RequestEnd(ctx, key); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.openJobs, key)
	return nil
}

// applyJobNames passes registered names to the name tracker.
func (a *Agent) applyJobNames(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, n := range a.jobNames {
		a.names.setJob(key, n, now)
	}
	clear(a.jobNames)
}

// Live returns the result of the latest tick, with what jobs registered: a job has its name as soon as
// it is registered, not with the first window. Only the goroutine that owns the machine may call it.
func (a *Agent) Live() *live.Machine {
	a.applyJobNames(time.Now())
	m := a.Machine.Live()
	a.names.apply(a.node, m.Rows)
	return m
}

// forgetJobs closes jobs whose groups are gone, even if their mete run was killed before it
// reported their end.
func (a *Agent) forgetJobs(keys []string) {
	for _, key := range keys {
		a.mu.Lock()
		delete(a.openJobs, key)
		a.mu.Unlock()
		if a.socket != nil {
			a.socket.Forget(key)
		}
	}
}

// A Status is the state of an agent.
type Status struct {
	Node    string    `json:"node"`
	Reader  string    `json:"reader"`
	Scope   string    `json:"scope"`             // what is measured: "/" is the machine
	Partial string    `json:"partial,omitempty"` // what of the machine is not seen by name
	Time    time.Time `json:"time"`
	Jobs    int       `json:"jobs"` // registered and not ended
	Windows int64     `json:"windows"`
	Rows    int64     `json:"rows"`
	// Violations counts failed conservation checks, and Missed births and deaths of groups that the
	// reader missed.
	Violations int64  `json:"violations"`
	Missed     int64  `json:"missed"`
	Failing    string `json:"failing,omitempty"` // why windows cannot be stored
	// Unrecorded is why ends of jobs and groups are not recorded at once, so that a killed agent
	// would forget their names; "" if they are.
	Unrecorded string           `json:"unrecorded,omitempty"`
	Sender     sender.Status    `json:"ship"`
	Spool      spool.Stats      `json:"spool"`
	Streams    []spool.Status   `json:"streams"`
	GuestRelay GuestRelayStatus `json:"handover"`
	// Directives are the sections of the server's directives.
	Directives []directives.SectionStatus `json:"directives"`
}

// Status returns the agent's state. It is safe for concurrent use.
func (a *Agent) Status() any { return a.State() }

func (a *Agent) State() Status {
	stored := a.Spool.Stats()
	s := Status{Node: a.node, Reader: a.Machine.Reader, Scope: string(a.Machine.Scope()), Partial: a.Machine.Partial(), Time: time.Now().UTC(), Windows: a.windows.Load(), Rows: stored.Rows,
		Violations: a.violated.Load(), Missed: a.missed.Load(),
		Sender: a.Sender.Status(), Spool: stored, Streams: a.Spool.Streams()}
	if a.Directives != nil {
		s.Directives = a.Directives.Status()
	}
	if a.GuestRelay != nil {
		s.GuestRelay = a.GuestRelay.Status()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Jobs, s.Failing = len(a.openJobs), a.spoolError
	if a.recordError != nil {
		s.Unrecorded = a.recordError.Error()
	}
	return s
}
