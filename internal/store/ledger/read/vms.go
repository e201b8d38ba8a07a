package read

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// VMs lists the virtual machines to which hosts in the scope gave energy in a range, by host and
// name: what they used, and how the shares reported by host and guest compare. Comparisons are of
// whole days.
func (rd *Reader) VMs(ctx context.Context, from, to time.Time, s query.Scope) (out []query.VM, err error) {
	if !s.All && len(s.Clusters) == 0 {
		return nil, nil
	}
	err = rd.db.View(ctx, func(v *db.View) error {
		list := vmList{v: v, places: map[vmKey][]int{}}
		if err := list.findGiven(from, to, s); err != nil {
			return err
		}
		if err := list.addComparisons(from, to, s); err != nil {
			return err
		}
		a, b := queryRange(v, from, to)
		var nested nesting
		if err := nested.find(v, a, b); err != nil {
			return err
		}
		if err := list.findVersions(); err != nil {
			return err
		}
		for _, p := range v.Cover(a, b, v.Days) {
			if err := list.addUsage(p, &nested); err != nil {
				return err
			}
		}
		for key, places := range list.places {
			for _, i := range places {
				u := &list.found[i].Usage
				u.Quality = list.uncertainty[key.workload].Qualities(u.Present)
			}
		}
		out = list.found
		return nil
	})
	return out, db.Wrap(rd.db.Fault(err), "virtual machines")
}

// A vmList builds the list.
type vmList struct {
	v           *db.View
	found       []query.VM
	nodes       []string                    // ids of the guests' nodes, parallel to found, set even if outside the scope
	places      map[vmKey][]int             // in found
	uncertainty map[int64]usage.Uncertainty // by workload
	firstOf     map[int64]int64             // the first version of a workload, by the id of another one
	later       map[int64][]int64           // the reverse
}

// A vmKey identifies a virtual machine of a host.
type vmKey struct {
	guest          string
	host, workload int64
}

// findGiven finds the virtual machines that hosts reported.
func (l *vmList) findGiven(from, to time.Time, s query.Scope) error {
	l.uncertainty = map[int64]usage.Uncertainty{}
	args := arguments{schema.ClampNanos(from), schema.ClampNanos(to)}
	where := clusterCondition(&args, s)
	return db.Each(l.v.Ctx, l.v.SQL, func(scan func(...any) error) error {
		var k vmKey
		var vm query.VM
		var name string
		if err := scan(&k.guest, &k.host, &k.workload, &vm.Name, &vm.Host, &vm.HostName, &vm.Workload, &name); err != nil {
			return err
		}
		vm.Guest = k.guest
		if vm.Name == "" {
			vm.Name = name
		}
		l.places[k] = append(l.places[k], len(l.found))
		l.found, l.nodes = append(l.found, vm), append(l.nodes, "")
		return nil
	}, `SELECT x.guest, x.host, x.workload, x.name, n.node_id, n.name, w.wid, w.name
		FROM (SELECT guest, host, workload, max(name) AS name FROM share_series WHERE last_ns > $1 AND first_ns < $2 GROUP BY guest, host, workload) AS x
		JOIN node n ON n.id = x.host JOIN workload w ON w.id = x.workload WHERE true`+where+` ORDER BY n.name, n.node_id, w.name, x.guest, x.workload`, args...)
}

// addComparisons adds the comparisons. Each node that claims to be a guest has a line of its own. A
// node outside the scope stays unnamed.
func (l *vmList) addComparisons(from, to time.Time, s query.Scope) error {
	first, end := schema.ClampNanos(from)/int64(time.Minute), (schema.ClampNanos(to)+int64(time.Minute)-1)/int64(time.Minute)
	return db.Each(l.v.Ctx, l.v.SQL, func(scan func(...any) error) error {
		var k vmKey
		var node, name, cluster string
		var compared, differing, largest, n, last int64
		if err := scan(&k.guest, &k.host, &k.workload, &node, &name, &cluster, &compared, &differing, &largest, &n, &last); err != nil {
			return err
		}
		vm := l.line(k, node)
		if vm == nil {
			return nil // the host is not in the scope
		}
		if s.All || slices.Contains(s.Clusters, cluster) {
			vm.Node, vm.NodeName = node, name
		}
		vm.N, vm.Last = n, schema.FromNanos(last)
		vm.Compared, vm.Differing, vm.Largest = vm.Compared+compared, vm.Differing+differing, max(vm.Largest, largest)
		return nil
	}, `SELECT r.guest, r.host, r.workload, n.node_id, n.name, n.cluster, r.compared, r.differing, r.largest, r.n, r.to_ns
		FROM reconciled r JOIN node n ON n.id = r.node WHERE r.minute >= $1 AND r.minute < $2 ORDER BY r.to_ns, n.node_id`, first-first%schema.DayMinutes, end)
}

