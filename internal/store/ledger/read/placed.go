package read

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// placedColumns are the columns that scanPlaced scans.
const placedColumns = "w.namespace, w.pod, w.container, " + schema.NameColumns

// scanPlaced scans a name, with labels that say where it belongs. Other columns are before the name's.
func scanPlaced(scan func(...any) error, others ...any) (batch.Name, error) {
	var r schema.NameRow
	var namespace, pod, container string
	err := scan(append(append(others, &namespace, &pod, &container), r.Targets()...)...)
	n := r.Name()
	for label, v := range map[string]string{batch.LabelNamespace: namespace, batch.LabelPod: pod, batch.LabelContainer: container} {
		if v == "" {
			continue
		}
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[label] = v
	}
	return n, err
}

// addPodUIDs adds the UIDs of pods to the names of a node that have a namespace: to those of the pods themselves, and to those
// of containers whose groups are below that of a pod.
func addPodUIDs(v *db.View, node string, names iter.Seq[batch.Name]) error {
	within := map[workload.ShortID][]batch.Name{} // containers, by pod
	for n := range names {
		if n.Labels[batch.LabelNamespace] == "" {
			continue
		}
		if pod, ok := workload.ShortIDOf(n.Parent); n.Kind == workload.Container && ok {
			within[pod] = append(within[pod], n)
		} else if n.Kind == workload.Pod && !n.Reserves() {
			n.Labels[batch.LabelPodUID] = n.Key
		}
	}
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(within)), lookupSize) {
		args := arguments{schema.Clean(node)}
		places := make([]string, len(chunk))
		for i, s := range chunk {
			places[i] = args.add(int64(s))
		}
		err := db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var short int64
			var id workload.ID
			var uid string
			err := scan(&short, &id, &uid)
			for _, n := range within[workload.ShortID(short)] {
				if n.Parent == id {
					n.Labels[batch.LabelPodUID] = uid
				}
			}
			return err
		}, "SELECT w.short, w.wid, w.key FROM workload w JOIN node n ON n.id = w.node WHERE n.node_id = $1 AND w.kind = 'pod' AND w.short IN ("+strings.Join(places, ", ")+")", args...)
		if err != nil {
			return err
		}
	}
	return nil
}

// Placed returns the names of pods, their containers, and jobs and steps of Slurm that changed after a revision, by node, later versions after
// earlier ones, and the revision of the answer. Before the first one it returns the revision only, after -1.
func (rd *Reader) Placed(ctx context.Context, after int64) (names map[string][]batch.Name, rev int64, err error) {
	names = map[string][]batch.Name{}
	err = rd.db.View(ctx, func(v *db.View) error {
		if rev = v.Rev; after < 0 || after >= rev {
			return nil
		}
		err := db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var node string
			n, err := scanPlaced(scan, &node)
			names[node] = append(names[node], n)
			return err
		}, "SELECT n.node_id, "+placedColumns+` FROM workload w JOIN node n ON n.id = w.node WHERE w.id IN (
				SELECT id FROM workload WHERE rev > $1 AND kind IN ('pod', 'container') AND namespace <> ''
				UNION ALL SELECT id FROM workload WHERE rev > $1 AND kind IN ('slurm-job', 'slurm-step') AND job <> '') ORDER BY w.from_minute`, after)
		for node, list := range names {
			if err == nil {
				err = addPodUIDs(v, node, slices.Values(list))
			}
		}
		return err
	})
	return names, rev, db.Wrap(rd.db.Fault(err), "names of pods and jobs")
}
