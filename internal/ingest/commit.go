package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"mete.dev/mete/internal/batch"
	"mete.dev/mete/internal/entry"
	"mete.dev/mete/internal/fault"
)

// offer is an entry on its way into the ledger.
type offer struct {
	entry  *entry.Entry
	rows   int64 // that it makes the ledger write, about
	used   int   // rows in its windows
	latest Present
	first  time.Time // where counting began with its first window: its start
	done   chan entry.Result
	lane   *lane
}

// What a batch has at most that is light: a live window of some hundred
// workloads is, hours of a backlog are not.
const (
	lightBytes = 64 << 10 // expanded
	lightRows  = 2000
)

// A lane is where batches wait. Those that are light do not wait behind those
// that are heavy, so that what machines do now is seen while a hundred others
// send what they did yesterday.
type lane struct {
	decoders chan struct{}
	queue    chan *offer
	rows     atomic.Int64 // that are in the queue or being booked
	limit    int64
}

func newLane(decoders, limit int) *lane {
	return &lane{decoders: make(chan struct{}, decoders), queue: make(chan *offer, 4096), limit: int64(limit)}
}

func (n *lane) full() bool { return n.rows.Load() >= n.limit }

// commit queues an offer and waits for what becomes of it. Where ctx ends
// meanwhile it may be booked all the same.
func (in *Ingest) commit(ctx context.Context, o *offer) (batch.Reply, error) {
	// One that is larger than the whole queue goes alone.
	if n := o.lane.rows.Add(o.rows); n > o.lane.limit && n > o.rows {
		o.lane.rows.Add(-o.rows)
		return batch.Reply{}, busy("too much waits to be booked")
	}
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
func (in *Ingest) Run(ctx context.Context) error {
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
// ctx has ended. The light ones come first, but where a heavy one waits it is
// among them.
func (in *Ingest) gather(ctx context.Context) (group []*offer) {
	if ctx.Err() != nil {
		return nil
	}
	rows := int64(0)
	take := func(o *offer) {
		group = append(group, o)
		rows += o.rows
	}
	select {
	case o := <-in.light.queue:
		take(o)
	default:
		select {
		case o := <-in.light.queue:
			take(o)
		case o := <-in.heavy.queue:
			take(o)
		case <-ctx.Done():
			return nil
		}
	}
	if group[0].lane == in.light {
		select {
		case o := <-in.heavy.queue:
			take(o)
		default:
		}
	}
	enough := time.NewTimer(in.cfg.Gather)
	defer enough.Stop()
	for rows < int64(in.cfg.Group) {
		select {
		case o := <-in.light.queue:
			take(o)
			continue
		default:
		}
		select {
		case o := <-in.light.queue:
			take(o)
		case o := <-in.heavy.queue:
			take(o)
		case <-enough.C:
			return group
		case <-ctx.Done():
			return group
		}
	}
	return group
}

// book books a group. What one entry has that the ledger will not take is no
// reason to refuse the others: where all of them fail, each is tried alone.
func (in *Ingest) book(ctx context.Context, group []*offer) {
	// Someone waits for each of these, so a transaction that has begun ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.cfg.Commit)
	defer cancel()
	es := make([]*entry.Entry, len(group))
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
		r := entry.Result{Err: err}
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
