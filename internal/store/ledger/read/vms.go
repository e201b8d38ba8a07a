package read

import (
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

// VMs lists the virtual machines that hosts in the scope gave energy in a range, by
// host and name: what they used of it, and how the shares compare that host and guest
// told of. These are of whole days.
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
		for _, p := range v.Cover(a, b, v.Days) {
			if err := list.addUsage(p); err != nil {
				return err
			}
		}
		for key, places := range list.places {
			for _, i := range places {
				u := &list.found[i].Usage
				u.Quality = usage.QualitiesOfUncertainty(u.Present, list.uncertainty[key.workload])
			}
		}
		out = list.found
		return nil
	})
	return out, db.Wrap(rd.db.Fault(err), "virtual machines")
}

// vmList is a list on its way.
type vmList struct {
	v           *db.View
	found       []query.VM
	nodes       []string        // ids of the guests' own nodes, as found has them where they can be seen
	places      map[vmKey][]int // in found
	uncertainty map[int64]int64 // by workload
}

// A vmKey finds a virtual machine of a host.
type vmKey struct {
	guest          string
	host, workload int64
}

// findGiven finds those that hosts told of.
func (list *vmList) findGiven(from, to time.Time, s query.Scope) error {
	list.uncertainty = map[int64]int64{}
	args := arguments{schema.ClampNanos(from), schema.ClampNanos(to)}
	where := clusterCondition(&args, s)
	return db.Each(list.v.Ctx, list.v.SQL, func(scan func(...any) error) error {
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
		list.places[k] = append(list.places[k], len(list.found))
		list.found, list.nodes = append(list.found, vm), append(list.nodes, "")
		return nil
	}, `SELECT x.guest, x.host, x.workload, x.name, n.node_id, n.name, w.wid, w.name
		FROM (SELECT guest, host, workload, max(name) AS name FROM share_series WHERE last_ns > $1 AND first_ns < $2 GROUP BY guest, host, workload) AS x
		JOIN node n ON n.id = x.host JOIN workload w ON w.id = x.workload WHERE true`+where+` ORDER BY n.name, n.node_id, w.name, x.guest, x.workload`, args...)
}

// addComparisons adds what is known of the guests. Where several nodes say to be the same
// guest each has a line. A guest's own node has a name for those only who see it.
func (list *vmList) addComparisons(from, to time.Time, s query.Scope) error {
	first, end := schema.ClampNanos(from)/int64(time.Minute), (schema.ClampNanos(to)+int64(time.Minute)-1)/int64(time.Minute)
	return db.Each(list.v.Ctx, list.v.SQL, func(scan func(...any) error) error {
		var k vmKey
		var node, name, cluster string
		var compared, differing, largest, n, last int64
		if err := scan(&k.guest, &k.host, &k.workload, &node, &name, &cluster, &compared, &differing, &largest, &n, &last); err != nil {
			return err
		}
		vm := list.line(k, node)
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

// of is the line of a virtual machine and its guest, or nil.
func (list *vmList) line(k vmKey, node string) *query.VM {
	places := list.places[k]
	if len(places) == 0 {
		return nil
	}
	for _, i := range places {
		if list.nodes[i] == "" || list.nodes[i] == node {
			list.nodes[i] = node
			return &list.found[i]
		}
	}
	vm := list.found[places[0]]
	vm.Node, vm.NodeName, vm.Compared, vm.Differing, vm.Largest = "", "", 0, 0, 0
	list.places[k] = append(places, len(list.found))
	list.found, list.nodes = append(list.found, vm), append(list.nodes, node)
	return &list.found[len(list.found)-1]
}

// energyResources are those of energy: by domain, and what is of all of it.
var energyResources = append(slices.Clone(usage.Energies[:]), usage.EnergyError, usage.EnergyIdle)

// addUsage adds the energy of a range.
func (list *vmList) addUsage(p schema.Range) error {
	at := map[int64][]int{}
	var ids []int64
	for k, places := range list.places {
		if at[k.workload] == nil {
			ids = append(ids, k.workload)
		}
		at[k.workload] = append(at[k.workload], places...)
	}
	slices.Sort(ids)
	var columns []string
	for _, r := range energyResources {
		columns = append(columns, "u."+r.String())
	}
	var w, present, rough, covered int64
	amounts := make([]int64, len(energyResources))
	into := []any{&w, &present, &rough, &covered}
	for i := range amounts {
		into = append(into, &amounts[i])
	}
	for chunk := range slices.Chunk(ids, 500) {
		err := eachInRange(list.v, p, arguments{int64(0), int64(0)}, func(scan func(...any) error) error {
			if err := scan(into...); err != nil {
				return err
			}
			set := usage.Set(present) & usage.SetOf(energyResources...)
			set.Each(func(r usage.Resource) { list.uncertainty[w] |= rough & (3 << (2 * r)) })
			for _, i := range at[w] {
				u := &list.found[i].Usage
				u.Present |= set
				u.Covered += time.Duration(covered) * time.Millisecond
				for j, r := range energyResources {
					u.Sum[r] = u.Sum[r].Plus(unit.Sum{}.Add(amounts[j]))
				}
			}
			return nil
		}, fmt.Sprintf("SELECT u.workload, u.present, u.rough, u.covered_ms, %s FROM %s u WHERE u.minute >= $1 AND u.minute < $2 AND u.workload IN (%s)",
			strings.Join(columns, ", "), p.Table(schema.UsageLayout), schema.JoinInts(chunk)))
		if err != nil {
			return err
		}
	}
	return nil
}
