package book

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// openDB opens an SQLite database that is empty but for nodes "a" (id 1) and "b" (id 2) in cluster "c".
func openDB(t *testing.T) *db.DB {
	t.Helper()
	content, err := emptyDB()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := db.Open(t.Context(), path, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// emptyDB returns the file of the database of openDB. To create all tables takes longer than most tests.
var emptyDB = sync.OnceValues(func() (content []byte, err error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "ledger.db")
	d, err := db.Open(context.Background(), path, false, nil)
	if err != nil {
		return nil, err
	}
	err = d.Write(context.Background(), func(x *db.Tx) error {
		for i, id := range []string{"a", "b"} {
			_, err := x.Exec("INSERT INTO node (id, node_id, cluster, name, machine_id, boot, enrolled_ns, rev) VALUES ($1, $2, 'c', $2, '', '', 0, 1)", int64(i+1), id)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// write runs a transaction that has to succeed.
func write(t *testing.T, d *db.DB, f func(*db.Tx) error) {
	t.Helper()
	if err := d.Write(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

// rows returns the integers of the rows of a query, a line for each.
func rows(t *testing.T, d *db.DB, columns int, query string, args ...any) (lines []string) {
	t.Helper()
	values, dest := make([]any, columns), make([]any, columns)
	for i := range values {
		dest[i] = &values[i]
	}
	err := db.Each(t.Context(), d.Reader, func(scan func(...any) error) error {
		err := scan(dest...)
		lines = append(lines, fmt.Sprintln(values...))
		return err
	}, query, args...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		lines[i] = lines[i][:len(lines[i])-1]
	}
	return lines
}

// newTestBooking returns a booking of node "a" with a quota, at an instant.
func newTestBooking(x *db.Tx, quota Quota, now int64) (*booking, *bookedNode) {
	b := New(x.DB, time.Hour, quota, 3).newBooking(x, time.Unix(0, now))
	b.guests = map[int64]*guest{}
	n, err := b.findNode("a")
	if err != nil || n.id != 1 {
		panic(fmt.Sprint(n, err))
	}
	return b, n
}

// A number that was booked, and whose hash is not kept, is a conflict if something of the batch is
// younger than the oldest time that is kept.
func TestJudgeDuplicate(t *testing.T) {
	const kept = 1000
	claimed := []batch.Measured{{To: 1}}
	for name, c := range map[string]struct {
		e      batch.Entry
		same   bool
		jobs   bool
		want   batch.Verdict
		booked bool
	}{
		"same":               {e: batch.Entry{Measured: []batch.Measured{{To: kept + 1}}}, same: true, want: batch.Duplicate, booked: true},
		"jobs":               {e: batch.Entry{Measured: []batch.Measured{{To: kept + 1}}}, jobs: true, want: batch.Duplicate},
		"younger":            {e: batch.Entry{Measured: []batch.Measured{{To: 1}, {To: kept - 9, Offset: 10}}}, want: batch.Conflict},
		"younger first":      {e: batch.Entry{Measured: []batch.Measured{{To: kept + 1}, {To: 1}}}, want: batch.Conflict},
		"oldest":             {e: batch.Entry{Measured: []batch.Measured{{To: kept + 9, Offset: -9}}}, want: batch.Duplicate},
		"cut off":            {e: batch.Entry{Claimed: claimed, Gaps: []usage.Gap{{To: time.Unix(0, kept+1), Reason: usage.Overlapped}}}, want: batch.Conflict},
		"cut off long ago":   {e: batch.Entry{Claimed: claimed, Gaps: []usage.Gap{{To: time.Unix(0, kept), Reason: usage.Overlapped}}}, want: batch.Duplicate},
		"other gap":          {e: batch.Entry{Claimed: claimed, Gaps: []usage.Gap{{To: time.Unix(0, kept+1), Reason: usage.MeterFailed}}}, want: batch.Duplicate, booked: true},
		"claimed, all known": {e: batch.Entry{Claimed: claimed}, want: batch.Duplicate, booked: true},
		"nothing claimed":    {want: batch.Duplicate},
	} {
		v, booked := (&booking{keptFrom: kept}).judgeDuplicate(&c.e, &bookedNode{jobs: c.jobs}, c.same)
		if v != c.want || booked != c.booked {
			t.Errorf("%s: %v, %t, want %v, %t", name, v, booked, c.want, c.booked)
		}
	}
}

// The place of the present boot is written again where it moved by more than the jitter or is a day
// old, that of an earlier boot only where it is new.
func TestCheckPlaces(t *testing.T) {
	d := openDB(t)
	const now, at = int64(1e18), int64(5e15)
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, unlimited, now-int64(placeAge))
		if err := b.storePlaces(n, []batch.BootPlace{{Boot: "old", Offset: at}}); err != nil {
			return err
		}
		b.now++
		if err := b.storePlaces(n, []batch.BootPlace{{Boot: "boot", Offset: at}, {Boot: "past", Offset: at}}); err != nil {
			return err
		}
		b.now = now
		for name, c := range map[string]struct {
			place   batch.BootPlace
			boot    string
			changed []batch.BootPlace
			fresh   int64
			err     error
		}{
			"as before":          {place: batch.BootPlace{Boot: "boot", Offset: at}},
			"jitter":             {place: batch.BootPlace{Boot: "boot", Offset: at + placeJitter}},
			"jitter back":        {place: batch.BootPlace{Boot: "boot", Offset: at - placeJitter}},
			"moved":              {place: batch.BootPlace{Boot: "boot", Offset: at + placeJitter + 1}, changed: []batch.BootPlace{{Boot: "boot", Offset: at + placeJitter + 1}}},
			"moved back":         {place: batch.BootPlace{Boot: "boot", Offset: at - placeJitter - 1}, changed: []batch.BootPlace{{Boot: "boot", Offset: at - placeJitter - 1}}},
			"new":                {place: batch.BootPlace{Boot: "new", Offset: 1}, changed: []batch.BootPlace{{Boot: "new", Offset: 1}}, fresh: 1},
			"placed meanwhile":   {place: batch.BootPlace{Boot: "boot", Offset: 1, New: true}, err: errPlaced},
			"placed as here":     {place: batch.BootPlace{Boot: "boot", Offset: at + 1, New: true}},
			"earlier boot":       {place: batch.BootPlace{Boot: "past", Offset: 1}},
			"a day old":          {place: batch.BootPlace{Boot: "old", Offset: at}, boot: "old", changed: []batch.BootPlace{{Boot: "old", Offset: at}}},
			"earlier, a day old": {place: batch.BootPlace{Boot: "old", Offset: 7}, changed: []batch.BootPlace{{Boot: "old", Offset: at}}},
		} {
			if c.boot == "" {
				c.boot = "boot"
			}
			changed, fresh, err := b.checkPlaces(&batch.Entry{Boot: c.boot, Boots: []batch.BootPlace{c.place}}, n)
			if !errors.Is(err, c.err) || fresh != c.fresh || !cmp.Equal(changed, c.changed) {
				t.Errorf("%s: %v, %d, %v", name, changed, fresh, err)
			}
		}
		return nil
	})
	k := New(d, time.Hour, unlimited, 1)
	if got, err := k.BootPlaces(t.Context(), "a", []string{"boot", "none", "past"}); err != nil || !cmp.Equal(got, map[string]int64{"boot": at, "past": at}) {
		t.Errorf("%v, %v", got, err)
	}
}

// Booked ranges of a run that adjoin are one row. A window counts as a new range unless it follows one.
func TestAddRange(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, unlimited, 77)
		run, err := b.addRun(&batch.Entry{Node: "a", Boot: "boot"}, n, kernelRun{}, batch.Measured{Boot: "boot"}, clock{"boot", 50, 77})
		if err != nil {
			return err
		}
		if run.began != 27 || run.highest != 50 || run.owner != 1 || n.run != run.id || !n.changed || n.quota.ranges != 1 {
			t.Errorf("%+v of %+v", run, n)
		}
		for _, c := range []struct{ from, to, fresh, ranges int64 }{{10, 20, 1, 2}, {30, 40, 1, 3}, {20, 25, 0, 3}, {25, 30, 0, 3}, {5, 10, 1, 4}, {41, 42, 1, 5}} {
			m := batch.Measured{Boot: "boot", Extent: usage.Extent{Scope: "s"}, From: c.from, To: c.to}
			found, near, err := findRun(b.Each, n, m, clock{"boot", 50, 77})
			if err != nil || found != run {
				t.Errorf("%d to %d: run %+v, %v", c.from, c.to, found, err)
			}
			if fresh := countFresh(run, near, m); fresh != c.fresh {
				t.Errorf("%d to %d: %d are new", c.from, c.to, fresh)
			}
			if err := b.addRange(run, near, m, n); err != nil {
				return err
			}
			if n.quota.ranges != c.ranges {
				t.Errorf("%d to %d: %d ranges of the quota, want %d", c.from, c.to, n.quota.ranges, c.ranges)
			}
		}
		if fresh := countFresh(kernelRun{}, nil, batch.Measured{}); fresh != 2 {
			t.Errorf("a new run: %d", fresh)
		}
		return nil
	})
	if got, want := rows(t, d, 2, "SELECT from_ns, to_ns FROM booked ORDER BY from_ns"), []string{"5 40", "41 42"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The clock of a run is that of the node that booked it first, followed where it differs by over a
// second. Its highest boottime only grows.
func TestNoteClock(t *testing.T) {
	d := openDB(t)
	const s = int64(time.Second)
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, unlimited, 100*s)
		other, err := b.findNode("b")
		if err != nil {
			return err
		}
		run, err := b.addRun(&batch.Entry{Node: "a"}, n, kernelRun{}, batch.Measured{Boot: "x"}, clock{"x", 40 * s, 100 * s})
		if err != nil {
			return err
		}
		for _, c := range []struct {
			who      *bookedNode
			boottime int64
			began    int64
			highest  int64
		}{
			{n, 40 * s, 60 * s, 40 * s},
			{n, 41 * s, 60 * s, 41 * s},       // a second is not followed
			{n, 39 * s, 60 * s, 41 * s},       // nor back
			{n, 41*s + 1, 59*s - 1, 41*s + 1}, // more is
			{n, 38 * s, 62 * s, 41*s + 1},     // and back
			{other, 90 * s, 62 * s, 90 * s},   // only of the owner
			{other, 80 * s, 62 * s, 90 * s},   // which never goes back
		} {
			each := b.Each
			var r kernelRun
			if err := b.QueryRow("SELECT id, highest_ns, node, began_ns FROM kernel_run").Scan(&r.id, &r.highest, &r.owner, &r.began); err != nil {
				return err
			}
			c.who.changed, c.who.run = false, 0
			if err := b.noteClock(r, c.who, clock{"x", c.boottime, 100 * s}); err != nil {
				return err
			}
			if !c.who.changed || c.who.run != run.id {
				t.Errorf("%+v", c.who)
			}
			c.who.changed = false
			if err := b.noteClock(kernelRun{id: run.id, highest: math.MaxInt64, began: r.began}, c.who, clock{}); err != nil || c.who.changed {
				t.Errorf("the same run again: %+v, %v", c.who, err)
			}
			if err := each(func(scan func(...any) error) error { return scan(&r.highest, &r.began) }, "SELECT highest_ns, began_ns FROM kernel_run"); err != nil {
				return err
			}
			if r.highest != c.highest || r.began != c.began {
				t.Errorf("boottime %d: %+v, want %d, %d", c.boottime, r, c.highest, c.began)
			}
		}
		return nil
	})
}

// A window may end after the boottime of its request by the tolerance, and not later.
func TestAhead(t *testing.T) {
	d := openDB(t)
	for over, want := range map[int64]error{0: nil, int64(restoreTolerance): nil, int64(restoreTolerance) + 1: errAhead} {
		write(t, d, func(x *db.Tx) error {
			b, n := newTestBooking(x, unlimited, 1e18)
			ms := []batch.Measured{{Boot: fmt.Sprint(over), From: 1, To: 1000 + over}}
			err := b.addMeasured(&batch.Entry{Node: "a", Boot: fmt.Sprint(over), Boottime: 1000, Measured: ms, Claimed: ms}, n, streamState{}, 0)
			if !errors.Is(err, want) {
				t.Errorf("by %d: %v", over, err)
			}
			return nil
		})
	}
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, unlimited, 1e18)
		ms := []batch.Measured{{Boot: "earlier", From: 1, To: 1e12}}
		if err := b.addMeasured(&batch.Entry{Node: "a", Boot: "now", Boottime: 1000, Measured: ms, Claimed: ms}, n, streamState{}, 0); err != nil {
			t.Errorf("a window of an earlier boot: %v", err)
		}
		return nil
	})
}

