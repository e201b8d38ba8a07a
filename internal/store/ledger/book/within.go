package book

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

const (
	// maxAhead is how far rows of a guest may be ahead of what its host has reported: until then they
	// are taken to be within the host. The window of a guest usually arrives before that of its host.
	maxAhead = 5 * time.Minute
	// maxLag is how much later than its last report on a guest the windows of a host may end before
	// the guest is taken to be gone.
	maxLag = 2 * time.Minute
)

// A stay is time in which a node was a guest of a host, as the shares of one epoch show.
type stay struct {
	host, workload int64 // workload is what the guest is on the host
	from, to       int64 // ns
}

// A guest is a node of which rows are within others, in one transaction.
type guest struct {
	node    int64
	through int64  // before the transaction, ns: no row is later
	before  []stay // that the booked rows follow
	stays   []stay // at the end of the transaction
	whole   map[int64]stay
	// boots are, of a node of jobs, the kernels that the transaction concerns, from an instant of
	// CLOCK_BOOTTIME on.
	boots map[string]int64
}

// guest returns a guest. The first call must precede all changes that concern it.
func (b *booking) guest(node int64) (*guest, error) {
	if g := b.guests[node]; g != nil {
		return g, nil
	}
	g := &guest{node: node, whole: map[int64]stay{}, boots: map[string]int64{}}
	err := b.QueryRow("SELECT through_ns FROM node WHERE id = $1", node).Scan(&g.through)
	if err == nil {
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

// ownerOf returns the host that rows of minutes [from, to) are within: the one that had the guest
// for the longest part, if any had it. The zero stay is none.
func ownerOf(stays []stay, from, to int64) (owner stay) {
	a, z := from*int64(time.Minute), to*int64(time.Minute)
	var longest int64
	for i, s := range stays {
		if s.from >= z || s.to <= a || slices.ContainsFunc(stays[:i], func(o stay) bool { return o.host == s.host && o.from < z && o.to > a }) {
			continue
		}
		var part int64
		for _, o := range stays[i:] {
			if o.host == s.host {
				part += max(0, min(o.to, z)-max(o.from, a))
			}
		}
		if part > longest || part == longest && s.host < owner.host {
			owner, longest = s, part
		}
	}
	if owner.host >= schema.EndWithin {
		return stay{}
	}
	return owner
}

// owner returns the host that rows of minutes [from, to) are within at the end of the transaction.
// Earlier versions nested whole days.
func (g *guest) owner(t *db.Tx, from, to int64) (stay, error) {
	if s := ownerOf(g.stays, from, to); s.host != 0 {
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

// hostIn returns the host that rows of a node's minute are within, 0 if none.
func hostIn(t *db.Tx, node, minute int64) (int64, error) {
	g := &guest{node: node, whole: map[int64]stay{}, boots: map[string]int64{}}
	var err error
	if g.stays, err = findStays(t, node); err != nil {
		return 0, err
	}
	s, err := g.owner(t, minute, minute+1)
	if err == nil && s.host != 0 {
		err = NoteWithin(t, node, minute-minute%schema.DayMinutes, s.host, s.workload, false)
	}
	return s.host, err
}

// settleGuests moves the booked rows of the guests of a transaction to where they belong now, and
// gives the rows that it adds their keys. Everything else must be written before.
func (b *booking) settleGuests() error {
	if len(b.guests) == 0 {
		return nil
	}
	owners := map[int64]map[int64]stay{} // by node and minute
	for _, id := range slices.Sorted(maps.Keys(b.guests)) {
		g := b.guests[id]
		var err error
		if g.stays, err = findStays(b.Tx, id); err != nil {
			return err
		}
		for _, boot := range slices.Sorted(maps.Keys(g.boots)) {
			more, err := findInnerStays(b.Tx, id, boot, g.boots[boot], math.MaxInt64)
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
		owners[id] = map[int64]stay{}
	}
	nodeOf := map[int64]int64{} // by workload
	for _, n := range b.nodes {
		if b.guests[n.id] != nil {
			for w := range n.workloads {
				nodeOf[w] = n.id
			}
		}
	}
	rekey := func(p schema.Pending, nodeOf func(id int64) int64) error {
		moved := map[schema.RowKey][]int64{}
		for k, values := range p.Rows {
			node := nodeOf(k.ID)
			if owners[node] == nil {
				continue
			}
			s, ok := owners[node][k.Minute]
			if !ok {
				var err error
				if s, err = b.guests[node].owner(b.Tx, k.Minute, k.Minute+1); err != nil {
					return err
				}
				owners[node][k.Minute] = s
			}
			if s.host != 0 {
				moved[schema.RowKey{Minute: k.Minute, ID: schema.Key(k.ID, s.host)}] = values
				delete(p.Rows, k)
			}
		}
		maps.Copy(p.Rows, moved)
		return nil
	}
	if err := rekey(b.usageRows, func(id int64) int64 { return nodeOf[id] }); err != nil {
		return err
	}
	if err := rekey(b.nodeRows, func(id int64) int64 { return id }); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(owners)) {
		noted := map[[2]int64]bool{}
		for m, s := range owners[id] {
			day := m - m%schema.DayMinutes
			if s.host == 0 || noted[[2]int64{day, s.host}] {
				continue
			}
			noted[[2]int64{day, s.host}] = true
			if err := NoteWithin(b.Tx, id, day, s.host, s.workload, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// changedMinutes returns the ranges of minutes, up to an instant, in which two lists of stays differ.
func changedMinutes(a, b []stay, through int64) (ranges [][2]int64) {
	if slices.Equal(a, b) {
		return nil
	}
	var edges []int64
	for _, s := range slices.Concat(a, b) {
		edges = append(edges, min(s.from, through), min(s.to, through))
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	hosts := func(stays []stay, at int64) (list []int64) {
		for _, s := range stays {
			if s.from <= at && at < s.to {
				list = append(list, s.host)
			}
		}
		slices.Sort(list)
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

// move moves the booked rows of minutes [from, to) to the keys within their owners. Where minutes are
// dropped, hours and days that are in the range in part are moved too.
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
	ids, err := t.Ints("SELECT id FROM workload WHERE node = $1 AND (last_minute = 0 OR last_minute >= $2)", g.node, since)
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
			if err := g.moveSpan(t, c, span, keys); err != nil {
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
	if span.Level != schema.Minutes && len(found) > 0 {
		// Where rows cannot be divided any more, they move only if their host is another one now.
		was, now := ownerOf(g.before, span.From, span.To), ownerOf(g.stays, span.From, span.To)
		if was.host == now.host && now.host != 0 {
			return nil
		}
	}
	noted := map[int64]bool{}
	for k, parts := range found {
		owner, err := g.owner(t, k.Minute, k.Minute+span.Level.Width())
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

// NoteWithin records that rows of a node on a day are within a host. It writes nothing if that is
// known, so that nothing is replicated again.
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

// NestDay moves all rows of a node on a day within a host, as servers of earlier versions have it.
func NestDay(t *db.Tx, node, day, host, workload int64) error {
	if err := NoteWithin(t, node, day, host, workload, true); err != nil {
		return err
	}
	g := &guest{node: node, whole: map[int64]stay{}, boots: map[string]int64{}}
	return g.move(t, day, day+schema.DayMinutes)
}
