// Package slurm names the jobs and steps of a Slurm cluster in a ledger: it asks the cluster's controller at an interval, by
// Slurm's own commands, and the accounting of Slurm for jobs that it missed.
package slurm

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/slurm"
	"mete.dev/mete/internal/x/sleep"
)

// A Config says which Slurm cluster to ask.
type Config struct {
	Cluster  string        // the name that its nodes have in the ledger; "" is none
	Commands string        // directory of Slurm's commands; "" is that in PATH
	File     string        // slurm.conf; "" is as Slurm's commands find it
	Interval time.Duration // between questions
}

// Default returns the configuration without a cluster.
func Default() Config { return Config{Interval: 10 * time.Second} }

// A Ledger keeps jobs; see [mete.dev/mete/internal/store/ledger/book.Booker].
type Ledger interface {
	BookSlurm(ctx context.Context, cluster string, jobs []slurm.Job, at time.Time) (reused []int64, err error)
	SlurmGone(ctx context.Context, cluster string, jobs []int64, at time.Time) error
	LiveSlurm(ctx context.Context, cluster string) ([]int64, error)
	SetSlurmRead(ctx context.Context, cluster string, at time.Time) error
	SlurmRead(ctx context.Context, cluster string) (time.Time, error)
}

// A Watcher asks a controller. Several servers with one ledger may do so: they write the same.
type Watcher struct {
	cfg    Config
	ledger Ledger
	health health

	live     map[int64]bool      // jobs that have no end in the ledger; nil before it was read
	booked   map[int64]slurm.Job // as they were booked last
	answered time.Time           // when the controller answered last
	stored   time.Time           // of that, what the ledger has

	nodes   map[string]string // machines by Slurm's names of them
	nodesAt time.Time         // when they were read

	missed   time.Time // since when jobs may have been missed; zero: none was
	askAgain time.Time // when the next question to accounting is due
	none     bool      // there is no accounting
}

// New returns a watcher. It does not ask yet. Its errors have a hint.
func New(cfg Config, l Ledger, log *slog.Logger) (*Watcher, error) {
	for _, name := range []string{"squeue", "sinfo"} {
		if _, err := cfg.find(name); err != nil {
			return nil, err
		}
	}
	return &Watcher{cfg: cfg, ledger: l, booked: map[int64]slurm.Job{}, health: health{log: log, cluster: cfg.Cluster, now: time.Now, warned: map[string]time.Time{}}}, nil
}

// Run asks until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.round(ctx); err != nil && ctx.Err() == nil {
			w.health.notBooked(err)
		}
		if sleep.For(ctx, w.cfg.Interval) != nil {
			break
		}
	}
	return nil
}

// storeEvery is how often the ledger gets the time of the latest answer, and pause the time without an answer after which jobs
// may have been missed: Slurm forgets jobs some minutes after their ends (MinJobAge).
const storeEvery, pause = time.Minute, time.Minute

// lookBack is how much before the latest answer missed jobs are looked for, and firstLook how far back if there was no answer yet.
const lookBack, firstLook = 10 * time.Minute, 24 * time.Hour

// round asks once and books what has changed. Errors are those of the ledger: what was not booked is booked in the next one.
func (w *Watcher) round(ctx context.Context) error {
	at := time.Now()
	jobs, err := w.queue(ctx)
	if w.health.answered(ctx, len(jobs), err); err != nil {
		return nil
	}
	if err := w.resume(ctx, at); err != nil {
		return err
	}
	there := map[int64]bool{}
	var changed []slurm.Job
	for i := range jobs {
		there[jobs[i].ID] = true
		if old, ok := w.booked[jobs[i].ID]; !ok || !reflect.DeepEqual(old, jobs[i]) {
			changed = append(changed, jobs[i])
		}
	}
	if err := w.book(ctx, changed, at); err != nil {
		return err
	}
	var gone []int64
	for _, id := range slices.Sorted(maps.Keys(w.live)) {
		if !there[id] {
			gone = append(gone, id)
		}
	}
	if err := w.ledger.SlurmGone(ctx, w.cfg.Cluster, gone, at); err != nil {
		return err
	}
	if len(gone) > 0 {
		w.miss(at) // no end was seen
	}
	for _, id := range gone {
		delete(w.live, id)
	}
	maps.DeleteFunc(w.booked, func(id int64, _ slurm.Job) bool { return !there[id] })
	for i := range jobs {
		if w.booked[jobs[i].ID] = jobs[i]; jobs[i].Ended.IsZero() {
			w.live[jobs[i].ID] = true
		} else {
			delete(w.live, jobs[i].ID)
		}
	}
	w.answered = at
	if at.Sub(w.stored) >= storeEvery && w.missed.IsZero() {
		if err := w.ledger.SetSlurmRead(ctx, w.cfg.Cluster, at); err != nil {
			return err
		}
		w.stored = at
	}
	return w.catchUp(ctx, at)
}

// resume finds out, before jobs are booked, which ones may have been missed.
func (w *Watcher) resume(ctx context.Context, at time.Time) error {
	if w.live != nil {
		if at.Sub(w.answered) > max(pause, 3*w.cfg.Interval) {
			w.miss(w.answered)
		}
		return nil
	}
	last, err := w.ledger.SlurmRead(ctx, w.cfg.Cluster)
	if err != nil {
		return err
	}
	ids, err := w.ledger.LiveSlurm(ctx, w.cfg.Cluster)
	if err != nil {
		return err
	}
	if last.IsZero() || last.After(at) {
		last = at.Add(-firstLook)
	}
	w.live = map[int64]bool{}
	for _, id := range ids {
		w.live[id] = true
	}
	w.miss(last)
	return nil
}