// A kernel that was restored to an earlier memory image has in common with the run before what was booked up to the
// boottime that it shows first. Later time is of a run of its own.
func TestRestoredKernel(t *testing.T) {
	const s = int64(time.Second)
	for from, want := range map[int64]error{500 * s: nil, 500*s - 1: errOverlap} {
		d := openDB(t)
		write(t, d, func(x *db.Tx) error {
			b, n := newTestBooking(x, unlimited, 1e18)
			all := []batch.Measured{{Boot: "x", To: 1000 * s}}
			if err := b.addMeasured(&batch.Entry{Node: "a", Boot: "x", Boottime: 1000 * s, Measured: all, Claimed: all}, n, streamState{}, 0); err != nil {
				return err
			}
			e := &batch.Entry{Node: "a", Boot: "x", Boottime: 500 * s, Measured: []batch.Measured{{Boot: "x", From: from, To: 501 * s}}, Claimed: []batch.Measured{{Boot: "x", From: 400 * s, To: 501 * s}}}
			if err := b.addMeasured(e, n, streamState{}, 0); !errors.Is(err, want) {
				t.Errorf("from %d: %v, want %v", from, err, want)
			}
			return nil
		})
		wanted := []string{"0 0 1000"}
		if want == nil {
			wanted = append(wanted, "1 0 501")
		}
		if got := rows(t, d, 3, fmt.Sprint("SELECT k.number, b.from_ns / ", s, ", b.to_ns / ", s, " FROM booked b JOIN kernel_run k ON k.id = b.run ORDER BY k.number")); !slices.Equal(got, wanted) {
			t.Errorf("from %d: %q, want %q", from, got, wanted)
		}
	}
}

