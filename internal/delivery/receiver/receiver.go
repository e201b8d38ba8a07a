// Package receiver takes batches from agents on a server: it decodes them, moves their windows to
// wall time, cuts the windows at minute edges, and books the batches of many nodes in one
// transaction.
//
// A batch is acknowledged once it is durably in the ledger. The caller identifies the node that
// sends it, by a certificate; nothing in a batch changes that.
package receiver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/failpoint"
	"mete.dev/mete/internal/x/httpx"
)

// A Ledger books entries. It takes each batch of a stream once, in the order of
// their numbers.
type Ledger interface {
	// Book books entries in one transaction, one after another, and returns the result of each,
	// in their order. After an error no entry is booked.
	Book(ctx context.Context, es []*batch.Entry) ([]batch.Result, error)
	// Lost books a gap for lost batches and moves the mark behind them, if l.From is the number
	// that the mark expects.
	Lost(ctx context.Context, node string, l batch.Loss, now time.Time) (batch.Reply, error)
	// Mark returns the mark of a stream of the node.
	Mark(ctx context.Context, node string, stream batch.Stream) (batch.Mark, error)
	// Through returns the time through which a node is booked, or zero if it is not.
	Through(ctx context.Context, node string) (time.Time, error)
	// Booked returns what of the time that a node's windows measured is booked already; boot and
	// boottime are its clock. Its error is batch.RivalError while another node measures the
	// same machine.
	Booked(ctx context.Context, node, boot string, boottime int64, ms []batch.Measured) ([]batch.Measured, error)
	// BootPlaces returns, for those of a node's boots of which something is booked, what was added
	// to boottimes to get wall times, in ns.
	BootPlaces(ctx context.Context, node string, boots []string) (map[string]int64, error)
}

// Metrics is a time series database. Appending the same again changes nothing.
type Metrics interface {
	// Append stores the windows of a node's batch, with the edges at which they are cut. It
	// returns the span of the windows if it did not take all samples, with or without an error.
	Append(ctx context.Context, node string, names []batch.Name, ws []walltime.CutWindow) (unsampled batch.Span, err error)
}

// Config limits what agents can make a server hold.
type Config struct {
	Limits        wire.Limits   // of one batch
	Decoders      int           // large batches that are decoded at once: one may take 200 MB for a moment
	QueueRows     int           // rows of large batches that wait to be booked, about; of small ones a quarter
	GroupRows     int           // rows in one transaction, about
	GatherTime    time.Duration // for which a transaction waits for more batches
	CommitTimeout time.Duration // of one transaction

	BodyBytes      int64         // bytes of large requests that are held at once; of small ones a quarter
	IdleTimeout    time.Duration // for the next bytes of a request
	RequestTimeout time.Duration // for all bytes of a request
	Rate           float64       // requests of one node a second, on average
	Burst          int           // requests of one node that may arrive at once
	Parallel       int           // requests of one node that are open at once

	SnapshotRows int           // rows of the latest windows of all nodes; one node has an eighth of them at most
	SnapshotTTL  time.Duration // age at which a latest window is stale
}

// Default is for a server of 2 cores and 1 GB for some hundred nodes. An agent that sends its
// backlog stays far below its rates.
func Default() Config {
	return Config{
		Limits: wire.Default(), Decoders: 2, QueueRows: 200_000, GroupRows: 20_000, GatherTime: 5 * time.Millisecond, CommitTimeout: 30 * time.Second,
		BodyBytes: 64 << 20, IdleTimeout: 10 * time.Second, RequestTimeout: time.Minute, Rate: 20, Burst: 200, Parallel: 8,
		SnapshotRows: 100_000, SnapshotTTL: 5 * time.Minute,
	}
}

