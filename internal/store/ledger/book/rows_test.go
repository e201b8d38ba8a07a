package book

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

const testDay = schema.DayMinutes

// setMarks makes the rows of day 1 kept as days, of day 2 as hours too, and of later days as minutes too. Hours
// are folded up to the second of day 4, and of that the workloads before 5; days up to day 4, likewise.
func setMarks(x *db.Tx) {
	x.HourFloor, x.MinuteFloor = 2*testDay, 3*testDay
	x.Day, x.DayProgress = 4*testDay, schema.Progress{Workload: 5, Node: 5}
	x.Hour, x.HourProgress = 4*testDay+60, schema.Progress{Workload: 5, Node: 5}
}

// cpuRow returns a row with CPU time.
func cpuRow(s *schema.Layout, cpu int64) []int64 {
	values := make([]int64, len(s.Columns))
	at := slices.IndexFunc(s.Columns, func(c schema.Column) bool { return c.Name == "cpu" })
	values[schema.ColRev], values[schema.ColPresent], values[schema.ColCovered], values[at] = 1, int64(usage.SetOf(usage.CPU)), 1, cpu
	return values
}

// tables returns the rows with CPU time of all tables of a layout, with the table's level, minute, key and CPU time.
// Empty ones were written by a transaction, and have its revision.
func tables(t *testing.T, d *db.DB, s *schema.Layout) (lines []string) {
	t.Helper()
	names := []string{s.HourTable(), s.DayTable()}
	for day := range int64(8) {
		if n := rows(t, d, 1, "SELECT count(*) FROM kept WHERE day = $1", day*testDay); n[0] == "1" {
			names = append(names, s.MinuteTable(day*testDay))
		}
	}
	for _, name := range names {
		for _, line := range rows(t, d, 3, "SELECT minute, "+s.Key+", cpu FROM "+name+" WHERE present <> 0") {
			lines = append(lines, fmt.Sprint([]string{"minute ", "hour ", "day "}[s.LevelOf(name)], line))
		}
		if old := rows(t, d, 3, "SELECT minute, "+s.Key+", rev FROM "+name+" WHERE present = 0 AND rev < 2"); old != nil {
			t.Errorf("%s: empty rows of no transaction: %q", name, old)
		}
	}
	slices.Sort(lines)
	return lines
}

// A row is added to the tables that are kept of its time and, where they are folded, to hours and days.
func TestAddRows(t *testing.T) {
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		d := openDB(t)
		minutes := map[int64][]string{ // minutes of rows with key 5, and the levels with the row
			2*testDay - 1:  {"day 1440"},
			2 * testDay:    {"day 2880", "hour 2880"},
			3*testDay - 1:  {"day 2880", "hour 4260"},
			3 * testDay:    {"day 4320", "hour 4320", "minute 4320"},
			4*testDay - 1:  {"day 4320", "hour 5700", "minute 5759"},
			4 * testDay:    {"hour 5760", "minute 5760"},
			4*testDay + 59: {"hour 5760", "minute 5819"},
			4*testDay + 60: {"minute 5820"},
		}
		want := map[string]int64{}
		write(t, d, func(x *db.Tx) error {
			setMarks(x)
			for id := range int64(7) {
				if _, err := x.Exec("INSERT INTO workload (id, node, short, rev) VALUES ($1, 1, $1, 1)", id); err != nil {
					return err
				}
			}
			b, _ := newTestBooking(x, unlimited, 9)
			p := schema.NewPending(s)
			cpu := int64(1)
			add := func(minute, key int64, rows ...string) {
				p.Rows[schema.RowKey{Minute: minute, ID: key}] = cpuRow(s, cpu)
				for _, r := range rows {
					want[fmt.Sprint(r, " ", key)] += cpu
				}
				cpu *= 2
			}
			for m, rows := range minutes {
				add(m, 5, rows...)
			}
			add(4*testDay+60, 4, "day 5760", "hour 5820", "minute 5820") // its slices are folded
			add(4*testDay+61, 6, "minute 5821")
			return b.addRows(p)
		})
		var lines []string
		for k, cpu := range want {
			lines = append(lines, fmt.Sprint(k, " ", cpu))
		}
		slices.Sort(lines)
		if got := tables(t, d, s); !slices.Equal(got, lines) {
			t.Errorf("%s: %q, want %q", s.Key, got, lines)
		}
		used, stale := []string{"4 5820 5820", "5 2879 5819"}, []string{"1440", "2880", "4320", "5760"}
		if s == schema.NodeLayout {
			used, stale = nil, nil
		}
		if got := rows(t, d, 3, "SELECT id, first_minute, last_minute FROM workload WHERE last_minute <> 0 ORDER BY id"); !slices.Equal(got, used) {
			t.Errorf("%s: used %q, want %q", s.Key, got, used)
		}
		if got := rows(t, d, 1, "SELECT minute FROM stale_day ORDER BY minute"); !slices.Equal(got, stale) {
			t.Errorf("%s: stale days are %q, want %q", s.Key, got, stale)
		}
	}
}

