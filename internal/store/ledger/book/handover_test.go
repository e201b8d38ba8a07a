package book

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
)

// given returns a handover of a host, in seconds.
func given(name string, from, to int64, opened power.Share, shares ...power.Share) batch.TimedHandover {
	return batch.TimedHandover{From: time.Unix(from, 0), To: time.Unix(to, 0), Handover: usage.Handover{Guest: "g", Workload: workload.NewID("a", workload.VM, "g"), Name: name, Opened: opened, Shares: shares}}
}

// The energy that a host gave is that since the share before its window, and counts as held as far as the rows of
// the same entry have it.
func TestBookGiven(t *testing.T) {
	const long = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" // maxEpoch bytes
	short, _ := workload.ShortIDOf(workload.NewID("a", workload.VM, "g"))
	e := func(n, active int64) power.Share { return power.Share{Epoch: "e", N: n, Active: active, Idle: 1} }
	minute := func(uJ int64) batch.Minute {
		m := batch.Minute{Workload: short}
		m.Usage.Put(usage.EnergyPackage, uJ, usage.Measured)
		m.Usage.Put(usage.EnergyDRAM, 1, usage.Measured)
		return m
	}
	longGuest := given("", 1, 2, power.Share{}, e(1, 9))
	longGuest.Guest = long + "x"
	atLimit := given("", 1, 2, power.Share{}, power.Share{Epoch: long, N: 1, Active: 9})
	atLimit.Guest = long
	noID := given("", 1, 2, power.Share{}, e(1, 9))
	noID.Workload = "x"
	for name, c := range map[string]struct {
		minutes []batch.Minute
		hs      []batch.TimedHandover
		want    []string // name, bounds in s, given, held and numbers of each series
	}{
		"from nothing":       {[]batch.Minute{minute(100)}, []batch.TimedHandover{given("n", 1, 2, power.Share{}, e(1, 4), e(2, 9))}, []string{"n 1 2 10 10 1 2"}},
		"in any order":       {[]batch.Minute{minute(100)}, []batch.TimedHandover{given("n", 1, 2, power.Share{}, e(3, 4), e(1, 2), e(2, 9))}, []string{"n 1 2 10 10 1 3"}},
		"since the previous": {[]batch.Minute{minute(100)}, []batch.TimedHandover{given("n", 1, 2, e(1, 5), e(2, 9))}, []string{"n 1 2 4 4 2 2"}},
		"of another epoch":   {[]batch.Minute{minute(100)}, []batch.TimedHandover{given("n", 1, 2, power.Share{Epoch: "d", Active: 5}, e(2, 9))}, []string{"n 1 2 10 10 2 2"}},
		"less than before":   {[]batch.Minute{minute(100)}, []batch.TimedHandover{given("n", 1, 2, e(1, 50), e(2, 9))}, []string{"n 1 2 0 0 2 2"}},
		"more than all":      {nil, []batch.TimedHandover{given("n", 1, 2, power.Share{}, e(1, maxGiven))}, []string{fmt.Sprint("n 1 2 ", maxGiven, " 0 1 1")}},
		"less in the rows":   {[]batch.Minute{minute(2), minute(4)}, []batch.TimedHandover{given("n", 1, 2, power.Share{}, e(1, 9))}, []string{"n 1 2 10 8 1 1"}},
		"each once": {[]batch.Minute{minute(10)}, []batch.TimedHandover{given("n", 4, 5, power.Share{}, e(1, 6)), given("m", 3, 6, e(1, 6), e(2, 12)), given("o", 5, 5, e(2, 12), e(3, 12))},
			[]string{"o 3 6 13 11 1 1", "o 3 6 13 11 2 2", "o 3 6 13 11 3 3"}},
		"many rows":             {[]batch.Minute{minute(maxGiven - 5), minute(20)}, []batch.TimedHandover{given("n", 1, 2, power.Share{}, e(1, 9))}, []string{"n 1 2 10 10 1 1"}},
		"long name":             {nil, []batch.TimedHandover{given(strings.Repeat("y", maxGuestName+1), 1, 2, power.Share{}, e(1, 9))}, []string{strings.Repeat("y", maxGuestName) + " 1 2 10 0 1 1"}},
		"long epoch":            {nil, []batch.TimedHandover{given("n", 1, 2, power.Share{}, power.Share{Epoch: long + "x", N: 1})}, nil},
		"long guest":            {nil, []batch.TimedHandover{longGuest}, nil},
		"at the limit":          {nil, []batch.TimedHandover{atLimit}, []string{" 1 2 9 0 1 1"}},
		"ends before it begins": {nil, []batch.TimedHandover{given("n", 2, 1, power.Share{}, e(1, 9))}, nil},
		"no workload":           {nil, []batch.TimedHandover{noID}, nil},
	} {
		d := openDB(t)
		write(t, d, func(x *db.Tx) error {
			b, n := newTestBooking(x, unlimited, 9)
			return b.bookHandovers(&batch.Entry{Minutes: c.minutes, Handovers: c.hs}, n)
		})
		got := rows(t, d, 7, "SELECT s.name, s.first_ns / 1000000000, s.last_ns / 1000000000, s.given, s.held, p.first_n, p.last_n FROM share_series s JOIN share_part p ON p.series = s.id ORDER BY p.first_n")
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Each share of a guest is compared with its host's once, whichever comes first, and the largest difference and
// the latest share are kept. A guest that says what its host does is nested.
func TestCompareShares(t *testing.T) {
	for name, order := range map[string][]int{"the host first": {0, 1, 2}, "the guest first": {1, 2, 0}, "between": {1, 0, 2}, "again": {0, 1, 2, 1, 2}} {
		d := openDB(t)
		e := func(n, active int64) power.Share { return power.Share{Epoch: "e", N: n, Active: active} }
		// At the end of day 0, and in day 1.
		received := func(from, to int64, shares ...power.Share) batch.TimedHandover {
			h := given("", from, to, power.Share{}, shares...)
			h.Workload = ""
			return h
		}
		short, _ := workload.ShortIDOf(workload.NewID("a", workload.VM, "g"))
		row := batch.Minute{Workload: short}
		row.Usage.Put(usage.EnergyPackage, 1000, usage.Measured)
		entries := []struct {
			node string
			e    batch.Entry
		}{
			{"a", batch.Entry{Minutes: []batch.Minute{row}, Handovers: []batch.TimedHandover{given("n", 1, 90000, power.Share{}, e(1, 4), e(2, 9), e(3, 12), e(4, 20))}}},
			{"b", batch.Entry{Handovers: []batch.TimedHandover{received(80000, 86400, e(1, 4), e(2, 8), e(3, 15))}}},
			{"b", batch.Entry{Through: time.Unix(90000, 0), Handovers: []batch.TimedHandover{received(86400, 90000, e(4, 20), e(5, 7))}}},
		}
		for _, i := range order {
			write(t, d, func(x *db.Tx) error {
				b, _ := newTestBooking(x, unlimited, 9)
				n, err := b.findNode(entries[i].node)
				if err != nil {
					return err
				}
				return b.bookHandovers(&entries[i].e, n)
			})
		}
		if got, want := rows(t, d, 8, "SELECT minute, node, host, compared, differing, largest, n, to_ns / 1000000000 FROM reconciled ORDER BY minute"), []string{"0 2 1 3 2 3 3 86400", "1440 2 1 1 0 0 4 90000"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got, want := rows(t, d, 2, "SELECT n, compared FROM closing ORDER BY n"), []string{"1 1", "2 1", "3 1", "4 1", "5 0"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got, want := rows(t, d, 4, "SELECT host, nested_ns / 1000000000, equal_ns / 1000000000, handed_ns / 1000000000 FROM node WHERE id = 2"), []string{"1 80000 90000 90000"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got := rows(t, d, 3, "SELECT node, series, host FROM nested_series"); !slices.Equal(got, []string{"2 1 1"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A node of another cluster, or of jobs, is not a host and not a guest.
func TestMayNest(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		if err := addNodes(x, "far", "jobs"); err != nil {
			return err
		}
		if err := do(x, "UPDATE node SET cluster = 'd' WHERE id = 3", "UPDATE node SET machine_id = 'm jobs' WHERE id = 4"); err != nil {
			return err
		}
		b, _ := newTestBooking(x, unlimited, 9)
		for pair, want := range map[[2]int64]bool{{1, 2}: true, {1, 3}: false, {3, 1}: false, {1, 4}: false, {4, 1}: false} {
			if ok, err := b.mayNest(pair[0], pair[1]); ok != want || err != nil {
				t.Errorf("%v: %t, %v", pair, ok, err)
			}
		}
		return nil
	})
}

// A node is a guest of its hosts, of theirs and of itself. Guests in a circle, as a ledger of other origin may have
// them, end the search.
func TestIsGuestOf(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		if err := addNodes(x, "c", "d", "e"); err != nil {
			return err
		}
		if err := do(x, "INSERT INTO nested_series (node, series, host) VALUES (1, 1, 2), (2, 2, 3), (2, 3, 1), (1, 4, 4)"); err != nil {
			return err
		}
		b, _ := newTestBooking(x, unlimited, 9)
		for pair, want := range map[[2]int64]bool{{1, 1}: true, {1, 2}: true, {1, 3}: true, {1, 4}: true, {2, 4}: true, {3, 1}: false, {1, 5}: false} {
			if is, err := b.isGuestOf(pair[0], pair[1]); is != want || err != nil {
				t.Errorf("%v: %t, %v", pair, is, err)
			}
		}
		return nil
	})
}

// A guest stays one for as long as it reports shares since one was equal, and ends after a silence.
func TestContinueNesting(t *testing.T) {
	const s = int64(time.Second)
	const day, hour = int64(48 * 3600), int64(3600)
	received := func(from, to int64) batch.TimedHandover {
		h := given("", from, to, power.Share{}, power.Share{Epoch: "e"})
		h.Workload = ""
		return h
	}
	without := received(200, 300)
	without.Shares = nil
	for name, c := range map[string]struct {
		through int64
		hs      []batch.TimedHandover
		host    int64 // of the node's row
		want    string
		cached  int64
	}{
		"silent":               {150 + hour, nil, 2, "2 7 100 150", 2},
		"silent for long":      {150 + hour + 1, nil, 2, "0 0 0 150", 0},
		"reports":              {300, []batch.TimedHandover{received(200, 300)}, 2, "2 7 100 300", 2},
		"reports earlier":      {300, []batch.TimedHandover{received(110, 120)}, 2, "2 7 100 150", 2},
		"since the equal one":  {300, []batch.TimedHandover{received(100, 300)}, 2, "2 7 100 300", 2},
		"before the equal one": {300, []batch.TimedHandover{received(99, 300)}, 2, "2 7 100 150", 2},
		"long since":           {100 + day, []batch.TimedHandover{received(200, 100+day)}, 2, fmt.Sprint("2 7 100 ", 100+day), 2},
		"too long since":       {101 + day, []batch.TimedHandover{received(200, 101+day)}, 2, "0 0 0 150", 0},
		"as a host":            {300, []batch.TimedHandover{given("n", 200, 300, power.Share{}, power.Share{Epoch: "e"})}, 2, "2 7 100 150", 2},
		"no shares":            {300, []batch.TimedHandover{without}, 2, "2 7 100 150", 2},
		"backwards":            {300, []batch.TimedHandover{received(300, 200)}, 2, "2 7 100 150", 2},
		"the later of two":     {300, []batch.TimedHandover{received(200, 300), received(150, 200)}, 2, "2 7 100 300", 2},
		"one is not":           {300, []batch.TimedHandover{received(99, 300), received(200, 250)}, 2, "2 7 100 250", 2},
		"ended meanwhile":      {300, []batch.TimedHandover{received(200, 300)}, 0, "0 7 100 150", 0},
	} {
		d := openDB(t)
		write(t, d, func(x *db.Tx) error {
			if err := do(x, fmt.Sprint("UPDATE node SET host = ", c.host, ", host_workload = 7, nested_ns = ", 100*s, ", equal_ns = ", 100*s, ", handed_ns = ", 150*s, " WHERE id = 1")); err != nil {
				return err
			}
			b, n := newTestBooking(x, unlimited, 9)
			n.host = 2
			err := b.continueNesting(&batch.Entry{Through: time.Unix(c.through, 0), Handovers: c.hs}, n)
			if n.host != c.cached {
				t.Errorf("%s: host %d for later entries, want %d", name, n.host, c.cached)
			}
			n.host = 0
			if err == nil {
				err = b.continueNesting(&batch.Entry{Through: time.Unix(1e9, 0)}, n) // not a guest
			}
			return err
		})
		if got := rows(t, d, 4, "SELECT host, host_workload, nested_ns / 1000000000, handed_ns / 1000000000 FROM node WHERE id = 1"); got[0] != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A host's rows must have the energy that it gave, and no guest is its host's host.
func TestNoteGuest(t *testing.T) {
	for name, c := range map[string]struct {
		given, held int64
		before      string
		want        string // host, nested, equal and handed of the guest
		series      string
	}{
		"new":           {5, 5, "", "1 10 20 20", "1"},
		"more held":     {5, 6, "", "1 10 20 20", "1"},
		"known":         {5, 5, "INSERT INTO nested_series (node, series, host) VALUES (2, 1, 1)", "1 10 20 20", "1"},
		"the same host": {5, 5, "UPDATE node SET host = 1, host_workload = 7, nested_ns = 3, equal_ns = 20, handed_ns = 30 WHERE id = 2", "1 3 20 30", "1"},
		"later already": {5, 5, "UPDATE node SET host = 9, host_workload = 7, nested_ns = 3, equal_ns = 21, handed_ns = 21 WHERE id = 2", "9 3 21 21", "1"},
		"nothing given": {0, 0, "", "0 0 0 0", "0"},
		"not held":      {5, 4, "", "0 0 0 0", "0"},
		"circle":        {5, 5, "INSERT INTO nested_series (node, series, host) VALUES (1, 9, 2)", "0 0 0 0", "0"},
	} {
		d := openDB(t)
		write(t, d, func(x *db.Tx) error {
			if err := do(x, "INSERT INTO workload (id, node, short, rev) VALUES (7, 1, 7, 1)",
				fmt.Sprint("INSERT INTO share_series (id, guest, epoch, host, workload, name, first_ns, last_ns, given, held) VALUES (1, 'g', 'e', 1, 7, '', 0, 0, ", c.given, ", ", c.held, ")")); err != nil {
				return err
			}
			if c.before != "" {
				if err := do(x, c.before); err != nil {
					return err
				}
			}
			b, a := newTestBooking(x, unlimited, 9)
			n, err := b.findNode("b")
			if err != nil {
				return err
			}
			if err := b.noteGuest(&comparison{series: 1, node: 2, host: 1, workload: 7, from: 10, to: 20}); err != nil {
				return err
			}
			nested := c.series == "1"
			if (n.host == 1) != nested || a.host != 0 {
				t.Errorf("%s: later entries have host %d", name, n.host)
			}
			if _, moved := b.guests[2]; moved != (nested && name != "known") {
				t.Errorf("%s: rows are moved: %t", name, moved)
			}
			return nil
		})
		if got := rows(t, d, 4, "SELECT host, nested_ns, equal_ns, handed_ns FROM node WHERE id = 2"); got[0] != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := rows(t, d, 1, "SELECT count(*) FROM nested_series WHERE node = 2 AND host = 1"); got[0] != c.series {
			t.Errorf("%s: %q series", name, got)
		}
	}
}

// A share counts for the day in which its window ended, one that ended at midnight for the previous day, with the
// difference in either direction.
func TestCompareDay(t *testing.T) {
	const midnight = int64(24 * time.Hour)
	for name, c := range map[string]struct {
		from, to        int64
		given, received int64
		want            string // minute and largest difference
	}{"at midnight": {5, midnight, 7, 2, "0 5"}, "after it": {5, midnight + 1, 2, 7, "1440 5"}, "without length": {midnight, midnight, 1, 0, "1440 1"}} {
		d := openDB(t)
		write(t, d, func(x *db.Tx) error {
			if err := do(x, "INSERT INTO workload (id, node, short, rev) VALUES (7, 1, 7, 1)"); err != nil {
				return err
			}
			b, _ := newTestBooking(x, unlimited, 9)
			return b.compare(&comparison{guest: "g", epoch: "e", node: 2, host: 1, workload: 7, given: c.given, received: c.received, from: c.from, to: c.to})
		})
		if got := rows(t, d, 2, "SELECT minute, largest FROM reconciled"); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: %q, want minute and difference %s", name, got, c.want)
		}
	}
}

// A host that goes on with a series moves the rows of its guests, however long ago it was booked last.
func TestSeriesGoesOn(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		if err := do(x, "INSERT INTO workload (id, node, short, rev) VALUES (7, 1, 7, 1)", "INSERT INTO share_series (id, guest, epoch, host, workload, name, first_ns, last_ns, given, held) VALUES (1, 'g', 'e', 1, 7, '', 0, 0, 1, 1)",
			"INSERT INTO nested_series (node, series, host) VALUES (2, 1, 1)"); err != nil {
			return err
		}
		for epoch, want := range map[string]int{"e": 1, "f": 0} {
			b, n := newTestBooking(x, unlimited, 9)
			h := given("n", 1, 2, power.Share{}, power.Share{Epoch: epoch, N: 1})
			if err := b.bookHandovers(&batch.Entry{Handovers: []batch.TimedHandover{h}}, n); err != nil {
				return err
			}
			if len(b.guests) != want {
				t.Errorf("epoch %s: %d guests, want %d", epoch, len(b.guests), want)
			}
		}
		return nil
	})
}
