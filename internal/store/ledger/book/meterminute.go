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

// BookMeterMinute books what external meters showed in one minute and advances each meter to the
// next, in one transaction; [external.Adjust] defines how the rows change. If a meter failed, it
// books only a gap. It returns false and changes nothing if a meter is no longer at this minute. A
// node that was already adjusted for this minute is left as it is, until late rows of it come: the
// energy is then divided again.
func (b *Booker) BookMeterMinute(ctx context.Context, gm *external.GroupMinute) (out []external.Adjustment, done bool, err error) {
	err = b.db.Write(ctx, func(t *db.Tx) (err error) {
		out, done = nil, false
		if done, err = b.advance(t, gm); err != nil || !done {
			return err
		}
		if len(gm.Failures) > 0 {
			return bookFailed(t, gm)
		}
		out, err = bookMinute(t, gm, nil)
		failpoint.At("ledger.settling")
		return err
	})
	return out, done && err == nil, db.Wrap(err, "minute %s of meters", schema.FormatMinute(gm.Minute))
}

// advance moves the meters to the next minute and deletes samples that are no longer needed. It
// returns false if another process moved one of them.
func (b *Booker) advance(t *db.Tx, gm *external.GroupMinute) (bool, error) {
	for _, name := range slices.Sorted(maps.Keys(gm.NeededFrom)) {
		next, err := t.Ints("SELECT next FROM outer_meter WHERE name = $1", schema.Clean(name))
		if err != nil || len(next) != 1 || next[0] != gm.Minute {
			return false, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gm.NeededFrom)) {
		if _, err := t.Exec("UPDATE outer_meter SET next = $2 WHERE name = $1", schema.Clean(name), gm.Minute+1); err != nil {
			return false, err
		}
		if _, err := t.Exec("DELETE FROM outer_sample WHERE meter = $1 AND at_ns < $2", schema.Clean(name), gm.NeededFrom[name]); err != nil {
			return false, err
		}
	}
	if gm.Minute%schema.HourMinutes != 0 {
		return true, nil
	}
	for _, table := range []string{"outer_minute", "outer_energy"} {
		if _, err := t.Exec("DELETE FROM "+table+" WHERE minute < $1", gm.Minute-int64(b.keep/time.Minute)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// bookFailed books a gap for the nodes that the meters feed.
func bookFailed(t *db.Tx, gm *external.GroupMinute) error {
	from, to := external.MinuteStart(gm.Minute), external.MinuteStart(gm.Minute+1)
	var why []string
	for _, name := range slices.Sorted(maps.Keys(gm.Failures)) {
		why = append(why, fmt.Sprintf("meter %s: %s", name, gm.Failures[name]))
	}
	detail := schema.Clean(strings.Join(why, "; "))
	for _, id := range gm.Nodes() {
		n, err := localNode(t, id)
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

// extendGap extends a meter gap that continues, here or on an upstream server. It returns false if
// there is no gap to extend.
func extendGap(t *db.Tx, node int64, g usage.Gap) (bool, error) {
	if g.Reason != usage.MeterFailed {
		return false, nil
	}
	n, err := t.Exec("UPDATE gap SET to_ns = $3, rev = $6 WHERE node = $1 AND from_ns <= $2 AND to_ns >= $2 AND to_ns < $3 AND reason = $4 AND detail = $5",
		node, schema.Nanos(g.From), schema.Nanos(g.To), g.Reason.String(), schema.Clean(g.Detail), t.Rev)
	return n > 0, err
}

// outerNode returns the surrogate id of a node that sends to this server, or 0.
func localNode(t *db.Tx, id string) (n int64, err error) {
	err = t.QueryRow("SELECT id FROM node WHERE node_id = $1 AND source = 0", schema.Clean(id)).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}

// A meterMinute is one minute that is adjusted to what external meters showed.
type meterMinute struct {
	*db.Tx
	minute       int64
	late         map[schema.RowKey][]int64 // rows added to a settled minute; nil if it is not settled yet
	rows         map[string][]external.Row // of the nodes, by id
	usage, whole *Change
	values       map[int64][]int64 // existing rows by workload
	settled      map[int64]bool    // nodes, by surrogate id
	within       map[int64]int64   // hosts that the rows of nodes are within in this minute
}

// bookMinute makes the rows of a minute equal to what external meters showed in it. With late rows,
// which are in the ledger already, it does so again for nodes that are settled.
func bookMinute(t *db.Tx, gm *external.GroupMinute, late map[schema.RowKey][]int64) (out []external.Adjustment, err error) {
	s := &meterMinute{Tx: t, minute: gm.Minute, late: late, rows: map[string][]external.Row{}, usage: NewChange(schema.UsageLayout), whole: NewChange(schema.NodeLayout), values: map[int64][]int64{}, settled: map[int64]bool{}, within: map[int64]int64{}}
	if gm.Minute < t.MinuteFloor {
		return nil, nil // minutes are dropped already
	}
	if err := t.EnsureMinutes(gm.Minute - gm.Minute%schema.DayMinutes); err != nil {
		return nil, err
	}
	nodes := map[string]int64{}
	for _, id := range gm.Nodes() {
		n, err := localNode(t, id)
		if err != nil || n == 0 {
			return nil, err
		}
		nodes[id] = n
		if s.within[n], err = hostIn(t, n, gm.Minute); err != nil {
			return nil, err
		}
		if s.rows[id], err = s.readRows(n); err != nil {
			return nil, err
		}
		if err := s.restore(n, s.rows[id]); err != nil {
			return nil, err
		}
	}
	if late == nil && len(s.settled) == 0 {
		if err := keepEnergy(t, gm, nodes); err != nil {
			return nil, err
		}
	}
	parts := gm.Divide(s.rows)
	for _, id := range gm.Nodes() {
		o, fresh, err := s.adjustNode(nodes[id], id, parts[id], gm)
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

// readRows returns the rows of a node's minute, idle last. Their order, which decides on remainders,
// does not depend on which row came first.
func (m *meterMinute) readRows(node int64) (rows []external.Row, err error) {
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
	err = db.Each(m.Ctx, m.SQL, func(scan func(...any) error) error {
		if err := scan(dest...); err != nil {
			return err
		}
		r := external.Row{Key: id, Usage: schema.DecodeUsage(values, schema.ColRest)}
		// A workload without a name keeps the unknown kind.
		_ = r.Kind.UnmarshalText([]byte(kind))
		rows = append(rows, r)
		m.values[id] = slices.Clone(values)
		return nil
	}, fmt.Sprintf("SELECT u.workload, w.kind, %s FROM %s u JOIN workload w ON w.id = %s WHERE u.minute = $1 AND %s AND w.node = $2 ORDER BY CASE w.kind WHEN 'idle' THEN 1 ELSE 0 END, w.short",
		strings.Join(cols, ", "), schema.UsageMinuteTable(m.minute-m.minute%schema.DayMinutes), schema.IDOf("u.workload"), schema.HasContent("u")), m.minute, node)
	return rows, m.DB.Fault(err)
}

// restore gives the rows of a settled minute the energies that they would have had without meters:
// the stored ones, from before the minute was settled, and the ones of late rows.
func (m *meterMinute) restore(node int64, rows []external.Row) error {
	var before []byte
	switch err := m.QueryRow("SELECT before FROM outer_minute WHERE node = $1 AND minute = $2", node, m.minute).Scan(&before); {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	m.settled[node] = true
	if m.late == nil || before == nil {
		return nil
	}
	energies, err := decodeEnergies(before)
	if err != nil {
		return err
	}
	for i := range rows {
		r := &rows[i]
		id, _ := schema.SplitKey(r.Key)
		u := energies[id]
		if values := m.late[schema.RowKey{Minute: m.minute, ID: r.Key}]; values != nil {
			late := schema.DecodeUsage(values, schema.ColRest)
			keepOnlyEnergies(&late)
			u.Add(&late)
		}
		replaceEnergies(&r.Usage, &u)
	}
	return nil
}

// adjustNode adjusts the rows of one node. fresh is false if the node was settled before and no late
// rows came.
func (m *meterMinute) adjustNode(n int64, id string, part external.NodeEnergy, gm *external.GroupMinute) (o external.Adjustment, fresh bool, err error) {
	covered, whole, err := m.readTotals(n)
	if err != nil {
		return o, false, err
	}
	if m.settled[n] != (m.late != nil) {
		return o, false, nil
	}
	before := encodeEnergies(m.rows[id])
	rows, o := external.Adjust(m.rows[id], covered, part.Energy, part.Error)
	o.Minute, o.Node = gm.Minute, id
	var names []string
	for _, c := range gm.Meters {
		if slices.Contains(c.Nodes, id) {
			names = append(names, c.Meter)
		}
	}
	_, err = m.Exec(`INSERT INTO outer_minute (node, minute, meters, meter, inside, measured, before) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (node, minute) DO UPDATE SET meter = excluded.meter, inside = excluded.inside, measured = excluded.measured, before = excluded.before`,
		n, m.minute, schema.Clean(strings.Join(names, ", ")), o.Meter, o.Inside, o.Measured, before)
	if err != nil {
		return o, false, err
	}
	var changed [power.DomainLimit]int64
	for i := range rows {
		r := &rows[i]
		var was usage.Usage
		if values := m.values[r.Key]; values != nil {
			was = schema.DecodeUsage(values, schema.ColRest)
		}
		eachDomain(func(d power.Domain) { changed[d] += r.Usage.Amount[usage.EnergyOf(d)] - was.Amount[usage.EnergyOf(d)] })
		if r.Key == 0 {
			if r.Usage.Amount[usage.EnergyRest] == 0 {
				continue
			}
			if r.Key, err = m.idleWorkload(n, id); err != nil {
				return o, false, err
			}
		} else if was == r.Usage {
			continue
		}
		values := schema.EncodeUsage(&r.Usage, m.Rev)
		if was, ok := m.values[r.Key]; ok {
			values[schema.ColCovered] = was[schema.ColCovered]
			values[schema.ColUncertainty] |= was[schema.ColUncertainty] & (schema.HoldsHour | schema.HoldsDay)
		}
		if !schema.FitsMinute(&r.Usage) {
			return o, false, fmt.Errorf("node %q: %w", id, schema.ErrRange)
		}
		m.usage.Set(replica.Minute, schema.RowKey{Minute: m.minute, ID: r.Key}, values)
	}
	m.changeTotals(n, whole, &changed)
	return o, true, nil
}

// idleWorkload returns the key of the idle workload of a node, creating it for a minute without an idle row.
func (m *meterMinute) idleWorkload(node int64, id string) (key int64, err error) {
	name := batch.Name{ID: workload.NewID(id, workload.Idle, ""), Kind: workload.Idle, Name: "idle"}
	b := &booking{Tx: m.Tx}
	serverAdds := quotaHolder{limit: unlimited, quotaUse: quotaUse{loaded: true}} // not the node
	if err := b.bookName(&name, &bookedNode{id: node, quota: serverAdds}, 0); err != nil {
		return key, err
	}
	short, _ := workload.ShortIDOf(name.ID)
	w, err := m.Workload(node, short)
	return schema.Key(w.ID, m.within[node]), err
}

// readTotals returns how much of the minute is covered, and the node's own row, which is new if
// there is none.
func (m *meterMinute) readTotals(node int64) (covered time.Duration, found []int64, err error) {
	err = m.whole.each(m.Tx, schema.Minutes, m.minute, m.minute+1, []int64{schema.Key(node, m.within[node])}, func(_ schema.RowKey, values []int64) { found = slices.Clone(values) })
	if err != nil {
		return covered, nil, err
	}
	if found == nil {
		found = make([]int64, len(schema.NodeLayout.Columns))
		if err := m.QueryRow("SELECT cpus FROM node WHERE id = $1", node).Scan(&found[schema.ColRest]); err != nil {
			return covered, nil, err
		}
	}
	return time.Duration(found[schema.ColCovered]) * time.Millisecond, found, nil
}

// changeTotals adds the change of the rows, in uJ by domain, to the node's whole. A whole below zero goes to the
// skew, where cutting windows leaves such remainders too.
func (m *meterMinute) changeTotals(node int64, values []int64, changed *[power.DomainLimit]int64) {
	const first = schema.ColRest + 3 // offset in a row of NodeLayout
	eachDomain(func(d power.Domain) {
		i := slices.Index(usage.Wholes[:], usage.EnergyOf(d))
		whole, skew := &values[first+i], &values[first+len(usage.Wholes)+i]
		if *whole += changed[d]; *whole < 0 {
			*skew, *whole = *skew+*whole, 0
		}
	})
	values[schema.ColRev] = m.Rev
	m.whole.Set(replica.Minute, schema.RowKey{Minute: m.minute, ID: schema.Key(node, m.within[node])}, values)
}

// A MeterRatio compares external meters of a node with what the node's own rows had since a time.
type MeterRatio struct {
	Node, Name, Cluster string
	Meters              string   // their names
	Meter               unit.Sum // uJ
	Inside, Measured    unit.Sum // uJ
	Minutes             int64
}

// MeterRatios compares external meters with what machines measured themselves, since from.
func (b *Booker) MeterRatios(ctx context.Context, from time.Time) (out []MeterRatio, err error) {
	err = b.db.View(ctx, func(v *db.View) error {
		return b.db.Fault(db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var r MeterRatio
			var p [6]int64
			err := scan(&r.Node, &r.Name, &r.Cluster, &r.Meters, &r.Minutes, &p[0], &p[1], &p[2], &p[3], &p[4], &p[5])
			for i, to := range []*unit.Sum{&r.Meter, &r.Inside, &r.Measured} {
				*to = unit.SumOf(uint64(p[2*i])>>32, uint64(p[2*i])<<32).Add(p[2*i+1])
			}
			out = append(out, r)
			return err
		}, b.db.Expand(`SELECT n.node_id, n.name, n.cluster, max(o.meters), count(*),
			CAST(sum(o.meter >> 32) AS {int}), CAST(sum(o.meter & 4294967295) AS {int}), CAST(sum(o.inside >> 32) AS {int}), CAST(sum(o.inside & 4294967295) AS {int}),
			CAST(sum(o.measured >> 32) AS {int}), CAST(sum(o.measured & 4294967295) AS {int})
			FROM outer_minute o JOIN node n ON n.id = o.node WHERE o.minute >= $1 GROUP BY n.node_id, n.name, n.cluster ORDER BY n.cluster, n.name, n.node_id`), from.Unix()/60))
	})
	return out, db.Wrap(err, "meters and nodes")
}
