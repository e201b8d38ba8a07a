package book

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A Quota limits what one node adds to the ledger permanently in a UTC day of the server's clock. A
// cluster has the quota of some nodes, however many it has: a token can enroll many. Amounts have no
// quota: those of new workloads beyond it are booked to one workload of the
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

// times returns the quota of n nodes.
func (q Quota) times(n int64) Quota {
	for _, v := range []*int64{&q.Workloads, &q.Bytes, &q.Streams, &q.Batches, &q.Ranges, &q.Handovers} {
		if *v > math.MaxInt64/n {
			*v = math.MaxInt64
		} else {
			*v *= n
		}
	}
	return q
}

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

// quotaUse is what a node or a cluster has used of its quota.
type quotaUse struct {
	loaded, changed       bool
	day, workloads, bytes int64
	exceeded              int64

	streams, batches, ranges, handovers int64
}

// A quotaHolder has a quota: a node, or a cluster.
type quotaHolder struct {
	kind  string // "node" or "cluster"
	id    string
	key   any // in the table KIND_quota
	limit Quota
	quotaUse
}

// holders returns the node and its cluster: what the node adds counts for both.
func (n *bookedNode) holders() []*quotaHolder {
	if n.cluster == nil {
		return []*quotaHolder{&n.quota}
	}
	return []*quotaHolder{&n.quota, n.cluster}
}

// addUse counts what a node adds.
func (n *bookedNode) addUse(add func(*quotaUse)) {
	for _, h := range n.holders() {
		add(&h.quotaUse)
		h.changed = true
	}
}

// findCluster returns the quota of a cluster, which its nodes share.
func (b *booking) findCluster(name string) *quotaHolder {
	if b.clusters[name] == nil {
		b.clusters[name] = &quotaHolder{kind: "cluster", id: name, key: name, limit: b.quota.times(b.clusterNodes)}
	}
	return b.clusters[name]
}

// loadQuotas reads what a node and its cluster have used today.
func (b *booking) loadQuotas(n *bookedNode) ([]*quotaHolder, error) {
	for _, h := range n.holders() {
		if h.loaded {
			continue
		}
		q := &h.quotaUse
		err := b.QueryRow("SELECT day, workloads, bytes, exceeded, streams, batches, ranges, handovers FROM "+h.kind+"_quota WHERE "+h.kind+" = $1", h.key).
			Scan(&q.day, &q.workloads, &q.bytes, &q.exceeded, &q.streams, &q.batches, &q.ranges, &q.handovers)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		if today := b.now / int64(24*time.Hour); q.day != today {
			*q = quotaUse{day: today}
		}
		q.loaded = true
	}
	return n.holders(), nil
}

// takeWorkload reports whether a node may add a workload, and counts it then.
func (b *booking) takeWorkload(n *bookedNode) (bool, error) {
	holders, err := b.loadQuotas(n)
	if err != nil {
		return false, err
	}
	for _, h := range holders {
		if h.workloads >= h.limit.Workloads {
			return false, b.exceed(h, exceededWorkloads, fmt.Sprintf("%d new workloads today: the use of further ones is booked to one workload of the node", h.limit.Workloads))
		}
	}
	n.addUse(func(q *quotaUse) { q.workloads++ })
	return true, nil
}

// takeBytes reports whether a node may add text, and counts it then.
func (b *booking) takeBytes(n *bookedNode, bytes int) (bool, error) {
	holders, err := b.loadQuotas(n)
	if err != nil {
		return false, err
	}
	for _, h := range holders {
		if h.bytes+int64(bytes) > h.limit.Bytes {
			return false, b.exceed(h, exceededBytes, fmt.Sprintf("%d bytes of names and labels today: further ones are left out", h.limit.Bytes))
		}
	}
	n.addUse(func(q *quotaUse) { q.bytes += int64(bytes) })
	return true, nil
}

