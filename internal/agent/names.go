package agent

import (
	"cmp"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const (
	// nameRefresh is how often names are sent again, for a server that lost them.
	nameRefresh = 6 * time.Hour
	// jobTimeout is how long after its group was last seen a job is forgotten.
	jobTimeout = 5 * time.Minute
)

// Limits on the names, and their bytes, sent with one window: a batch holds no more than
// wire.Limits. Names of living workloads can wait for the next window; those of ended ones cannot,
// so they have their own limit.
const (
	livingNames, livingText = 4000, 1 << 20
	endedNames, endedText   = maxEnded, 2 << 20
)

// A nameTracker records which names the server has, and the names that jobs registered. It is not
// safe for concurrent use.
type nameTracker struct {
	states map[workload.ID]*nameState
	jobs   map[string]*jobName       // by key
	wanted map[workload.ShortID]bool // names that the server lacks
	pass   int64                     // number of calls of collectDue
	out    []batch.Name              // of the current window
}

// A nameState records what was sent of one workload.
type nameState struct {
	sentAt time.Time // zero if never
	pass   int64     // the pass that set the fields below
	lives  bool      // it has a row that has not ended
	named  bool      // its name is in out
}

// A jobName is what a job registered.
type jobName struct {
	batch.Name
	changed  bool      // not sent yet
	recorded bool      // in a note since the last window
	seen     time.Time // time of registration, or of the latest window with a row of it
}

func newNameTracker() *nameTracker {
	return &nameTracker{states: map[workload.ID]*nameState{}, jobs: map[string]*jobName{}, wanted: map[workload.ShortID]bool{}}
}

// setJob stores what a job registered. It is sent with the job's next window.
func (n *nameTracker) setJob(key string, job batch.Name, now time.Time) {
	n.jobs[key] = &jobName{Name: job, changed: true, seen: now}
}

// unrecorded returns the jobs whose names are neither sent nor in a note, and since when the oldest
// of these waits.
func (n *nameTracker) unrecorded() (jobs []jobText, since time.Time) {
	for key, job := range n.jobs {
		if job.changed && !job.recorded {
			jobs = append(jobs, textOfJob(key, &job.Name))
			if len(jobs) == 1 || job.seen.Before(since) {
				since = job.seen
			}
		}
	}
	slices.SortFunc(jobs, func(a, b jobText) int { return cmp.Compare(a.Key, b.Key) })
	return jobs, since
}

// markRecorded records that a note with all of unrecorded is stored.
func (n *nameTracker) markRecorded() {
	for _, job := range n.jobs {
		job.recorded = true
	}
}

// displayName returns a workload's name, preferring a registered one.
func (n *nameTracker) displayName(w *workload.Workload) string {
	if w.Kind == workload.Job {
		if job := n.jobs[w.Key]; job != nil {
			return job.Name.Name
		}
	}
	return w.Name
}

// markWanted records which names the server requests.
func (n *nameTracker) markWanted(list []workload.ShortID) {
	for _, s := range list {
		n.wanted[s] = true
	}
}

// collectDue returns the names to send with w: of new workloads, names due for refresh, changed
// ones, and those that the server requests. The result is valid until the next call. It repeats
// until [nameTracker.markSent] is called.
func (n *nameTracker) collectDue(w *usage.Window, now time.Time) []batch.Name {
	n.out = n.out[:0]
	n.observe(w)
	var living, ended budget
	for i := range w.Rows {
		row := &w.Rows[i]
		t := n.states[row.Workload.ID]
		var job *jobName
		if row.Workload.Kind == workload.Job {
			job = n.jobs[row.Workload.Key]
		}
		if job != nil {
			job.seen = now
		}
		due := !t.lives || t.sentAt.IsZero() || now.Sub(t.sentAt) >= nameRefresh || n.wanted[row.ShortID] || job != nil && job.changed
		// A workload with several lives has a row for each.
		if !due || t.named || t.lives && row.Ended {
			continue
		}
		name := wire.NameOf(row)
		if !t.lives {
			name.Ended = time.Unix(0, w.End+w.Offset).UTC()
		}
		if job != nil {
			job.apply(&name)
		}
		if t.lives && living.spend(&name, livingNames, livingText) || !t.lives && ended.spend(&name, endedNames, endedText) {
			t.named = true
			n.out = append(n.out, name)
		}
	}
	return n.out
}

// observe records which workloads have rows in w, and whether they live.
func (n *nameTracker) observe(w *usage.Window) {
	n.pass++
	for i := range w.Rows {
		row := &w.Rows[i]
		t := n.states[row.Workload.ID]
		if t == nil {
			t = &nameState{}
			n.states[row.Workload.ID] = t
		}
		if t.pass != n.pass {
			t.pass, t.lives, t.named = n.pass, false, false
		}
		t.lives = t.lives || !row.Ended
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

// budget is what was spent on names.
type budget struct{ names, text int }

// spend reports whether one more name fits, and counts it.
func (b *budget) spend(n *batch.Name, names, text int) bool {
	size := len(n.Key) + len(n.Name) + len(n.Path) + len(n.Job) + len(n.User) + len(n.Project)
	for k, v := range n.Labels {
		size += len(k) + len(v)
	}
	if b.names >= names || b.text+size > text {
		return false
	}
	b.names++
	b.text += size
	return true
}

// markSent records that w and the names of collectDue are stored. It returns the jobs that ended,
// and those that timed out.
func (n *nameTracker) markSent(w *usage.Window, now time.Time) (gone []string) {
	clear(n.wanted) // names without a row are unknown here too
	for i := range w.Rows {
		row := &w.Rows[i]
		t := n.states[row.Workload.ID]
		if t == nil {
			continue // the workload had two rows
		}
		job := row.Workload.Kind == workload.Job
		if t.named {
			t.sentAt = now
			if s := n.jobs[row.Workload.Key]; job && s != nil {
				s.changed = false
			}
		}
		if t.lives {
			continue
		}
		delete(n.states, row.Workload.ID)
		if job {
			delete(n.jobs, row.Workload.Key)
			gone = append(gone, row.Workload.Key)
		}
	}
	for id, s := range n.jobs {
		s.recorded = false // the window ends the notes
		if now.Sub(s.seen) >= jobTimeout {
			delete(n.jobs, id)
			gone = append(gone, id)
		}
	}
	return gone
}
