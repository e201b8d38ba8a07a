package book

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

const (
	// maxClaims limits the names of a pod's claims, in bytes.
	maxClaims = 4 << 10
	// clockSlack is how far the clocks of a node and of the API server may be apart, beside what the receiver corrects, and how
	// late the API server may say that a pod or a volume is new.
	clockSlack = int64(2 * time.Minute)
	// silence is after which time without a window another node with the same host name counts as the machine.
	silence = int64(15 * time.Minute)
	// keysPerQuery limits the keys that one query looks up.
	keysPerQuery = 500
)

// eachOf calls f for the rows of a query of which %s are some of the keys at a time, after args. It is not prepared, since the
// text differs with the number of keys. f must not use the transaction.
func eachOf[K comparable](t *db.Tx, keys map[K]bool, f func(scan func(...any) error) error, query string, args ...any) error {
	for chunk := range slices.Chunk(slices.Collect(maps.Keys(keys)), keysPerQuery) {
		places, all := make([]string, len(chunk)), slices.Clone(args)
		for i, k := range chunk {
			all = append(all, k)
			places[i] = fmt.Sprintf("$%d", len(all))
		}
		if err := db.Each(t.Ctx, t.SQL, f, fmt.Sprintf(query, strings.Join(places, ", ")), all...); err != nil {
			return t.DB.Fault(err)
		}
	}
	return nil
}

// A mountingPod is a pod of the node that sent a figure. A nil one mounts nothing.
type mountingPod struct {
	namespace, node, claims string
	from, to                int64 // when it was on the node, ns
	holders
}

// holders are the nodes that have a pod, as far as the ledger knows.
type holders struct {
	some, sender bool  // there are any; the one that sent the figure is one of them
	busy         int64 // when one of them was seen last, ns
}

// A claimedVolume is a volume that is bound to a claim, or was bound to it last.
type claimedVolume struct {
	id, put  int64  // put is the minute up to which it has rows
	claim    string // with its namespace
	from, to int64  // when it was there and not released, ns
	spans    []levelSpan
}

// findMounting returns the pods of figures that are on the node, by UID. A pod is on the node on which the ledger has what it
// reserves, or else on that with the name of its node in the cluster. A machine may enroll again: once that node is silent, the
// pod is on one with this host name.
func (b *booking) findMounting(n *bookedNode, figures []batch.TimedVolume) (map[string]*mountingPod, error) {
	uids, pods, byID, ids := map[string]bool{}, map[string]*mountingPod{}, map[int64]*mountingPod{}, map[int64]bool{}
	for i := range figures {
		uids[schema.Clean(figures[i].Pod)] = true
	}
	err := eachOf(b.Tx, uids, func(scan func(...any) error) error {
		var id int64
		var uid string
		p := &mountingPod{}
		err := scan(&id, &uid, &p.namespace, &p.node, &p.claims, &p.from, &p.to)
		p.to = lasting(p.to)
		pods[uid], byID[id], ids[id] = p, p, true
		return err
	}, "SELECT id, uid, namespace, node, claims, created_ns, ended_ns FROM pod WHERE cluster = $1 AND volume = 0 AND uid IN (%s)", n.clusterName)
	if err != nil {
		return nil, err
	}
	err = eachOf(b.Tx, ids, func(scan func(...any) error) error {
		var id int64
		var h holder
		err := scan(append([]any{&id}, h.targets()...)...)
		if err == nil {
			byID[id].add(&h, n)
		}
		return err
	}, "SELECT DISTINCT c.pod, "+holderColumns+` FROM reservation_carrier c
		JOIN workload w ON w.id = c.workload JOIN node o ON o.id = w.node WHERE c.pod IN (%s)`)
	if err != nil {
		return nil, err
	}
	host, _, _ := strings.Cut(n.name, "~") // see registry.uniqueName
	named := map[string]holders{}
	for _, name := range []string{host, n.name} {
		var all holders
		err := b.Each(func(scan func(...any) error) error {
			var h holder
			err := scan(h.targets()...)
			all.add(&h, n)
			return err
		}, "SELECT "+holderColumns+" FROM node o WHERE o.cluster = $1 AND o.name = $2 AND o.source = 0", n.clusterName, name)
		if err != nil {
			return nil, err
		}
		named[name] = all
	}
	for uid, p := range pods {
		if !p.some {
			p.holders = named[p.node]
		}
		switch {
		case p.sender:
		case p.node == host && host != "":
			p.from = max(p.from, p.busy+silence+clockSlack)
		default:
			delete(pods, uid)
		}
	}
	return pods, nil
}

