package book

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// PutReserved puts the rows of what pods and volumes of a cluster reserve, for all minutes before a time, and again those of the past
// that have changed. It takes some pods at a time, those after a number; last is the number of the last one, 0 if there
// are no others, and done is false if some of these have more rows. seen is when the pods were last known to be as the
// ledger has them. Pods wait whose node has no agent. A lease that is not the latest of its cluster is fault.ErrConflict.
// It is for one goroutine at a time.
func (k *Booker) PutReserved(ctx context.Context, l pod.Lease, until, seen time.Time, after int64) (last int64, done bool, err error) {
	taken := map[int64]int64{}
	err = k.db.Write(ctx, func(t *db.Tx) error {
		if err := checkLease(t, l); err != nil {
			return err
		}
		if after == 0 {
			if err := settleEnds(t, l.Cluster); err != nil {
				return err
			}
			if _, err := t.Exec("UPDATE pod_lease SET seen_ns = $2 WHERE cluster = $1", l.Cluster, schema.Nanos(seen)); err != nil {
				return err
			}
		}
		if after == 0 || k.nodes.cluster != l.Cluster {
			k.nodes = carrierNodes{cluster: l.Cluster}
		}
		p := &reservedPutter{carrierQuota: &k.carriers, taken: taken, booking: k.newBooking(t, time.Now()), cluster: l.Cluster, until: until.Unix() / 60, change: NewChange(schema.UsageLayout), nodes: &k.nodes}
		last, done, err = p.put(after)
		return err
	})
	if err == nil {
		k.carriers.add(taken)
	}
	return last, done, db.Wrap(err, "booking what pods of %s reserve", l.Cluster)
}

const (
	// podsPerPut limits the pods of a transaction, and rowsPerPut about the rows, of which a new carrier counts as several.
	podsPerPut, rowsPerPut, rowsPerCarrier = 500, 2000, 10
	// putCoarse is how many minutes ago rows are of whole hours: after an outage there may be many.
	putCoarse = 2 * schema.HourMinutes
)

// A reservedPutter puts rows of what pods reserve.
type reservedPutter struct {
	*booking
	carrierQuota *carrierQuota
	taken        map[int64]int64 // how many carriers of a node are new in this transaction
	cluster      string
	until        int64 // minute
	change       *Change
	nodes        *carrierNodes
	rows         int // left of the transaction
}

// A reservedPod is a pod with rows to put.
type reservedPod struct {
	id         int64
	uid, node  string
	right, put int64 // minutes
	volume     int64 // 1: it is a volume
	used       []usedLevel
}

// put puts the rows of some pods. done is false if some of them have more.
func (p *reservedPutter) put(after int64) (last int64, done bool, err error) {
	var pods []reservedPod
	err = p.Each(func(scan func(...any) error) error {
		var r reservedPod
		err := scan(&r.id, &r.uid, &r.node, &r.right, &r.put, &r.volume)
		pods = append(pods, r)
		return err
	}, "SELECT id, uid, node, right_minute, put_minute, volume FROM pod WHERE cluster = $1 AND right_minute < $2 AND id > $3 ORDER BY id LIMIT $4", p.cluster, p.until, after, podsPerPut)
	if err != nil {
		return 0, false, err
	}
	done, p.rows = true, rowsPerPut
	for i := range pods {
		if p.rows <= 0 {
			pods = pods[:i]
			last = pods[i-1].id
			break
		}
		all, err := p.putPod(&pods[i])
		if err != nil {
			return 0, false, err
		}
		done = done && all
	}
	if _, err := p.change.Apply(p.Tx, schema.EndMinute); err != nil {
		return 0, false, err
	}
	if len(pods) == podsPerPut {
		last = pods[len(pods)-1].id
	}
	return last, done, p.flushQuotas()
}

