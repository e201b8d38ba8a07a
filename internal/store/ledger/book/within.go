package book

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A guest and its host measure the same use, so sums over both would count it twice. Therefore the key of
// a guest's row names the host that the row is within (see [schema.Key]), and a sum that includes the host
// leaves the row out. This file finds that host for each row, and moves rows to another key when later
// data shows another host.

const (
	// maxAhead is how far rows of a guest may be ahead of what its host has reported: until then they
	// are taken to be within the host. The window of a guest usually arrives before that of its host.
	maxAhead = 5 * time.Minute
	// maxLag is how much later than its last report on a guest the windows of a host may end before
	// the guest is taken to be gone.
	maxLag = 2 * time.Minute
)

// A stay is a time for which rows of a node are within a host: the node was a virtual machine on it, as
// the shares of one epoch show, or the host measured everything that the node measured, or one of its jobs.
type stay struct {
	host, workload int64 // workload is what the guest is on the host, 0 where it is not known
	of             int64 // the job of the node, 0 for all its rows
	level          int   // a lower level means that the host measured less beside the guest
	from, to       int64 // ns
}

// A guest is the state, in one transaction, of a node whose rows may be within others.
type guest struct {
	node    int64
	jobs    bool           // a node of standalone jobs: the rows of each workload have a host of their own
	through int64          // end of the rows before the transaction, ns
	before  []stay         // at the start of the transaction: the booked rows are within their hosts
	stays   []stay         // at the end of the transaction
	whole   map[int64]stay // by day, for days that earlier versions nested as a whole
	// boots has, by boot id, the time from which the transaction may change what was measured of that boot, in ns
	// of CLOCK_BOOTTIME.
	boots map[string]int64
	// moved has, for a node of standalone jobs, the amounts to add to the node's rows because rows of its
	// workloads move. Covered time may become negative, if a faulty sender's row covers less time than its
	// workloads' rows; then it is set to zero.
	moved map[schema.RowKey][]int64
}

func newGuest(node int64) *guest {
	return &guest{node: node, whole: map[int64]stay{}, boots: map[string]int64{}, moved: map[schema.RowKey][]int64{}}
}

// guest returns a guest. The first call must precede all changes that concern it.
func (b *booking) guest(node int64) (*guest, error) {
	if g := b.guests[node]; g != nil {
		return g, nil
	}
	g := newGuest(node)
	var machine string
	err := b.QueryRow("SELECT through_ns, machine_id FROM node WHERE id = $1", node).Scan(&g.through, &machine)
	if g.jobs = registry.IsJobsMachine(machine); err == nil {
		g.before, err = findStays(b.Tx, node)
	}
	b.guests[node] = g
	return g, err
}

// findGuests finds the guests that an entry of a node can concern: the node itself, and the guests that
// its host reported until its latest window.
func (b *booking) findGuests(n *bookedNode) error {
	if n.isGuest {
		if _, err := b.guest(n.id); err != nil || !n.isHost {
			return err
		}
	}
	if !n.isHost {
		return nil
	}
	ids, err := b.Ints("SELECT DISTINCT x.node FROM share_series s JOIN nested_series x ON x.series = s.id WHERE s.host = $1 AND s.last_ns >= $2", n.id, n.through-int64(maxLag))
	for _, id := range ids {
		if err == nil {
			_, err = b.guest(id)
		}
	}
	return err
}