// Rows that overflow in sum are refused: those of one minute in an entry, and late ones of a day. An hour of the largest rows
// does not overflow.
func TestOverflow(t *testing.T) {
	const large, many = schema.MaxMinuteAmount, 65 // the sum of 64 does not overflow
	d := openDB(t)
	k := New(d, time.Hour, unlimited, 3)
	for i, c := range []struct {
		rows, nodeRows int
		want           error
	}{{1, 1, nil}, {many, 0, schema.ErrRange}, {0, many, schema.ErrRange}} {
		e := &batch.Entry{Node: "a", Stream: batch.Stream{byte(i)}, Number: 1}
		for range c.rows {
			m := batch.Minute{Workload: 7, Minute: int64(i)}
			m.Usage.Put(usage.CPU, large, usage.Measured)
			e.Minutes = append(e.Minutes, m)
		}
		for range c.nodeRows {
			e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: int64(i), Lost: large})
		}
		other := &batch.Entry{Node: "b", Stream: batch.Stream{byte(i), 1}, Number: 1}
		r, err := k.Book(t.Context(), []*batch.Entry{e, other})
		if err != nil || !errors.Is(r[0].Err, c.want) || r[1].Err != nil || r[1].Verdict != batch.Accepted {
			t.Errorf("%d rows and %d of the node: %v, %v", c.rows, c.nodeRows, r, err)
		}
	}
	for minutes, want := range map[int64]error{60: nil, many: schema.ErrRange} {
		for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
			d := openDB(t)
			err := d.Write(t.Context(), func(x *db.Tx) error {
				setMarks(x)
				b, _ := newTestBooking(x, unlimited, 9)
				p := schema.NewPending(s)
				for m := range minutes {
					if err := p.Add(schema.RowKey{Minute: 3*testDay + m, ID: 4}, cpuRow(s, large)); err != nil {
						return err
					}
				}
				return b.addRows(p)
			})
			if !errors.Is(err, want) {
				t.Errorf("%d late minutes of %s: %v, want %v", minutes, s.Key, err, want)
			}
		}
	}
}

