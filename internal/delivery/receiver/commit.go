package receiver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// A submission is an entry that waits to be booked, or is being booked.
type submission struct {
	entry        *batch.Entry
	rows         int64 // that the ledger writes for it, about
	windowRows   int   // rows in its windows
	snapshot     NodeSnapshot
	countingFrom time.Time // start of its first window, if the agent's counting began with it
	done         chan batch.Result
	queue        *admissionQueue
}

// commit queues a submission and waits for its result. If ctx ends meanwhile, it may be booked
// nevertheless.
func (rc *Receiver) commit(ctx context.Context, s *submission) (batch.Reply, error) {
	if s.queue.isFull() {
		return batch.Reply{}, newRetryError("too many rows wait to be booked")
	}
	s.queue.rows.Add(s.rows)
	select {
	case s.queue.pending <- s:
	default:
		s.queue.rows.Add(-s.rows)
		return batch.Reply{}, newRetryError("too many batches wait to be booked")
	}
	select {
	case r := <-s.done:
		return r.Reply, r.Err
	case <-ctx.Done():
		return batch.Reply{}, ctx.Err()
	case <-rc.stopped:
		select {
		case r := <-s.done:
			return r.Reply, r.Err
		default:
			return batch.Reply{}, newRetryError("the server is shutting down")
		}
	}
}

// Run books submissions until ctx ends; those that wait then are not booked, and their agents
// offer them again. It is called once.
func (rc *Receiver) Run(ctx context.Context) error {
	defer close(rc.stopped)
	for {
		group := rc.gather(ctx)
		if len(group) == 0 {
			return nil
		}
		rc.book(ctx, group)
	}
}

// gather waits for a submission, and for GatherTime for more of them; it returns none once ctx
// has ended. It takes a whole group of light ones that wait. Of heavy ones it always takes one,
// so that they proceed however many light ones there are, and more while there is room.
func (rc *Receiver) gather(ctx context.Context) (group []*submission) {
	if ctx.Err() != nil {
		return nil
	}
	limit := int64(rc.cfg.GroupRows)
	var rows int64
	take := func(s *submission) {
		group = append(group, s)
		rows += s.rows
	}
	select {
	case s := <-rc.light.pending:
		take(s)
	case s := <-rc.heavy.pending:
		take(s)
	case <-ctx.Done():
		return nil
	}
	first := group[0]
	if first.queue == rc.heavy {
		rows = 0 // a heavy one takes no room from light ones
	}
	for rows < limit {
		s := rc.light.poll()
		if s == nil {
			break
		}
		take(s)
	}
	if first.queue == rc.heavy {
		rows += first.rows
	} else if s := rc.heavy.poll(); s != nil {
		take(s)
	}
	enough := time.After(rc.cfg.GatherTime)
	for rows < limit {
		s := rc.light.poll()
		if s == nil {
			s = rc.heavy.poll()
		}
		if s == nil {
			select {
			case s = <-rc.light.pending:
			case s = <-rc.heavy.pending:
			case <-enough:
				return group
			case <-ctx.Done():
				return group
			}
		}
		take(s)
	}
	return group
}

// book books a group. If the ledger does not take the group, each entry is booked alone, so
// that a fault of one entry does not make the ledger refuse the others.
func (rc *Receiver) book(ctx context.Context, group []*submission) {
	// An agent waits for each entry, so a transaction that has begun is completed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rc.cfg.CommitTimeout)
	defer cancel()
	es := make([]*batch.Entry, len(group))
	for i, s := range group {
		es[i] = s.entry
	}
	began := time.Now()
	results, err := rc.ledger.Book(ctx, es)
	if err == nil && len(results) != len(es) {
		err = fmt.Errorf("%d results for %d entries", len(results), len(es))
	}
	rc.mu.Lock()
	rc.stats.Commits++
	rc.stats.CommitTime += time.Since(began)
	rc.mu.Unlock()
	if err != nil && len(group) > 1 && ctx.Err() == nil && !errors.Is(err, fault.ErrUnavailable) {
		for _, s := range group {
			rc.book(ctx, []*submission{s})
		}
		return
	}
	if err != nil {
		rc.log.Error("batches could not be booked", "batches", len(group), "err", err)
	}
	for i, s := range group {
		r := batch.Result{Err: err}
		if err == nil {
			r = results[i]
		}
		if r.Err != nil {
			r.Err = classify(r.Err)
		}
		s.queue.rows.Add(-s.rows)
		s.done <- r
	}
}
