package read

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// PodSelf returns what a pod used and reserved in its life: the sum of its workload, of its containers, and of what both
// reserve. Node and Through are those of the node with the latest window of those on which the pod used something, or
// else reserves. A pod without rows has used nothing, which is not an error; one that is not stored with this UID,
// namespace and name is fault.ErrNotFound.
//
// The time covered is that of the pod's workload, as its containers run at the same time; without rows of it, that of
// the container with the most. The time for which it is known what it reserves is that of the container with the most.
func (rd *Reader) PodSelf(ctx context.Context, ref pod.Ref) (*query.Self, error) {
	out := &query.Self{Cluster: ref.Cluster, Name: batch.Name{Kind: workload.Pod, Key: ref.UID, Name: ref.Name}}
	err := rd.db.View(ctx, func(v *db.View) error {
		var id int64
		var job string
		err := v.SQL.QueryRowContext(ctx, "SELECT id, job FROM pod WHERE cluster = $1 AND uid = $2 AND namespace = $3 AND name = $4",
			ref.Cluster, schema.Clean(ref.UID), schema.Clean(ref.Namespace), schema.Clean(ref.Name)).Scan(&id, &job)
		if errors.Is(err, sql.ErrNoRows) {
			return fault.WithHint(fmt.Errorf("pod %s of cluster %s: %w", ref, ref.Cluster, fault.ErrNotFound), "the server learns of a new pod within some seconds: try again then")
		}
		if err != nil {
			return rd.db.Fault(err)
		}
		parts, err := findPodParts(v, ref, id)
		if err != nil {
			return rd.db.Fault(err)
		}
		if len(parts) > 0 {
			at := parts[0]
			out.Node, out.NodeName, out.Through = at.nodeID, at.nodeName, schema.FromNanos(at.through)
			if at.name.Kind == workload.Pod {
				out.Name = at.name
			}
			out.ID = workload.NewID(at.nodeID, workload.Pod, ref.UID)
			out.Name.Name = ref.Name
		}
		out.Job = job
		return rd.sumPod(v, out, parts)
	})
	if err != nil {
		return nil, db.Wrap(err, "usage")
	}
	return out, nil
}

// A podPart is a row of the workload of a pod, of one of its containers, or of what one of them reserves.
type podPart struct {
	name             batch.Name
	container        string // its name; "" is the pod itself, or a container whose name is not known
	reserves         bool   // it is a carrier
	nodeID, nodeName string
	through          int64 // of the node
	life
}

// findPodParts returns the parts of a pod: those that use something, then carriers, each of the node with the latest
// window first, and of these the pod's workload. Containers are those below it, and those whose ids its status has.
// Carriers are those that the server made for the pod of this id, whatever other parts are called.
func findPodParts(v *db.View, ref pod.Ref, id int64) (parts []podPart, err error) {
	err = db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		var p podPart
		var machine string
		var first, last, carrier int64
		var r schema.NameRow
		if err := scan(append([]any{&p.workload, &first, &last, &p.container, &carrier, &p.node, &p.nodeID, &p.nodeName, &machine, &p.through}, r.Targets()...)...); err != nil {
			return err
		}
		p.name, p.reserves = r.Name(), carrier != 0
		// Folded rows begin at the workload's first minute; all others follow the mark.
		p.MinuteSpan = schema.MinuteSpan{First: v.Hour, Last: floorMinute(time.Now()) + aheadMinutes}
		if last != 0 {
			p.First = min(p.First, first)
		}
		if !registry.IsJobsMachine(machine) { // any user can send jobs, with any key
			parts = append(parts, p)
		}
		return nil
	}, `WITH reserved AS (SELECT w.id FROM reservation_carrier c JOIN workload f ON f.id = c.workload
			JOIN workload w ON w.node = f.node AND w.short = f.short AND w.wid = f.wid WHERE c.pod = $1),
		own AS (SELECT w.id, w.node, w.wid FROM pod p JOIN workload w ON w.key = p.uid AND w.kind IN ('pod', 'container') AND w.kind = 'pod' JOIN node n ON n.id = w.node
			WHERE p.id = $1 AND n.cluster = $2)
		SELECT w.id, w.first_minute, w.last_minute, w.container, CASE WHEN `+schema.IsCarrier+` THEN 1 ELSE 0 END AS reserves, n.id, n.node_id, n.name, n.machine_id, n.through_ns, `+schema.NameColumns+` FROM workload w JOIN node n ON n.id = w.node WHERE w.id IN (
			SELECT id FROM own
			UNION SELECT w.id FROM own o JOIN workload w ON w.parent = o.wid AND w.kind = 'container' AND w.node = o.node
			UNION SELECT w.id FROM pod_container c JOIN workload w ON w.key = c.container AND w.kind IN ('pod', 'container') AND w.kind = 'container' JOIN node n ON n.id = w.node
				WHERE c.pod = $1 AND n.cluster = $2) AND NOT `+schema.IsCarrier+` OR n.cluster = $2 AND w.id IN (SELECT id FROM reserved)
		ORDER BY reserves, n.through_ns DESC, n.id, CASE w.kind WHEN 'pod' THEN 0 ELSE 1 END, w.id DESC`, id, ref.Cluster)
	if err != nil {
		return nil, err
	}
	kept := parts[:0]
	for i := range parts {
		other, err := parts[i].isInOtherPod(v, ref.UID)
		if err != nil {
			return nil, err
		}
		if !other {
			kept = append(kept, parts[i])
		}
	}
	return kept, nil
}