// A row that is set replaces what is in its place, in the finest table that is kept, and hours and days are
// summed again. A span coarser than its table replaces all rows within, and a finer row that around it.
func TestChange(t *testing.T) {
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		d := openDB(t)
		apply := func(coarse int64, set func(c *Change)) (through int64) {
			t.Helper()
			write(t, d, func(x *db.Tx) (err error) {
				setMarks(x)
				if err := do(x, "INSERT INTO workload (id, node, short, rev) VALUES (4, 1, 4, 1), (5, 1, 5, 1) ON CONFLICT DO NOTHING", "DELETE FROM stale_day", "UPDATE workload SET first_minute = 0, last_minute = 0"); err != nil {
					return err
				}
				c := NewChange(s)
				set(c)
				through, err = c.Apply(x, coarse)
				return err
			})
			return through
		}
		check := func(what string, want ...string) {
			t.Helper()
			slices.Sort(want)
			if got := tables(t, d, s); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %q, want %q", s.Key, what, got, want)
			}
		}
		key := func(minute, id int64) schema.RowKey { return schema.RowKey{Minute: minute, ID: id} }
		m := int64(3 * testDay)
		if got := apply(0, func(c *Change) {
			for i := range int64(3) {
				c.Set(replica.Minute, key(m+59+i, 5), cpuRow(s, 1<<i))
			}
			c.Set(replica.Minute, key(m, 4), cpuRow(s, 100))
			c.Set(replica.Minute, key(4*testDay+59, 5), cpuRow(s, 1000))
			c.Set(replica.Minute, key(4*testDay+60, 5), cpuRow(s, 2000))
		}); got != 0 {
			t.Errorf("%s: minutes hold spans up to %d", s.Key, got)
		}
		all := []string{"minute 4320 4 100", "hour 4320 4 100", "day 4320 4 100", "minute 4379 5 1", "minute 4380 5 2", "minute 4381 5 4", "hour 4320 5 1", "hour 4380 5 6", "day 4320 5 7",
			"minute 5819 5 1000", "hour 5760 5 1000", "minute 5820 5 2000"}
		check("minutes", all...)
		used, stale := []string{"4 4320 4320", "5 4379 5819"}, []string{"4320"}
		if s == schema.NodeLayout {
			used, stale = nil, nil
		}
		if got := rows(t, d, 3, "SELECT id, first_minute, last_minute FROM workload WHERE last_minute <> 0 ORDER BY id"); !slices.Equal(got, used) {
			t.Errorf("%s: used %q, want %q", s.Key, got, used)
		}
		if got := rows(t, d, 1, "SELECT minute FROM stale_day ORDER BY minute"); !slices.Equal(got, stale) {
			t.Errorf("%s: stale days are %q, want %q", s.Key, got, stale)
		}

		// An hour in the place of its minutes, then a minute in the place of that hour.
		if got := apply(m+60, func(c *Change) { c.Set(replica.Hour, key(m+60, 5), cpuRow(s, 50)) }); got != m+120 {
			t.Errorf("%s: minutes hold spans up to %d, want %d", s.Key, got, m+120)
		}
		rest := []string{"minute 4320 4 100", "hour 4320 4 100", "day 4320 4 100", "minute 5819 5 1000", "hour 5760 5 1000", "minute 5820 5 2000"}
		check("an hour", append([]string{"minute 4379 5 1", "minute 4380 5 50", "hour 4320 5 1", "hour 4380 5 50", "day 4320 5 51"}, rest...)...)
		later := func(c *Change) { c.Set(replica.Minute, key(m+90, 5), cpuRow(s, 3)) }
		apply(m+90, later) // not before this minute
		check("a minute beside a span", append([]string{"minute 4379 5 1", "minute 4380 5 50", "minute 4410 5 3", "hour 4320 5 1", "hour 4380 5 53", "day 4320 5 54"}, rest...)...)
		apply(m+91, later)
		check("a minute in the place of an hour", append([]string{"minute 4379 5 1", "minute 4410 5 3", "hour 4320 5 1", "hour 4380 5 3", "day 4320 5 4"}, rest...)...)

		// A day, then an hour in its place.
		if got := apply(m, func(c *Change) { c.Set(replica.Day, key(m, 5), cpuRow(s, 900)) }); got != m+testDay {
			t.Errorf("%s: minutes hold spans up to %d, want %d", s.Key, got, m+testDay)
		}
		check("a day", append([]string{"minute 4320 5 900", "hour 4320 5 900", "day 4320 5 900"}, rest...)...)
		apply(m+testDay, func(c *Change) { c.Set(replica.Hour, key(m+60, 5), cpuRow(s, 60)) })
		check("an hour in the place of a day", append([]string{"minute 4380 5 60", "hour 4380 5 60", "day 4320 5 60"}, rest...)...)

		// Minutes in the place of two hours.
		apply(0, func(c *Change) {
			c.Set(replica.Hour, key(m+180, 5), cpuRow(s, 70))
			c.Set(replica.Hour, key(m+240, 5), cpuRow(s, 80))
		})
		apply(m+testDay, func(c *Change) {
			c.Set(replica.Minute, key(m+181, 5), cpuRow(s, 1))
			c.Set(replica.Minute, key(m+241, 5), cpuRow(s, 2))
		})
		rest = append(rest, "minute 4501 5 1", "hour 4500 5 1", "minute 4561 5 2", "hour 4560 5 2")
		check("minutes in the place of hours", append([]string{"minute 4380 5 60", "hour 4380 5 60", "day 4320 5 63"}, rest...)...)

		// Where no minutes are kept, hours are set, and where these are not, days.
		if got := apply(0, func(c *Change) {
			c.Set(replica.Hour, key(2*testDay+60, 5), cpuRow(s, 7))
			c.Set(replica.Hour, key(2*testDay+120, 5), cpuRow(s, 1))
			c.Set(replica.Day, key(testDay, 5), cpuRow(s, 9))
		}); got != 0 {
			t.Errorf("%s: hours hold spans up to %d", s.Key, got)
		}
		rest = append(rest, "minute 4380 5 60", "hour 4380 5 60", "day 4320 5 63")
		check("hours and days", append([]string{"hour 2940 5 7", "hour 3000 5 1", "day 2880 5 8", "day 1440 5 9"}, rest...)...)
		if s == schema.UsageLayout {
			if got, want := rows(t, d, 3, "SELECT id, first_minute, last_minute FROM workload WHERE last_minute <> 0 ORDER BY id"), []string{"5 1440 3000"}; !slices.Equal(got, want) {
				t.Errorf("used %q, want %q", got, want)
			}
			if got, want := rows(t, d, 1, "SELECT minute FROM stale_day ORDER BY minute"), []string{"1440", "2880"}; !slices.Equal(got, want) {
				t.Errorf("stale days are %q, want %q", got, want)
			}
		}

		// A day is summed from its hours, of which there are fewer than minutes.
		write(t, d, func(x *db.Tx) error { return do(x, "UPDATE "+s.HourTable()+" SET cpu = 4000 WHERE minute = 4380") })
		apply(0, func(c *Change) { c.Set(replica.Minute, key(m, 5), cpuRow(s, 2)) })
		check("a day of hours", append([]string{"hour 2940 5 7", "hour 3000 5 1", "day 2880 5 8", "day 1440 5 9", "minute 4320 5 2", "hour 4320 5 2", "hour 4380 5 4000", "day 4320 5 4005", "minute 4380 5 60"}, rest[:10]...)...)
	}
}

