package book

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A Quota limits what one node adds to the ledger permanently in a UTC day of the server's clock.
// Amounts have no quota: those of new workloads beyond it are booked to one workload of the
// node, so that sums stay exact, and names beyond it are stored without their texts. A batch that
// needs more than is left of the others waits for the next day.
type Quota struct {
	Workloads int64 // new ones
	Bytes     int64 // of names, labels, gaps and other texts
	Streams   int64 // new ones
	Batches   int64
	Ranges    int64 // new ones of booked time, kernel runs and boots
	Handovers int64
}

var unlimited = Quota{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}

const (
	exceededWorkloads = 1 << iota
	exceededBytes
	exceededStreams
	exceededBatches
	exceededRanges
	exceededHandovers
)

// rowBytes is about what a row of a gap, shift or audit line takes beside its text.
const rowBytes = 128

// quotaUse is what a node has used of its quota.
type quotaUse struct {
	loaded, changed       bool
	day, workloads, bytes int64
	exceeded              int64

	streams, batches, ranges, handovers int64
}

// loadQuota reads what a node has used today.
func (b *booking) loadQuota(n *bookedNode) error {
	q := &n.quota
	if q.loaded {
		return nil
	}
	err := b.QueryRow("SELECT day, workloads, bytes, exceeded, streams, batches, ranges, handovers FROM node_quota WHERE node = $1", n.id).
		Scan(&q.day, &q.workloads, &q.bytes, &q.exceeded, &q.streams, &q.batches, &q.ranges, &q.handovers)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if today := b.now / int64(24*time.Hour); q.day != today {
		*q = quotaUse{day: today}
	}
	q.loaded = true
	return nil
}

// takeWorkload reports whether a node may add a workload, and counts it then.
func (b *booking) takeWorkload(n *bookedNode) (bool, error) {
	if err := b.loadQuota(n); err != nil {
		return false, err
	}
	if n.quota.workloads >= b.quota.Workloads {
		return false, b.exceed(n, exceededWorkloads, fmt.Sprintf("%d new workloads today: the use of further ones is booked to one workload of the node", b.quota.Workloads))
	}
	n.quota.workloads++
	n.quota.changed = true
	return true, nil
}

// takeBytes reports whether a node may add text, and counts it then.
func (b *booking) takeBytes(n *bookedNode, bytes int) (bool, error) {
	if err := b.loadQuota(n); err != nil {
		return false, err
	}
	if n.quota.bytes+int64(bytes) > b.quota.Bytes {
		return false, b.exceed(n, exceededBytes, fmt.Sprintf("%d bytes of names and labels today: further ones are left out", b.quota.Bytes))
	}
	n.quota.bytes += int64(bytes)
	n.quota.changed = true
	return true, nil
}

// checkStream returns an error if a node has used up its new streams, and the stream is new.
func (b *booking) checkStream(n *bookedNode, s streamState) error {
	if err := b.loadQuota(n); err != nil {
		return err
	}
	if s.node != 0 || n.quota.streams < b.quota.Streams {
		return nil
	}
	return b.refuse(n, exceededStreams, fmt.Sprintf("%d new streams today: batches of further ones wait", b.quota.Streams))
}

// checkQuota returns an error if a node may not book an entry today, which adds the given number of ranges. It
// wraps errQuota, unless it is of the database.
func (b *booking) checkQuota(e *batch.Entry, n *bookedNode, s streamState, ranges int64) error {
	if err := b.checkStream(n, s); err != nil {
		return err
	}
	q := &n.quota
	switch {
	case q.batches >= b.quota.Batches:
		return b.refuse(n, exceededBatches, fmt.Sprintf("%d batches today: further ones wait", b.quota.Batches))
	case ranges > 0 && q.ranges+ranges > b.quota.Ranges:
		return b.refuse(n, exceededRanges, fmt.Sprintf("%d boots, scopes and ranges of booked time today: batches with further ones wait", b.quota.Ranges))
	case len(e.Handovers) > 0 && q.handovers+int64(len(e.Handovers)) > b.quota.Handovers:
		return b.refuse(n, exceededHandovers, fmt.Sprintf("%d handovers of energy today: batches with further ones wait", b.quota.Handovers))
	}
	return nil
}

// takeEntryQuota counts an entry that is booked. Its ranges are counted as they are added.
func (n *bookedNode) takeEntryQuota(e *batch.Entry, s streamState) {
	if s.node == 0 {
		n.quota.streams++
	}
	n.quota.batches++
	n.quota.handovers += int64(len(e.Handovers))
	n.quota.changed = true
}

