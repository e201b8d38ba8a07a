package standalone

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/user"
	"strconv"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Job describes a job beside its figures.
type Job struct {
	ID     string
	Name   string
	Labels map[string]string
	Path   string       // of its control group; "" without one
	Extent usage.Extent // that control group, or a part of one that contains the job; zero where it is not known
	UID    int          // owner
}

// A Run is a job measured for a server. Its methods are called by one goroutine.
type Run struct {
	sender *Sender
	job    Job
	began  time.Time
	since  int64 // ns of CLOCK_BOOTTIME, of that time
	closed chan closedWindow
	wrote  sync.WaitGroup
	stop   context.CancelFunc // ends sending while the job runs

	// Used by the storing goroutine:
	slot     *slot
	delivery *sender.Sender
	sending  sync.WaitGroup
	unsaved  *usage.Window // not stored in a slot yet
	storeErr error         // why
	named    bool
	outcome  *Outcome // set with the last window
}

// A closedWindow is a closed window; the last one of a job has its outcome.
type closedWindow struct {
	window  *usage.Window
	outcome *Outcome
}

// An Outcome is how a job ended.
type Outcome struct {
	At   time.Time
	Code int
}

// Begin starts measuring a job that is about to start.
func (s *Sender) Begin(j Job) (*Run, error) {
	r := &Run{sender: s, job: j, closed: make(chan closedWindow, 1)}
	if s.id.Node() != "" {
		if err := r.takeSlot(math.MaxInt64); err != nil {
			return nil, err
		}
	}
	at, err := s.h.Clocks()
	if err != nil {
		if r.slot != nil {
			err = errors.Join(err, r.slot.close())
		}
		return nil, err
	}
	r.began = time.Unix(0, at.Realtime).UTC()
	r.since = at.Boottime
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	if r.slot != nil {
		r.startSending(ctx)
	}
	r.wrote.Go(func() { r.storeWindows(ctx) })
	return r, nil
}

// Window returns how long a window may be at most.
func (r *Run) Window() time.Duration { return r.sender.cfg.Window }

// IsReady reports whether the previous window is stored: windows are longer while the disk is slow.
func (r *Run) IsReady() bool { return len(r.closed) == 0 }

// Add takes a window of the job, whose row has no identity.
func (r *Run) Add(w *usage.Window) { r.closed <- closedWindow{window: w} }

// End takes the job's last window, and returns when everything is sent or, with an error, left on
// disk for the next job.
func (r *Run) End(ctx context.Context, w *usage.Window, out Outcome) error {
	w.Rows[0].Ended = true
	r.closed <- closedWindow{w, &out}
	close(r.closed)
	return r.send(ctx)
}

// HandOff takes the last window that this process measures, because another one measures the job from
// now on.
func (r *Run) HandOff(w *usage.Window) {
	r.Add(w)
	close(r.closed)
}

// FinishHandOff sends what HandOff left unsent.
func (r *Run) FinishHandOff(ctx context.Context) error { return r.send(ctx) }

// Cancel ends a job that did not start.
func (r *Run) Cancel() error {
	close(r.closed)
	r.finish()
	if r.slot == nil {
		return nil
	}
	if err := r.slot.writeDebt(debt{Ended: true}); err != nil {
		return errors.Join(err, r.slot.spool.Close())
	}
	return r.slot.close()
}

// finish ends the requests of the job while it ran, and returns when its windows are stored.
func (r *Run) finish() {
	r.stop()
	r.wrote.Wait()
	r.sending.Wait()
}

// takeSlot takes a slot for windows that begin at since, once there is an identity.
func (r *Run) takeSlot(since int64) error {
	var err error
	if r.slot, err = r.sender.acquireSlot(since); err != nil {
		return err
	}
	began := r.began
	if began.IsZero() {
		began = time.Now().UTC() // it is about to start
	}
	if err := r.slot.writeDebt(debt{Job: r.job.ID, Name: r.job.Name, Began: began}); err != nil {
		err = errors.Join(err, r.slot.spool.Close())
		r.slot = nil
		return err
	}
	r.delivery = r.sender.newSender(r.slot.spool)
	return nil
}

// startSending sends while the job runs. send repeats what fails.
func (r *Run) startSending(ctx context.Context) {
	r.sending.Go(func() { _ = r.delivery.Run(ctx) })
	r.sending.Go(func() { _ = r.sender.sendOthers(ctx) })
}

// storeWindows stores windows in the slot as they close.
func (r *Run) storeWindows(ctx context.Context) {
	renew := time.NewTicker(time.Hour)
	defer renew.Stop()
	retry := time.NewTicker(time.Minute)
	defer retry.Stop()
	for {
		select {
		case c, ok := <-r.closed:
			if !ok {
				return
			}
			r.outcome = c.outcome
			r.storeWindow(c.window)
		case <-retry.C:
			if r.slot == nil {
				r.enroll(ctx)
			}
		case <-renew.C:
			_ = r.renew(ctx) // retried later; send reports the error
		}
	}
}

