package book

import (
	"context"
	"fmt"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// MeterState is what the ledger keeps of a meter outside the machines.
type MeterState struct {
	Next    int64 // the first minute that is not settled, since 1970
	Samples []external.Sample
}

// OuterMeters makes meters known, by name, and returns what is kept of each. One that
// is new, or of another kind than before, begins with the first whole minute from
// now on; of one that was known minutes are settled that were not yet, but not those
// that are older than an agent's windows can be.
func (k *Booker) OuterMeters(ctx context.Context, meters []external.Meter, now time.Time) (map[string]*MeterState, error) {
	kept := map[string]*MeterState{}
	err := k.db.Write(ctx, func(t *db.Tx) error {
		for i := range meters {
			m := &meters[i]
			k, err := outerMeter(t, m, now)
			if err != nil {
				return fmt.Errorf("meter %q: %w", m.Name, err)
			}
			kept[m.Name] = k
		}
		return nil
	})
	return kept, db.Wrap(err, "meters outside the machines")
}

func outerMeter(t *db.Tx, m *external.Meter, now time.Time) (*MeterState, error) {
	name, begin := schema.Clean(m.Name), now.Unix()/60+1
	known, err := t.Ints("SELECT next FROM outer_meter WHERE name = $1 AND kind = $2", name, m.Kind.String())
	if err != nil {
		return nil, err
	}
	if len(known) == 0 {
		if _, err := t.Exec("DELETE FROM outer_sample WHERE meter = $1", name); err != nil {
			return nil, err
		}
	} else {
		begin = max(known[0], begin-int64(m.Wait/time.Minute))
	}
	_, err = t.Exec("INSERT INTO outer_meter (name, kind, next) VALUES ($1, $2, $3) ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, next = excluded.next",
		name, m.Kind.String(), begin)
	if err != nil {
		return nil, err
	}
	k := &MeterState{Next: begin}
	err = db.Each(t.Ctx, t.SQL, func(scan func(...any) error) error {
		var s external.Sample
		err := scan(&s.At, &s.Value)
		k.Samples = append(k.Samples, s)
		return err
	}, "SELECT at_ns, value FROM outer_sample WHERE meter = $1 ORDER BY at_ns", name)
	return k, t.DB.Fault(err)
}

// PutOuterSamples keeps what meters showed, by name. Of two samples of one instant the
// first stays.
func (k *Booker) PutOuterSamples(ctx context.Context, samples map[string][]external.Sample) error {
	return db.Wrap(k.db.Write(ctx, func(t *db.Tx) error {
		for name, list := range samples {
			for _, s := range list {
				_, err := t.Exec("INSERT INTO outer_sample (meter, at_ns, value) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", schema.Clean(name), s.At, s.Value)
				if err != nil {
					return fmt.Errorf("meter %q: %w", name, err)
				}
			}
		}
		return nil
	}), "samples of meters")
}

// OuterNode finds the node that a meter's list of nodes names: by its id, its name, or
// as CLUSTER/NAME. One that is not there is fault.ErrNotFound, a name of several is
// fault.ErrConflict, and one whose rows come from a server below is
// fault.ErrUnsupported: there they can be changed, and not here.
func (k *Booker) OuterNode(ctx context.Context, name string) (id string, err error) {
	var ids []string
	var below int64
	err = k.db.View(ctx, func(v *db.View) error {
		return k.db.Fault(db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var id string
			var source int64
			err := scan(&id, &source)
			ids, below = append(ids, id), max(below, source)
			return err
		}, "SELECT node_id, source FROM node WHERE revoked_ns = 0 AND (node_id = $1 OR name = $1 OR cluster || '/' || name = $1)", schema.Clean(name)))
	})
	switch {
	case err != nil:
		return "", db.Wrap(err, "node %q", name)
	case len(ids) == 0:
		err = fault.ErrNotFound
	case len(ids) > 1:
		err = fault.WithHint(fmt.Errorf("%d nodes are called so: %w", len(ids), fault.ErrConflict), "name it by its id, which mete nodes shows, or as CLUSTER/NAME")
	case below != 0:
		err = fault.WithHint(fmt.Errorf("its rows come from another server: %w", fault.ErrUnsupported), "give the meter to that server")
	default:
		return ids[0], nil
	}
	return "", db.Wrap(err, "node %q", name)
}

// activeFor is for how long a stream counts in which nothing comes.
const activeFor = 10 * time.Minute

// OuterNodes tells how far the rows of nodes, by id, have come for a minute.
func (k *Booker) OuterNodes(ctx context.Context, ids []string, minute int64, now time.Time) (out []external.Node, err error) {
	err = k.db.View(ctx, func(v *db.View) error {
		day := minute - minute%schema.DayMinutes
		covered := "0"
		for _, d := range v.Days {
			if d == day {
				covered = "coalesce((SELECT m.covered_ms FROM " + schema.NodeMinuteTable(day) + " m WHERE m.minute = $2 AND m.node = n.id), 0)"
			}
		}
		for _, id := range ids {
			n := external.Node{ID: id}
			var through, ms int64
			err := v.SQL.QueryRowContext(ctx, `SELECT n.through_ns, (SELECT count(*) FROM stream s WHERE s.node = n.id AND s.seen_ns > $3), CAST(`+covered+` AS bigint)
				FROM node n WHERE n.node_id = $1 AND $2 >= 0`, schema.Clean(id), minute, now.Add(-activeFor).UnixNano()).Scan(&through, &n.Streams, &ms)
			if err != nil {
				return fmt.Errorf("%q: %w", id, k.db.NotFound(err))
			}
			n.BookedUntil, n.Covered = schema.FromNanos(through), time.Duration(ms)*time.Millisecond
			out = append(out, n)
		}
		return nil
	})
	return out, db.Wrap(err, "nodes of meters")
}

// eachDomain are the domains of energy.
func eachDomain(f func(d power.Domain)) {
	for d := power.Package; d < power.DomainLimit; d++ {
		f(d)
	}
}