// findStays returns the stays of a node. They depend only on what is booked, not on the order in
// which it came. A stay ends with the last window in which the host reported the guest; until either
// went on for long without such a window, it is extended by maxAhead.
func findStays(t *db.Tx, node int64) (list []stay, err error) {
	var firsts, ends []int64
	err = t.Each(func(scan func(...any) error) error {
		var s stay
		var first, since, hostThrough, through int64
		if err := scan(&s.host, &s.workload, &first, &s.to, &since, &hostThrough, &through); err != nil {
			return err
		}
		firsts, ends = append(firsts, first), append(ends, s.to)
		if s.from = max(first, since); hostThrough <= s.to+int64(maxLag) && through <= s.to+int64(maxAhead) {
			s.to += int64(maxAhead)
		}
		list = append(list, s)
		return nil
	}, `SELECT s.host, s.workload, s.first_ns, s.last_ns, s.since_ns, h.through_ns, g.through_ns FROM nested_series x JOIN share_series s ON s.id = x.series
		JOIN node h ON h.id = s.host JOIN node g ON g.id = x.node WHERE x.node = $1 AND s.given > 0 AND s.held >= s.given ORDER BY s.first_ns, s.host, s.id`, node)
	for i := range list {
		// It has moved to another host, or the host began another epoch.
		for _, next := range firsts[i+1:] {
			if next > firsts[i] && next >= ends[i] {
				list[i].to = min(list[i].to, next)
			}
		}
	}
	return list, err
}

// ownerOf returns the stay whose host the rows of minutes [from, to) are within: the rows of workload of, or
// those of the node if of is 0. Among the stays that overlap these minutes, the lowest level has precedence:
// otherwise a sum with a node between guest and host would count the guest's rows twice. Among hosts of one
// level, the one with the longest overlap has precedence. The zero stay means none.
func ownerOf(stays []stay, of, from, to int64) (owner stay) {
	a, z := from*int64(time.Minute), to*int64(time.Minute)
	part := func(s stay) int64 {
		if s.of != 0 && s.of != of {
			return 0
		}
		return max(0, min(s.to, z)-max(s.from, a))
	}
	var longest int64
	for i, s := range stays {
		same := func(o stay) bool { return o.host == s.host && o.level == s.level && part(o) > 0 }
		if part(s) == 0 || slices.ContainsFunc(stays[:i], same) {
			continue
		}
		var sum int64
		for _, o := range stays[i:] {
			if same(o) {
				sum += part(o)
			}
		}
		if owner.host == 0 || s.level < owner.level || s.level == owner.level && (sum > longest || sum == longest && s.host < owner.host) {
			owner, longest = s, sum
		}
	}
	if owner.host >= schema.EndWithin {
		return stay{}
	}
	return owner
}

// owner is ownerOf at the end of the transaction. For a day without a stay it returns the host within which
// an earlier version nested the whole day.
func (g *guest) owner(t *db.Tx, of, from, to int64) (stay, error) {
	if s := ownerOf(g.stays, of, from, to); s.host != 0 {
		return s, nil
	}
	day := from - from%schema.DayMinutes
	s, ok := g.whole[day]
	if ok {
		return s, nil
	}
	err := t.Each(func(scan func(...any) error) error { return scan(&s.host, &s.workload) },
		"SELECT host, workload FROM within_day WHERE node = $1 AND minute = $2 AND whole = 1", g.node, day)
	g.whole[day] = s
	return s, err
}

// hostIn returns the host that rows of a node's minute are within, 0 if none, and records it with NoteWithin,
// because the caller writes such rows.
func hostIn(t *db.Tx, node, minute int64) (host int64, err error) {
	g := newGuest(node)
	if g.stays, err = findStays(t, node); err != nil {
		return host, err
	}
	var boots []string
	err = t.Each(func(scan func(...any) error) error {
		var boot string
		err := scan(&boot)
		boots = append(boots, boot)
		return err
	}, "SELECT DISTINCT boot FROM extent_range WHERE node = $1", node)
	for _, boot := range boots {
		if err != nil {
			return host, err
		}
		var more []stay
		more, err = findExtentStays(t, node, boot, 0, math.MaxInt64)
		g.stays = append(g.stays, more...)
	}
	if err != nil {
		return host, err
	}
	s, err := g.owner(t, 0, minute, minute+1)
	if err == nil && s.host != 0 {
		err = NoteWithin(t, node, minute-minute%schema.DayMinutes, s.host, s.workload, false)
	}
	return s.host, err
}

