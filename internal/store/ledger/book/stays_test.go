package book

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// addNodes adds nodes in cluster "c", from id 3 on.
func addNodes(x *db.Tx, ids ...string) error {
	for i, id := range ids {
		_, err := x.Exec("INSERT INTO node (id, node_id, cluster, name, machine_id, boot, enrolled_ns, rev) VALUES ($1, $2, 'c', $2, '', '', 0, 1)", int64(i+3), id)
		if err != nil {
			return err
		}
	}
	return nil
}

// do runs statements of a test.
func do(x *db.Tx, statements ...string) error {
	for _, s := range statements {
		if _, err := x.Exec(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// The owner of drawn stays is the host of the lowest level, then of the longest overlap, then of the lowest id,
// among the stays of the node and of the job.
func TestOwnerOfDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slot = int64(time.Minute) / 4
		var stays []stay
		for n := rapid.IntRange(0, 6).Draw(t, "stays"); n > 0; n-- {
			from := rapid.Int64Range(0, 12).Draw(t, "from")
			stays = append(stays, stay{
				host: rapid.Int64Range(1, 3).Draw(t, "host"), of: rapid.Int64Range(0, 2).Draw(t, "of"), level: rapid.IntRange(0, 2).Draw(t, "level"),
				from: from * slot, to: (from + rapid.Int64Range(0, 6).Draw(t, "length")) * slot,
			})
		}
		of, from := rapid.Int64Range(0, 2).Draw(t, "job"), rapid.Int64Range(0, 2).Draw(t, "minute")
		to := from + rapid.Int64Range(1, 2).Draw(t, "minutes")
		type place struct {
			level int
			host  int64
		}
		sums := map[place]int64{}
		for at := from * 4; at < to*4; at++ {
			for _, s := range stays {
				if s.from <= at*slot && at*slot < s.to && (s.of == 0 || s.of == of) {
					sums[place{s.level, s.host}]++
				}
			}
		}
		var want place
		for p, sum := range sums {
			if want.host == 0 || cmp.Or(cmp.Compare(p.level, want.level), cmp.Compare(sums[want], sum), cmp.Compare(p.host, want.host)) < 0 {
				want = p
			}
		}
		if got := ownerOf(stays, of, from, to); got.host != want.host || got.level != want.level {
			t.Fatalf("minutes %d to %d of job %d: %+v, want %+v of %+v", from, to, of, got, want, stays)
		}
	})
}

