package book

import (
	"math"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// addInner stores what standalone jobs measured, as a part of what an agent of the machine measures. It
// books no time of the machine: any user can send jobs.
func (b *booking) addInner(e *batch.Entry, n *bookedNode) error {
	for _, m := range e.Measured {
		g, err := b.guest(n.id)
		if err != nil {
			return err
		}
		boot := schema.Clean(m.Boot)
		if err := g.addBoot(b.Tx, boot, m.From); err != nil {
			return err
		}
		extended, err := b.Exec("UPDATE inner_range SET to_ns = $4, offset_ns = $5, taken_ns = $6 WHERE node = $1 AND boot = $2 AND to_ns = $3",
			n.id, boot, m.From, m.To, m.Offset, b.now)
		if err == nil && extended == 0 {
			_, err = b.Exec(`INSERT INTO inner_range (node, boot, from_ns, to_ns, offset_ns, taken_ns) VALUES ($1, $2, $3, $4, $5, $6)
				ON CONFLICT (node, boot, from_ns) DO UPDATE SET to_ns = CASE WHEN inner_range.to_ns > excluded.to_ns THEN inner_range.to_ns ELSE excluded.to_ns END`,
				n.id, boot, m.From, m.To, m.Offset, b.now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findInner finds the nodes of standalone jobs that measured a part of what an entry of their machine's
// agent did.
func (b *booking) findInner(e *batch.Entry, n *bookedNode) error {
	for _, m := range e.Measured {
		if m.Scope != usage.Machine {
			continue
		}
		boot := schema.Clean(m.Boot)
		nodes, err := b.Ints(`SELECT DISTINCT i.node FROM inner_range i JOIN node j ON j.id = i.node JOIN node n ON n.cluster = j.cluster
			WHERE i.boot = $1 AND i.to_ns > $2 AND i.from_ns < $3 AND n.id = $4`, boot, m.From, m.To, n.id)
		for _, id := range nodes {
			var g *guest
			if err == nil {
				g, err = b.guest(id)
			}
			if err == nil {
				err = g.addBoot(b.Tx, boot, m.From)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addBoot extends what a transaction concerns of a node of jobs to the time of a kernel from an instant
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
	more, err := findInnerStays(t, g.node, boot, since, until)
	g.before = append(g.before, more...)
	return err
}

// findInnerStays returns the time in which jobs of a node measured what agents of their machine booked,
// of one kernel: of their ranges that end after since and not after until.
func findInnerStays(t *db.Tx, node int64, boot string, since, until int64) (list []stay, err error) {
	err = t.Each(func(scan func(...any) error) error {
		var s stay
		var from, to, offset int64
		err := scan(&s.host, &s.from, &s.to, &from, &to, &offset)
		s.from, s.to = max(s.from, from)+offset, min(s.to, to)+offset
		list = append(list, s)
		return err
	}, `SELECT b.node, b.from_ns, b.to_ns, i.from_ns, i.to_ns, i.offset_ns FROM node j
		JOIN kernel_run k ON k.cluster = j.cluster AND k.boot = $2 JOIN inner_range i ON i.node = j.id AND i.boot = k.boot
		JOIN booked b ON b.run = k.id AND b.scope = '/' AND b.from_ns < i.to_ns AND b.to_ns > i.from_ns
		WHERE j.id = $1 AND i.to_ns > $3 AND i.to_ns <= $4 ORDER BY b.run, b.from_ns, i.from_ns`, node, boot, since, until)
	return list, err
}