// Hours are kept from their floor on, also where minutes are kept from the same time on.
func TestChangeAtFloor(t *testing.T) {
	const m = 3 * testDay
	for floor, want := range map[int64][]string{m: {"day 4320 5 7", "hour 4320 5 7", "minute 4320 5 7"}, m + testDay: {"day 4320 5 7", "minute 4320 5 7"}} {
		d := openDB(t)
		write(t, d, func(x *db.Tx) error {
			setMarks(x)
			x.HourFloor = floor
			c := NewChange(schema.NodeLayout)
			c.Set(replica.Minute, schema.RowKey{Minute: m, ID: 5}, cpuRow(schema.NodeLayout, 7))
			_, err := c.Apply(x, 0)
			return err
		})
		if got := tables(t, d, schema.NodeLayout); !slices.Equal(got, want) {
			t.Errorf("hours from minute %d on: %q, want %q", floor, got, want)
		}
	}
}

// The row of a node is only written if it changes: an upstream server gets each row that is written.
func TestNodeRowUnchanged(t *testing.T) {
	d := openDB(t)
	k := New(d, time.Hour, unlimited, 3)
	s, last := batch.Stream{1}, batch.Hash{}
	number := uint64(0)
	book := func(through int64, ns ...batch.NodeMinute) {
		t.Helper()
		number++
		e := &batch.Entry{Node: "a", Stream: s, Number: number, Previous: last, Hash: batch.Hash{byte(number)}, Through: time.Unix(0, through), Nodes: ns}
		last = e.Hash
		if r, err := k.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
			t.Fatal(r, err)
		}
	}
	state := func() string {
		return rows(t, d, 4, "SELECT through_ns, cpus, cpus_minute, rev FROM node WHERE id = 1")[0]
	}
	book(50, batch.NodeMinute{Minute: 5, CPUs: 2})
	first := state()
	if got := first[:len("50 2 5 ")]; got != "50 2 5 " {
		t.Errorf("%q", first)
	}
	for range 2 {
		book(50)
		book(49, batch.NodeMinute{Minute: 4, CPUs: 8})
	}
	if got := state(); got != first {
		t.Errorf("%q, want %q", got, first)
	}
	book(50, batch.NodeMinute{Minute: 5, CPUs: 3})
	if got := state()[:len("50 3 5 ")]; got != "50 3 5 " {
		t.Errorf("%q", got)
	}
	book(51)
	if got := state()[:len("51 3 5 ")]; got != "51 3 5 " {
		t.Errorf("%q", got)
	}
}