// putPod puts rows of a pod. all is false if there are more of them.
func (p *reservedPutter) putPod(r *reservedPod) (all bool, err error) {
	to := r.right
	if hour := to - to%schema.HourMinutes; to < r.put && hour+schema.HourMinutes <= max(p.until, r.put)-putCoarse/2 {
		to = hour // its row may be of the whole hour: a server whose clock is ahead put it
	}
	to = max(to, p.HourFloor)
	levels, err := readSpans(p.Tx, r.id, (to-to%schema.HourMinutes)*60)
	if err != nil {
		return false, err
	}
	if r.volume != 0 {
		if r.used, err = readUsed(p.Tx, r.id, to-to%schema.HourMinutes); err != nil {
			return false, err
		}
	}
	carriers, err := p.carriers(r)
	if err != nil {
		return false, err
	}
	end, open := r.put, false // of the rows; it may have more later
	for _, c := range slices.Sorted(maps.Keys(levels.spans)) {
		if _, ok := carriers[c]; !ok {
			w, ok, err := p.newCarrier(r, c)
			if !ok || err != nil {
				return true, err // it waits
			}
			carriers[c] = w
		}
		for _, s := range levels.spans[c] {
			open = open || s.to == 0
			end = max(end, (s.to+59)/60)
		}
	}
	if open = open || end > p.until; open {
		end = p.until
	}
	for to < end && (p.rows > 0 || to%schema.HourMinutes != 0) {
		unit, from := replica.Minute, to
		if hour := to - to%schema.HourMinutes; hour < p.MinuteFloor || hour+schema.HourMinutes <= p.until-putCoarse {
			unit, from = replica.Hour, hour
		}
		to = from + unit.Minutes()
		for c, w := range carriers {
			p.setRows(r, levels.spans[c], c, w, unit, from)
			p.rows--
		}
	}
	all = to >= end
	right := to
	if all && !open {
		right = rowsDone
	}
	_, err = p.Exec("UPDATE pod SET right_minute = $2, put_minute = $3 WHERE id = $1", r.id, right, max(r.put, min(to, end)))
	return all, err
}

// setRows sets the rows of a carrier in a minute or an hour, one for each version that it has there.
func (p *reservedPutter) setRows(r *reservedPod, spans []levelSpan, container string, w db.Workload, unit replica.Resolution, from int64) {
	end := from + unit.Minutes()
	cuts := append(slices.DeleteFunc(w.Begins(), func(m int64) bool { return m <= from || m >= end }), end)
	at := from
	for _, next := range cuts {
		var u usage.Usage
		var some bool
		if r.volume != 0 {
			u, some = volumeUsage(spans, r.used, at*60, next*60)
		} else {
			u, some = levelsUsage(spans, container, at*60, next*60)
		}
		if some || from < r.put {
			p.change.Set(unit, schema.RowKey{Minute: from, ID: w.At(at)}, schema.EncodeUsage(&u, p.Rev))
		}
		at = next
	}
}

// carriers returns the workloads of what the containers of a pod reserve, or did.
func (p *reservedPutter) carriers(r *reservedPod) (map[string]db.Workload, error) {
	type place struct {
		node  int64
		short workload.ShortID
	}
	places := map[string]place{}
	err := p.Each(func(scan func(...any) error) error {
		var c string
		var node, short int64
		err := scan(&c, &node, &short)
		places[c] = place{node, workload.ShortID(short)}
		return err
	}, "SELECT c.container, w.node, w.short FROM reservation_carrier c JOIN workload w ON w.id = c.workload WHERE c.pod = $1", r.id)
	all := map[string]db.Workload{}
	for c, of := range places {
		if err == nil {
			all[c], err = p.Workload(of.node, of.short)
		}
	}
	return all, err
}

// newCarrier makes the workload of what a container of a pod reserves. ok is false if the node of the pod is not known yet,
// or may have no more workloads today.
func (p *reservedPutter) newCarrier(r *reservedPod, container string) (w db.Workload, ok bool, err error) {
	id, err := p.nodeOf(r)
	if id == "" || err != nil {
		return w, false, err
	}
	n, err := p.findNode(id)
	if err != nil || n.id == 0 || n.jobs {
		return w, false, err
	}
	kind := workload.Container
	if container == "" {
		kind = workload.Pod
	}
	name := workloadRow{key: carrierKey(r.uid, container), parent: string(workload.NewID(n.node, workload.Pod, r.uid)), at: p.until * 60e9, known: p.until * 60e9}
	if r.volume != 0 {
		kind, name.key, name.parent = workload.Volume, r.uid, ""
	}
	name.kind = kind.String()
	own := workload.NewID(n.node, kind, name.key)
	name.id, name.name = string(own), container
	of, _ := workload.ShortIDOf(own) // valid, as NewID made it
	if ok, err = p.takeCarrier(n, kind); !ok || err != nil {
		return w, false, err
	}
	if w, err = p.Workload(n.id, of); err != nil {
		return w, false, err
	}
	p.rows -= rowsPerCarrier
	if !w.Named { // else it is a static pod's that came again, and its past stays
		if err := name.store(p.Tx, w.ID); err != nil {
			return w, false, err
		}
		p.NameWorkload(n.id, of, w)
	}
	if _, err := p.Exec("INSERT INTO reservation_carrier (pod, container, workload) VALUES ($1, $2, $3)", r.id, container, w.ID); err != nil {
		return w, false, err
	}
	if err := placeWorkload(p.Tx, w.ID, p.until*60e9); err != nil {
		return w, false, err
	}
	return p.KnownWorkload(n.id, of)
}