// enroll enrolls if the server was unreachable when the job began.
func (r *Run) enroll(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, r.sender.cfg.Wait)
	defer cancel()
	if r.storeErr = r.sender.enroll(asking); r.storeErr != nil {
		return
	}
	if r.storeErr = r.takeSlot(r.since); r.storeErr == nil {
		r.startSending(ctx)
	}
}

// renew renews the certificate if that is due.
func (r *Run) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.sender.cfg.Wait)
	defer cancel()
	return r.sender.renew(ctx)
}

// storeWindow stores a window in the slot, or merges it with an unsaved one.
func (r *Run) storeWindow(w *usage.Window) {
	if r.unsaved != nil {
		for i := range w.Rows { // each row belongs to the job
			w.Rows[i].Workload, w.Rows[i].ShortID = r.unsaved.Rows[0].Workload, r.unsaved.Rows[0].ShortID
		}
		r.unsaved.Merge(w)
		w, r.unsaved = r.unsaved, nil
	}
	if r.slot == nil {
		r.unsaved = w
		return
	}
	node := r.sender.id.Node()
	job := &usage.Identity{Workload: workload.Workload{ID: workload.NewID(node, workload.Job, r.job.ID), Kind: workload.Job, Key: r.job.ID, Name: r.job.Name, Path: r.job.Path}}
	short, _ := workload.ShortIDOf(job.ID)
	w.Extent = r.job.Extent
	for i := range w.Rows {
		w.Rows[i].Workload, w.Rows[i].ShortID = job, short
	}
	var names []batch.Name
	if !r.named || r.outcome != nil || len(r.delivery.Wanted()) > 0 {
		names = []batch.Name{r.jobName(&w.Rows[0])}
	}
	err := r.slot.append(w, names, r.job.ID)
	if err != nil {
		r.unsaved, r.storeErr = w, err
		return
	}
	r.named, r.storeErr = true, nil
}

// jobName returns the job's name for the server.
func (r *Run) jobName(row *usage.Row) batch.Name {
	n := wire.NameOf(row)
	n.Job, n.Labels, n.Started = r.job.Name, r.job.Labels, r.began
	n.User = strconv.Itoa(r.job.UID)
	if u, err := user.LookupId(n.User); err == nil {
		n.User = u.Username
	}
	if r.outcome != nil {
		n.Ended, n.Exit = r.outcome.At, &r.outcome.Code
	}
	return n
}

// send sends the rest: of this job, then of earlier jobs.
func (r *Run) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.sender.cfg.Wait)
	defer cancel()
	r.finish()
	if r.slot == nil {
		// The server was unreachable when the job began.
		err := r.sender.enroll(ctx)
		if err == nil {
			err = r.takeSlot(r.since)
		}
		if err != nil {
			return fmt.Errorf("%w; it is in no ledger", err)
		}
	}
	if r.unsaved != nil {
		w := r.unsaved
		r.unsaved = nil
		if r.storeWindow(w); r.unsaved != nil {
			return errors.Join(r.storeErr, r.slot.spool.Close())
		}
	}
	if ends := r.sender.id.Expiry(); !ends.IsZero() && time.Now().After(ends) {
		r.storeErr = r.sender.renew(ctx)
	}
	err := r.slot.writeDebt(debt{Job: r.job.ID, Name: r.job.Name, Began: r.began, Ended: true})
	if ferr := r.sender.flush(ctx, r.slot); ferr != nil {
		err = errors.Join(err, fmt.Errorf("%w; it waits in %s for the next mete run --server", ferr, r.slot.dir))
	}
	lost := r.slot.spool.Stats().Refused
	err = errors.Join(err, r.slot.close())
	if lost > 0 {
		err = errors.Join(err, fmt.Errorf("%s: refused: %w; it is kept in %s", r.sender.Server(), fault.ErrInvalid, r.slot.dir))
	}
	if err != nil {
		return errors.Join(err, r.storeErr)
	}
	// The server is reachable: renew the certificate if a third or less of its life is left. A
	// failure can be retried later.
	_ = r.sender.renew(ctx)
	if err := r.sender.sendOthers(ctx); err != nil {
		return fmt.Errorf("use of earlier jobs: %w; it waits for the next mete run --server", err)
	}
	return nil
}

// flush sends everything in a slot, and retries while the server is busy.
func (s *Sender) flush(ctx context.Context, sl *slot) error {
	sh := s.newSender(sl.spool)
	for {
		err := sh.Flush(ctx)
		after, busy := fault.RetryAfter(err)
		if err == nil || !busy {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(after):
		}
	}
}

// clock reads this machine's clocks for the server.
func (s *Sender) clock() (batch.Clock, error) {
	at, err := s.h.Clocks()
	return batch.Clock{Boot: s.boot, Boottime: at.Boottime, Wall: at.Realtime}, err
}