// Moves of windows beyond the quota of texts are left out.
func TestShiftsOverQuota(t *testing.T) {
	for over, want := range map[int64]string{0: "2", 1: "1"} {
		d := openDB(t)
		quota := unlimited
		quota.Bytes = 2*(rowBytes+4) - over
		e := &batch.Entry{Node: "a", Number: 1, Shifts: []batch.Shift{{Boot: "boot"}, {Boot: "boot"}}}
		if r, err := New(d, time.Hour, quota, 3).Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil {
			t.Fatal(r, err)
		}
		if got := rows(t, d, 1, "SELECT count(*) FROM shift"); got[0] != want {
			t.Errorf("%d bytes too few: %q moves", over, got)
		}
	}
}

// A name changes the row of its workload, its labels, and the days on which it was used, only where it differs.
func TestBookName(t *testing.T) {
	d := openDB(t)
	id := workload.NewID("a", workload.Job, "k")
	short, _ := workload.ShortIDOf(id)
	base := batch.Name{ID: id, Kind: workload.Job, Key: "k", Name: "n", Labels: map[string]string{"a": "1", "b": "2"}}
	type want struct {
		rev    bool // the row is written
		stale  []string
		labels string
		bytes  int64
	}
	const texts = int64(len("k") + len("n") + len("a1b2"))
	for i, c := range []struct {
		name   func(n *batch.Name)
		at     int64
		change func(x *db.Tx) error
		want   want
	}{
		{func(*batch.Name) {}, 10, nil, want{true, nil, "a1 b2", texts}},
		{func(*batch.Name) {}, 10, nil, want{false, nil, "a1 b2", 0}},
		{func(*batch.Name) {}, 11, nil, want{true, nil, "a1 b2", 0}}, // it is younger now
		{func(n *batch.Name) { n.Labels = nil }, 11, nil, want{false, nil, "a1 b2", 0}},
		{func(n *batch.Name) { n.Labels = map[string]string{"a": "1", "c": "3"} }, 10, nil, want{true, nil, "a1 b2 c3", 2}}, // older ones fill in
		{func(n *batch.Name) { n.Labels = map[string]string{"a": "9"} }, 10, nil, want{false, nil, "a1 b2 c3", 0}},
		{func(n *batch.Name) { n.Labels = map[string]string{"a": "1", "c": "4"} }, 11, nil, want{true, nil, "a1 c4", 2}},
		{func(n *batch.Name) { n.Name, n.Labels = "m", nil }, 11, nil, want{true, nil, "a1 c4", 1}},
		{func(n *batch.Name) { n.User, n.Labels = "u", nil }, 11, nil, want{true, nil, "a1 c4", 2}}, // not used yet
		{func(n *batch.Name) { n.Project, n.Labels = "p", nil }, 11, func(x *db.Tx) error {
			return do(x, fmt.Sprint("UPDATE workload SET first_minute = ", 2*testDay-1, ", last_minute = ", 3*testDay))
		}, want{true, []string{"1440", "2880", "4320"}, "a1 c4", 1}},
		{func(n *batch.Name) { n.Project, n.Labels = "p", nil }, 11, nil, want{false, nil, "a1 c4", 0}},
		{func(n *batch.Name) { n.Project, n.Labels = "q", nil }, 11, func(x *db.Tx) error {
			return do(x, fmt.Sprint("UPDATE workload SET first_minute = ", 3*testDay, ", last_minute = ", 4*testDay))
		}, want{true, []string{"4320"}, "a1 c4", 1}}, // the present day has no sums
		{func(n *batch.Name) { n.ID, n.Name = id+"x", "other" }, 12, nil, want{false, nil, "a1 c4", 0}},
	} {
		var rev int64
		write(t, d, func(x *db.Tx) error {
			x.Day, rev = 4*testDay, x.Rev
			if err := do(x, "DELETE FROM stale_day", "DELETE FROM node_quota"); err != nil {
				return err
			}
			if c.change != nil {
				if err := c.change(x); err != nil {
					return err
				}
			}
			n := base
			n.Labels = maps.Clone(base.Labels)
			c.name(&n)
			b, node := newTestBooking(x, unlimited, 9)
			if err := b.bookName(&n, node, c.at); err != nil {
				return err
			}
			if node.quota.bytes != c.want.bytes {
				t.Errorf("%d: %d bytes of the quota, want %d", i, node.quota.bytes, c.want.bytes)
			}
			return nil
		})
		if got := rows(t, d, 1, "SELECT count(*) FROM workload WHERE short = $1 AND rev = $2", int64(short), rev); (got[0] == "1") != c.want.rev {
			t.Errorf("%d: %q rows are written", i, got)
		}
		if got := rows(t, d, 1, "SELECT minute FROM stale_day ORDER BY minute"); !slices.Equal(got, c.want.stale) {
			t.Errorf("%d: stale days are %q, want %q", i, got, c.want.stale)
		}
		labels := strings.Join(rows(t, d, 1, "SELECT key || value FROM workload_label ORDER BY key"), " ")
		if labels != c.want.labels {
			t.Errorf("%d: labels %q, want %q", i, labels, c.want.labels)
		}
	}
	// Texts beyond the quota are left out; times are not.
	write(t, d, func(x *db.Tx) error {
		quota := unlimited
		quota.Bytes = int64(len("keyname") - 1)
		b, n := newTestBooking(x, quota, 9)
		exit := 3
		return b.bookName(&batch.Name{ID: workload.NewID("a", workload.Job, "x"), Kind: workload.Job, Key: "key", Name: "name", Started: time.Unix(0, 5), Ended: time.Unix(0, 6), Exit: &exit, Parent: "p"}, n, 1)
	})
	if got, want := rows(t, d, 6, "SELECT key, name, parent, started_ns, ended_ns, exit_code FROM workload WHERE started_ns = 5"), []string{"  p 5 6 3"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A name of a server below replaces all, and marks the days likewise.
	for last, want := range map[int64][]string{3 * testDay: {"1440", "2880", "4320"}, 4 * testDay: {"1440", "2880", "4320"}, 0: nil} {
		write(t, d, func(x *db.Tx) error {
			x.Day = 4 * testDay
			if err := do(x, "DELETE FROM stale_day", fmt.Sprint("UPDATE workload SET project = '', first_minute = ", min(last, 2*testDay-1), ", last_minute = ", last)); err != nil {
				return err
			}
			w := &replica.Workload{Name: &batch.Name{ID: id, Kind: workload.Job, Project: "z", Labels: map[string]string{"l": "v"}}, Namespace: "ns", Pod: "po", Container: "co", Named: time.Unix(0, 8)}
			for range 2 {
				if err := ReplaceName(x, 1, w); err != nil {
					return err
				}
			}
			return nil
		})
		if got := rows(t, d, 1, "SELECT minute FROM stale_day ORDER BY minute"); !slices.Equal(got, want) {
			t.Errorf("up to %d: stale days are %q, want %q", last, got, want)
		}
		if got, want := rows(t, d, 8, "SELECT w.kind, w.name, w.project, w.namespace, w.pod, w.container, w.named_ns, l.key || l.value FROM workload w JOIN workload_label l ON l.workload = w.id WHERE w.id = 1"), []string{"job  z ns po co 8 lv"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