// carrierKey is the key of the workload of what a container of a pod reserves.
func carrierKey(uid, container string) string { return uid + "/" + container }

// carrierOf returns whose reservation a carrier holds, by schema.IsCarrier: the UID of the pod, and the name of the
// container or "". Of another workload uid is its key.
func (w *workloadRow) carrierOf() (uid, container string, ok bool) {
	if w.kind != workload.Pod.String() && w.kind != workload.Container.String() || w.path != "" {
		return w.key, "", false
	}
	return strings.Cut(w.key, "/")
}

// A carrierQuota limits the new carriers of each node in a UTC day, since this program started: a user that may create
// pods uses up no quota of agents.
type carrierQuota struct {
	limit int64
	mu    sync.Mutex
	day   int64
	nodes map[int64]int64 // how many carriers are new today
}

// used returns how many carriers of a node are new on the day of a time in ns.
func (q *carrierQuota) used(node, now int64) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if day := now / int64(24*time.Hour); day != q.day || q.nodes == nil {
		q.day, q.nodes = day, map[int64]int64{}
	}
	return q.nodes[node]
}

// add counts the carriers of a transaction that was committed.
func (q *carrierQuota) add(taken map[int64]int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for node, n := range taken {
		q.nodes[node] += n
	}
}

// takeCarrier counts a carrier, unless its node has no more today.
func (p *reservedPutter) takeCarrier(n *bookedNode, kind workload.Kind) (bool, error) {
	limit := p.carrierQuota.limit
	p.taken[n.id]++
	switch total := p.carrierQuota.used(n.id, p.now) + p.taken[n.id]; {
	case total <= limit:
		return true, nil
	case total > limit+1:
		return false, nil
	}
	what := "containers of pods that reserve something"
	if kind == workload.Volume {
		what = "volumes"
	}
	return false, p.Audit(registry.Audit{At: schema.FromNanos(p.now), Actor: n.node, Action: "node.quota", Object: n.node,
		Detail: fmt.Sprintf("%d new %s today: further ones wait for tomorrow", limit, what)})
}

// carrierNodes are the ledger's nodes by the names of the cluster's nodes, as long as all pods are gone through once.
type carrierNodes struct {
	cluster string
	ids     map[string]string // nil: not read yet
	seen    bool              // also those that are known by their pods
}

// nodeOf returns the node on which a pod runs: that which is called so, or else whose agent has seen other pods of the same
// node of the cluster, or this one. It is "" if there is none.
func (p *reservedPutter) nodeOf(r *reservedPod) (string, error) {
	if r.volume != 0 {
		return volumesNode(p.Tx, p.cluster, p.now)
	}
	const usable = " AND n.source = 0 AND n.revoked_ns = 0 ORDER BY "
	read := func(query string) error { // the last one of a name counts
		known := p.nodes.ids
		found := map[string]string{}
		err := p.Each(func(scan func(...any) error) error {
			var name, id, machine string
			err := scan(&name, &id, &machine)
			if known[name] == "" && !registry.IsJobsMachine(machine) {
				found[name] = id
			}
			return err
		}, query, p.cluster)
		if err == nil {
			maps.Copy(found, known)
			p.nodes.ids = found
		}
		return err
	}
	if p.nodes.ids == nil {
		if err := read("SELECT n.name, n.node_id, n.machine_id FROM node n WHERE n.cluster = $1" + usable + "n.id"); err != nil {
			return "", err
		}
	}
	if p.nodes.ids[r.node] == "" && !p.nodes.seen {
		err := read(`SELECT p.node, n.node_id, n.machine_id FROM pod p JOIN workload w ON w.key = p.uid AND w.kind IN ('pod', 'container') AND w.kind = 'pod' AND w.version_of = 0
			JOIN node n ON n.id = w.node AND n.cluster = p.cluster WHERE p.cluster = $1` + usable + "p.id, n.through_ns")
		if err != nil {
			return "", err
		}
		p.nodes.seen = true
	}
	return p.nodes.ids[r.node], nil
}
