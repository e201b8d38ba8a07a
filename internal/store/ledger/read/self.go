package read

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Self returns what one workload of a node used in its life. A workload without rows has used
// nothing, which is not an error; an unknown node is fault.ErrNotFound. The cost does not depend on
// other workloads: each row is a lookup by key.
func (rd *Reader) Self(ctx context.Context, node string, id workload.ID) (*query.Self, error) {
	short, ok := workload.ShortIDOf(id)
	if !ok {
		return nil, fmt.Errorf("workload %.40q: %w", id, fault.ErrInvalid)
	}
	out := &query.Self{Node: node, Name: batch.Name{ID: id}}
	err := rd.db.View(ctx, func(v *db.View) error {
		var n, through int64
		err := v.SQL.QueryRowContext(ctx, "SELECT id, name, cluster, through_ns FROM node WHERE node_id = $1", schema.Clean(node)).
			Scan(&n, &out.NodeName, &out.Cluster, &through)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("node %q: %w", node, fault.ErrNotFound)
		}
		if err != nil {
			return rd.db.Fault(err)
		}
		out.Through = schema.FromNanos(through)
		var versions []int64
		from := v.Hour
		err = db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var w, first, last int64
			var r schema.NameRow
			if err := scan(append([]any{&w, &first, &last}, r.Targets()...)...); err != nil {
				return err
			}
			out.Name, versions = r.Name(), append(versions, w)
			// Folded rows begin at the version's first minute; all others follow the mark.
			if last != 0 {
				from = min(from, first)
			}
			return nil
		}, "SELECT w.id, w.first_minute, w.last_minute, "+schema.NameColumns+" FROM workload w WHERE w.node = $1 AND w.short = $2 AND w.wid = $3 ORDER BY w.from_minute", n, int64(short), string(id))
		if err != nil || len(versions) == 0 {
			return rd.db.Fault(err)
		}
		var lives []life
		for _, w := range versions {
			lives = append(lives, life{node: n, workload: w, MinuteSpan: schema.MinuteSpan{First: from, Last: floorMinute(time.Now()) + aheadMinutes}})
		}
		g, err := rd.sumLives(v, lives, func(*life, *lifeRow) {})
		if err != nil || g.Usage.Present == 0 && g.Usage.Covered == (unit.Sum{}) {
			return err
		}
		out.Usage, out.First, out.Last = g.Usage, g.First, g.Last
		return rd.db.Fault(v.SQL.QueryRowContext(ctx, "SELECT count(*) FROM gap g WHERE g.node = $1 AND g.from_ns < $2 AND g.to_ns > $3", n, schema.ClampNanos(out.Last), schema.ClampNanos(out.First)).
			Scan(&out.Gaps))
	})
	if err != nil {
		return nil, db.Wrap(err, "usage")
	}
	return out, nil
}

// sumLives sums the rows of lives, and calls f with each.
func (rd *Reader) sumLives(v *db.View, lives []life, f func(*life, *lifeRow)) (*query.Group, error) {
	var n nesting
	if err := n.findLives(v, lives); err != nil {
		return nil, rd.db.Fault(err)
	}
	gs := newGroups(usage.All)
	g := gs.get(nil)
	err := rd.eachLifeRow(v, &n, lives, gs.want, func(l *life, row *lifeRow) {
		row.addTo(gs, g)
		f(l, row)
	})
	if err != nil {
		return nil, rd.db.Fault(err)
	}
	out := gs.toGroup(g)
	return &out, nil
}

// aheadMinutes exceeds how far in the future rows are booked.
const aheadMinutes = 3
