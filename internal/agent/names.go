package agent

import (
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const (
	// nameRefresh is how often the name of a workload is sent again, so that a server
	// that lost its memory learns it.
	nameRefresh = 6 * time.Hour
	// jobTimeout is after how long a job is forgotten of whose group nothing is seen.
	jobTimeout = 5 * time.Minute
)

// How many names, and bytes of them, go with one window: a batch holds no more
// than wire.Limits. The names of those that live can wait for the next window;
// of those that ended this is the last, so that they have room beside.
const (
	livingNames, livingText = 4000, 1 << 20
	endedNames, endedText   = maxEnded, 2 << 20
)

// nameTracker knows which workloads' names the server has been told, and what the
// makers of jobs said of theirs. One goroutine uses it.
type nameTracker struct {
	states map[workload.ID]*nameState
	jobs   map[string]*jobName       // by the id of mete run
	wanted map[workload.ShortID]bool // names that the server lacks
	pass   int64                     // calls of collectDue
	out    []batch.Name              // for the window at hand
}

// nameState is what was sent of one workload.
type nameState struct {
	sentAt time.Time // zero: not yet
	pass   int64     // of which the following tell
	lives  bool      // a row of it has not ended
	named  bool      // it is in out
}

// jobName is what the maker of a job said of it.
type jobName struct {
	batch.Name
	changed bool      // not sent yet
	seen    time.Time // when it was said, or a window last had a row of it
}

func newNameTracker() *nameTracker {
	return &nameTracker{states: map[workload.ID]*nameState{}, jobs: map[string]*jobName{}, wanted: map[workload.ShortID]bool{}}
}

// setJob takes what the maker of a job says of it. It is sent with the job's next
// window.
func (n *nameTracker) setJob(id string, job batch.Name, now time.Time) {
	n.jobs[id] = &jobName{job, true, now}
}

// displayName is what a workload is called: what its maker said, if that did.
func (n *nameTracker) displayName(w *workload.Workload) string {
	if w.Kind == workload.Job {
		if job := n.jobs[w.Key]; job != nil {
			return job.Name.Name
		}
	}
	return w.Name
}

// markWanted notes which names the server lacks.
func (n *nameTracker) markWanted(list []workload.ShortID) {
	for _, s := range list {
		n.wanted[s] = true
	}
}

// collectDue returns the names that are to be sent with w: of workloads that are new,
// whose name is old, of which there is news, and those that the server wants.
// What it returns is good until the next call. Unless [nameTracker.markSent] is called,
// the same are returned again.
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
		// A workload that began anew has a row for each life.
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

// observe notes which workloads have a row in w, and whether one that lives.
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

// apply puts what was said of a job into its name.
func (s *jobName) apply(n *batch.Name) {
	n.Name, n.Job, n.User, n.Project = s.Name.Name, s.Job, s.User, s.Project
	n.Labels, n.Exit, n.Started = s.Labels, s.Exit, s.Started
	if !s.Ended.IsZero() {
		n.Ended = s.Ended
	}
}

// budget is what was spent on names.
type budget struct{ names, text int }

// spend reports whether there is room for one more name.
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

// markSent notes that w is safe, at now, and with it what collectDue returned for it. It
// returns the jobs that have ended, and those of which nothing is seen.
func (n *nameTracker) markSent(w *usage.Window, now time.Time) (gone []string) {
	clear(n.wanted) // of whom there is no row the name is not known here either
	for i := range w.Rows {
		row := &w.Rows[i]
		t := n.states[row.Workload.ID]
		if t == nil {
			continue // it stood here twice
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
		if now.Sub(s.seen) >= jobTimeout {
			delete(n.jobs, id)
			gone = append(gone, id)
		}
	}
	return gone
}