// Rows that a node adds count for it and for its cluster, and an amount that equals a limit is allowed.
func TestQuotas(t *testing.T) {
	d := openDB(t)
	day := int64(24 * time.Hour)
	quota := Quota{Workloads: 2, Bytes: 10, Streams: 2, Batches: 2, Ranges: 2, Handovers: 2}
	if got, want := (Quota{1, math.MaxInt64, math.MaxInt64 / 3, math.MaxInt64/3 + 1, 5, 0}).times(3), (Quota{3, math.MaxInt64, math.MaxInt64 / 3 * 3, math.MaxInt64, 15, 0}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, quota, 5*day+3)
		for i, want := range []bool{true, true, false, false} {
			if ok, err := b.takeWorkload(n); ok != want || err != nil {
				t.Errorf("workload %d: %t, %v", i, ok, err)
			}
		}
		for _, c := range []struct {
			bytes int
			ok    bool
		}{{9, true}, {2, false}, {1, true}, {1, false}, {0, true}} {
			if ok, err := b.takeBytes(n, c.bytes); ok != c.ok || err != nil {
				t.Errorf("%d bytes: %t, %v", c.bytes, ok, err)
			}
		}
		e := &batch.Entry{Handovers: make([]batch.TimedHandover, 1)}
		for i := range 2 {
			if err := b.checkQuota(e, n, streamState{}, 1); err != nil {
				t.Errorf("entry %d: %v", i, err)
			}
			n.takeEntryQuota(e, streamState{})
			n.takeRange()
		}
		refused := func(what string, e *batch.Entry, s streamState, ranges int64) {
			err := b.checkQuota(e, n, s, ranges)
			var retry *fault.RetryError
			if !errors.Is(err, errQuota) || !errors.Is(err, fault.ErrUnavailable) || !errors.As(err, &retry) || retry.After != time.Duration(day-3) {
				t.Errorf("%s: %v", what, err)
			}
		}
		refused("stream", &batch.Entry{}, streamState{}, 0)
		refused("batch", &batch.Entry{}, streamState{node: 1}, 0)
		n.quota.batches--
		if err := b.checkQuota(&batch.Entry{}, n, streamState{node: 1}, 0); err != nil {
			t.Errorf("an entry without what is used up: %v", err)
		}
		refused("range", &batch.Entry{}, streamState{node: 1}, 1)
		refused("handover", e, streamState{node: 1}, 0)
		n.quota.ranges, n.quota.handovers = 0, 0
		refused("ranges", &batch.Entry{}, streamState{node: 1}, 3)
		refused("handovers", &batch.Entry{Handovers: make([]batch.TimedHandover, 3)}, streamState{node: 1}, 0)
		if err := b.checkQuota(&batch.Entry{Handovers: make([]batch.TimedHandover, 2)}, n, streamState{node: 1}, 2); err != nil {
			t.Errorf("all that is left: %v", err)
		}
		c := n.cluster
		if c.limit != quota.times(3) || c.workloads != 2 || c.bytes != 10 || c.streams != 2 || c.batches != 2 || c.ranges != 2 || c.handovers != 2 {
			t.Errorf("of the cluster: %+v", c)
		}
		err := b.flushQuotas()
		if n.quota.changed || c.changed {
			t.Error("what is written counts as changed")
		}
		return err
	})
	if got, want := rows(t, d, 1, "SELECT count(*) FROM audit WHERE action = 'node.quota' AND actor = 'a' AND object = 'a' AND at_ns = $1", 5*day+3), []string{"6"}; !slices.Equal(got, want) {
		t.Errorf("%q audit lines, want one for each of 6 limits", got)
	}
	all := []string{"5 2 10 2 1 0 0"}
	if got := rows(t, d, 7, "SELECT day, workloads, bytes, streams, batches, ranges, handovers FROM node_quota WHERE node = 1"); !slices.Equal(got, all) {
		t.Errorf("%q, want %q", got, all)
	}
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, quota, 6*day-1)
		if ok, err := b.takeWorkload(n); ok || err != nil {
			t.Errorf("the same day: %t, %v", ok, err)
		}
		if n.quota.changed {
			t.Error("it was audited again")
		}
		b, n = newTestBooking(x, quota, 6*day)
		if ok, err := b.takeWorkload(n); !ok || err != nil || n.quota.bytes != 0 || n.quota.day != 6 {
			t.Errorf("the next day: %t, %v, %+v", ok, err, n.quota)
		}
		return nil
	})
}

