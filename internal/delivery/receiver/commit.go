package receiver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// offer is an entry on its way into the ledger.
type offer struct {
	entry  *batch.Entry
	rows   int64 // that it makes the ledger write, about
	used   int   // rows in its windows
	latest Present
	first  time.Time // where counting began with its first window: its start
	done   chan batch.Result
	lane   *lane
}

// commit queues an offer and waits for what becomes of it. Where ctx ends
// meanwhile it may be booked all the same.
func (in *Receiver) commit(ctx context.Context, o *offer) (batch.Reply, error) {
	if o.lane.full() {
		return batch.Reply{}, busy("too much waits to be booked")
	}
	o.lane.rows.Add(o.rows)
	select {
	case o.lane.queue <- o:
	default:
		o.lane.rows.Add(-o.rows)
		return batch.Reply{}, busy("too many batches wait to be booked")
	}
	select {
	case r := <-o.done:
		return r.Reply, r.Err
	case <-ctx.Done():
		return batch.Reply{}, ctx.Err()
	case <-in.stopped:
		select {
		case r := <-o.done:
			return r.Reply, r.Err
		default:
			return batch.Reply{}, busy("the server is going down")
		}
	}
}

// Run books what was offered, until ctx ends; what waits then is not booked, and
// will be offered again. It is called once.
func (in *Receiver) Run(ctx context.Context) error {
	defer close(in.stopped)
	for {
		group := in.gather(ctx)
		if len(group) == 0 {
			return nil
		}
		in.book(ctx, group)
	}
}

// gather waits for an offer, and a moment for more of them; nothing comes once
// ctx has ended. Of the light ones that wait a whole group is taken; of the heavy
// ones always one, so that they get on however many are light, and more while
// there is room.
func (in *Receiver) gather(ctx context.Context) (group []*offer) {
	if ctx.Err() != nil {
		return nil
	}
	limit := int64(in.cfg.Group)
	var rows int64
	take := func(o *offer) {
		group = append(group, o)
		rows += o.rows
	}
	select {
	case o := <-in.light.queue:
		take(o)
	case o := <-in.heavy.queue:
		take(o)
	case <-ctx.Done():
		return nil
	}
	first := group[0]
	if first.lane == in.heavy {
		rows = 0 // a large one takes no room from those that are light
	}
	for rows < limit {
		o := in.light.next()
		if o == nil {
			break
		}
		take(o)
	}
	if first.lane == in.heavy {
		rows += first.rows
	} else if o := in.heavy.next(); o != nil {
		take(o)
	}
	enough := time.NewTimer(in.cfg.Gather)
	defer enough.Stop()
	for rows < limit {
		o := in.light.next()
		if o == nil {
			o = in.heavy.next()
		}
		if o == nil {
			select {
			case o = <-in.light.queue:
			case o = <-in.heavy.queue:
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
func (in *Receiver) book(ctx context.Context, group []*offer) {
	// Someone waits for each of these, so a transaction that has begun ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.cfg.Commit)
	defer cancel()
	es := make([]*batch.Entry, len(group))
	for i, o := range group {
		es[i] = o.entry
	}
	began := time.Now()
	results, err := in.ledger.Book(ctx, es)
	if err == nil && len(results) != len(es) {
		err = fmt.Errorf("%d results for %d entries", len(results), len(es))
	}
	in.mu.Lock()
	in.stats.Commits++
	in.stats.Committing += time.Since(began)
	in.mu.Unlock()
	if err != nil && len(group) > 1 && ctx.Err() == nil && !errors.Is(err, fault.ErrUnavailable) {
		for _, o := range group {
			in.book(ctx, []*offer{o})
		}
		return
	}
	if err != nil {
		in.log.Error("batches could not be booked", "batches", len(group), "err", err)
	}
	for i, o := range group {
		r := batch.Result{Err: err}
		if err == nil {
			r = results[i]
		}
		if r.Err != nil {
			r.Err = kind(r.Err)
		}
		o.lane.rows.Add(-o.rows)
		o.done <- r
	}
}
