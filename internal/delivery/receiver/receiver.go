// Package receiver is the server's side of the way of a batch: what agents send is
// read, put into wall time, cut at minutes, and booked, many origins in one
// transaction.
//
// An offer is answered once it is in the ledger durably, or not at all. Who
// sends is what the caller says, from a certificate; nothing in a batch changes
// that.
package receiver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/failpoint"
)

// A Ledger books entries. It takes each batch of a stream once, in the order of
// their numbers.
type Ledger interface {
	// Book books entries in one transaction, one after another, and says of
	// each what became of it, in their order. After an error nothing of any of
	// them is booked.
	Book(ctx context.Context, es []*batch.Entry) ([]batch.Result, error)
	// Lost books the gap and goes on after it, where l.From is what it wants.
	Lost(ctx context.Context, node string, l batch.Lost, now time.Time) (batch.Reply, error)
	// Through is up to when a node is booked; zero is not at all.
	Through(ctx context.Context, node string) (time.Time, error)
}

// Metrics is a time series database. What is put into it once more changes
// nothing.
type Metrics interface {
	// Append takes the windows of a node's batch; by is what was added to their
	// stamps.
	Append(ctx context.Context, node string, names []batch.Name, ws []batch.Window, by []time.Duration) error
}

// Config bounds what agents can make a server hold.
type Config struct {
	Limits   wire.Limits   // of one batch
	Decoders int           // large batches that are read at once: one may take 200 MB for a moment
	Queue    int           // rows of large batches that wait to be booked, about; of small ones a quarter
	Group    int           // rows in one transaction, about
	Gather   time.Duration // how long a transaction waits for more of them
	Commit   time.Duration // how long a transaction may last

	Bodies   int64         // bytes of large requests that are held at once; of small ones a quarter
	Idle     time.Duration // how long a sender may send nothing of a request
	Request  time.Duration // how long it may send one at all
	Rate     float64       // requests a second of one node, ...
	Burst    int           // ... and so many at once
	Parallel int           // requests of one node that are open at once

	Live  int           // rows of the latest windows of all nodes; one has an eighth of them at most
	Stale time.Duration // the age at which a latest window is not shown any more
}

// Default suits a server of 2 cores and 1 GB for some hundred nodes. A drain of
// a backlog stays far below its rates.
func Default() Config {
	return Config{
		Limits: wire.Default(), Decoders: 2, Queue: 200_000, Group: 20_000, Gather: 5 * time.Millisecond, Commit: 30 * time.Second,
		Bodies: 64 << 20, Idle: 10 * time.Second, Request: time.Minute, Rate: 20, Burst: 200, Parallel: 8,
		Live: 100_000, Stale: 5 * time.Minute,
	}
}

// Validate reports what cannot work. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.Decoders < 1, c.Queue < 1, c.Group < 1, c.Gather < 0, c.Commit <= 0:
		return fmt.Errorf("ingest: decoders, queue, group and commit must be positive: %w", fault.ErrInvalid)
	case c.Limits.Sent < 1, c.Bodies < int64(c.Limits.Sent):
		return fmt.Errorf("ingest: bodies of %d bytes do not hold one batch of %d: %w", c.Bodies, c.Limits.Sent, fault.ErrInvalid)
	case c.Idle <= 0, c.Request <= 0, c.Rate <= 0, c.Burst < 1, c.Parallel < 1, c.Live < 0, c.Stale <= 0:
		return fmt.Errorf("ingest: time limits and rates must be positive: %w", fault.ErrInvalid)
	}
	return nil
}

// Receiver takes batches.
type Receiver struct {
	cfg     Config
	ledger  Ledger
	metrics Metrics // nil without
	log     *slog.Logger

	// A live window has a way of its own past the backlogs of others: see lane.
	light, heavy *lane
	stopped      chan struct{}

	mu    sync.Mutex
	nodes map[string]*origin // as many as are enrolled
	live  live
	stats Stats
	blind bool // the metrics take nothing
}

// origin is what is remembered of a node while the server runs.
type origin struct {
	presence presence
	bucket   bucket
	open     int         // requests
	shift    batch.Shift // the last that was booked
	flaws    Flaws
	spool    Spool
	warned   time.Time
}

// New returns an Ingest that books in l once Run runs. What windows show is put
// into m too, before they are booked; nil is no metrics.
func New(cfg Config, l Ledger, m Metrics, log *slog.Logger) *Receiver {
	return &Receiver{
		cfg: cfg, ledger: l, metrics: m, log: log,
		light:   newLane(cfg.Bodies/4, max(1, cfg.Decoders/2), max(1, cfg.Queue/4)),
		heavy:   newLane(cfg.Bodies, cfg.Decoders, cfg.Queue),
		stopped: make(chan struct{}),
		nodes:   map[string]*origin{},
		live:    live{nodes: map[string]Present{}},
	}
}

// origin is called with mu held.
func (in *Receiver) origin(node string) *origin {
	o, ok := in.nodes[node]
	if !ok {
		o = &origin{}
		in.nodes[node] = o
	}
	return o
}