// Validate returns an error that wraps fault.ErrInvalid if a value cannot work.
func (c Config) Validate() error {
	switch {
	case c.Decoders < 1, c.QueueRows < 1, c.GroupRows < 1, c.GatherTime < 0, c.CommitTimeout <= 0:
		return fmt.Errorf("receiver: decoders, queue, group and commit must be positive: %w", fault.ErrInvalid)
	case c.Limits.Sent < 1, c.BodyBytes < int64(c.Limits.Sent):
		return fmt.Errorf("receiver: bodies of %d bytes do not hold one batch of %d: %w", c.BodyBytes, c.Limits.Sent, fault.ErrInvalid)
	case c.IdleTimeout <= 0, c.RequestTimeout <= 0, c.Rate <= 0, c.Burst < 1, c.Parallel < 1, c.SnapshotRows < 0, c.SnapshotTTL <= 0:
		return fmt.Errorf("receiver: time limits and rates must be positive: %w", fault.ErrInvalid)
	}
	return nil
}

// A Receiver takes batches.
type Receiver struct {
	cfg     Config
	ledger  Ledger
	metrics Metrics // nil without
	log     *slog.Logger

	logLimiter httpx.LogLimiter   // by node
	limiter    *httpx.RateLimiter // of requests, by node

	// Live windows do not wait for the backlogs of others: see admissionQueue.
	light, heavy *admissionQueue
	stopped      chan struct{}

	mu          sync.Mutex
	nodes       map[string]*nodeState // as many as are enrolled
	booted      map[string]string     // boots in which nodes were booked before the start, by node
	snapshots   snapshotStore
	stats       Stats
	metricsDown bool // the latest Append failed
}

// nodeState is the state of a node while the server runs.
type nodeState struct {
	boots     bootTracker
	inFlight  int         // requests
	shift     batch.Shift // latest that was booked
	booked    bookedEnd
	cpus      int // most that a window stated
	anomalies Anomalies
	spool     SpoolUsage
}

// A bookedEnd is where a node's latest batch ended: its stream, and the time that it booked.
type bookedEnd struct {
	stream batch.Stream
	mark   batch.Mark
	boot   string
	extent usage.Extent
	to     int64     // boottime, ns
	at     time.Time // when it was booked
}

// hintTimeout is for how long a bookedEnd holds. Another node may measure a kernel after [batch.RivalTimeout].
const hintTimeout = batch.RivalTimeout / 2

// New returns a Receiver that books in l while Run runs. It appends windows to m before it books
// them; m may be nil.
func New(cfg Config, l Ledger, m Metrics, log *slog.Logger) *Receiver {
	return &Receiver{
		cfg: cfg, ledger: l, metrics: m, log: log, limiter: httpx.NewRateLimiter(cfg.Rate, cfg.Burst),
		light:     newAdmissionQueue(cfg.BodyBytes/4, lightBytes, max(1, cfg.Decoders/2), max(1, cfg.QueueRows/4)),
		heavy:     newAdmissionQueue(cfg.BodyBytes, int64(cfg.Limits.Sent), cfg.Decoders, cfg.QueueRows),
		stopped:   make(chan struct{}),
		nodes:     map[string]*nodeState{},
		snapshots: snapshotStore{nodes: map[string]NodeSnapshot{}},
	}
}

// nodeState returns the state of a node. The caller holds mu.
func (rc *Receiver) nodeState(node string) *nodeState {
	s, ok := rc.nodes[node]
	if !ok {
		s = &nodeState{}
		s.boots.seed(rc.booted[node])
		rc.nodes[node] = s
	}
	return s
}

// Offer takes a batch, as the bytes that a node sent whose clocks show c, and returns once it is
// booked. The error is fault.ErrInvalid if the batch can never be booked, fault.ErrDenied if the
// node may not send it, fault.ErrUnavailable if it may be booked later; after any error the same
// batch may be offered again.
func (rc *Receiver) Offer(ctx context.Context, node string, c batch.Clock, sent []byte) (batch.Reply, error) {
	r, err := rc.offer(ctx, node, c, sent)
	rc.mu.Lock()
	rc.stats.record(r, err)
	rc.mu.Unlock()
	return r, err
}

