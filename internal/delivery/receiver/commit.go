package receiver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// submission is an entry on its way into the ledger.
type submission struct {
	entry        *batch.Entry
	rows         int64 // that it makes the ledger write, about
	windowRows   int   // rows in its windows
	snapshot     NodeSnapshot
	countingFrom time.Time // where counting began with its first window: its start
	done         chan batch.Result
	queue        *admissionQueue
}

// commit queues an offer and waits for what becomes of it. Where ctx ends
// meanwhile it may be booked all the same.
func (rc *Receiver) commit(ctx context.Context, o *submission) (batch.Reply, error) {
	if o.queue.isFull() {
		return batch.Reply{}, newRetryError("too much waits to be booked")
	}
	o.queue.rows.Add(o.rows)
	select {
	case o.queue.pending <- o:
	default:
		o.queue.rows.Add(-o.rows)
		return batch.Reply{}, newRetryError("too many batches wait to be booked")
	}
	select {
	case r := <-o.done:
		return r.Reply, r.Err
	case <-ctx.Done():
		return batch.Reply{}, ctx.Err()
	case <-rc.stopped:
		select {
		case r := <-o.done:
			return r.Reply, r.Err
		default:
			return batch.Reply{}, newRetryError("the server is going down")
		}
	}
}

// Run books what was offered, until ctx ends; what waits then is not booked, and
// will be offered again. It is called once.
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

// gather waits for an offer, and a moment for more of them; nothing comes once
// ctx has ended. Of the light ones that wait a whole group is taken; of the heavy
// ones always one, so that they get on however many are light, and more while
// there is room.
func (rc *Receiver) gather(ctx context.Context) (group []*submission) {
	if ctx.Err() != nil {
		return nil
	}
	limit := int64(rc.cfg.GroupRows)
	var rows int64
	take := func(o *submission) {
		group = append(group, o)
		rows += o.rows
	}
	select {
	case o := <-rc.light.pending:
		take(o)
	case o := <-rc.heavy.pending:
		take(o)
	case <-ctx.Done():
		return nil
	}
	first := group[0]
	if first.queue == rc.heavy {
		rows = 0 // a large one takes no room from those that are light
	}
	for rows < limit {
		o := rc.light.poll()
		if o == nil {
			break
		}
		take(o)
	}
	if first.queue == rc.heavy {
		rows += first.rows
	} else if o := rc.heavy.poll(); o != nil {
		take(o)
	}
	enough := time.NewTimer(rc.cfg.GatherTime)
	defer enough.Stop()
	for rows < limit {
		o := rc.light.poll()
		if o == nil {
			o = rc.heavy.poll()
		}
		if o == nil {
			select {
			case o = <-rc.light.pending:
			case o = <-rc.heavy.pending:
			case <-enough.C:
				return group
			case <-ctx.Done():
				return group
			}
		}
		take(o)
	}
	return group
}

// book books a group. What one entry has that the ledger will not take is no
// reason to refuse the others: where all of them fail, each is tried alone.
func (rc *Receiver) book(ctx context.Context, group []*submission) {
	// Someone waits for each of these, so a transaction that has begun ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rc.cfg.CommitTimeout)
	defer cancel()
	es := make([]*batch.Entry, len(group))
	for i, o := range group {
		es[i] = o.entry
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
		for _, o := range group {
			rc.book(ctx, []*submission{o})
		}
		return
	}
	if err != nil {
		rc.log.Error("batches could not be booked", "batches", len(group), "err", err)
	}
	for i, o := range group {
		r := batch.Result{Err: err}
		if err == nil {
			r = results[i]
		}
		if r.Err != nil {
			r.Err = classify(r.Err)
		}
		o.queue.rows.Add(-o.rows)
		o.done <- r
	}
}
