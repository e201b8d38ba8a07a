package cgroup

import (
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
)

// The final CPU time of a group is the largest amount that the walks, the event and the ends
// of its children show, and exact if the event and all its children tell all of it.
func TestSetFinalCPU(t *testing.T) {
	const v2 = bpf.HasCPU | bpf.HasOwnCPU
	for name, c := range map[string]struct {
		v1, known bool
		lost      uint64 // events that were lost before its birth and are not counted now
		walked    int64
		children  []bpf.Event // that end first, known from birth to end
		stranger  bool        // the last of them is not
		event     bpf.Event
		want      int64
		exact     bool
	}{
		"v1":                         {v1: true, walked: 100, event: bpf.Event{Has: bpf.HasCPU, CPU: 150}, want: 150, exact: true},
		"v1 with children":           {v1: true, walked: 100, children: []bpf.Event{{Has: bpf.HasCPU, CPU: 70}}, event: bpf.Event{Has: bpf.HasCPU, CPU: 190}, want: 190, exact: true},
		"v1 without CPU":             {v1: true, walked: 100, event: bpf.Event{Has: bpf.HasPIDs}, want: 100},
		"v2":                         {known: true, walked: 100, event: bpf.Event{Has: v2, CPU: 100, OwnCPU: 130}, want: 130, exact: true},
		"v2 with children":           {known: true, walked: 100, children: []bpf.Event{{Has: v2, OwnCPU: 40}, {Has: v2, OwnCPU: 30}}, event: bpf.Event{Has: v2, CPU: 110, OwnCPU: 100}, want: 170, exact: true},
		"v2, older":                  {walked: 100, event: bpf.Event{Has: v2, CPU: 120, OwnCPU: 60}, want: 120},
		"v2, older, its own":         {walked: 100, event: bpf.Event{Has: v2, CPU: 100, OwnCPU: 130}, want: 130},
		"v2, older, ended children":  {walked: 100, children: []bpf.Event{{Has: v2, OwnCPU: 20}, {Has: v2, OwnCPU: 10}}, event: bpf.Event{Has: v2, CPU: 100, OwnCPU: 50}, want: 130},
		"v2, a child not known":      {known: true, children: []bpf.Event{{Has: v2, OwnCPU: 20}}, stranger: true, event: bpf.Event{Has: v2, OwnCPU: 50}, want: 70},
		"v2, events lost":            {known: true, lost: 1, walked: 100, event: bpf.Event{Has: v2, CPU: 100, OwnCPU: 130}, want: 130},
		"v2 without its own":         {known: true, walked: 100, event: bpf.Event{Has: bpf.HasCPU, CPU: 120}, want: 120},
		"v2, a child without an end": {known: true, children: []bpf.Event{{}}, event: bpf.Event{Has: v2, OwnCPU: 50}, want: 50},
	} {
		t.Run(name, func(t *testing.T) {
			r := &kernel{k: &bpf.Kernel{}}
			tr := &tree{Hierarchy: hostfs.Hierarchy{V2: !c.v1}}
			n := &node{parent: &node{knowsChildren: true}, walked: c.walked, knowsChildren: c.known, lostBefore: c.lost}
			n.owner = n
			for i, e := range c.children {
				child := &node{parent: n, knowsChildren: !c.stranger || i+1 < len(c.children)}
				r.setFinalCPU(tr, child, &e)
			}
			exact := r.setFinalCPU(tr, n, &c.event)
			if n.walked != c.want || n.group.Value[usage.CPU] != c.want || exact != c.exact {
				t.Errorf("%d ns, exact %t; want %d, %t", n.walked, exact, c.want, c.exact)
			}
			if up := n.parent; up.childrenCPU != c.want || up.endedCPU != c.want-c.walked || up.knowsChildren != c.exact {
				t.Errorf("the group above: %d ns, %d since the walk, known %t", up.childrenCPU, up.endedCPU, up.knowsChildren)
			}
		})
	}
}

// A level is absent while its controller is disabled for a group, and read again afterwards.
func TestApplyRow(t *testing.T) {
	tr := &tree{Hierarchy: hostfs.Hierarchy{V2: true}}
	table := &Table{}
	for role := range table.byRole {
		table.byRole[role] = tr
	}
	n := &node{}
	n.owner = n
	r := &kernel{}
	const all = bpf.HasCPU | bpf.HasMemory | bpf.HasPIDs
	for i, has := range []bpf.Has{all, bpf.HasCPU, bpf.HasCPU | bpf.HasMemory, bpf.HasCPU | bpf.HasPIDs, all} {
		v := int64(i + 1)
		r.applyRow(table, tr, n, &bpf.Row{CPU: uint64(v), Memory: uint64(10 * v), PIDs: uint32(20 * v), Has: has})
		for r, want := range map[usage.Resource]struct {
			bit   bpf.Has
			value int64
		}{usage.CPU: {bpf.HasCPU, v}, usage.Memory: {bpf.HasMemory, 10 * v}, usage.PIDs: {bpf.HasPIDs, 20 * v}} {
			shown := n.group.Has.Has(r)
			if shown != (has&want.bit != 0) || shown && n.group.Value[r] != want.value {
				t.Errorf("row %d: %v: %t, %d; the row has %b", i, r, shown, n.group.Value[r], has)
			}
		}
	}
}