// A Busy is an error that wraps fault.ErrUnavailable and knows when trying again
// may help.
type Busy struct {
	Err   error
	After time.Duration
}

func (b *Busy) Error() string { return b.Err.Error() }
func (b *Busy) Unwrap() error { return b.Err }

// RetryAfter is how long to wait.
func (b *Busy) RetryAfter() time.Duration { return b.After }

// Offer takes a batch, sent as these bytes by a node whose clocks show c, and
// answers once it is booked. An error wraps fault.ErrInvalid where the batch can
// never be booked, fault.ErrDenied where this node may not, fault.ErrUnavailable
// where it may work later; after any error the same batch may be offered again.
func (in *Receiver) Offer(ctx context.Context, node string, c batch.Clock, sent []byte) (batch.Reply, error) {
	r, err := in.offer(ctx, node, c, sent)
	in.mu.Lock()
	in.stats.count(r, err)
	in.mu.Unlock()
	return r, err
}

func (in *Receiver) offer(ctx context.Context, node string, c batch.Clock, sent []byte) (batch.Reply, error) {
	n := in.heavy
	if size := wire.Size(sent); size > 0 && size <= lightBytes {
		n = in.light
	}
	o, clone, err := in.prepare(ctx, n, node, c, sent)
	if err != nil {
		return batch.Reply{}, err
	}
	if clone {
		return batch.Reply{Verdict: batch.Clone, Next: 1}, nil
	}
	failpoint.At("ingest.decoded")
	if err := in.noteLost(ctx, o); err != nil {
		return batch.Reply{}, err
	}
	r, err := in.commit(ctx, o)
	if err == nil && r.Verdict == batch.Taken {
		in.taken(o, len(sent))
	}
	return r, err
}