// The use of new workloads beyond the quota goes to one workload of the node, which has a name.
func TestOverQuota(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		quota := unlimited
		quota.Workloads = 1
		b, n := newTestBooking(x, quota, 9)
		first, err := b.workload(n, 5)
		if err != nil {
			return err
		}
		over, err := b.workload(n, 6)
		if err != nil {
			return err
		}
		again, err := b.workload(n, 7)
		if err != nil {
			return err
		}
		known, err := b.workload(n, 5)
		if err != nil {
			return err
		}
		if first.Named || !over.Named || !again.Named || over.ID == first.ID || again.ID != over.ID || known.ID != first.ID {
			t.Errorf("%+v, %+v, %+v, %+v", first, over, again, known)
		}
		return nil
	})
	id := string(workload.NewID("a", workload.Unknown, overQuota))
	if got := rows(t, d, 1, "SELECT count(*) FROM workload WHERE wid = $1 AND key = name AND name = 'over quota' AND named_ns = 9 AND rev > 1", id); !slices.Equal(got, []string{"1"}) {
		t.Errorf("%q", got)
	}
}

// Gaps beyond the quota become one that covers all of them.
func TestGapsOverQuota(t *testing.T) {
	d := openDB(t)
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	gaps := []usage.Gap{{From: at(5), To: at(6), Reason: usage.MeterFailed, Detail: "12"}, {From: at(2), To: at(3), Reason: usage.Overlapped}, {From: at(8), To: at(9), Reason: usage.Overlapped}, {From: at(3), To: at(4)}}
	for bytes, want := range map[int64][]usage.Gap{4*rowBytes + 2: gaps, 4*rowBytes + 1: {{From: at(2), To: at(9), Reason: usage.MeterFailed}}} {
		write(t, d, func(x *db.Tx) error {
			quota := unlimited
			quota.Bytes = bytes
			b, n := newTestBooking(x, quota, 9)
			b.clusterNodes = 1
			got, err := b.gaps(&batch.Entry{Gaps: gaps}, n)
			if err != nil || !cmp.Equal(got, want) {
				t.Errorf("%d bytes: %v, %v", bytes, got, err)
			}
			if got, err := b.gaps(&batch.Entry{Gaps: gaps[3:]}, n); !cmp.Equal(got, gaps[3:]) || err != nil {
				t.Errorf("one gap: %v, %v", got, err)
			}
			if got, err := b.gaps(&batch.Entry{}, n); got != nil || err != nil {
				t.Errorf("no gaps: %v, %v", got, err)
			}
			return nil
		})
	}
}

