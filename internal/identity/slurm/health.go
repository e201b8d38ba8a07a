package slurm

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mete.dev/mete/internal/x/text"
)

// health says whether the controller and the ledger answer, in the log and as metrics.
type health struct {
	log     *slog.Logger
	cluster string
	now     func() time.Time

	mu     sync.Mutex
	away   time.Time            // since when the controller does not answer; zero: it does
	warned map[string]time.Time // by text
	stats  Stats
}

// warnEvery limits warnings of the same trouble.
const warnEvery = 5 * time.Minute

// Stats are counts since the start.
type Stats struct {
	Up       bool  // the controller answered the latest question
	Jobs     int   // that the controller had then, without pending ones
	Booked   int64 // jobs that were written to the ledger, because they were new or had changed
	Reused   int64 // numbers of jobs that an earlier job had too
	Failures int64 // failed attempts to write jobs
	Errors   int64 // of Slurm's commands
}

// Stats returns counts for metrics.
func (w *Watcher) Stats() Stats {
	w.health.mu.Lock()
	defer w.health.mu.Unlock()
	return w.health.stats
}

// answered takes the result of a question to the controller.
func (h *health) answered(ctx context.Context, jobs int, err error) {
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch now := h.now(); {
	case err != nil:
		h.stats.Errors++
		if h.away.IsZero() {
			h.away = now
		}
		h.warn("Slurm's controller does not answer: new jobs have no names until it does", "since", h.away.UTC().Format(time.RFC3339), "err", err,
			"hint", "as the user of this server, try: squeue --all")
	case !h.away.IsZero():
		h.log.Info("Slurm's controller answers again", "cluster", h.cluster, "away", now.Sub(h.away).Round(time.Second), "jobs", jobs)
		h.away = time.Time{}
	case !h.stats.Up:
		h.log.Info("Slurm's controller has listed its jobs", "cluster", h.cluster, "jobs", jobs)
	}
	if h.stats.Up = err == nil; err == nil {
		h.stats.Jobs = jobs
	}
}

// notBooked takes an error of booking, which is tried again.
func (h *health) notBooked(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Failures++
	h.warn("jobs of Slurm could not be written to the ledger; this is tried again", "err", err, "hint", "check that the database runs and has room")
}

// noHistory takes an error of accounting.
func (h *health) noHistory(err error, none bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if none {
		h.log.Info("Slurm has no accounting that this server can read: jobs that begin and end while the server or Slurm's controller is away have no names", "cluster", h.cluster, "err", err)
		return
	}
	h.stats.Errors++
	h.warn("Slurm's accounting does not answer: jobs that were missed have no names until it does", "err", err, "hint", "as the user of this server, try: sacct --allusers")
}

// reused takes numbers that earlier jobs had too.
func (h *health) reused(ids []int64) {
	if len(ids) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Reused += int64(len(ids))
	h.warn("numbers of jobs are in use again: on a machine that ran both, up to 15 minutes of use of the new job count for the old one", "first", ids[0], "jobs", len(ids),
		"hint", "if Slurm's controller lost its state, set FirstJobId in slurm.conf beyond the numbers in use")
}

// unread takes an expression of nodes that cannot be read.
func (h *health) unread(nodes string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.warn("the nodes of a job cannot be read: it has no name", "nodes", text.Cut(text.Clean(nodes), maxName))
}

func (h *health) booked(jobs int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Booked += int64(jobs)
}

func (h *health) warn(what string, more ...any) {
	if now := h.now(); now.Sub(h.warned[what]) >= warnEvery {
		h.warned[what] = now
		h.log.Warn(what, append([]any{"cluster", h.cluster}, more...)...)
	}
}