// A change of the job, or of the host of one job, changes minutes. The order of stays does not.
func TestChangedMinutesOfJobs(t *testing.T) {
	const m = int64(time.Minute)
	a, b := stay{host: 3, of: 1, from: 0, to: 2 * m}, stay{host: 4, of: 2, from: 0, to: 2 * m}
	other := stay{host: 4, of: 1, from: 0, to: 2 * m}
	for name, c := range map[string]struct {
		before, after []stay
		through       int64
		want          string
	}{
		"another order":        {[]stay{a, b}, []stay{b, a}, 9 * m, "[]"},
		"the same job twice":   {[]stay{a, a}, []stay{a}, 9 * m, "[]"},
		"another job":          {[]stay{b}, []stay{other}, 9 * m, "[[0 2]]"},
		"another host":         {[]stay{a, b}, []stay{other, b}, 9 * m, "[[0 2]]"},
		"nothing is booked":    {nil, []stay{a}, 0, "[]"},
		"a part of a minute":   {nil, []stay{a}, 1, "[[0 1]]"},
		"a whole minute":       {nil, []stay{a}, m, "[[0 1]]"},
		"into the next minute": {nil, []stay{a}, m + 1, "[[0 2]]"},
		"in a later minute":    {nil, []stay{{host: 3, from: m, to: m + 1}}, 9 * m, "[[1 2]]"},
		"apart":                {nil, []stay{{host: 3, from: 1, to: 2}, {host: 3, from: m + 1, to: m + 2}, {host: 3, from: 3 * m, to: 4 * m}}, 9 * m, "[[0 2] [3 4]]"},
		"in the same minute":   {nil, []stay{{host: 3, from: 1, to: 2}, {host: 3, from: 4, to: 5}}, 9 * m, "[[0 1]]"},
	} {
		if got := fmt.Sprint(changedMinutes(c.before, c.after, c.through)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A stay lasts from the first window of a series to its last, longer while neither its host nor the guest has
// gone on for long, and not into the time of a series that began after it.
func TestFindStays(t *testing.T) {
	d := openDB(t)
	const m = int64(time.Minute)
	type series struct{ host, first, last, since, given, held int64 }
	round := 0
	for name, c := range map[string]struct {
		series      []series
		host, guest int64 // how far they are booked
		want        []stay
	}{
		"none":                       {},
		"so far":                     {[]series{{2, 10, 20, 0, 5, 5}}, 20, 20, []stay{{host: 2, from: 10, to: 20 + int64(maxAhead)}}},
		"more held than given":       {[]series{{2, 10, 20, 0, 5, 6}}, 20, 20, []stay{{host: 2, from: 10, to: 20 + int64(maxAhead)}}},
		"known since":                {[]series{{2, 10, 20, 12, 5, 5}}, 20, 20, []stay{{host: 2, from: 12, to: 20 + int64(maxAhead)}}},
		"the host is late":           {[]series{{2, 10, 20, 0, 5, 5}}, 20 + int64(maxLag), 20, []stay{{host: 2, from: 10, to: 20 + int64(maxAhead)}}},
		"the host went on":           {[]series{{2, 10, 20, 0, 5, 5}}, 20 + int64(maxLag) + 1, 20, []stay{{host: 2, from: 10, to: 20}}},
		"the guest is ahead":         {[]series{{2, 10, 20, 0, 5, 5}}, 20, 20 + int64(maxAhead), []stay{{host: 2, from: 10, to: 20 + int64(maxAhead)}}},
		"the guest went on":          {[]series{{2, 10, 20, 0, 5, 5}}, 20, 20 + int64(maxAhead) + 1, []stay{{host: 2, from: 10, to: 20}}},
		"nothing given":              {[]series{{2, 10, 20, 0, 0, 0}}, 20, 20, nil},
		"less held than given":       {[]series{{2, 10, 20, 0, 5, 4}}, 20, 20, nil},
		"then another":               {[]series{{2, 10, 20, 0, 5, 5}, {3, 60, 70, 0, 5, 5}}, 0, 0, []stay{{host: 2, from: 10, to: 60}, {host: 3, from: 60, to: 70 + int64(maxAhead)}}},
		"then two":                   {[]series{{2, 10, 20, 0, 5, 5}, {3, 60, 70, 0, 5, 5}, {3, 80, 90, 0, 5, 5}}, 0, 0, []stay{{host: 2, from: 10, to: 60}, {host: 3, from: 60, to: 80}, {host: 3, from: 80, to: 90 + int64(maxAhead)}}},
		"at its end":                 {[]series{{2, 10, 20, 0, 5, 5}, {3, 20, 70, 0, 5, 5}}, 0, 0, []stay{{host: 2, from: 10, to: 20}, {host: 3, from: 20, to: 70 + int64(maxAhead)}}},
		"before its end":             {[]series{{2, 10, 20, 0, 5, 5}, {3, 19, 70, 0, 5, 5}}, 0, 0, []stay{{host: 2, from: 10, to: 20 + int64(maxAhead)}, {host: 3, from: 19, to: 70 + int64(maxAhead)}}},
		"from the same time":         {[]series{{2, 10, 10, 0, 5, 5}, {3, 10, 70, 0, 5, 5}}, 0, 0, []stay{{host: 2, from: 10, to: 10 + int64(maxAhead)}, {host: 3, from: 10, to: 70 + int64(maxAhead)}}},
		"then another, known before": {[]series{{2, 10, 20, 0, 5, 5}, {3, 60 * m, 70 * m, 65 * m, 5, 5}}, 0, 0, []stay{{host: 2, from: 10, to: 20 + int64(maxAhead)}, {host: 3, from: 65 * m, to: 70*m + int64(maxAhead)}}},
	} {
		round++
		write(t, d, func(x *db.Tx) error {
			if err := do(x, "DELETE FROM nested_series", "DELETE FROM share_series", "DELETE FROM workload", "DELETE FROM node WHERE id = 3"); err != nil {
				return err
			}
			if err := addNodes(x, "other"); err != nil {
				return err
			}
			if err := do(x, fmt.Sprint("UPDATE node SET through_ns = CASE id WHEN 1 THEN ", c.guest, " ELSE ", c.host, " END"), "INSERT INTO workload (id, node, short, rev) VALUES (7, 2, 7, 1)"); err != nil {
				return err
			}
			for i, s := range c.series {
				_, err := x.Exec("INSERT INTO share_series (id, guest, epoch, host, workload, name, first_ns, last_ns, since_ns, given, held) VALUES ($1, 'g', $2, $3, 7, '', $4, $5, $6, $7, $8)",
					int64(i+1), fmt.Sprint(i), s.host, s.first, s.last, s.since, s.given, s.held)
				if err == nil {
					_, err = x.Exec("INSERT INTO nested_series (node, series, host) VALUES (1, $1, $2)", int64(i+1), s.host)
				}
				if err != nil {
					return err
				}
			}
			for i := range c.want {
				c.want[i].workload = 7
			}
			if got, err := findStays(x, 1); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
			}
			return nil
		})
	}
}

// The ranges of a node are within those of agents of its cluster that overlap with them, of the machine or of a
// control group around, and not within a moment of another kernel run.
func TestFindExtentStays(t *testing.T) {
	d := openDB(t)
	inner := usage.Extent{Scope: usage.ScopeOf(30), Ancestors: usage.AncestorsOf(0, 20, 10)}
	outer := usage.Extent{Scope: usage.ScopeOf(20), Ancestors: usage.AncestorsOf(0, 10)}
	write(t, d, func(x *db.Tx) error {
		if err := addNodes(x, "outer", "far"); err != nil {
			return err
		}
		if err := do(x, "UPDATE node SET cluster = 'd' WHERE id = 4", "INSERT INTO kernel_run (id, cluster, boot, number, highest_ns, node, began_ns) VALUES (1, 'c', 'boot', 0, 0, 2, 0), (2, 'c', 'boot', 1, 0, 2, 0), (3, 'd', 'boot', 0, 0, 4, 0)",
			"INSERT INTO booked (run, scope, from_ns, to_ns, node, taken_ns) VALUES (1, '/', 100, 200, 2, 0), (2, '/', 100, 200, 2, 0), (3, '/', 0, 999, 4, 0), (1, '/', 300, 400, 1, 0), (1, 'cgroup:9', 0, 999, 2, 0)"); err != nil {
			return err
		}
		add := func(node int64, e usage.Extent, workload, run, from, to, offset int64) error {
			_, err := x.Exec("INSERT INTO extent_range (node, boot, workload, scope, ancestors, run, from_ns, to_ns, offset_ns, taken_ns) VALUES ($1, 'boot', $2, $3, $4, $5, $6, $7, $8, 0)",
				node, workload, string(e.Scope), string(e.Ancestors), run, from, to, offset)
			return err
		}
		for _, err := range []error{
			add(1, inner, 0, 1, 50, 100, 1000), // up to the beginning of the outer ones
			add(1, inner, 0, 1, 100, 150, 1000),
			add(1, inner, 0, 1, 190, 220, 1000),
			add(1, inner, 0, 1, 200, 205, 1000), // from the end of the outer ones
			add(1, inner, 0, 1, 350, 360, 1000), // of the node itself
			add(1, inner, 5, 0, 195, 196, 2000), // of a job of which no run is known
			add(3, outer, 0, 1, 120, 130, 0),
			add(3, outer, 0, 2, 140, 145, 0), // another run
			add(3, outer, 0, 0, 150, 199, 0), // jobs move no rows of others
			add(4, outer, 0, 1, 0, 999, 0),   // another cluster
		} {
			if err != nil {
				return err
			}
		}
		machine := func(of, from, to int64) stay {
			return stay{host: 2, of: of, level: usage.MaxAncestors, from: from, to: to}
		}
		group := stay{host: 3, level: 0, from: 1120, to: 1130}
		of1, of2 := []stay{machine(0, 1100, 1150), machine(0, 1190, 1200), machine(5, 2195, 2196)}, machine(5, 2195, 2196)
		for name, c := range map[string]struct {
			boot         string
			since, until int64
			want         []stay
		}{
			"all":            {"boot", 0, math.MaxInt64, append(slices.Clone(of1), of2, group)},
			"after the end":  {"boot", 360, math.MaxInt64, nil},
			"another boot":   {"other", 0, math.MaxInt64, nil},
			"since":          {"boot", 149, 150, []stay{machine(0, 1100, 1150), group}},
			"since its end":  {"boot", 150, 219, []stay{machine(5, 2195, 2196), of2}},
			"until":          {"boot", 150, 220, []stay{machine(0, 1190, 1200), machine(5, 2195, 2196), of2}},
			"before another": {"boot", 0, 149, nil},
		} {
			if got, err := findExtentStays(x, 1, c.boot, c.since, c.until); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
			}
		}

		// Each time is added to a guest once, with the ranges of an hour before.
		g := newGuest(1)
		for _, c := range []struct {
			since time.Duration
			boot  int64
			n     int
		}{{time.Hour + 360, 360, 0}, {time.Hour + 150, 150, 3}, {time.Hour + 150, 150, 3}, {time.Hour + 151, 150, 3}, {time.Hour, 0, 5}} {
			if err := g.addBoot(x, "boot", int64(c.since)); err != nil || len(g.before) != c.n || g.boots["boot"] != c.boot {
				t.Errorf("since %d: %+v from %d, %v", c.since, g.before, g.boots["boot"], err)
			}
		}

		// The host of a minute is found by extents too, and noted.
		minute := int64(5)
		if err := add(1, inner, 0, 1, 401, 500, minute*int64(time.Minute)-401); err != nil {
			return err
		}
		if err := do(x, "INSERT INTO booked (run, scope, from_ns, to_ns, node, taken_ns) VALUES (1, '/', 401, 999, 2, 0)"); err != nil {
			return err
		}
		for at, want := range map[int64]int64{minute: 2, minute + 1: 0} {
			if host, err := hostIn(x, 1, at); err != nil || host != want {
				t.Errorf("minute %d: host %d, %v, want %d", at, host, err, want)
			}
		}
		if host, err := hostIn(x, 2, minute); err != nil || host != 0 {
			t.Errorf("the host is within %d, %v", host, err)
		}
		return do(x, "INSERT INTO within_day (node, minute, host, workload, whole, rev) VALUES (2, 2880, 1, 4, 1, 1), (2, 4320, 1, 4, 0, 1)")
	})
	write(t, d, func(x *db.Tx) error {
		// A day that an earlier version nested as a whole.
		for at, want := range map[int64]int64{2879: 0, 2880: 1, 4319: 1, 4320: 0} {
			if host, err := hostIn(x, 2, at); err != nil || host != want {
				t.Errorf("minute %d: host %d, %v, want %d", at, host, err, want)
			}
		}
		return nil
	})
	if got, want := rows(t, d, 5, "SELECT node, minute, host, workload, whole FROM within_day ORDER BY node, minute"), []string{"1 0 2 0 0", "2 2880 1 4 1", "2 4320 1 4 0"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Measured time that extends a range is joined with it, if its offset is about the same.
func TestAddExtents(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, unlimited, 9)
		e := usage.Extent{Scope: usage.ScopeOf(30), Ancestors: usage.AncestorsOf(0, 20)}
		for _, m := range []batch.Measured{
			{From: 10, To: 20}, {From: 20, To: 30, Offset: maxOffsetChange}, {From: 30, To: 40, Offset: -1}, {From: 40, To: 50, Offset: maxOffsetChange + 1}, {From: 40, To: 45, Offset: -maxOffsetChange - 1},
		} {
			m.Boot, m.Extent = "boot", e
			if err := b.addExtents(&batch.Entry{Measured: []batch.Measured{{Boot: "boot", Extent: usage.Extent{Scope: usage.Machine}, From: m.From, To: m.To}, m}}, n, []kernelRun{{id: 4}, {id: 5}}); err != nil {
				return err
			}
		}
		n.jobs = true
		return b.addExtents(&batch.Entry{Measured: []batch.Measured{{Boot: "boot", Extent: e, From: 1, To: 2, Workload: 8}, {Boot: "boot", Extent: e, From: 3, To: 4}}}, n, nil)
	})
	want := []string{"0 0 3 4 0", "0 5 10 40 0", fmt.Sprint("0 5 40 50 ", maxOffsetChange+1), "1 0 1 2 0"}
	if got := rows(t, d, 5, "SELECT workload, run, from_ns, to_ns, offset_ns FROM extent_range ORDER BY workload, run, from_ns"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Amounts that move between rows of a node of jobs are added to those that the transaction adds: to and from.
func TestMovedAmounts(t *testing.T) {
	g := newGuest(6)
	row := func(covered, cpu int64) []int64 {
		values := make([]int64, len(schema.UsageLayout.Columns))
		values[schema.ColCovered], values[schema.ColRest+int(usage.CPU)-1], values[schema.ColRest+int(usage.MemoryPeak)-1] = covered, cpu, 99
		return values
	}
	g.noteMoved(3, 0, 2, row(10, 100))
	g.noteMoved(3, 0, 2, row(1, 7))
	g.noteMoved(4, 2, 0, row(5, 50))
	skew := schema.ColSkew + slices.Index(usage.Wholes[:], usage.CPU)
	show := func(rows map[schema.RowKey][]int64) (lines []string) {
		for k, v := range rows {
			id, within := schema.SplitKey(k.ID)
			lines = append(lines, fmt.Sprint(k.Minute, id, within, v[schema.ColRev], v[schema.ColCovered], v[skew]))
			v = slices.Clone(v)
			v[schema.ColRev], v[schema.ColCovered], v[skew] = 0, 0, 0
			if slices.ContainsFunc(v, func(v int64) bool { return v != 0 }) {
				lines = append(lines, fmt.Sprint("other columns ", v))
			}
		}
		slices.Sort(lines)
		return lines
	}
	if got, want := show(g.moved), []string{"3 6 0 0 -11 -107", "3 6 2 0 11 107", "4 6 0 0 5 50", "4 6 2 0 -5 -50"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	p := schema.NewPending(schema.NodeLayout)
	own := make([]int64, len(schema.NodeLayout.Columns))
	own[schema.ColRev], own[schema.ColCovered], own[skew] = 8, 20, 300
	p.Rows[schema.RowKey{Minute: 3, ID: 6}] = own
	g.addMoved(p, 3, 8)
	if got, want := show(p.Rows), []string{"3 6 0 8 9 193", "3 6 2 8 11 107"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A row that becomes empty is not written; covered time is not negative.
	p.Rows = map[schema.RowKey][]int64{{Minute: 4, ID: schema.Key(6, 2)}: make([]int64, len(own))}
	p.Rows[schema.RowKey{Minute: 4, ID: schema.Key(6, 2)}][skew] = 50
	g.addMoved(p, 4, 8)
	if got, want := show(p.Rows), []string{"4 6 0 8 5 50"}; !slices.Equal(got, want) || len(g.moved) != 0 {
		t.Errorf("%q, want %q; %v is left", got, want, g.moved)
	}
}

// The guests that an entry of a host concerns are those that it reported a moment before its latest window.
func TestFindGuests(t *testing.T) {
	d := openDB(t)
	const through = int64(1e15)
	write(t, d, func(x *db.Tx) error {
		if err := addNodes(x, "c", "d"); err != nil {
			return err
		}
		err := do(x, "INSERT INTO workload (id, node, short, rev) VALUES (7, 2, 7, 1)",
			fmt.Sprint("INSERT INTO share_series (id, guest, epoch, host, workload, name, first_ns, last_ns) VALUES (1, 'g', 'e', 1, 7, '', 0, ", through-int64(maxLag), "), (2, 'g', 'f', 1, 7, '', 0, ", through-int64(maxLag)-1, "), (3, 'g', 'g', 2, 7, '', 0, ", through, ")"),
			"INSERT INTO nested_series (node, series, host) VALUES (2, 1, 1), (3, 2, 1), (1, 3, 2), (4, 3, 2)")
		if err != nil {
			return err
		}
		for name, c := range map[string]struct {
			guest, host bool
			want        []int64
		}{
			"neither": {false, false, nil}, "guest": {true, false, []int64{1}}, "host": {false, true, []int64{2}}, "both": {true, true, []int64{1, 2}},
		} {
			b, n := newTestBooking(x, unlimited, 9)
			if !n.isGuest || !n.isHost {
				t.Errorf("%+v", n)
			}
			n.isGuest, n.isHost, n.through = c.guest, c.host, through
			if err := b.findGuests(n); err != nil {
				return err
			}
			var got []int64
			for id := range b.guests {
				got = append(got, id)
			}
			if slices.Sort(got); !gocmp.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		return nil
	})
}
