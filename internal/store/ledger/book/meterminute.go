package book

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/x/failpoint"
)

// SettleOuter books what meters outside the machines showed in a minute, and moves
// each of them on to the next, all in one transaction: see [external.Adjust] for what
// becomes of the rows. Where one of the meters failed, nothing is booked but a gap.
// It is false, and nothing has changed, where one of the meters is not at this minute
// any more. A node whose minute was made what its meters showed before keeps that.
func (k *Booker) SettleOuter(ctx context.Context, bill *external.GroupMinute) (out []external.Adjustment, done bool, err error) {
	err = k.db.Write(ctx, func(t *db.Tx) (err error) {
		out, done = nil, false
		if done, err = k.advance(t, bill); err != nil || !done {
			return err
		}
		if len(bill.Failures) > 0 {
			return bookFailed(t, bill)
		}
		out, err = bookBill(t, bill)
		failpoint.At("ledger.settling")
		return err
	})
	return out, done && err == nil, db.Wrap(err, "minute %s of meters", schema.FormatMinute(bill.Minute))
}

// advance moves the meters of a bill on, and forgets the samples that nobody needs any
// more. It is false where one was moved on by another.
func (k *Booker) advance(t *db.Tx, bill *external.GroupMinute) (bool, error) {
	for _, name := range slices.Sorted(maps.Keys(bill.NeededFrom)) {
		next, err := t.Ints("SELECT next FROM outer_meter WHERE name = $1", schema.Clean(name))
		if err != nil || len(next) != 1 || next[0] != bill.Minute {
			return false, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bill.NeededFrom)) {
		if _, err := t.Exec("UPDATE outer_meter SET next = $2 WHERE name = $1", schema.Clean(name), bill.Minute+1); err != nil {
			return false, err
		}
		if _, err := t.Exec("DELETE FROM outer_sample WHERE meter = $1 AND at_ns < $2", schema.Clean(name), bill.NeededFrom[name]); err != nil {
			return false, err
		}
	}
	if bill.Minute%schema.HourMinutes != 0 {
		return true, nil
	}
	_, err := t.Exec("DELETE FROM outer_minute WHERE minute < $1", bill.Minute-int64(k.keep/time.Minute))
	return true, err
}

// bookFailed notes a gap of the nodes that meters of the bill feed.
func bookFailed(t *db.Tx, bill *external.GroupMinute) error {
	from, to := external.MinuteStart(bill.Minute), external.MinuteStart(bill.Minute+1)
	var why []string
	for _, name := range slices.Sorted(maps.Keys(bill.Failures)) {
		why = append(why, fmt.Sprintf("meter %s: %s", name, bill.Failures[name]))
	}
	detail := schema.Clean(strings.Join(why, "; "))
	for _, id := range bill.Nodes() {
		n, err := outerNode(t, id)
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		g := usage.Gap{From: schema.FromNanos(from), To: schema.FromNanos(to), Reason: usage.MeterFailed, Detail: detail}
		if err := AddGap(t, n, g, to); err != nil {
			return err
		}
	}
	return nil
}

// extendGap makes a gap of a meter longer that goes on, here or at a server above. It is
// false where there is none to go on.
func extendGap(t *db.Tx, node int64, g usage.Gap) (bool, error) {
	if g.Reason != usage.MeterFailed {
		return false, nil
	}
	n, err := t.Exec("UPDATE gap SET to_ns = $3, rev = $6 WHERE node = $1 AND from_ns <= $2 AND to_ns >= $2 AND to_ns < $3 AND reason = $4 AND detail = $5",
		node, schema.Nanos(g.From), schema.Nanos(g.To), g.Reason.String(), schema.Clean(g.Detail), t.Rev)
	return n > 0, err
}

// outerNode is the surrogate id of a node that sends here; 0 where there is none.
func outerNode(t *db.Tx, id string) (n int64, err error) {
	err = t.QueryRow("SELECT id FROM node WHERE node_id = $1 AND source = 0", schema.Clean(id)).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}

// A meterMinute is a minute that is made what meters showed.
type meterMinute struct {
	*db.Tx
	minute       int64
	rows         map[string][]external.Row // of the nodes, by id
	usage, whole *Change
	values       map[int64][]int64 // of the rows, as they are, by workload
}

