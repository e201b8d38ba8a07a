// Package receiver is the server's side of the way of a batch: what agents send is
// read, put into wall time, cut at minutes, and booked, many nodes in one
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
	Lost(ctx context.Context, node string, l batch.Loss, now time.Time) (batch.Reply, error)
	// Through is up to when a node is booked; zero is not at all.
	Through(ctx context.Context, node string) (time.Time, error)
}

// Metrics is a time series database. What is put into it once more changes
// nothing.
type Metrics interface {
	// Append takes the windows of a node's batch; by is what was added to their
	// stamps. It returns the span of the windows if it did not take all samples, with
	// or without an error.
	Append(ctx context.Context, node string, names []batch.Name, ws []batch.Window, by []time.Duration) (unsampled batch.Span, err error)
}

// Config bounds what agents can make a server hold.
type Config struct {
	Limits        wire.Limits   // of one batch
	Decoders      int           // large batches that are read at once: one may take 200 MB for a moment
	QueueRows     int           // rows of large batches that wait to be booked, about; of small ones a quarter
	GroupRows     int           // rows in one transaction, about
	GatherTime    time.Duration // how long a transaction waits for more of them
	CommitTimeout time.Duration // how long a transaction may last

	BodyBytes      int64         // bytes of large requests that are held at once; of small ones a quarter
	IdleTimeout    time.Duration // how long a sender may send nothing of a request
	RequestTimeout time.Duration // how long it may send one at all
	Rate           float64       // requests a second of one node, ...
	Burst          int           // ... and so many at once
	Parallel       int           // requests of one node that are open at once

	SnapshotRows int           // rows of the latest windows of all nodes; one has an eighth of them at most
	SnapshotTTL  time.Duration // the age at which a latest window is not shown any more
}

// Default suits a server of 2 cores and 1 GB for some hundred nodes. A drain of
// a backlog stays far below its rates.
func Default() Config {
	return Config{
		Limits: wire.Default(), Decoders: 2, QueueRows: 200_000, GroupRows: 20_000, GatherTime: 5 * time.Millisecond, CommitTimeout: 30 * time.Second,
		BodyBytes: 64 << 20, IdleTimeout: 10 * time.Second, RequestTimeout: time.Minute, Rate: 20, Burst: 200, Parallel: 8,
		SnapshotRows: 100_000, SnapshotTTL: 5 * time.Minute,
	}
}

// Validate reports what cannot work. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.Decoders < 1, c.QueueRows < 1, c.GroupRows < 1, c.GatherTime < 0, c.CommitTimeout <= 0:
		return fmt.Errorf("ingest: decoders, queue, group and commit must be positive: %w", fault.ErrInvalid)
	case c.Limits.Sent < 1, c.BodyBytes < int64(c.Limits.Sent):
		return fmt.Errorf("ingest: bodies of %d bytes do not hold one batch of %d: %w", c.BodyBytes, c.Limits.Sent, fault.ErrInvalid)
	case c.IdleTimeout <= 0, c.RequestTimeout <= 0, c.Rate <= 0, c.Burst < 1, c.Parallel < 1, c.SnapshotRows < 0, c.SnapshotTTL <= 0:
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

	// A live window has a way of its own past the backlogs of others: see admissionQueue.
	light, heavy *admissionQueue
	stopped      chan struct{}

	mu          sync.Mutex
	nodes       map[string]*nodeState // as many as are enrolled
	snapshots   snapshotStore
	stats       Stats
	metricsDown bool // the metrics take nothing
}

// nodeState is what is remembered of a node while the server runs.
type nodeState struct {
	boots     bootTracker
	bucket    tokenBucket
	inFlight  int         // requests
	shift     batch.Shift // the last that was booked
	anomalies Anomalies
	spool     SpoolUsage
	warned    time.Time
}

// New returns a Receiver that books in l once Run runs. What windows show is put
// into m too, before they are booked; nil is no metrics.
func New(cfg Config, l Ledger, m Metrics, log *slog.Logger) *Receiver {
	return &Receiver{
		cfg: cfg, ledger: l, metrics: m, log: log,
		light:     newAdmissionQueue(cfg.BodyBytes/4, max(1, cfg.Decoders/2), max(1, cfg.QueueRows/4)),
		heavy:     newAdmissionQueue(cfg.BodyBytes, cfg.Decoders, cfg.QueueRows),
		stopped:   make(chan struct{}),
		nodes:     map[string]*nodeState{},
		snapshots: snapshotStore{nodes: map[string]NodeSnapshot{}},
	}
}

// nodeState is called with mu held.
func (rc *Receiver) nodeState(node string) *nodeState {
	o, ok := rc.nodes[node]
	if !ok {
		o = &nodeState{}
		rc.nodes[node] = o
	}
	return o
}

// Offer takes a batch, sent as these bytes by a node whose clocks show c, and
// answers once it is booked. An error wraps fault.ErrInvalid where the batch can
// never be booked, fault.ErrDenied where this node may not, fault.ErrUnavailable
// where it may work later; after any error the same batch may be offered again.
func (rc *Receiver) Offer(ctx context.Context, node string, c batch.Clock, sent []byte) (batch.Reply, error) {
	r, err := rc.offer(ctx, node, c, sent)
	rc.mu.Lock()
	rc.stats.record(r, err)
	rc.mu.Unlock()
	return r, err
}