func (rc *Receiver) offer(ctx context.Context, node string, c batch.Clock, sent []byte) (batch.Reply, error) {
	s, clone, err := rc.prepare(ctx, rc.queueFor(wire.ExpandedSize(sent)), node, c, sent)
	if err != nil {
		return batch.Reply{}, err
	}
	if clone {
		return batch.Reply{Verdict: batch.Clone, Next: 1}, nil
	}
	failpoint.At("ingest.decoded")
	if err := rc.addStateLostGap(ctx, s); err != nil {
		return batch.Reply{}, err
	}
	r, err := rc.commit(ctx, s)
	if err == nil && r.Verdict == batch.Accepted {
		rc.recordAccepted(s, len(sent))
	} else {
		rc.forgetEnd(node)
	}
	return r, err
}

// prepare decodes a batch and makes an entry of it, or reports that a clone sent it. Decoding
// takes much memory, so the queue limits how many do it at once.
func (rc *Receiver) prepare(ctx context.Context, q *admissionQueue, node string, c batch.Clock, sent []byte) (_ *submission, clone bool, err error) {
	select {
	case q.decoders <- struct{}{}:
		defer func() { <-q.decoders }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	// Others may have filled the queue while this batch waited for a decoder.
	if q.isFull() {
		return nil, false, newRetryError("too many rows wait to be booked")
	}
	b, err := wire.Decode(sent, rc.cfg.Limits)
	if err != nil {
		return nil, false, fmt.Errorf("batch: %w", err)
	}
	if err := walltime.CheckCPU(b.Windows); err != nil {
		return nil, false, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	now := time.Now()
	places, err := rc.bootPlaces(ctx, node, c, b.Windows)
	if err != nil {
		return nil, false, err
	}
	by, err := walltime.Judge(now, rc.stabilizeClock(node, now, c), b.Windows, places)
	if err != nil {
		return nil, false, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	sentWindows, sentBy, claimed := b.Windows, by, batch.MeasuredBy(b.Windows, by)
	gaps := walltime.MoveGaps(now, b.Windows, by, b.Gaps)
	if b.Windows, by, gaps, err = rc.clipBooked(ctx, node, c, claimed, b.Windows, by, gaps); err != nil {
		return nil, false, err
	}
	if len(sentBy) > 0 {
		moveNames(b.Names, sentBy[len(sentBy)-1])
	}
	rc.markImplausible(node, b.Windows)
	cuts, err := walltime.Cut(b.Windows, by)
	if err != nil {
		return nil, false, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	if rc.trackBoot(node, now, c, sentWindows) {
		return nil, true, nil
	}
	s := &submission{
		entry: &batch.Entry{
			Node: node, Stream: b.Stream, Number: b.Number, Previous: b.Previous, Hash: batch.HashOf(sent), Sent: sent,
			Boot: c.Boot, Boottime: c.Boottime, Measured: batch.MeasuredBy(b.Windows, by), Claimed: claimed, Boots: walltime.Places(c, sentWindows, sentBy, places),
			Names: b.Names, Minutes: cuts.Minutes, Nodes: cuts.Nodes, Connections: cuts.Connections, Gaps: gaps,
			Shifts: rc.newShifts(node, walltime.Shifts(now, b.Windows, by)),
		},
		rows:  int64(len(cuts.Minutes) + len(cuts.Nodes) + len(cuts.Connections) + len(b.Names) + len(gaps) + 1),
		done:  make(chan batch.Result, 1),
		queue: rc.heavy,
	}
	last := 0 // the window that ends last
	for i := range b.Windows {
		s.windowRows += len(b.Windows[i].Rows)
		for _, h := range b.Windows[i].Handovers {
			s.entry.Handovers = append(s.entry.Handovers, batch.TimedHandover{
				From: walltime.Start(&b.Windows[i], by[i]), To: walltime.End(&b.Windows[i], by[i]), Handover: h})
		}
		for _, v := range b.Windows[i].Volumes {
			s.entry.Volumes = append(s.entry.Volumes, batch.TimedVolume{At: walltime.At(&b.Windows[i], by[i], v.At), VolumeUse: v})
		}
		if end := walltime.End(&b.Windows[i], by[i]); end.After(s.entry.Through) {
			s.entry.Through, last = end, i
		}
	}
	if s.rows += int64(len(s.entry.Handovers) + len(s.entry.Volumes)); s.rows <= lightRows {
		s.queue = rc.light
	}
	if now.Sub(s.entry.Through) <= rc.cfg.SnapshotTTL {
		s.snapshot = newSnapshot(node, &b.Windows[last], by[last], rc.cfg.SnapshotRows/snapshotShare)
	}
	if len(sentWindows) > 0 && sentWindows[0].StartReason == usage.StartFirst {
		s.countingFrom = walltime.Start(&sentWindows[0], sentBy[0])
	}
	if s.entry.Unsampled, err = rc.writeMetrics(ctx, s.entry, cuts.Windows); err != nil {
		return nil, false, err
	}
	return s, false, nil
}

// markImplausible counts a violation in windows with more use than their machine can have had.
// They are booked, since a faulty meter must not cost the rest of a machine's use.
func (rc *Receiver) markImplausible(node string, ws []usage.Window) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	s := rc.nodeState(node)
	for i := range ws {
		s.cpus = max(s.cpus, ws[i].CPUs)
	}
	for i := range ws {
		if b := &ws[i].Balance; b.Violations == 0 && !walltime.IsPlausible(&ws[i], s.cpus) {
			b.Violations = 1
		}
	}
}

// bootPlaces returns where the earlier boots of windows are booked already. Most batches have no
// windows of earlier boots, and need no query.
func (rc *Receiver) bootPlaces(ctx context.Context, node string, c batch.Clock, ws []usage.Window) (map[string]int64, error) {
	var boots []string
	for i := range ws {
		if ws[i].Boot != c.Boot && !slices.Contains(boots, ws[i].Boot) {
			boots = append(boots, ws[i].Boot)
		}
	}
	if len(boots) == 0 {
		return nil, nil
	}
	for _, b := range c.Earlier {
		if !slices.Contains(boots, b.Boot) {
			boots = append(boots, b.Boot)
		}
	}
	places, err := rc.ledger.BootPlaces(ctx, node, boots)
	if err != nil {
		return nil, classify(err)
	}
	return places, nil
}

// clipBooked removes from windows the time that is booked already. Whatever comes back, a
// restored state of the agent, a second agent, a restored machine, no time of a kernel is booked
// twice. A batch that goes on where the latest one of its node ended needs no query: nothing is booked there, or the
// transaction that books the batch refuses it.
func (rc *Receiver) clipBooked(ctx context.Context, node string, c batch.Clock, measured []batch.Measured, ws []usage.Window, by []time.Duration, gaps []usage.Gap) ([]usage.Window, []time.Duration, []usage.Gap, error) {
	if len(measured) == 0 || rc.goesOn(node, measured) {
		return ws, by, gaps, nil
	}
	booked, err := rc.ledger.Booked(ctx, node, c.Boot, c.Boottime, measured)
	if err != nil {
		return nil, nil, nil, classify(err)
	}
	ws, by, gaps = walltime.Clip(ws, by, gaps, booked)
	return ws, by, gaps, nil
}

// goesOn reports whether what was measured begins where the node's latest batch ended.
func (rc *Receiver) goesOn(node string, measured []batch.Measured) bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	s, m := rc.nodes[node], &measured[0]
	return s != nil && s.booked.boot != "" && len(measured) == 1 && !m.Resumed && m.From == s.booked.to && m.Boot == s.booked.boot && m.Extent == s.booked.extent &&
		time.Since(s.booked.at) < hintTimeout
}

// follows reports whether an entry is the one that the ledger expects next of its stream. One that follows the node's latest
// batch needs no query: if it has been booked since, its samples are stored again, which changes nothing.
func (rc *Receiver) follows(ctx context.Context, e *batch.Entry) (bool, error) {
	rc.mu.Lock()
	s := rc.nodes[e.Node]
	known := s != nil && s.booked.stream == e.Stream && s.booked.mark.Judge(e.Number, e.Previous, e.Hash, nil) == batch.Accepted
	rc.mu.Unlock()
	if known {
		return true, nil
	}
	mark, err := rc.ledger.Mark(ctx, e.Node, e.Stream)
	if err != nil {
		return false, classify(err)
	}
	return mark.Judge(e.Number, e.Previous, e.Hash, nil) == batch.Accepted, nil
}

// noteEnd notes where a booked batch ended. The caller holds mu.
func (s *nodeState) noteEnd(e *batch.Entry) {
	s.booked = bookedEnd{stream: e.Stream, mark: batch.Mark{Next: e.Number + 1, Last: e.Hash}, at: time.Now()}
	if n := len(e.Measured); n > 0 {
		m := &e.Measured[n-1]
		s.booked.boot, s.booked.extent, s.booked.to = m.Boot, m.Extent, m.To
	}
}

// forgetEnd forgets where a node's latest batch ended.
func (rc *Receiver) forgetEnd(node string) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if s := rc.nodes[node]; s != nil {
		s.booked = bookedEnd{}
	}
}

// writeMetrics appends a batch to the metrics, before it is booked: if booking fails, the agent
// sends the batch again, and samples that come twice change nothing. If the metrics do not
// take it, it is booked nevertheless, with the span that is returned: from it the metrics
// are rebuilt. A batch that the ledger does not expect is not appended, since it will not be booked;
// if it is nevertheless, as the previous one is booked meanwhile, its samples are rebuilt too.
func (rc *Receiver) writeMetrics(ctx context.Context, e *batch.Entry, ws []walltime.CutWindow) (unsampled batch.Span, err error) {
	if rc.metrics == nil {
		return batch.Span{}, nil
	}
	follows, err := rc.follows(ctx, e)
	if err != nil {
		return batch.Span{}, err
	}
	if !follows {
		for i := range ws {
			unsampled = unsampled.Union(batch.Span{From: time.Unix(0, ws[i].Began()).UTC(), To: time.Unix(0, ws[i].Ended()).UTC()})
		}
		return unsampled, nil
	}
	unsampled, err = rc.metrics.Append(ctx, e.Node, e.Names, ws)
	if ctx.Err() != nil {
		return unsampled, nil
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
		rc.log.Error("the metrics take no samples; the ledger still books", "err", err)
	case err == nil && was:
		rc.log.Info("the metrics take samples again")
	}
	return unsampled, nil
}

// moveNames moves the starts and ends in names as the windows are moved, by what the sender's clock was wrong.
func moveNames(names []batch.Name, by time.Duration) {
	for i := range names {
		for _, at := range []*time.Time{&names[i].Started, &names[i].Ended} {
			if !at.IsZero() {
				*at = at.Add(by)
			}
		}
	}
}

// stabilizeClock returns a sender's clock with the boottime that agrees with the believed start
// of its boot.
func (rc *Receiver) stabilizeClock(node string, now time.Time, c batch.Clock) batch.Clock {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if s, ok := rc.nodes[node]; ok && s.boots.current.boot == c.Boot && !s.boots.current.unheard && c.Boottime >= 0 {
		c.Boottime = max(0, now.UnixNano()-walltime.BootStart(now, c, s.boots.current.began))
	}
	return c
}

// trackBoot records the boot of a node that sends, and reports whether the sender is a clone.
func (rc *Receiver) trackBoot(node string, now time.Time, c batch.Clock, ws []usage.Window) bool {
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

// SeedBoots records the boots in which nodes, by id, were booked last. It is called before Run.
func (rc *Receiver) SeedBoots(boots map[string]string) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.booted = boots
}

// newShifts returns shifts without a first one that was booked with the batch before: a clock
// that stays wrong is booked once.
func (rc *Receiver) newShifts(node string, shifts []batch.Shift) []batch.Shift {
	if len(shifts) == 0 {
		return nil
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	last := rc.nodeState(node).shift
	if s := shifts[0]; s.Boot == last.Boot && (s.By-last.By).Abs() <= 2*walltime.OffsetJitter {
		return shifts[1:]
	}
	return shifts
}

// addStateLostGap adds a gap if an agent that was booked before begins without its state: the
// time between is lost.
func (rc *Receiver) addStateLostGap(ctx context.Context, s *submission) error {
	if s.entry.Number != 1 || s.countingFrom.IsZero() {
		return nil
	}
	through, err := rc.ledger.Through(ctx, s.entry.Node)
	if err != nil {
		if errors.Is(err, fault.ErrNotFound) {
			return fmt.Errorf("node %s: %w: %w", s.entry.Node, err, fault.ErrDenied)
		}
		return classify(err)
	}
	if !through.IsZero() && through.Before(s.countingFrom) {
		s.entry.Gaps = append(s.entry.Gaps, usage.Gap{From: through.UTC(), To: s.countingFrom, Reason: usage.StateLost})
	}
	return nil
}

// recordAccepted updates the state of a node from a booked batch; sent is the size
// of the batch in bytes.
func (rc *Receiver) recordAccepted(s *submission, sent int) {
	for _, shift := range s.entry.Shifts {
		rc.log.Warn("the clock of a node is wrong; its windows were moved", "node", s.entry.Node, "by", shift.By)
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.stats.Rows += int64(s.windowRows)
	rc.stats.Bytes += int64(sent)
	for i := range s.entry.Nodes {
		rc.stats.Violations += s.entry.Nodes[i].Violations
		a := &rc.nodeState(s.entry.Node).anomalies
		a.Violations += s.entry.Nodes[i].Violations
		a.Missed += s.entry.Nodes[i].Lost
	}
	rc.nodeState(s.entry.Node).noteEnd(s.entry)
	if n := len(s.entry.Shifts); n > 0 {
		rc.nodeState(s.entry.Node).shift = s.entry.Shifts[n-1]
	}
	if s.snapshot.Node != "" {
		rc.snapshots.put(s.snapshot, rc.cfg.SnapshotRows, time.Now().Add(-rc.cfg.SnapshotTTL))
	}
}

// ReportLoss takes an agent's report that batches are lost. Its errors are those of Offer.
func (rc *Receiver) ReportLoss(ctx context.Context, node string, l batch.Loss) (batch.Reply, error) {
	if l.From < 1 || l.To < l.From || l.To == 1<<64-1 {
		return batch.Reply{}, fmt.Errorf("lost: numbers %d to %d: %w", l.From, l.To, fault.ErrInvalid)
	}
	now := time.Now()
	l.Gap = walltime.ClampGap(now, l.Gap)
	// PostgreSQL stores no NUL in a text.
	l.Gap.Detail = strings.ReplaceAll(l.Gap.Detail, "\x00", "")
	l.Gap.Detail = strings.ToValidUTF8(l.Gap.Detail[:min(len(l.Gap.Detail), rc.cfg.Limits.Text)], "")
	r, err := rc.ledger.Lost(ctx, node, l, now)
	if err != nil {
		return batch.Reply{}, classify(err)
	}
	rc.mu.Lock()
	rc.stats.Losses++
	rc.mu.Unlock()
	return r, nil
}

// LiveBoot returns the boot id under which a node sends, if it sent within the last two minutes.
func (rc *Receiver) LiveBoot(node string) (boot string, ok bool) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	s, ok := rc.nodes[node]
	if !ok || time.Since(s.boots.current.last) > 2*time.Minute {
		return "", false
	}
	return s.boots.current.boot, true
}

// classify makes an error of the ledger that has no kind fault.ErrUnavailable: no entry was
// booked, and it may be later.
func classify(err error) error {
	for _, k := range []error{fault.ErrInvalid, fault.ErrDenied, fault.ErrUnavailable, context.Canceled} {
		if errors.Is(err, k) {
			return err
		}
	}
	return fmt.Errorf("ledger: %w: %w", fault.ErrUnavailable, err)
}

// newRetryError returns a fault.ErrUnavailable with a short time to wait.
func newRetryError(why string) error {
	return &fault.RetryError{Err: fmt.Errorf("receiver: %s: %w", why, fault.ErrUnavailable), After: 2 * time.Second}
}