// A holder is a node that may have a pod.
type holder struct {
	id, through, enrolled int64
	machine               string
}

// holderColumns are the columns of node o in the order of [holder.targets].
const holderColumns = "o.id, o.through_ns, o.enrolled_ns, o.machine_id"

func (h *holder) targets() []any { return []any{&h.id, &h.through, &h.enrolled, &h.machine} }

// add adds a node, unless it is one of jobs, to those that have a pod.
func (s *holders) add(h *holder, sender *bookedNode) {
	if !registry.IsJobsMachine(h.machine) {
		s.some, s.sender, s.busy = true, s.sender || h.id == sender.id, max(s.busy, h.through, h.enrolled)
	}
}

// findVolumes returns the volumes with the names of figures of pods, by name, the latest one first.
func (b *booking) findVolumes(cluster string, pods map[string]*mountingPod, figures []batch.TimedVolume) (map[string][]*claimedVolume, error) {
	names, volumes, byID, ids := map[string]bool{}, map[string][]*claimedVolume{}, map[int64]*claimedVolume{}, map[int64]bool{}
	first := int64(math.MaxInt64)
	for i := range figures {
		if f := &figures[i]; pods[schema.Clean(f.Pod)] != nil {
			names[schema.Clean(f.Volume)] = true
			first = min(first, schema.Nanos(f.At))
		}
	}
	err := eachOf(b.Tx, names, func(scan func(...any) error) error {
		var name string
		var released int64
		v := &claimedVolume{}
		err := scan(&v.id, &name, &v.claim, &v.from, &v.to, &released, &v.put)
		v.to = min(lasting(v.to), lasting(released))
		volumes[name], byID[v.id], ids[v.id] = append(volumes[name], v), v, true
		return err
	}, `SELECT id, name, claims, created_ns, ended_ns, released_ns, put_minute FROM pod
		WHERE cluster = $1 AND volume = 1 AND name IN (%s) ORDER BY created_ns DESC, id DESC`, cluster)
	if err != nil {
		return nil, err
	}
	return volumes, eachOf(b.Tx, ids, func(scan func(...any) error) error {
		var id int64
		var s levelSpan
		err := scan(&id, &s.from, &s.to, &s.Storage)
		if err == nil {
			byID[id].spans = append(byID[id].spans, s)
		}
		return err
	}, "SELECT pod, from_s, to_s, storage FROM reservation WHERE (to_s = 0 OR to_s >= $1) AND pod IN (%s)", (first-clockSlack)/1e9)
}

// volumeAt returns that of some volumes of one name that the pod may have mounted at a time, in ns: the one of the time or else
// the nearest one, as clocks differ. It is nil if there is none.
func (p *mountingPod) volumeAt(named []*claimedVolume, at int64) (found *claimedVolume) {
	if p == nil || at < p.from-clockSlack || p.to+clockSlack < at {
		return nil
	}
	least := clockSlack + 1
	for _, v := range named {
		if away := max(v.from-at, at-v.to, 0); away < least && p.mounts(v.claim) {
			found, least = v, away
		}
	}
	return found
}

// mounts reports whether the pod has a claim, which is given with its namespace.
func (p *mountingPod) mounts(claim string) bool {
	namespace, name, _ := strings.Cut(claim, "/")
	if namespace != p.namespace || name == "" {
		return false
	}
	for c := range strings.SplitSeq(p.claims, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// hasAlone reports whether a file system of a size has nothing but the volume at a time, in ns: one with another size than the
// volume's capacity may have more, as an export of which the volume is a directory. 0 is one on a block device.
func (v *claimedVolume) hasAlone(size, at int64) bool {
	return size == 0 || slices.ContainsFunc(v.spans, func(s levelSpan) bool {
		const slack = clockSlack / 1e9
		return s.from-slack <= at/1e9 && at/1e9 <= end(s.to, math.MaxInt64-slack)+slack && s.Storage-s.Storage/4 <= size && size <= s.Storage+s.Storage/4
	})
}

// lasting returns the time, in ns, at which something ended, or one that never comes.
func lasting(ended int64) int64 {
	if ended == 0 {
		return math.MaxInt64 - clockSlack
	}
	return ended
}

// joinClaims returns the names of claims as the ledger has them. No name that Kubernetes takes has a comma.
func joinClaims(claims []string) string {
	var kept strings.Builder
	for _, c := range claims {
		if c = schema.Clean(c); c == "" || strings.Contains(c, ",") || kept.Len()+len(c) >= maxClaims {
			continue
		}
		if kept.Len() > 0 {
			kept.WriteByte(',')
		}
		kept.WriteString(c)
	}
	return kept.String()
}