// checkStream returns an error if a node has used up its new streams, and the stream is new.
func (b *booking) checkStream(n *bookedNode, s streamState) error {
	holders, err := b.loadQuotas(n)
	if err != nil {
		return err
	}
	for _, h := range holders {
		if s.node == 0 && h.streams >= h.limit.Streams {
			return b.refuse(h, exceededStreams, fmt.Sprintf("%d new streams today: batches of further ones wait", h.limit.Streams))
		}
	}
	return nil
}

// checkQuota returns an error if a node may not book an entry today, which adds the given number of ranges. It
// wraps errQuota, unless it is of the database.
func (b *booking) checkQuota(e *batch.Entry, n *bookedNode, s streamState, ranges int64) error {
	if err := b.checkStream(n, s); err != nil {
		return err
	}
	for _, h := range n.holders() {
		switch {
		case h.batches >= h.limit.Batches:
			return b.refuse(h, exceededBatches, fmt.Sprintf("%d batches today: further ones wait", h.limit.Batches))
		case ranges > 0 && h.ranges+ranges > h.limit.Ranges:
			return b.refuse(h, exceededRanges, fmt.Sprintf("%d boots, scopes and ranges of booked time today: batches with further ones wait", h.limit.Ranges))
		case len(e.Handovers) > 0 && h.handovers+int64(len(e.Handovers)) > h.limit.Handovers:
			return b.refuse(h, exceededHandovers, fmt.Sprintf("%d handovers of energy today: batches with further ones wait", h.limit.Handovers))
		}
	}
	return nil
}

// takeEntryQuota counts an entry that is booked. Its ranges are counted as they are added.
func (n *bookedNode) takeEntryQuota(e *batch.Entry, s streamState) {
	n.addUse(func(q *quotaUse) {
		if s.node == 0 {
			q.streams++
		}
		q.batches++
		q.handovers += int64(len(e.Handovers))
	})
}

// takeRange counts a row of booked time, of a kernel run or of a boot.
func (n *bookedNode) takeRange() { n.addUse(func(q *quotaUse) { q.ranges++ }) }

// errQuota refuses what a node may book tomorrow.
var errQuota = errors.New("over its quota")

// refuse audits that a quota is used up, and returns an error that wraps errQuota and
// fault.ErrUnavailable, with the time until the next day.
func (b *booking) refuse(h *quotaHolder, what int64, detail string) error {
	if err := b.exceed(h, what, detail); err != nil {
		return err
	}
	const day = int64(24 * time.Hour)
	return &fault.RetryError{
		Err:   fault.WithHint(fmt.Errorf("%s %s is %w: %s: %w", h.kind, h.id, errQuota, detail, fault.ErrUnavailable), "see the audit log of the server; a quota begins again at 00:00 UTC"),
		After: time.Duration(day - b.now%day),
	}
}

// exceed audits that a quota is used up, once a day.
func (b *booking) exceed(h *quotaHolder, what int64, detail string) error {
	if h.exceeded&what != 0 {
		return nil
	}
	h.exceeded |= what
	h.changed = true
	return b.Audit(registry.Audit{At: schema.FromNanos(b.now), Actor: h.id, Action: h.kind + ".quota", Object: h.id, Detail: detail})
}

// flushQuotas writes what nodes and clusters have used.
func (b *booking) flushQuotas() error {
	holders := slices.Collect(maps.Values(b.clusters))
	for _, n := range b.nodes {
		holders = append(holders, &n.quota)
	}
	for _, h := range holders {
		if !h.changed {
			continue
		}
		q := &h.quotaUse
		_, err := b.Exec("INSERT INTO "+h.kind+"_quota ("+h.kind+`, day, workloads, bytes, exceeded, streams, batches, ranges, handovers) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
			ON CONFLICT (`+h.kind+`) DO UPDATE SET day = excluded.day, workloads = excluded.workloads, bytes = excluded.bytes, exceeded = excluded.exceeded,
				streams = excluded.streams, batches = excluded.batches, ranges = excluded.ranges, handovers = excluded.handovers`,
			h.key, q.day, q.workloads, q.bytes, q.exceeded, q.streams, q.batches, q.ranges, q.handovers)
		if err != nil {
			return err
		}
		q.changed = false
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
	b.NameWorkload(n.id, short, w)
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