func (rc *Receiver) offer(ctx context.Context, node string, c batch.Clock, sent []byte) (batch.Reply, error) {
	n := rc.heavy
	if size := wire.ExpandedSize(sent); size > 0 && size <= lightBytes {
		n = rc.light
	}
	o, clone, err := rc.prepare(ctx, n, node, c, sent)
	if err != nil {
		return batch.Reply{}, err
	}
	if clone {
		return batch.Reply{Verdict: batch.Clone, Next: 1}, nil
	}
	failpoint.At("ingest.decoded")
	if err := rc.addStateLostGap(ctx, o); err != nil {
		return batch.Reply{}, err
	}
	r, err := rc.commit(ctx, o)
	if err == nil && r.Verdict == batch.Accepted {
		rc.recordAccepted(o, len(sent))
	}
	return r, err
}

// prepare makes an entry of a batch. It is what costs memory, so only some do it
// at once.
func (rc *Receiver) prepare(ctx context.Context, n *admissionQueue, node string, c batch.Clock, sent []byte) (*submission, bool, error) {
	select {
	case n.decoders <- struct{}{}:
		defer func() { <-n.decoders }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	// Others may have filled the queue while this one waited for its turn.
	if n.isFull() {
		return nil, false, newRetryError("too much waits to be booked")
	}
	b, err := wire.Decode(sent, rc.cfg.Limits)
	if err != nil {
		return nil, false, fmt.Errorf("batch: %w", err)
	}
	now := time.Now()
	by, err := timeline.Judge(now, rc.stabilizeClock(node, now, c), b.Windows)
	if err != nil {
		return nil, false, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	cuts, err := timeline.Cut(b.Windows, by)
	if err != nil {
		return nil, false, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	if rc.trackBoot(node, now, c, b.Windows) {
		return nil, true, nil
	}
	o := &submission{
		entry: &batch.Entry{
			Node: node, Stream: b.Stream, Number: b.Number, Previous: b.Previous, Hash: batch.HashOf(sent), Sent: sent,
			Boot: c.Boot, Names: b.Names, Minutes: cuts.Minutes, Nodes: cuts.Nodes,
			Gaps:   timeline.MoveGaps(now, b.Windows, by, b.Gaps),
			Shifts: rc.newShifts(node, timeline.Shifts(now, b.Windows, by)),
		},
		rows:  int64(len(cuts.Minutes) + len(cuts.Nodes) + len(b.Names) + len(b.Gaps) + 1),
		done:  make(chan batch.Result, 1),
		queue: rc.heavy,
	}
	last := -1
	for i := range b.Windows {
		o.windowRows += len(b.Windows[i].Rows)
		for _, h := range b.Windows[i].Handovers {
			o.entry.Handovers = append(o.entry.Handovers, batch.Handover{
				From: timeline.Start(&b.Windows[i], by[i]), To: timeline.End(&b.Windows[i], by[i]), Handover: h})
		}
		if end := timeline.End(&b.Windows[i], by[i]); last < 0 || end.After(o.entry.Through) {
			o.entry.Through, last = end, i
		}
	}
	if o.rows += int64(len(o.entry.Handovers)); o.rows <= lightRows {
		o.queue = rc.light
	}
	if last >= 0 && now.Sub(o.entry.Through) <= rc.cfg.SnapshotTTL {
		o.snapshot = newSnapshot(node, &b.Windows[last], by[last], rc.cfg.SnapshotRows/snapshotShare)
	}
	if len(b.Windows) > 0 && b.Windows[0].Opening == usage.StartFirst {
		o.countingFrom = timeline.Start(&b.Windows[0], by[0])
	}
	o.entry.Unsampled = rc.writeMetrics(ctx, node, b, by)
	return o, false, nil
}

// writeMetrics puts a batch into the metrics, before it is booked: a batch that is in them
// and was not booked is offered again, and samples that come twice change nothing. If the
// metrics do not take it, it is booked all the same with the span that is returned, from
// which the metrics are rebuilt.
func (rc *Receiver) writeMetrics(ctx context.Context, node string, b *batch.Batch, by []time.Duration) batch.Span {
	if rc.metrics == nil {
		return batch.Span{}
	}
	unsampled, err := rc.metrics.Append(ctx, node, b.Names, b.Windows, by)
	if ctx.Err() != nil {
		return unsampled
	}
	rc.mu.Lock()
	was := rc.metricsDown
	rc.metricsDown = err != nil
	if err != nil {
		rc.stats.MetricsFailed++
	}
	rc.mu.Unlock()
	switch {
	case err != nil && !was:
		rc.log.Error("the metrics take no samples; the ledger books all the same", "err", err)
	case err == nil && was:
		rc.log.Info("the metrics take samples again")
	}
	return unsampled
}

// stabilizeClock is the sender's clock such that it gives the offset that is believed of
// its boot.
func (rc *Receiver) stabilizeClock(node string, now time.Time, c batch.Clock) batch.Clock {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if o, ok := rc.nodes[node]; ok && o.boots.current.boot == c.Boot && c.Boottime >= 0 {
		c.Boottime = max(0, now.UnixNano()-timeline.BootStart(now, c, o.boots.current.began))
	}
	return c
}

// trackBoot notes that a node is here, and says whether it is a clone of another.
func (rc *Receiver) trackBoot(node string, now time.Time, c batch.Clock, ws []batch.Window) bool {
	newest := int64(-1)
	for i := range ws {
		if ws[i].Boot == c.Boot {
			newest = max(newest, ws[i].End)
		}
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.nodeState(node).boots.observe(now, c, newest)
}

// newShifts leaves out a shift that was booked with the batch before: a clock that
// stays wrong is told once.
func (rc *Receiver) newShifts(node string, shifts []batch.Shift) []batch.Shift {
	if len(shifts) == 0 {
		return nil
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	last := rc.nodeState(node).shift
	if s := shifts[0]; s.Boot == last.Boot && (s.By-last.By).Abs() <= 2*timeline.OffsetJitter {
		return shifts[1:]
	}
	return shifts
}

// addStateLostGap adds a gap where an agent that was booked before begins anew: what it
// knew of the time between is gone.
func (rc *Receiver) addStateLostGap(ctx context.Context, o *submission) error {
	if o.entry.Number != 1 || o.countingFrom.IsZero() {
		return nil
	}
	through, err := rc.ledger.Through(ctx, o.entry.Node)
	if err != nil {
		if errors.Is(err, fault.ErrNotFound) {
			return fmt.Errorf("node %s: %w: %w", o.entry.Node, err, fault.ErrDenied)
		}
		return classify(err)
	}
	if !through.IsZero() && through.Before(o.countingFrom) {
		o.entry.Gaps = append(o.entry.Gaps, usage.Gap{From: through.UTC(), To: o.countingFrom, Reason: usage.StateLost})
	}
	return nil
}

// recordAccepted remembers what a booked batch shows of its node.
func (rc *Receiver) recordAccepted(o *submission, sent int) {
	for _, s := range o.entry.Shifts {
		rc.log.Warn("the clock of a node is wrong; its windows were moved", "node", o.entry.Node, "by", s.By)
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.stats.Rows += int64(o.windowRows)
	rc.stats.Bytes += int64(sent)
	for i := range o.entry.Nodes {
		rc.stats.Violations += o.entry.Nodes[i].Violations
		f := &rc.nodeState(o.entry.Node).anomalies
		f.Violations += o.entry.Nodes[i].Violations
		f.Missed += o.entry.Nodes[i].Lost
	}
	if n := len(o.entry.Shifts); n > 0 {
		rc.nodeState(o.entry.Node).shift = o.entry.Shifts[n-1]
	}
	if o.snapshot.Node != "" {
		rc.snapshots.put(o.snapshot, rc.cfg.SnapshotRows, time.Now().Add(-rc.cfg.SnapshotTTL))
	}
}

// ReportLoss takes an agent's word that batches are gone. Errors are those of Offer.
func (rc *Receiver) ReportLoss(ctx context.Context, node string, l batch.Loss) (batch.Reply, error) {
	if l.From < 1 || l.To < l.From || l.To == 1<<64-1 {
		return batch.Reply{}, fmt.Errorf("lost: numbers %d to %d: %w", l.From, l.To, fault.ErrInvalid)
	}
	now := time.Now()
	l.Gap = timeline.ClampGap(now, l.Gap)
	// No database takes a NUL, and nobody reads a novel.
	l.Gap.Detail = strings.ReplaceAll(l.Gap.Detail, "\x00", "")
	if limit := rc.cfg.Limits.Text; len(l.Gap.Detail) > limit {
		l.Gap.Detail = strings.ToValidUTF8(l.Gap.Detail[:limit], "")
	}
	r, err := rc.ledger.Lost(ctx, node, l, now)
	if err != nil {
		return batch.Reply{}, classify(err)
	}
	rc.mu.Lock()
	rc.stats.Losses++
	rc.mu.Unlock()
	return r, nil
}

// LiveBoot is the boot under which a node sends now, where it sent within the last
// two minutes.
func (rc *Receiver) LiveBoot(node string) (boot string, ok bool) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	o, ok := rc.nodes[node]
	if !ok || time.Since(o.boots.current.last) > 2*time.Minute {
		return "", false
	}
	return o.boots.current.boot, true
}

// classify gives an error of the ledger that has no kind one: nothing was booked, and
// it may work later.
func classify(err error) error {
	for _, k := range []error{fault.ErrInvalid, fault.ErrDenied, fault.ErrUnavailable, context.Canceled} {
		if errors.Is(err, k) {
			return err
		}
	}
	return fmt.Errorf("ledger: %w: %w", fault.ErrUnavailable, err)
}

func newRetryError(why string) error {
	return &fault.RetryError{Err: fmt.Errorf("ingest: %s: %w", why, fault.ErrUnavailable), After: 2 * time.Second}
}
