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

// A MeterState is what the ledger stores of an external meter.
type MeterState struct {
	Next    int64 // the first unsettled minute since 1970
	Samples []external.Sample
}

// ExternalMeters registers meters and returns the stored state of each by name. A meter that is new
// or has changed its kind starts with the next whole minute; a known one continues with its
// unsettled minutes, except those older than an agent's windows can be.
func (b *Booker) ExternalMeters(ctx context.Context, meters []external.Meter, now time.Time) (map[string]*MeterState, error) {
	kept := map[string]*MeterState{}
	err := b.db.Write(ctx, func(t *db.Tx) error {
		for i := range meters {
			m := &meters[i]
			k, err := registerMeter(t, m, now)
			if err != nil {
				return fmt.Errorf("meter %q: %w", m.Name, err)
			}
			kept[m.Name] = k
		}
		return nil
	})
	return kept, db.Wrap(err, "meters outside the machines")
}

func registerMeter(t *db.Tx, m *external.Meter, now time.Time) (*MeterState, error) {
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

// PutMeterSamples stores samples by meter name. Of two samples at the same instant the first stays.
func (b *Booker) PutMeterSamples(ctx context.Context, samples map[string][]external.Sample) error {
	return db.Wrap(b.db.Write(ctx, func(t *db.Tx) error {
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

// MeterNode finds the node that a meter's configuration names by id, by name, or as CLUSTER/NAME.
// Unknown is fault.ErrNotFound, ambiguous is fault.ErrConflict, and a node of a downstream server
// is fault.ErrUnsupported: only that server can adjust its rows.
func (b *Booker) MeterNode(ctx context.Context, name string) (id string, err error) {
	var ids []string
	var below int64
	err = b.db.View(ctx, func(v *db.View) error {
		return b.db.Fault(db.Each(ctx, v.SQL, func(scan func(...any) error) error {
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
		err = fault.WithHint(fmt.Errorf("%d nodes have this name: %w", len(ids), fault.ErrConflict), "use its id (see mete nodes) or CLUSTER/NAME")
	case below != 0:
		err = fault.WithHint(fmt.Errorf("its rows come from another server: %w", fault.ErrUnsupported), "configure the meter on that server")
	default:
		return ids[0], nil
	}
	return "", db.Wrap(err, "node %q", name)
}

// activeFor is how long a stream counts as active after its last batch.
const activeFor = 10 * time.Minute

// MeterNodes returns how far the rows of nodes have come for a minute.
func (b *Booker) MeterNodes(ctx context.Context, ids []string, minute int64, now time.Time) (out []external.Node, err error) {
	err = b.db.View(ctx, func(v *db.View) error {
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
				return fmt.Errorf("%q: %w", id, b.db.NotFound(err))
			}
			n.BookedUntil, n.Covered = schema.FromNanos(through), time.Duration(ms)*time.Millisecond
			out = append(out, n)
		}
		return nil
	})
	return out, db.Wrap(err, "nodes of meters")
}

// eachDomain calls f for each energy domain.
func eachDomain(f func(d power.Domain)) {
	for d := power.Package; d < power.DomainLimit; d++ {
		f(d)
	}
}