// A stored hash of another length is an error, not a hash.
func TestStoredHash(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		id := batch.Stream{1}
		if err := moveStream(x, id, 1, batch.Mark{Next: 4, Last: batch.Hash{9}}, "boot", 1); err != nil {
			return err
		}
		if s, err := findStream(x, id); err != nil || s.node != 1 || s.mark != (batch.Mark{Next: 4, Last: batch.Hash{9}}) {
			t.Errorf("%+v, %v", s, err)
		}
		if s, err := findStream(x, batch.Stream{2}); err != nil || s.node != 0 || s.mark != (batch.Mark{Next: 1}) {
			t.Errorf("a new stream: %+v, %v", s, err)
		}
		for number, hash := range [][]byte{make([]byte, len(batch.Hash{})), make([]byte, len(batch.Hash{})-1)} {
			if _, err := x.Exec("INSERT INTO batch (stream, number, hash, taken_ns) VALUES ($1, $2, $3, 0)", id[:], int64(number), hash); err != nil {
				return err
			}
			if h, err := knownHash(x, id, uint64(number)); h == nil || (err != nil) != (number == 1) {
				t.Errorf("hash of %d bytes: %v, %v", len(hash), h, err)
			}
		}
		if h, err := knownHash(x, id, 7); h != nil || err != nil {
			t.Errorf("an unknown number: %v, %v", h, err)
		}
		if _, err := x.Exec("UPDATE stream SET last = $1", []byte{1}); err != nil {
			return err
		}
		if _, err := findStream(x, id); err == nil {
			t.Error("a hash of one byte")
		}
		return nil
	})
}