// miss records that jobs may have been missed since a time.
func (w *Watcher) miss(since time.Time) {
	if since = since.Add(-lookBack); w.missed.IsZero() || since.Before(w.missed) {
		w.missed = since
	}
}

// book books jobs.
func (w *Watcher) book(ctx context.Context, jobs []slurm.Job, at time.Time) error {
	reused, err := w.ledger.BookSlurm(ctx, w.cfg.Cluster, jobs, at)
	w.health.reused(reused)
	if err == nil {
		w.health.booked(len(jobs))
	}
	return err
}

// queueStates are the states that squeue selects: all of jobs that have started. Pending ones may be very many.
const queueStates = "BF,CA,CD,CF,CG,DL,F,NF,OOM,PR,R,RS,S,SI,SO,ST,TO"

// queue returns the jobs that the controller has.
func (w *Watcher) queue(ctx context.Context) ([]slurm.Job, error) {
	separator := rand.Text()
	// Other users see the arguments of a command, but not its environment.
	out, err := w.cfg.run(ctx, w.cfg.environment("SQUEUE_FORMAT="+queueFormat(separator)), "squeue", "--noheader", "--all", "--local", "--states="+queueStates)
	if err != nil {
		return nil, err
	}
	records, err := parseQueue(string(out), separator)
	if err != nil {
		return nil, err
	}
	exits, err := w.cfg.run(ctx, w.cfg.environment(), "squeue", "--noheader", "--all", "--local", "--states="+queueStates, "--Format="+exitFormat)
	if err != nil {
		return nil, err
	}
	addExits(records, string(exits))
	return w.jobs(ctx, records)
}

// nodesEvery is how often the names of machines are read again, and nodesSoon how often if one is not known.
const nodesEvery, nodesSoon = time.Hour, time.Minute

// jobs returns the jobs of records that have started.
func (w *Watcher) jobs(ctx context.Context, records []record) (jobs []slurm.Job, err error) {
	cache := map[string][]string{}
	unknown := false
	hosts := func(nodes string) []string {
		if known, ok := cache[nodes]; ok {
			return known
		}
		names, err := expand(nodes)
		if err != nil {
			w.health.unread(nodes)
		}
		var out []string
		for _, n := range names {
			host, ok := w.nodes[n]
			if !ok {
				unknown, host = true, slurm.Host(n)
			}
			out = append(out, host)
		}
		slices.Sort(out)
		cache[nodes] = slices.Compact(out)
		return cache[nodes]
	}
	for range 2 {
		jobs, unknown = nil, false
		for i := range records {
			if j, ok := records[i].job(hosts); ok {
				jobs = append(jobs, j)
			}
		}
		if age := time.Since(w.nodesAt); age < nodesSoon || !unknown && age < nodesEvery {
			break
		}
		out, err := w.cfg.run(ctx, w.cfg.environment(), "sinfo", "--noheader", "--all", "--local", "--Node", "--format=%N %n")
		if err != nil {
			return nil, err
		}
		w.nodes, w.nodesAt = parseNodes(out), time.Now()
		clear(cache)
	}
	return jobs, nil
}

// Limits of questions to accounting: how far back, the span of one question, and how long to wait after an answer and
// after an error.
const maxLook, lookSpan, lookEvery, lookPause = 8 * 24 * time.Hour, 6 * time.Hour, time.Minute, 5 * time.Minute

// catchUp books what accounting knows of jobs that were missed.
func (w *Watcher) catchUp(ctx context.Context, at time.Time) error {
	if w.missed.IsZero() || at.Before(w.askAgain) {
		return nil
	}
	if earliest := at.Add(-maxLook); w.missed.Before(earliest) {
		w.missed = earliest
	}
	for !w.none && w.missed.Before(at) {
		to := w.missed.Add(lookSpan)
		if to.After(at) {
			to = at
		}
		jobs, err := w.history(ctx, w.missed, to)
		if err != nil {
			if ctx.Err() == nil {
				w.none = isDisabled(err)
				w.health.noHistory(err, w.none)
			}
			w.askAgain = at.Add(lookPause)
			break
		}
		if err := w.book(ctx, jobs, at); err != nil {
			return err
		}
		w.missed = to
	}
	if w.none {
		w.missed = time.Time{}
	} else if !w.missed.Before(at) {
		w.missed, w.askAgain = time.Time{}, at.Add(lookEvery)
	}
	return nil
}

// isDisabled reports whether sacct cannot know anything.
func isDisabled(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "accounting storage is disabled")
}

// history returns the jobs of a span that have ended, as accounting knows them.
func (w *Watcher) history(ctx context.Context, from, to time.Time) ([]slurm.Job, error) {
	separator := rand.Text()
	const form = "2006-01-02T15:04:05"
	out, err := w.cfg.run(ctx, w.cfg.environment(), "sacct", "--allusers", "--allocations", "--local", "--duplicates", "--noheader", "--parsable", "--delimiter="+separator,
		"--starttime="+from.UTC().Format(form), "--endtime="+to.UTC().Format(form), "--format="+strings.Join(historyFields, ","))
	if err != nil {
		return nil, err
	}
	records, err := parseHistory(string(out), separator)
	if err != nil {
		return nil, err
	}
	jobs, err := w.jobs(ctx, records)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mergeRestarts(jobs), func(j slurm.Job) bool { return j.Ended.IsZero() }), nil // the controller has the others
}
