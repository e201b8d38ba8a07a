package kube

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/pod"
)

// leaseFor is how long a lease lasts after it was extended, and leaseEvery how often it is extended, or its end looked for.
const leaseFor, leaseEvery = 45 * time.Second, 15 * time.Second

// keepLease takes or extends the lease when it is time. After taking it, all pods of the cluster are to be booked.
func (w *Watcher) keepLease(ctx context.Context) error {
	now := time.Now()
	if now.Before(w.leaseAt) {
		return nil
	}
	l, err := w.ledger.LeasePods(ctx, pod.Lease{Cluster: w.cfg.Cluster, Holder: w.cfg.Holder, Number: w.lease.Number}, now, now.Add(leaseFor))
	if err != nil {
		return err
	}
	w.leaseAt = now.Add(leaseEvery)
	if taken := l.Number != 0 && l.Number != w.lease.Number; taken {
		w.ended, w.booked, w.holder, w.seen, w.put = false, map[string]pod.Pod{}, map[string]string{}, l.Seen, putMark{}
		w.runs = map[string]pod.Run{}
		w.volumesEnded, w.volumesSeen, w.heldVolumes = false, l.Seen, map[string]pod.Volume{}
		w.topology = nil
		w.markAll()
	} else if l.Number == 0 {
		w.markNone()
	}
	w.lease, w.lease.Seen = l, time.Time{}
	w.health.leased(l)
	return nil
}

// release lets another server take the lease at once.
func (w *Watcher) release(ctx context.Context) error {
	if w.lease.Number == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	now := time.Now()
	if _, err := w.ledger.LeasePods(ctx, w.lease, now, now); err != nil {
		w.log.Warn("the lease of the cluster's pods could not be given back: another server waits for its end", "err", err)
	}
	return nil
}

// releaseTimeout limits the last write.
const releaseTimeout = 5 * time.Second

// markAll marks all pods, Jobs and volumes of the API server as changed.
func (w *Watcher) markAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = true
	w.changed, w.deleted = map[string]*keptPod{}, map[string]bool{}
	for _, o := range w.pods.GetStore().List() {
		if p, ok := o.(*keptPod); ok {
			w.changed[string(p.UID)] = p
		}
	}
	w.jobs = map[string]changedJob{}
	for _, o := range w.owners[jobKind].GetStore().List() {
		if j, ok := o.(*keptJob); ok {
			w.jobs[string(j.UID)] = changedJob{job: j}
		}
	}
	w.changedVolumes = map[string]changedVolume{}
	for _, o := range w.volumes.GetStore().List() {
		if v, ok := o.(*keptVolume); ok {
			w.changedVolumes[string(v.UID)] = changedVolume{volume: v}
		}
	}
}

// markNone forgets changes, which are another server's to book.
func (w *Watcher) markNone() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = false
	clear(w.changed)
	clear(w.deleted)
	clear(w.jobs)
	clear(w.changedVolumes)
}