// settleGuests moves the booked rows of a transaction's guests to the keys of their present hosts, and
// gives such keys to the rows that the transaction adds. Everything else must be written before.
func (b *booking) settleGuests() error {
	if len(b.guests) == 0 {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(b.guests)) {
		g := b.guests[id]
		var err error
		if g.stays, err = findStays(b.Tx, id); err != nil {
			return err
		}
		for _, boot := range slices.Sorted(maps.Keys(g.boots)) {
			more, err := findExtentStays(b.Tx, id, boot, g.boots[boot], math.MaxInt64)
			if err != nil {
				return err
			}
			g.stays = append(g.stays, more...)
		}
		for _, r := range changedMinutes(g.before, g.stays, g.through) {
			if err := g.move(b.Tx, r[0], r[1]); err != nil {
				return err
			}
		}
	}
	nodeOf := map[int64]int64{} // by workload
	for _, n := range b.nodes {
		if b.guests[n.id] != nil {
			for w := range n.workloads {
				nodeOf[w] = n.id
			}
		}
	}
	r := rekeying{Tx: b.Tx, owners: map[ownerKey]stay{}, noted: map[[3]int64]bool{}}
	for _, k := range b.usageRows.SortedKeys() {
		g := b.guests[nodeOf[k.ID]]
		if g == nil {
			continue
		}
		of := int64(0)
		if g.jobs {
			of = k.ID
		}
		if host, err := r.move(b.usageRows, g, k, of); err != nil {
			return err
		} else if host != 0 && g.jobs {
			g.noteMoved(k.Minute, 0, host, b.usageRows.Rows[schema.RowKey{Minute: k.Minute, ID: schema.Key(k.ID, host)}])
		}
	}
	for _, k := range b.nodeRows.SortedKeys() {
		g := b.guests[k.ID]
		switch {
		case g == nil:
		case g.jobs:
			g.addMoved(b.nodeRows, k.Minute, b.Rev)
		default:
			if _, err := r.move(b.nodeRows, g, k, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// A rekeying gives keys within their owners to the rows that a transaction adds.
type rekeying struct {
	*db.Tx
	owners map[ownerKey]stay
	noted  map[[3]int64]bool // nodes, days and hosts
}

type ownerKey struct{ node, of, minute int64 }

// move moves a row to the key within its owner, and returns the owner's node, 0 if there is none.
func (r *rekeying) move(p schema.Pending, g *guest, k schema.RowKey, of int64) (host int64, err error) {
	at := ownerKey{g.node, of, k.Minute}
	s, ok := r.owners[at]
	if !ok {
		if s, err = g.owner(r.Tx, of, k.Minute, k.Minute+1); err != nil {
			return host, err
		}
		r.owners[at] = s
	}
	if s.host == 0 {
		return 0, nil
	}
	p.Rows[schema.RowKey{Minute: k.Minute, ID: schema.Key(k.ID, s.host)}] = p.Rows[k]
	delete(p.Rows, k)
	day := k.Minute - k.Minute%schema.DayMinutes
	if note := [3]int64{g.node, day, s.host}; !r.noted[note] {
		r.noted[note] = true
		err = NoteWithin(r.Tx, g.node, day, s.host, s.workload, false)
	}
	return s.host, err
}

// noteMoved notes that a row of a workload with these values moves from one host to another; 0 is none. The
// rows of a node of standalone jobs are sums of workloads with different hosts, so only these amounts move
// between them; the rows of other nodes move as a whole.
func (g *guest) noteMoved(minute, from, to int64, values []int64) {
	add := func(host, sign int64) {
		k := schema.RowKey{Minute: minute, ID: schema.Key(g.node, host)}
		if g.moved[k] == nil {
			g.moved[k] = make([]int64, len(schema.NodeLayout.Columns))
		}
		g.moved[k][schema.ColCovered] += sign * values[schema.ColCovered]
		for i, r := range usage.Wholes {
			g.moved[k][schema.ColSkew+i] += sign * values[schema.ColRest+int(r)-1]
		}
	}
	add(from, -1)
	add(to, 1)
}

// addMoved adds the moved amounts of a minute to the node's rows that the transaction adds.
func (g *guest) addMoved(p schema.Pending, minute, rev int64) {
	for at, change := range g.moved {
		if at.Minute != minute {
			continue
		}
		for i, v := range p.Rows[at] {
			change[i] += v
		}
		change[schema.ColRev], change[schema.ColCovered] = rev, max(0, change[schema.ColCovered])
		p.Rows[at] = change
		if !slices.ContainsFunc(change[schema.ColPresent:], func(v int64) bool { return v != 0 }) {
			delete(p.Rows, at)
		}
		delete(g.moved, at)
	}
}

// changedMinutes returns the ranges of minutes, up to the minute of through, in which two lists of stays
// have different hosts.
func changedMinutes(a, b []stay, through int64) (ranges [][2]int64) {
	if slices.Equal(a, b) {
		return nil
	}
	// Rows have one host for a whole minute, so a stay after through matters for the rest of its minute.
	through += (int64(time.Minute) - through%int64(time.Minute)) % int64(time.Minute)
	var edges []int64
	for _, s := range slices.Concat(a, b) {
		edges = append(edges, min(s.from, through), min(s.to, through))
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	hosts := func(stays []stay, at int64) (list [][2]int64) {
		for _, s := range stays {
			if s.from <= at && at < s.to {
				list = append(list, [2]int64{s.of, s.host})
			}
		}
		slices.SortFunc(list, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
		return slices.Compact(list)
	}
	for i := 1; i < len(edges); i++ {
		if slices.Equal(hosts(a, edges[i-1]), hosts(b, edges[i-1])) {
			continue
		}
		from, to := edges[i-1]/int64(time.Minute), (edges[i]-1)/int64(time.Minute)+1
		if n := len(ranges); n > 0 && ranges[n-1][1] >= from {
			ranges[n-1][1] = to
		} else {
			ranges = append(ranges, [2]int64{from, to})
		}
	}
	return ranges
}

// move moves the booked rows of minutes [from, to) to the keys within their owners. If only hours or days are
// left, it moves each one that overlaps the range.
func (g *guest) move(t *db.Tx, from, to int64) error {
	hosts := []int64{0}
	for _, s := range slices.Concat(g.before, g.stays) {
		hosts = append(hosts, s.host)
	}
	first := from - from%schema.DayMinutes
	noted, err := t.Ints("SELECT DISTINCT host FROM within_day WHERE node = $1 AND minute >= $2 AND minute < $3", g.node, first, to)
	if err != nil {
		return err
	}
	hosts = append(hosts, noted...)
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	since := first // workloads that had rows before only, all of them folded, have none here
	if to > t.Hour {
		since = 0
	}
	// The host reserves nothing for the pods of its guests: what these reserve is in all sums.
	ids, err := t.Ints("SELECT w.id FROM workload w WHERE w.node = $1 AND (w.last_minute = 0 OR w.last_minute >= $2) AND NOT "+schema.IsCarrier, g.node, since)
	if err != nil {
		return err
	}
	kept, err := t.Ints("SELECT day FROM kept WHERE day >= $1 AND day < $2 ORDER BY day", first, to)
	if err != nil {
		return err
	}
	for _, l := range []struct {
		*schema.Layout
		ids []int64
	}{{schema.UsageLayout, ids}, {schema.NodeLayout, []int64{g.node}}} {
		var keys []int64
		for _, id := range l.ids {
			for _, h := range hosts {
				keys = append(keys, schema.Key(id, h))
			}
		}
		c := NewChange(l.Layout)
		for at := first; at < to; {
			v := t.FinestLevel(at)
			span := schema.Range{Level: v, From: at, To: at + max(v.Width(), schema.HourMinutes)}
			if at = span.To; span.To <= from || v == schema.Minutes && !slices.Contains(kept, span.From-span.From%schema.DayMinutes) {
				continue
			}
			if v == schema.Minutes {
				span.From, span.To = max(span.From, from), min(span.To, to)
			}
			move := g.moveSpan
			if g.jobs && l.Layout == schema.NodeLayout {
				move = g.applyMoved
			}
			if err := move(t, c, span, keys); err != nil {
				return err
			}
		}
		if _, err := c.Apply(t, 0); err != nil {
			return fmt.Errorf("moving rows of a guest: %w", err)
		}
	}
	return nil
}

// moveSpan moves the rows of keys in minutes of one hour, or one coarser row.
func (g *guest) moveSpan(t *db.Tx, c *Change, span schema.Range, keys []int64) error {
	type part struct {
		within int64
		values []int64
	}
	found := map[schema.RowKey][]part{}
	err := c.each(t, span.Level, span.From, span.To, keys, func(k schema.RowKey, values []int64) {
		if values[schema.ColPresent] == 0 && values[schema.ColCovered] == 0 && !slices.ContainsFunc(values[schema.ColRest:], func(v int64) bool { return v != 0 }) {
			return
		}
		id, within := schema.SplitKey(k.ID)
		k.ID = id
		found[k] = append(found[k], part{within, slices.Clone(values)})
	})
	if err != nil {
		return err
	}
	noted := map[int64]bool{}
	for k, parts := range found {
		of := int64(0)
		if g.jobs {
			of = k.ID
		}
		if span.Level != schema.Minutes {
			// A row of an hour or a day cannot be divided: it moves only if its host has changed.
			was, now := ownerOf(g.before, of, span.From, span.To), ownerOf(g.stays, of, span.From, span.To)
			if was.host == now.host && now.host != 0 {
				continue
			}
		}
		owner, err := g.owner(t, of, k.Minute, k.Minute+span.Level.Width())
		if err != nil {
			return err
		}
		if len(parts) == 1 && parts[0].within == owner.host {
			continue
		}
		sum := make([]int64, len(c.layout.Columns))
		for _, p := range parts {
			c.wanted[0].AddSaturating(sum, p.values)
			if p.within != owner.host {
				if g.jobs {
					g.noteMoved(k.Minute, p.within, owner.host, p.values)
				}
				empty := make([]int64, len(sum))
				empty[schema.ColRev] = t.Rev
				c.Set(replica.Resolution(span.Level), schema.RowKey{Minute: k.Minute, ID: schema.Key(k.ID, p.within)}, empty)
			}
		}
		sum[schema.ColRev] = t.Rev
		c.Set(replica.Resolution(span.Level), schema.RowKey{Minute: k.Minute, ID: schema.Key(k.ID, owner.host)}, sum)
		if owner.host != 0 && !noted[owner.host] {
			noted[owner.host] = true
			if err := NoteWithin(t, g.node, k.Minute-k.Minute%schema.DayMinutes, owner.host, owner.workload, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyMoved adds the moved amounts to booked rows of a node of standalone jobs: to those in minutes of one
// hour, or to one coarser row.
func (g *guest) applyMoved(t *db.Tx, c *Change, span schema.Range, keys []int64) error {
	err := c.each(t, span.Level, span.From, span.To, keys, func(k schema.RowKey, values []int64) {
		if change := g.moved[k]; change != nil {
			for i, v := range values {
				change[i] += v
			}
		}
	})
	if err != nil {
		return err
	}
	for k, values := range g.moved {
		if span.From <= k.Minute && k.Minute < span.To {
			values[schema.ColRev], values[schema.ColCovered] = t.Rev, max(0, values[schema.ColCovered])
			c.Set(replica.Resolution(span.Level), k, values)
			delete(g.moved, k)
		}
	}
	return nil
}

// NoteWithin records that rows of a node on a day are within a host. If that is recorded already, it does
// not write, because replication would send the entry again.
func NoteWithin(t *db.Tx, node, day, host, workload int64, whole bool) error {
	var all int64
	if whole {
		all = 1
	}
	_, err := t.Exec(`INSERT INTO within_day (node, minute, host, workload, whole, rev) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (node, minute, host) DO UPDATE SET workload = excluded.workload, whole = excluded.whole, rev = excluded.rev
		WHERE within_day.workload <> excluded.workload OR within_day.whole < excluded.whole`, node, day, host, workload, all, t.Rev)
	return err
}

// NestDay puts all rows of a node on a day within a host, as servers of earlier versions did.
func NestDay(t *db.Tx, node, day, host, workload int64) error {
	if err := NoteWithin(t, node, day, host, workload, true); err != nil {
		return err
	}
	return newGuest(node).move(t, day, day+schema.DayMinutes)
}