// A meter that is known continues with its next minute, unless that is older than windows can be.
func TestExternalMeters(t *testing.T) {
	d := openDB(t)
	k := New(d, time.Hour, unlimited, 1)
	register := func(kind power.Kind, wait time.Duration, at int64) *MeterState {
		t.Helper()
		got, err := k.ExternalMeters(t.Context(), []external.Meter{{Name: "m", Kind: kind, Wait: wait}}, time.Unix(at, 0))
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		return got["m"]
	}
	if s := register(power.Energy, time.Minute, 6000); s.Next != 101 || len(s.Samples) != 0 {
		t.Errorf("a new meter: %+v", s)
	}
	samples := []external.Sample{{At: 5, Value: 7}, {At: 6, Value: 8}}
	for _, list := range [][]external.Sample{samples, {{At: 6, Value: 99}}} {
		if err := k.PutMeterSamples(t.Context(), map[string][]external.Sample{"m": list}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		at, want int64
	}{{6000, 101}, {6000 + 120, 101}, {6000 + 180, 102}} {
		if s := register(power.Energy, 2*time.Minute, c.at); s.Next != c.want || !slices.Equal(s.Samples, samples) {
			t.Errorf("%d s: %+v, want minute %d", c.at, s, c.want)
		}
	}
	if s := register(power.Power, time.Hour, 12000); s.Next != 201 || len(s.Samples) != 0 {
		t.Errorf("another kind: %+v", s)
	}
	write(t, d, func(x *db.Tx) error {
		for _, q := range []string{
			"UPDATE node SET name = 'same', cluster = CASE id WHEN 1 THEN 'x' ELSE 'y' END",
			"INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, source) VALUES ('below', 'z', 'lower', '', '', 0, 1, 7)",
			"INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, revoked_ns) VALUES ('gone', 'z', 'gone', '', '', 0, 1, 7)",
		} {
			if _, err := x.Exec(q); err != nil {
				return err
			}
		}
		return nil
	})
	for name, want := range map[string]any{"a": "a", "x/same": "a", "y/same": "b", "same": fault.ErrConflict, "none": fault.ErrNotFound, "gone": fault.ErrNotFound, "below": fault.ErrUnsupported} {
		id, err := k.MeterNode(t.Context(), name)
		if text, ok := want.(string); ok && (id != text || err != nil) || !ok && (id != "" || !errors.Is(err, want.(error))) {
			t.Errorf("%s: %q, %v, want %v", name, id, err, want)
		}
	}
	now := time.Unix(0, 1e18)
	write(t, d, func(x *db.Tx) error {
		for i, seen := range []int64{1e18 - int64(activeFor) + 1, 1e18 - int64(activeFor)} {
			if err := moveStream(x, batch.Stream{byte(i)}, 1, batch.Mark{Next: 1}, "", seen); err != nil {
				return err
			}
		}
		if err := x.EnsureMinutes(2 * schema.DayMinutes); err != nil {
			return err
		}
		m := batch.NodeMinute{Covered: 30 * time.Second}
		p := schema.NewPending(schema.NodeLayout)
		if err := p.Add(schema.RowKey{Minute: 2*schema.DayMinutes + 5, ID: 1}, schema.EncodeNodeMinute(&m, x.Rev)); err != nil {
			return err
		}
		_, err := x.Exec("UPDATE node SET through_ns = 77 WHERE id = 1")
		return errors.Join(err, x.Upsert(schema.NodeMinuteTable(2*schema.DayMinutes), p))
	})
	for minute, covered := range map[int64]time.Duration{2*schema.DayMinutes + 5: 30 * time.Second, 2*schema.DayMinutes + 6: 0, 5: 0} {
		got, err := k.MeterNodes(t.Context(), []string{"a", "b"}, minute, now)
		want := []external.Node{{ID: "a", BookedUntil: schema.FromNanos(77), Streams: 1, Covered: covered}, {ID: "b", BookedUntil: schema.FromNanos(0)}}
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("minute %d: %+v, %v", minute, got, err)
		}
	}
	if _, err := k.MeterNodes(t.Context(), []string{"none"}, 1, now); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an unknown node: %v", err)
	}
}
