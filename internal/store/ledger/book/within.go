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

const (
	// maxAhead is how far rows of a guest may be ahead of what its host has reported: until then they
	// are taken to be within the host. The window of a guest usually arrives before that of its host.
	maxAhead = 5 * time.Minute
	// maxLag is how much later than its last report on a guest the windows of a host may end before
	// the guest is taken to be gone.
	maxLag = 2 * time.Minute
)

// A stay is time in which a node was a guest of a host, as the shares of one epoch show, or in which the
// host measured all that the node did, or one job of it.
type stay struct {
	host, workload int64 // workload is what the guest is on the host, 0 where it is not known
	of             int64 // the job of the node, 0 for all its rows
	level          int   // the lower, the narrower is what the host measured
	from, to       int64 // ns
}

// A guest is a node of which rows are within others, in one transaction.
type guest struct {
	node    int64
	jobs    bool   // its rows move by workload
	through int64  // before the transaction, ns: no row is later
	before  []stay // that the booked rows follow
	stays   []stay // at the end of the transaction
	whole   map[int64]stay
	// boots are the kernels of which the node measured a part, as far as the transaction concerns them: from an
	// instant of CLOCK_BOOTTIME on.
	boots map[string]int64
	// moved is, of a node of jobs, what is added to its rows as rows of workloads move. A row that a
	// faulty sender made may cover less time than the workloads' rows.
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

// ownerOf returns the host that rows of minutes [from, to) are within, of one workload or, if that is 0, of
// the node: of those that had any part of that time the one that measured least beside the guest, so that rows of no
// other node between the two are counted too; of several the one that had it for longest. The zero stay is none.
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

// owner returns the host that rows of minutes [from, to) are within at the end of the transaction, of one
// workload or, if that is 0, of the node. Earlier versions nested whole days.
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

// hostIn returns the host that rows of a node's minute are within, 0 if none.
func hostIn(t *db.Tx, node, minute int64) (int64, error) {
	g := newGuest(node)
	var err error
	if g.stays, err = findStays(t, node); err != nil {
		return 0, err
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
			return 0, err
		}
		var more []stay
		more, err = findExtentStays(t, node, boot, 0, math.MaxInt64)
		g.stays = append(g.stays, more...)
	}
	if err != nil {
		return 0, err
	}
	s, err := g.owner(t, 0, minute, minute+1)
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
			g.moveAmounts(k.Minute, 0, host, b.usageRows.Rows[schema.RowKey{Minute: k.Minute, ID: schema.Key(k.ID, host)}])
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

// A rekeying gives the rows that a transaction adds the keys within their owners.
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
			return 0, err
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

// moveAmounts notes that a row of a workload moves from one host to another, 0 for none: the rows of its
// node of jobs follow by its amounts. Of other nodes the rows move as a whole.
func (g *guest) moveAmounts(minute, from, to int64, values []int64) {
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

// addMoved adds what moved to the rows of a minute of the node that a transaction adds.
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

// changedMinutes returns the ranges of minutes, up to that of an instant, in which two lists of stays
// differ.
func changedMinutes(a, b []stay, through int64) (ranges [][2]int64) {
	if slices.Equal(a, b) {
		return nil
	}
	// A later part of the last minute decides for the rows of the earlier part.
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
			move := g.moveSpan
			if g.jobs && l.Layout == schema.NodeLayout {
				move = g.moveAmountsOf
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
			// Where rows cannot be divided any more, they move only if their host is another one now.
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
					g.moveAmounts(k.Minute, p.within, owner.host, p.values)
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

// moveAmountsOf changes the rows of a node of jobs in minutes of one hour, or one coarser row, by what
// moved of its workloads.
func (g *guest) moveAmountsOf(t *db.Tx, c *Change, span schema.Range, keys []int64) error {
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
	return newGuest(node).move(t, day, day+schema.DayMinutes)
}