// isInOtherPod reports whether a container is below the group of another pod, which the kernel tells: a status that
// names its id does not make it the container of this one.
func (p *podPart) isInOtherPod(v *db.View, uid string) (is bool, err error) {
	short, ok := workload.ShortIDOf(p.name.Parent)
	if p.name.Kind != workload.Container || !ok || p.name.Parent == workload.NewID(p.nodeID, workload.Pod, uid) {
		return false, nil
	}
	err = v.SQL.QueryRowContext(v.Ctx, "SELECT EXISTS (SELECT 1 FROM workload WHERE node = $1 AND short = $2 AND kind = 'pod')", p.node, int64(short)).Scan(&is)
	return is, err
}

// sumPod sets what the parts of a pod used and reserved.
func (rd *Reader) sumPod(v *db.View, out *query.Self, parts []podPart) error {
	if len(parts) == 0 {
		return nil
	}
	var lives []life
	of := map[int64]*podPart{} // by row
	nodes := map[int64]bool{}
	for i := range parts {
		p := &parts[i]
		lives, of[p.workload], nodes[p.node] = append(lives, p.life), p, true
		if p.nodeID == out.Node && !p.reserves && !slices.Contains(out.Parts, p.name.ID) {
			out.Parts = append(out.Parts, p.name.ID)
		}
	}
	var own int64                         // ms of the pod's workload
	containers := map[workload.ID]int64{} // ms
	reserved := map[string]int64{}        // ns, by container
	byContainer := newGroups(unusedResources)
	sum, err := rd.sumLives(v, lives, func(l *life, row *lifeRow) {
		p := of[l.workload]
		row.addTo(byContainer, byContainer.get([]string{p.nodeID, p.container}))
		switch {
		case p.reserves:
			reserved[p.container] += row.amounts[usage.ReservedTime]
		case p.name.Kind == workload.Pod:
			own += row.covered
		default:
			containers[p.name.ID] += row.covered
		}
	})
	if err != nil {
		return err
	}
	if own == 0 && len(containers) > 0 {
		own = slices.Max(slices.Collect(maps.Values(containers)))
	}
	if sum.Usage.Present == 0 && own == 0 {
		return nil
	}
	out.Usage, out.First, out.Last = sum.Usage, sum.First, sum.Last
	out.Usage.Covered = nanos(own)
	for _, ns := range reserved {
		out.Reserved = max(out.Reserved, time.Duration(ns))
	}
	byNode := map[string][]*group{}
	for _, g := range byContainer.all {
		byNode[g.keys[0]] = append(byNode[g.keys[0]], g)
	}
	for _, parts := range byNode {
		for i := range query.Reservable {
			byContainer.eachUnused(parts, i, func(_ *group, u query.Unused) { out.Usage.Unused[i].Add(u) })
		}
	}
	return rd.db.Fault(v.SQL.QueryRowContext(v.Ctx, "SELECT count(*) FROM gap g WHERE g.node IN ("+schema.JoinInts(slices.Sorted(maps.Keys(nodes)))+") AND g.from_ns < $1 AND g.to_ns > $2",
		schema.ClampNanos(out.Last), schema.ClampNanos(out.First)).Scan(&out.Gaps))
}