// takeRange counts a row of booked time, of a kernel run or of a boot.
func (n *bookedNode) takeRange() {
	n.quota.ranges++
	n.quota.changed = true
}

// errQuota refuses what a node may book tomorrow.
var errQuota = errors.New("over its quota")

// refuse audits that a node has used up a quota, and returns an error that wraps errQuota and
// fault.ErrUnavailable, with the time until the next day.
func (b *booking) refuse(n *bookedNode, what int64, detail string) error {
	if err := b.exceed(n, what, detail); err != nil {
		return err
	}
	const day = int64(24 * time.Hour)
	return &fault.RetryError{
		Err:   fault.WithHint(fmt.Errorf("node %s is %w: %s: %w", n.node, errQuota, detail, fault.ErrUnavailable), "see the audit log of the server; a quota begins again at 00:00 UTC"),
		After: time.Duration(day - b.now%day),
	}
}

// exceed audits that a node has used up a quota, once a day.
func (b *booking) exceed(n *bookedNode, what int64, detail string) error {
	if n.quota.exceeded&what != 0 {
		return nil
	}
	n.quota.exceeded |= what
	n.quota.changed = true
	return b.Audit(registry.Audit{At: schema.FromNanos(b.now), Actor: n.node, Action: "node.quota", Object: n.node, Detail: detail})
}

// flushQuotas writes what nodes have used.
func (b *booking) flushQuotas() error {
	for _, n := range b.nodes {
		if !n.quota.changed {
			continue
		}
		q := &n.quota
		_, err := b.Exec(`INSERT INTO node_quota (node, day, workloads, bytes, exceeded, streams, batches, ranges, handovers) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
			ON CONFLICT (node) DO UPDATE SET day = excluded.day, workloads = excluded.workloads, bytes = excluded.bytes, exceeded = excluded.exceeded,
				streams = excluded.streams, batches = excluded.batches, ranges = excluded.ranges, handovers = excluded.handovers`,
			n.id, q.day, q.workloads, q.bytes, q.exceeded, q.streams, q.batches, q.ranges, q.handovers)
		if err != nil {
			return err
		}
		n.quota.changed = false
	}
	return nil
}

// newWorkload returns a workload that may be new; ok is false if it is and the node has used up
// its quota.
func (b *booking) newWorkload(n *bookedNode, short workload.ShortID) (w db.Workload, ok bool, err error) {
	w, ok, err = b.KnownWorkload(n.id, short)
	if ok || err != nil {
		return w, ok, err
	}
	if ok, err = b.takeWorkload(n); !ok || err != nil {
		return w, false, err
	}
	w, err = b.Workload(n.id, short)
	return w, true, err
}

// workload returns the workload to which the amounts of short are booked: its own, or, if it
// is new and the node has used up its quota, the one of all such workloads of the node.
func (b *booking) workload(n *bookedNode, short workload.ShortID) (db.Workload, error) {
	w, ok, err := b.newWorkload(n, short)
	if ok || err != nil {
		return w, err
	}
	id := workload.NewID(n.node, workload.Unknown, overQuota)
	short, _ = workload.ShortIDOf(id) // valid, as NewID made it
	if w, err = b.Workload(n.id, short); err != nil || w.Named {
		return w, err
	}
	if _, err := b.Exec("UPDATE workload SET wid = $2, key = $3, name = $3, named_ns = $4, rev = $5 WHERE id = $1", w.ID, string(id), overQuota, b.now, b.Rev); err != nil {
		return w, err
	}
	b.NameWorkload(n.id, short, w.ID)
	w.Named = true
	return w, nil
}

// overQuota is the key and name of the workload to which a node's new workloads beyond its
// quota are booked.
const overQuota = "over quota"

// gaps returns the gaps of an entry or, beyond the quota, one that covers all of them.
func (b *booking) gaps(e *batch.Entry, n *bookedNode) ([]usage.Gap, error) {
	if len(e.Gaps) == 0 {
		return nil, nil
	}
	bytes := 0
	for i := range e.Gaps {
		bytes += rowBytes + len(e.Gaps[i].Detail)
	}
	if ok, err := b.takeBytes(n, bytes); ok || err != nil {
		return e.Gaps, err
	}
	all := usage.Gap{From: e.Gaps[0].From, To: e.Gaps[0].To, Reason: e.Gaps[0].Reason}
	for _, g := range e.Gaps[1:] {
		if g.From.Before(all.From) {
			all.From = g.From
		}
		if g.To.After(all.To) {
			all.To = g.To
		}
	}
	return []usage.Gap{all}, nil
}
