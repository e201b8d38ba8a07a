package wire_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// drawAgentWindows draws windows as an agent closes them: rows that ended stand first,
// system and idle last, and a workload that restarted in a window has two rows.
func drawAgentWindows(t *rapid.T) (ws []usage.Window) {
	type group struct {
		key   string
		life  uint64
		total [usage.Limit]int64
	}
	resources := []usage.Resource{usage.CPU, usage.Memory, usage.MemoryPeak}
	var groups []*group
	life, at := uint64(0), int64(100)
	for range rapid.IntRange(2, 5).Draw(t, "windows") {
		w := usage.Window{Boot: "b", Start: at, Offset: rapid.Int64Range(0, 3).Draw(t, "offset") * 1e9, CPUs: 2}
		at += rapid.Int64Range(1, 100).Draw(t, "length")
		w.End = at
		for range rapid.IntRange(0, 3).Draw(t, "births") {
			life++
			groups = append(groups, &group{key: fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "key")), life: life})
		}
		row := func(kind workload.Kind, g *group, ended bool) usage.Row {
			r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID("n", kind, g.key), Kind: kind, Key: g.key}, Life: workload.Life{ID: g.life}})
			r.Ended, r.Has = ended, usage.SetOf(usage.CPU, usage.Memory)
			for _, res := range resources {
				if rapid.IntRange(0, 3).Draw(t, "present") > 0 {
					v := rapid.Int64Range(0, 2).Draw(t, "amount")
					r.Usage.Put(res, v, usage.Quality(rapid.IntRange(1, 3).Draw(t, "quality")))
					g.total[res] += v
				}
			}
			r.Usage.Covered = time.Duration(rapid.Int64Range(0, w.End-w.Start).Draw(t, "covered"))
			r.Total = g.total
			r.Total[usage.MemoryPeak] = 0
			return r
		}
		var ended, here []usage.Row
		groups = slices.DeleteFunc(groups, func(g *group) bool {
			ends := rapid.IntRange(0, 2).Draw(t, "ends") == 0
			if r := row(workload.Service, g, ends); ends {
				ended = append(ended, r)
			} else {
				here = append(here, r)
			}
			return ends
		})
		w.Rows = append(ended, here...)
		w.Rows = append(w.Rows, row(workload.System, &group{}, false), row(workload.Idle, &group{}, false))
		ws = append(ws, w)
	}
	return ws
}

// sentMerged is what an agent sends of windows that could not be kept one by one.
func sentMerged(ws []usage.Window) *batch.Batch {
	sum := ws[0].Clone()
	for i := range ws[1:] {
		sum.Merge(&ws[1+i])
	}
	return &batch.Batch{Number: 1, Windows: []usage.Window{wire.Prepare(sum)}}
}

// keptMerged is what a spool keeps of windows that were kept one by one: of each
// second one only some rows have totals.
func keptMerged(fatal interface{ Fatal(...any) }, ws []usage.Window) *batch.Batch {
	b := &batch.Batch{Number: 1}
	for i := range ws {
		sent := wire.Prepare(ws[i].Clone())
		for j := range sent.Rows {
			if r := &sent.Rows[j]; i%2 == 1 && (j+i)%3 > 0 {
				r.Has = 0
			}
		}
		got := decode(fatal, encode(fatal, &batch.Batch{Windows: []usage.Window{sent}}))
		if i == 0 {
			b.Windows = got.Windows
			continue
		}
		b.Windows[0].Merge(&got.Windows[0])
		b.Windows[0].SortRows()
	}
	return b
}