func bookBill(t *db.Tx, bill *external.GroupMinute) (out []external.Adjustment, err error) {
	s := &meterMinute{Tx: t, minute: bill.Minute, rows: map[string][]external.Row{}, usage: NewChange(schema.UsageLayout), whole: NewChange(schema.NodeLayout), values: map[int64][]int64{}}
	if bill.Minute < t.MinuteFloor {
		return nil, nil // its minutes are gone
	}
	if err := t.EnsureMinutes(bill.Minute - bill.Minute%schema.DayMinutes); err != nil {
		return nil, err
	}
	nodes := map[string]int64{}
	for _, id := range bill.Nodes() {
		n, err := outerNode(t, id)
		if err != nil || n == 0 {
			return nil, err
		}
		if nodes[id] = n; err != nil {
			return nil, err
		}
		if s.rows[id], err = s.readRows(n); err != nil {
			return nil, err
		}
	}
	parts := bill.Divide(s.rows)
	for _, id := range bill.Nodes() {
		o, fresh, err := s.adjustNode(nodes[id], id, parts[id], bill)
		if err != nil {
			return nil, err
		}
		if fresh {
			out = append(out, o)
		}
	}
	for _, c := range []*Change{s.usage, s.whole} {
		if _, err := c.Apply(t, 0); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readRows finds the rows of a node's minute.
func (s *meterMinute) readRows(node int64) (rows []external.Row, err error) {
	var id int64
	var kind string
	values := make([]int64, len(schema.UsageLayout.Columns))
	dest := []any{&id, &kind}
	for i := range values {
		dest = append(dest, &values[i])
	}
	var cols []string
	for _, c := range schema.UsageLayout.Columns {
		cols = append(cols, "u."+c.Name)
	}
	err = db.Each(s.Ctx, s.SQL, func(scan func(...any) error) error {
		if err := scan(dest...); err != nil {
			return err
		}
		r := external.Row{Key: id, Usage: schema.DecodeUsage(values, schema.ColRest)}
		// A row that has no name yet is a workload of some kind.
		_ = r.Kind.UnmarshalText([]byte(kind))
		rows = append(rows, r)
		s.values[id] = slices.Clone(values)
		return nil
	}, fmt.Sprintf("SELECT u.workload, w.kind, %s FROM %s u JOIN workload w ON w.id = u.workload WHERE u.minute = $1 AND w.node = $2 ORDER BY u.workload",
		strings.Join(cols, ", "), schema.UsageMinuteTable(s.minute-s.minute%schema.DayMinutes)), s.minute, node)
	return rows, s.DB.Fault(err)
}

// adjustNode adjusts the rows of one node. It is false where that was done before.
func (s *meterMinute) adjustNode(n int64, id string, part external.NodeEnergy, bill *external.GroupMinute) (o external.Adjustment, fresh bool, err error) {
	covered, whole, err := s.readTotals(n)
	if err != nil {
		return o, false, err
	}
	before := map[int64]usage.Usage{}
	for _, r := range s.rows[id] {
		before[r.Key] = r.Usage
	}
	rows, o := external.Adjust(s.rows[id], covered, part.Energy, part.Error)
	o.Minute, o.Node = bill.Minute, id
	var names []string
	for _, c := range bill.Meters {
		if slices.Contains(c.Nodes, id) {
			names = append(names, c.Meter)
		}
	}
	added, err := s.Exec("INSERT INTO outer_minute (node, minute, meters, meter, inside, measured) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
		n, s.minute, schema.Clean(strings.Join(names, ", ")), o.Meter, o.Inside, o.Measured)
	if err != nil || added == 0 {
		return o, false, err
	}
	for i := range rows {
		r := &rows[i]
		if r.Key == 0 {
			if r.Usage.Amount[usage.EnergyRest] == 0 {
				continue
			}
			if r.Key, err = s.idleWorkload(n, id); err != nil {
				return o, false, err
			}
		} else if was := before[r.Key]; was == r.Usage {
			continue
		}
		values := schema.EncodeUsage(&r.Usage, s.Rev)
		if was, ok := s.values[r.Key]; ok {
			values[schema.ColCovered] = was[schema.ColCovered]
			values[schema.ColUncertainty] |= was[schema.ColUncertainty] & (schema.HoldsHour | schema.HoldsDay)
		}
		if !schema.FitsMinute(&r.Usage) {
			return o, false, fmt.Errorf("node %q: %w", id, schema.ErrRange)
		}
		s.usage.Set(replica.Minute, schema.RowKey{Minute: s.minute, ID: r.Key}, values)
	}
	s.changeTotals(n, whole, &o)
	return o, true, nil
}

// idleWorkload is the workload idle of a node that has no row of it in this minute.
func (s *meterMinute) idleWorkload(node int64, id string) (int64, error) {
	name := batch.Name{ID: workload.NewID(id, workload.Idle, ""), Kind: workload.Idle, Name: "idle"}
	b := &booking{Tx: s.Tx}
	if err := b.bookName(&name, node, 0); err != nil {
		return 0, err
	}
	short, _ := workload.ShortIDOf(name.ID)
	w, err := s.Workload(node, short)
	return w.ID, err
}

// readTotals is for how much of the minute there are rows, and the row of what the node
// had, which is made where there is none.
func (s *meterMinute) readTotals(node int64) (time.Duration, []int64, error) {
	var found []int64
	err := s.whole.each(s.Tx, schema.Minutes, s.minute, s.minute+1, []int64{node}, func(_ schema.RowKey, values []int64) { found = slices.Clone(values) })
	if err != nil {
		return 0, nil, err
	}
	if found == nil {
		found = make([]int64, len(schema.NodeLayout.Columns))
		if err := s.QueryRow("SELECT cpus FROM node WHERE id = $1", node).Scan(&found[schema.ColRest]); err != nil {
			return 0, nil, err
		}
	}
	return time.Duration(found[schema.ColCovered]) * time.Millisecond, found, nil
}

// changeTotals changes what the node had by what its rows changed. Where it would have had less
// than nothing that stands in the skew, as what windows left there when they were cut.
func (s *meterMinute) changeTotals(node int64, values []int64, o *external.Adjustment) {
	const first = schema.ColRest + 3 // the place in a row of a node
	eachDomain(func(d power.Domain) {
		i := slices.Index(usage.Wholes[:], usage.EnergyOf(d))
		whole, skew := &values[first+i], &values[first+len(usage.Wholes)+i]
		if *whole += o.Changed[d]; *whole < 0 {
			*skew, *whole = *skew+*whole, 0
		}
	})
	values[schema.ColRev] = s.Rev
	s.whole.Set(replica.Minute, schema.RowKey{Minute: s.minute, ID: node}, values)
}

// MeterRatio is what the meters of a node showed and what its own rows had, since a
// time.
type MeterRatio struct {
	Node, Name, Cluster string
	Meters              string   // their names
	Meter               unit.Sum // uJ
	Inside, Measured    unit.Sum // uJ
	Minutes             int64
}

// OuterRatios compares meters with what was seen inside machines, from a minute on.
func (k *Booker) OuterRatios(ctx context.Context, from time.Time) (out []MeterRatio, err error) {
	err = k.db.View(ctx, func(v *db.View) error {
		return k.db.Fault(db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var r MeterRatio
			var p [6]int64
			err := scan(&r.Node, &r.Name, &r.Cluster, &r.Meters, &r.Minutes, &p[0], &p[1], &p[2], &p[3], &p[4], &p[5])
			for i, to := range []*unit.Sum{&r.Meter, &r.Inside, &r.Measured} {
				*to = unit.SumOf(uint64(p[2*i])>>32, uint64(p[2*i])<<32).Add(p[2*i+1])
			}
			out = append(out, r)
			return err
		}, k.db.Expand(`SELECT n.node_id, n.name, n.cluster, max(o.meters), count(*),
			CAST(sum(o.meter >> 32) AS {int}), CAST(sum(o.meter & 4294967295) AS {int}), CAST(sum(o.inside >> 32) AS {int}), CAST(sum(o.inside & 4294967295) AS {int}),
			CAST(sum(o.measured >> 32) AS {int}), CAST(sum(o.measured & 4294967295) AS {int})
			FROM outer_minute o JOIN node n ON n.id = o.node WHERE o.minute >= $1 GROUP BY n.node_id, n.name, n.cluster ORDER BY n.cluster, n.name, n.node_id`), from.Unix()/60))
	})
	return out, db.Wrap(err, "meters and nodes")
}