// line returns the line of a virtual machine and its guest node, or nil.
func (l *vmList) line(k vmKey, node string) *query.VM {
	places := l.places[k]
	if len(places) == 0 {
		return nil
	}
	for _, i := range places {
		if l.nodes[i] == "" || l.nodes[i] == node {
			l.nodes[i] = node
			return &l.found[i]
		}
	}
	vm := l.found[places[0]]
	vm.Node, vm.NodeName, vm.Compared, vm.Differing, vm.Largest = "", "", 0, 0, 0
	l.places[k] = append(places, len(l.found))
	l.found, l.nodes = append(l.found, vm), append(l.nodes, node)
	return &l.found[len(l.found)-1]
}

// findVersions finds the versions of the virtual machines' workloads after the first ones.
func (l *vmList) findVersions() error {
	var ids []int64
	for k := range l.places {
		ids = append(ids, k.workload)
	}
	l.firstOf, l.later = map[int64]int64{}, map[int64][]int64{}
	for some := range slices.Chunk(ids, lookupSize) {
		err := db.Each(l.v.Ctx, l.v.SQL, func(scan func(...any) error) error {
			var id, first int64
			err := scan(&id, &first)
			l.firstOf[id], l.later[first] = first, append(l.later[first], id)
			return err
		}, "SELECT id, version_of FROM workload WHERE version_of <> 0 AND version_of IN ("+schema.JoinInts(some)+")")
		if err != nil {
			return err
		}
	}
	return nil
}

// energyResources are the resources of energy.
var energyResources = append(slices.Clone(usage.Energies[:]), usage.EnergyError, usage.EnergyIdle)

// addUsage adds the energy of a range.
func (l *vmList) addUsage(p schema.Range, nested *nesting) error {
	at := map[int64][]int{}
	var ids []int64
	for k, places := range l.places {
		if at[k.workload] == nil {
			for _, w := range append([]int64{k.workload}, l.later[k.workload]...) {
				ids = nested.rowKeys(ids, w, k.host)
			}
		}
		at[k.workload] = append(at[k.workload], places...)
	}
	slices.Sort(ids)
	var columns []string
	for _, r := range energyResources {
		columns = append(columns, "u."+r.String())
	}
	var w, present, covered int64
	var rough usage.Uncertainty
	amounts := make([]int64, len(energyResources))
	into := []any{&w, &present, &rough[0], &rough[1], &covered}
	for i := range amounts {
		into = append(into, &amounts[i])
	}
	for chunk := range slices.Chunk(ids, lookupSize) {
		err := eachInRange(l.v, p, arguments{nil, nil}, func(scan func(...any) error) error {
			if err := scan(into...); err != nil {
				return err
			}
			w, _ = schema.SplitKey(w)
			w = cmp.Or(l.firstOf[w], w)
			set := usage.Set(present) & usage.SetOf(energyResources...)
			l.uncertainty[w] = l.uncertainty[w].Or(rough.Only(set))
			for _, i := range at[w] {
				u := &l.found[i].Usage
				u.Present |= set
				u.Covered = u.Covered.Plus(nanos(covered))
				for j, r := range energyResources {
					u.Sum[r] = u.Sum[r].Plus(unit.Sum{}.Add(amounts[j]))
				}
			}
			return nil
		}, fmt.Sprintf("SELECT u.workload, u.present, u.rough, u.rough_high, u.covered_ms, %s FROM %s u WHERE u.minute >= $1 AND u.minute < $2 AND u.workload IN (%s)",
			strings.Join(columns, ", "), p.Table(schema.UsageLayout), schema.JoinInts(chunk)))
		if err != nil {
			return err
		}
	}
	return nil
}
