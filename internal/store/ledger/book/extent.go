package book

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// maxOffsetChange is by how much what is added to boottimes may change within a range, ns.
const maxOffsetChange = int64(time.Second)

// addExtents stores what standalone jobs measured, or an agent in a control group: their rows may be within
// those of a node that measures a wider part. Jobs book no time of the machine: any user can send jobs. runs are the
// kernel runs of what the entry measured, of an agent.
func (b *booking) addExtents(e *batch.Entry, n *bookedNode, runs []kernelRun) error {
	for i, m := range e.Measured {
		var of, run int64
		switch {
		case !n.jobs && m.Scope == usage.Machine:
			continue
		case !n.jobs:
			run = runs[i].id
		case m.Workload != 0:
			w, err := b.workload(n, m.Workload)
			if err != nil {
				return err
			}
			of = w.ID
		}
		boot, scope, ancestors := schema.Clean(m.Boot), schema.Clean(string(m.Scope)), schema.Clean(string(m.Ancestors))
		extended, err := b.Exec(`UPDATE extent_range SET to_ns = $8, taken_ns = $9 WHERE node = $1 AND boot = $2 AND workload = $3 AND scope = $4 AND ancestors = $5 AND run = $6
			AND to_ns = $7 AND abs(offset_ns - $10) <= $11`, n.id, boot, of, scope, ancestors, run, m.From, m.To, b.now, m.Offset, maxOffsetChange)
		if err == nil && extended == 0 {
			_, err = b.Exec(`INSERT INTO extent_range (node, boot, workload, scope, ancestors, run, from_ns, to_ns, offset_ns, taken_ns) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
				ON CONFLICT (node, boot, workload, from_ns) DO UPDATE SET to_ns = CASE WHEN extent_range.to_ns > excluded.to_ns THEN extent_range.to_ns ELSE excluded.to_ns END`,
				n.id, boot, of, scope, ancestors, run, m.From, m.To, m.Offset, b.now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findExtents finds the nodes of which rows may be within others, as an entry measured the same time: its own,
// and those that measured a part of what it did. It must precede what the entry changes.
func (b *booking) findExtents(e *batch.Entry, n *bookedNode) error {
	for _, m := range e.Measured {
		boot := schema.Clean(m.Boot)
		nodes := map[int64]bool{}
		if n.jobs || m.Scope != usage.Machine {
			nodes[n.id] = true
		}
		if !n.jobs {
			err := b.Each(func(scan func(...any) error) error {
				var id int64
				var inner usage.Extent
				err := scan(&id, &inner.Scope, &inner.Ancestors)
				if _, within := inner.LevelIn(m.Extent); within {
					nodes[id] = true
				}
				return err
			}, `SELECT DISTINCT i.node, i.scope, i.ancestors FROM extent_range i JOIN node j ON j.id = i.node JOIN node n ON n.cluster = j.cluster
				WHERE i.boot = $1 AND i.to_ns > $2 AND i.from_ns < $3 AND n.id = $4 AND n.id <> i.node`, boot, m.From, m.To, n.id)
			if err != nil {
				return err
			}
		}
		for id := range nodes {
			g, err := b.guest(id)
			if err == nil {
				err = g.addBoot(b.Tx, boot, m.From)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// addBoot extends what a transaction concerns of a node to the time of a kernel from an instant
// on. It must precede the changes of ranges in that time.
func (g *guest) addBoot(t *db.Tx, boot string, since int64) error {
	since -= int64(time.Hour) // other ranges in its first minute too
	until, ok := g.boots[boot]
	if ok && until <= since {
		return nil
	}
	if !ok {
		until = math.MaxInt64
	}
	g.boots[boot] = since
	more, err := findExtentStays(t, g.node, boot, since, until)
	g.before = append(g.before, more...)
	return err
}

// An extentRange is time in which a node measured a part of a kernel.
type extentRange struct {
	usage.Extent
	node, workload   int64 // workload is the job, 0 for all rows of the node
	run              int64
	from, to, offset int64
}

// findExtentStays returns the time in which others measured a wider part than a node did, of one kernel: of
// the node's ranges that end after since and not after until. These are agents that booked the machine, and
// agents in control groups that contain the part. Jobs move no rows of other jobs, since any user can
// send jobs.
func findExtentStays(t *db.Tx, node int64, boot string, since, until int64) (list []stay, err error) {
	var inner []extentRange
	wanted := map[usage.Scope]bool{}
	var first, last int64 = math.MaxInt64, 0
	err = t.Each(func(scan func(...any) error) error {
		var i extentRange
		err := scan(&i.Scope, &i.Ancestors, &i.workload, &i.run, &i.from, &i.to, &i.offset)
		inner = append(inner, i)
		first, last = min(first, i.from), max(last, i.to)
		for _, s := range i.Ancestors.Scopes() {
			wanted[s] = true
		}
		return err
	}, `SELECT scope, ancestors, workload, run, from_ns, to_ns, offset_ns FROM extent_range
		WHERE node = $1 AND boot = $2 AND to_ns > $3 AND to_ns <= $4 ORDER BY from_ns, workload`, node, boot, since, until)
	if err != nil || len(inner) == 0 {
		return nil, err
	}
	// Of each range of an outer node, those of the node's ranges that it contains.
	outer := func(scan func(...any) error) error {
		var o extentRange
		if err := scan(&o.Scope, &o.Ancestors, &o.node, &o.run, &o.from, &o.to); err != nil {
			return err
		}
		for _, i := range inner {
			if i.from >= o.to || i.to <= o.from || i.run != o.run && i.run != 0 && o.run != 0 || o.node == node {
				continue
			}
			level, within := i.LevelIn(o.Extent)
			if !within {
				continue
			}
			list = append(list, stay{host: o.node, of: i.workload, level: level, from: max(i.from, o.from) + i.offset, to: min(i.to, o.to) + i.offset})
		}
		return nil
	}
	err = t.Each(outer, `SELECT b.scope, '', b.node, b.run, b.from_ns, b.to_ns FROM node j JOIN kernel_run k ON k.cluster = j.cluster AND k.boot = $2
		JOIN booked b ON b.run = k.id AND b.scope = '/' AND b.to_ns > $3 AND b.from_ns < $4 WHERE j.id = $1 ORDER BY b.run, b.from_ns`, node, boot, first, last)
	if err != nil || len(wanted) == 0 {
		return list, err
	}
	scopes := make([]string, 0, len(wanted))
	for _, s := range slices.Sorted(maps.Keys(wanted)) {
		scopes = append(scopes, "'"+string(s)+"'")
	}
	// Not prepared: the text differs each time.
	err = db.Each(t.Ctx, t.SQL, outer, fmt.Sprintf(`SELECT o.scope, o.ancestors, o.node, o.run, o.from_ns, o.to_ns FROM extent_range o JOIN node h ON h.id = o.node
		JOIN node j ON j.cluster = h.cluster WHERE o.boot = $2 AND o.scope IN (%s) AND o.to_ns > $3 AND o.from_ns < $4 AND j.id = $1 AND o.run <> 0
		ORDER BY o.node, o.from_ns`, strings.Join(scopes, ", ")), node, boot, first, last)
	return list, t.DB.Fault(err)
}
