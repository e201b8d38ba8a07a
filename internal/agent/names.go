package agent

import (
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const (
	// nameRefresh is how often names are sent again, for a server that lost them.
	nameRefresh = 6 * time.Hour
	// jobTimeout is how long after its group was last seen a job is forgotten.
	jobTimeout = 5 * time.Minute
)

// Limits on the names sent with one window, and on the bytes of their texts, so that a batch stays
// within wire.Limits. Names of living workloads can wait for the next window. Names of ended ones
// cannot, so they have limits of their own.
const (
	maxLivingNames, maxLivingBytes = 4000, 1 << 20
	maxEndedNames, maxEndedBytes   = maxEnded, 2 << 20
)

// A nameTracker decides which names to send with each window: a server needs the name of a workload
// once, again if it lost it, and when the workload ends. It also holds the names that jobs registered.
// It is not safe for concurrent use.
type nameTracker struct {
	containers *docker.Watcher
	domains    *libvirt.Reader // nil until it is set
	states     map[workload.ID]*nameState
	jobs       map[string]*jobName       // by key
	gone       []string                  // keys of jobs that were forgotten with the last stored window
	wanted     map[workload.ShortID]bool // names that the server requested
	pass       int64                     // number of calls of collectDue
}

// A nameState records when the name of one workload was sent, and its state in a window.
type nameState struct {
	sentAt time.Time // zero if never
	pass   int64     // the pass that set the fields below
	alive  bool      // one of its lives has not ended
	named  bool      // its name is sent with the window

	made makerName // what its maker said last, or nil
	sent makerName // with which its name was sent
}

// A makerName is what the daemon that made a workload says of it: a [docker.Container] or a [libvirt.Domain]. It never
// changes: after a change there is another one.
type makerName interface{ Apply(*batch.Name) }

// A jobName is the name and other values that a job registered.
type jobName struct {
	batch.Name
	changed  bool      // not sent yet
	stored   bool      // stored with a window
	written  bool      // in the jobs that texts returned last
	recorded bool      // stored in a note of the spool since the last window
	seen     time.Time // time of registration, or of the latest window with a row of it
}

func newNameTracker(containers *docker.Watcher) *nameTracker {
	return &nameTracker{containers: containers, states: map[workload.ID]*nameState{}, jobs: map[string]*jobName{}, wanted: map[workload.ShortID]bool{}}
}

// setJob stores what a job registered. It is sent with the job's next window.
func (n *nameTracker) setJob(key string, job batch.Name, now time.Time) {
	n.jobs[key] = &jobName{Name: job, changed: true, seen: now}
}

// maxTextBytes limits the JSON of jobs in one record of the spool. The next record has those that are left.
const maxTextBytes = 4 << 20

// texts returns the jobs for a record of the spool that want selects, and marks them as written. In JSON a byte takes six
// at most, and the rest of a job less than 200.
func (n *nameTracker) texts(want func(*jobName) bool) (jobs []jobText) {
	var keys []string
	for key, job := range n.jobs {
		if job.written = false; want(job) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	left := budget{maxLivingNames, maxTextBytes / 8}
	for _, key := range keys {
		if job := n.jobs[key]; left.spend(&job.Name) {
			job.written = true
			jobs = append(jobs, textOfJob(key, &job.Name))
		}
	}
	return jobs
}

// text returns, as JSON, what the spool keeps of jobs with a window: all of them, or what changed since the last stored
// window. An agent that is killed would name a job that ends meanwhile after its group, in place of its name.
func (n *nameTracker) text(full bool) []byte {
	var t noteText
	if full {
		for _, job := range n.jobs {
			job.stored = false
		}
	} else {
		t.Gone = n.gone
	}
	t.Jobs = n.texts(func(job *jobName) bool { return !job.stored })
	b, err := t.encode()
	if err != nil {
		return nil // texts and times that came as JSON
	}
	return b
}

// unrecorded returns the jobs whose names are neither sent nor stored in a note of the spool, which
// survives a crash, and the earliest time at which one of them was seen.
func (n *nameTracker) unrecorded() (jobs []jobText, since time.Time) {
	jobs = n.texts(func(job *jobName) bool { return job.changed && !job.recorded })
	for _, job := range n.jobs {
		if job.written && (since.IsZero() || job.seen.Before(since)) {
			since = job.seen
		}
	}
	return jobs, since
}

// markRecorded records that a note in the spool has the names that unrecorded returned.
func (n *nameTracker) markRecorded() {
	for _, job := range n.jobs {
		job.recorded = job.recorded || job.written
	}
}

// displayName returns a workload's name, preferring a registered one and that of its maker.
func (n *nameTracker) displayName(w *workload.Workload) string {
	if w.Kind == workload.Job {
		if job := n.jobs[w.Key]; job != nil {
			return job.Name.Name
		}
	}
	if name, ok := n.domains.DisplayName(w); ok {
		return name
	}
	return n.containers.DisplayName(w)
}

// apply replaces the names of containers and virtual machines in rows, and the names, users and projects of jobs by those that
// the jobs registered.
func (n *nameTracker) apply(node string, rows []live.Row) {
	n.containers.Name(rows)
	n.domains.Name(rows)
	if len(n.jobs) == 0 {
		return
	}
	byID := make(map[workload.ID]*jobName, len(n.jobs))
	for key, job := range n.jobs {
		byID[workload.NewID(node, workload.Job, key)] = job
	}
	for i := range rows {
		if job := byID[rows[i].ID]; job != nil {
			rows[i].Name, rows[i].User, rows[i].Project = job.Name.Name, job.User, job.Project
		}
	}
}

// markWanted records which names the server requested.
func (n *nameTracker) markWanted(list []workload.ShortID) {
	for _, s := range list {
		n.wanted[s] = true
	}
}

// collectDue returns the names to send with w: of new workloads, names due for refresh, changed
// ones, and those that the server requests. Until [nameTracker.markSent] is called, the same names are
// due again.
func (n *nameTracker) collectDue(w *usage.Window, now time.Time) (names []batch.Name) {
	n.observe(w)
	living, ended := budget{maxLivingNames, maxLivingBytes}, budget{maxEndedNames, maxEndedBytes}
	for i := range w.Rows {
		row := &w.Rows[i]
		state := n.states[row.Workload.ID]
		var job *jobName
		if row.Workload.Kind == workload.Job {
			job = n.jobs[row.Workload.Key]
		}
		if job != nil {
			job.seen = now
		}
		if c := n.containers.Find(row.Workload.Kind, row.Workload.Key, row.Workload.Path, !row.Ended); c != nil {
			state.made = c
		} else if d := n.domains.Find(row.Workload.Kind, row.Workload.Path, !row.Ended); d != nil {
			state.made = d
		}
		made := state.made
		due := !state.alive || state.sentAt.IsZero() || now.Sub(state.sentAt) >= nameRefresh || n.wanted[row.ShortID] ||
			job != nil && job.changed || made != state.sent
		// A workload with several lives has a row for each. It is named once: with a row that has
		// not ended, if there is one.
		if !due || state.named || state.alive && row.Ended {
			continue
		}
		name := wire.NameOf(row)
		if !state.alive {
			name.Ended = time.Unix(0, w.End+w.Offset).UTC()
		}
		if job != nil {
			job.apply(&name)
		}
		if made != nil {
			made.Apply(&name)
		}
		left := &living
		if !state.alive {
			left = &ended
		}
		if left.spend(&name) {
			state.named = true
			names = append(names, name)
		}
	}
	return names
}

// observe records which workloads have rows in w, and whether they are alive.
func (n *nameTracker) observe(w *usage.Window) {
	n.pass++
	for i := range w.Rows {
		row := &w.Rows[i]
		state := n.states[row.Workload.ID]
		if state == nil {
			state = &nameState{}
			n.states[row.Workload.ID] = state
		}
		if state.pass != n.pass {
			state.pass, state.alive, state.named = n.pass, false, false
		}
		state.alive = state.alive || !row.Ended
	}
}

// apply puts a job's registered values into its name.
func (j *jobName) apply(n *batch.Name) {
	n.Name, n.Job, n.User, n.Project = j.Name.Name, j.Job, j.User, j.Project
	n.Labels, n.Exit, n.Started = j.Labels, j.Exit, j.Started
	if !j.Ended.IsZero() {
		n.Ended = j.Ended
	}
}

// A budget is the number of names that may still be sent, and the bytes of their texts.
type budget struct{ names, bytes int }

// spend deducts a name from the budget, or returns false if it does not fit.
func (b *budget) spend(n *batch.Name) bool {
	size := len(n.Key) + len(n.Name) + len(n.Path) + len(n.Job) + len(n.User) + len(n.Project)
	for k, v := range n.Labels {
		size += len(k) + len(v)
	}
	if b.names < 1 || size > b.bytes {
		return false
	}
	b.names--
	b.bytes -= size
	return true
}

// markSent records that w and the names of collectDue are in the spool, which sends them. It returns
// the jobs that ended, and those that timed out.
func (n *nameTracker) markSent(w *usage.Window, now time.Time) (gone []string) {
	clear(n.wanted) // a wanted name without a row in w is not known here
	for i := range w.Rows {
		row := &w.Rows[i]
		state := n.states[row.Workload.ID]
		if state == nil {
			continue // deleted with another row of the workload
		}
		isJob := row.Workload.Kind == workload.Job
		if state.named {
			state.sentAt, state.sent = now, state.made
			if job := n.jobs[row.Workload.Key]; isJob && job != nil {
				job.changed = false
			}
		}
		if state.alive {
			continue
		}
		delete(n.states, row.Workload.ID)
		if isJob {
			delete(n.jobs, row.Workload.Key)
			gone = append(gone, row.Workload.Key)
		}
	}
	for key, job := range n.jobs {
		job.stored = job.stored || job.written
		job.recorded = false // the stored window supersedes the notes before it
		if now.Sub(job.seen) >= jobTimeout {
			delete(n.jobs, key)
			gone = append(gone, key)
		}
	}
	n.gone = gone
	return gone
}