// prepare makes an entry of a batch. It is what costs memory, so only some do it
// at once.
func (in *Receiver) prepare(ctx context.Context, n *lane, node string, c batch.Clock, sent []byte) (*offer, bool, error) {
	select {
	case n.decoders <- struct{}{}:
		defer func() { <-n.decoders }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	// Others may have filled the queue while this one waited for its turn.
	if n.full() {
		return nil, false, busy("too much waits to be booked")
	}
	b, err := wire.Decode(sent, in.cfg.Limits)
	if err != nil {
		return nil, false, fmt.Errorf("batch: %w", err)
	}
	now := time.Now()
	by, err := timeline.Judge(now, in.steady(node, now, c), b.Windows)
	if err != nil {
		return nil, false, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	cuts, err := timeline.Cut(b.Windows, by)
	if err != nil {
		return nil, false, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	if in.isClone(node, now, c, b.Windows) {
		return nil, true, nil
	}
	o := &offer{
		entry: &batch.Entry{
			Node: node, Stream: b.Stream, Number: b.Number, Previous: b.Previous, Hash: batch.HashOf(sent), Sent: sent,
			Boot: c.Boot, Names: b.Names, Minutes: cuts.Minutes, Nodes: cuts.Nodes,
			Gaps:   timeline.Gaps(now, b.Windows, by, b.Gaps),
			Shifts: in.fresh(node, timeline.Shifts(now, b.Windows, by)),
		},
		rows: int64(len(cuts.Minutes) + len(cuts.Nodes) + len(b.Names) + len(b.Gaps) + 1),
		done: make(chan batch.Result, 1),
		lane: in.heavy,
	}
	last := -1
	for i := range b.Windows {
		o.used += len(b.Windows[i].Rows)
		for _, h := range b.Windows[i].Handovers {
			o.entry.Handovers = append(o.entry.Handovers, batch.Handover{
				From: timeline.Start(&b.Windows[i], by[i]), To: timeline.End(&b.Windows[i], by[i]), Handover: h})
		}
		if end := timeline.End(&b.Windows[i], by[i]); last < 0 || end.After(o.entry.Through) {
			o.entry.Through, last = end, i
		}
	}
	if o.rows += int64(len(o.entry.Handovers)); o.rows <= lightRows {
		o.lane = in.light
	}
	if last >= 0 && now.Sub(o.entry.Through) <= in.cfg.Stale {
		o.latest = present(node, &b.Windows[last], by[last], in.cfg.Live/share)
	}
	if len(b.Windows) > 0 && b.Windows[0].Opening == usage.First {
		o.first = timeline.Start(&b.Windows[0], by[0])
	}
	in.show(ctx, node, b, by)
	return o, false, nil
}

// show puts a batch into the metrics. They come first: of a batch that is in them
// and was not booked the agent asks again, and the metrics take it twice. Where
// they fail it is booked all the same, as the ledger can fill them in again.
func (in *Receiver) show(ctx context.Context, node string, b *batch.Batch, by []time.Duration) {
	if in.metrics == nil {
		return
	}
	err := in.metrics.Append(ctx, node, b.Names, b.Windows, by)
	if ctx.Err() != nil {
		return
	}
	in.mu.Lock()
	was := in.blind
	in.blind = err != nil
	if err != nil {
		in.stats.Unseen++
	}
	in.mu.Unlock()
	switch {
	case err != nil && !was:
		in.log.Error("the metrics take no samples; the ledger books all the same", "err", err)
	case err == nil && was:
		in.log.Info("the metrics take samples again")
	}
}

// steady is the sender's clock such that it gives the offset that is believed of
// its boot.
func (in *Receiver) steady(node string, now time.Time, c batch.Clock) batch.Clock {
	in.mu.Lock()
	defer in.mu.Unlock()
	if o, ok := in.nodes[node]; ok && o.presence.current.boot == c.Boot && c.Boottime >= 0 {
		c.Boottime = max(0, now.UnixNano()-timeline.Began(now, c, o.presence.current.began))
	}
	return c
}

// isClone notes that a node is here, and says whether it is a clone of another.
func (in *Receiver) isClone(node string, now time.Time, c batch.Clock, ws []batch.Window) bool {
	newest := int64(-1)
	for i := range ws {
		if ws[i].Boot == c.Boot {
			newest = max(newest, ws[i].End)
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.origin(node).presence.see(now, c, newest)
}

// fresh leaves out a shift that was booked with the batch before: a clock that
// stays wrong is told once.
func (in *Receiver) fresh(node string, shifts []batch.Shift) []batch.Shift {
	if len(shifts) == 0 {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	last := in.origin(node).shift
	if s := shifts[0]; s.Boot == last.Boot && (s.By-last.By).Abs() <= 2*timeline.Steadiness {
		return shifts[1:]
	}
	return shifts
}

// noteLost adds a gap where an agent that was booked before begins anew: what it
// knew of the time between is gone.
func (in *Receiver) noteLost(ctx context.Context, o *offer) error {
	if o.entry.Number != 1 || o.first.IsZero() {
		return nil
	}
	through, err := in.ledger.Through(ctx, o.entry.Node)
	if err != nil {
		if errors.Is(err, fault.ErrNotFound) {
			return fmt.Errorf("node %s: %w: %w", o.entry.Node, err, fault.ErrDenied)
		}
		return kind(err)
	}
	if !through.IsZero() && through.Before(o.first) {
		o.entry.Gaps = append(o.entry.Gaps, usage.Gap{From: through.UTC(), To: o.first, Reason: usage.StateLost})
	}
	return nil
}

// taken remembers what a booked batch shows of its node.
func (in *Receiver) taken(o *offer, sent int) {
	for _, s := range o.entry.Shifts {
		in.log.Warn("the clock of a node is wrong; its windows were moved", "node", o.entry.Node, "by", s.By)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stats.Rows += int64(o.used)
	in.stats.Bytes += int64(sent)
	for i := range o.entry.Nodes {
		in.stats.Violations += o.entry.Nodes[i].Violations
		f := &in.origin(o.entry.Node).flaws
		f.Violations += o.entry.Nodes[i].Violations
		f.Missed += o.entry.Nodes[i].Lost
	}
	if n := len(o.entry.Shifts); n > 0 {
		in.origin(o.entry.Node).shift = o.entry.Shifts[n-1]
	}
	if o.latest.Node != "" {
		in.live.put(o.latest, in.cfg.Live, time.Now().Add(-in.cfg.Stale))
	}
}

// Lost takes an agent's word that batches are gone. Errors are those of Offer.
func (in *Receiver) Lost(ctx context.Context, node string, l batch.Lost) (batch.Reply, error) {
	if l.From < 1 || l.To < l.From || l.To == 1<<64-1 {
		return batch.Reply{}, fmt.Errorf("lost: numbers %d to %d: %w", l.From, l.To, fault.ErrInvalid)
	}
	now := time.Now()
	l.Gap = timeline.Bound(now, l.Gap)
	// No database takes a NUL, and nobody reads a novel.
	l.Gap.Detail = strings.ReplaceAll(l.Gap.Detail, "\x00", "")
	if limit := in.cfg.Limits.Text; len(l.Gap.Detail) > limit {
		l.Gap.Detail = strings.ToValidUTF8(l.Gap.Detail[:limit], "")
	}
	r, err := in.ledger.Lost(ctx, node, l, now)
	if err != nil {
		return batch.Reply{}, kind(err)
	}
	in.mu.Lock()
	in.stats.Lost++
	in.mu.Unlock()
	return r, nil
}

// Live is the boot under which a node sends now, where it sent within the last
// two minutes.
func (in *Receiver) Live(node string) (boot string, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	o, ok := in.nodes[node]
	if !ok || time.Since(o.presence.current.last) > 2*time.Minute {
		return "", false
	}
	return o.presence.current.boot, true
}

// kind gives an error of the ledger that has no kind one: nothing was booked, and
// it may work later.
func kind(err error) error {
	for _, k := range []error{fault.ErrInvalid, fault.ErrDenied, fault.ErrUnavailable, context.Canceled} {
		if errors.Is(err, k) {
			return err
		}
	}
	return fmt.Errorf("ledger: %w: %w", fault.ErrUnavailable, err)
}

func busy(why string) error {
	return &Busy{fmt.Errorf("ingest: %s: %w", why, fault.ErrUnavailable), 2 * time.Second}
}
