package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
)

// bookedSeconds holds the seconds of boottime that are booked, and offers more.
type bookedSeconds struct {
	t      tester
	l      *ledger.Ledger
	stream byte
}

// entry is of a node that measured these seconds of a boot, and whose boottime is at.
func (b *bookedSeconds) entry(node, boot string, at int64, ranges ...[2]int64) *batch.Entry {
	b.stream++
	e := Entry(node, batch.Stream{b.stream, 'b'}, batch.Mark{Next: 1}, 1, 1, minuteOf(Day))
	e.Boot, e.Boottime, e.Minutes = boot, at*1e9, nil
	for _, r := range ranges {
		e.Measured = append(e.Measured, batch.Measured{Boot: boot, Extent: usage.Extent{Scope: usage.Machine}, From: r[0] * 1e9, To: r[1] * 1e9})
	}
	return e
}

// find returns what of the seconds of an entry is booked, as text.
func (b *bookedSeconds) find(ctx context.Context, e *batch.Entry) string {
	var ms []batch.Measured
	err := Try(b.t, func() (err error) {
		ms, err = b.l.Booked(ctx, e.Node, e.Boot, e.Boottime, e.Measured)
		return err
	})
	if err != nil {
		if errors.Is(err, fault.ErrUnavailable) {
			return "rival"
		}
		return err.Error()
	}
	var text strings.Builder
	for _, m := range ms {
		fmt.Fprintf(&text, "%d-%d ", m.From/1e9, m.To/1e9)
	}
	return text.String()
}

// testBooked holds a ledger to what it stores of the time of each kernel: booked once,
// by all nodes together.
func testBooked(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	for _, n := range []string{"a", "b"} {
		Node(t, l, n)
	}
	if err := l.PutNode(ctx, registry.Node{ID: "far", Cluster: "another", Name: "far", MachineID: "m", Boot: "boot", At: Day}); err != nil {
		t.Fatal(err)
	}
	b := &bookedSeconds{t: t, l: l}
	want := func(e *batch.Entry, want string) {
		t.Helper()
		if got := b.find(ctx, e); got != want {
			t.Errorf("of %v is booked: %q, want %q", e.Measured, got, want)
		}
	}
	overlaps := func(e *batch.Entry) {
		t.Helper()
		before, err := l.Through(ctx, e.Node)
		if err != nil {
			t.Fatal(err)
		}
		e.Through = before.Add(time.Hour)
		results, err := tryBook(t, l, e)
		if err != nil || !errors.Is(results[0].Err, fault.ErrUnavailable) {
			t.Errorf("booked %v: %v, %v", e.Measured, results, err)
		}
		if after, _ := l.Through(ctx, e.Node); !after.Equal(before) {
			t.Errorf("refused, and booked through %v", after)
		}
		if m, _ := l.Mark(ctx, e.Node, e.Stream); m.Next != 1 {
			t.Errorf("refused, and the stream is at %v", m)
		}
	}
	db := reader{t, DB(t, dsn)}
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := db.db.Exec(query, args...); err != nil {
			t.Fatal(err)
		}
	}
	rows := func(want ...string) {
		t.Helper()
		var got []string
		db.rows(func(row map[string]any) {
			got = append(got, fmt.Sprintf("%s %s %d %d %d", row["cluster"], row["boot"], row["number"], row["from_ns"].(int64)/1e9, row["to_ns"].(int64)/1e9))
		}, "SELECT k.cluster, k.boot, k.number, b.from_ns, b.to_ns FROM booked b JOIN kernel_run k ON k.id = b.run ORDER BY b.run, b.from_ns")
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("ranges:\n%s", d)
		}
	}

	first := b.entry("a", "x", 20, [2]int64{10, 20})
	want(first, "")
	book(t, l, batch.Accepted, first)
	book(t, l, batch.Duplicate, first)
	book(t, l, batch.Accepted, b.entry("a", "x", 30, [2]int64{20, 30}), b.entry("a", "x", 61, [2]int64{40, 50}, [2]int64{60, 61}))
	rows("c x 0 10 30", "c x 0 40 50", "c x 0 60 61")
	book(t, l, batch.Accepted, b.entry("a", "x", 61, [2]int64{30, 40}))
	rows("c x 0 10 50", "c x 0 60 61")

	again := b.entry("a", "x", 62, [2]int64{0, 15}, [2]int64{45, 70})
	want(again, "10-15 45-50 60-61 ")
	overlaps(again)
	overlaps(b.entry("a", "x", 80, [2]int64{70, 80}, [2]int64{5, 11}))
	rows("c x 0 10 50", "c x 0 60 61")

	// Another kernel, another scope, another cluster.
	want(b.entry("a", "y", 62, [2]int64{10, 20}), "")
	inner := b.entry("a", "x", 62, [2]int64{10, 20})
	inner.Measured[0].Scope = "cgroup:7"
	want(inner, "")
	want(b.entry("far", "x", 62, [2]int64{10, 20}), "")
	book(t, l, batch.Accepted, b.entry("far", "x", 62, [2]int64{10, 20}))
	rows("c x 0 10 50", "c x 0 60 61", "another x 0 10 20")

	// The word of jobs does not count.
	if err := l.PutNode(ctx, registry.Node{ID: "jobs", Cluster: "c", Name: "a", MachineID: registry.JobsMachineID("machine-a"), Boot: "boot", At: Day}); err != nil {
		t.Fatal(err)
	}
	want(b.entry("jobs", "x", 62, [2]int64{10, 20}), "")
	book(t, l, batch.Accepted, b.entry("jobs", "x", 62, [2]int64{50, 60}))
	rows("c x 0 10 50", "c x 0 60 61", "another x 0 10 20")

	// A node that was enrolled later waits while the older one sends, but does not hold it back.
	rival := b.entry("b", "x", 62, [2]int64{45, 55})
	want(rival, "rival")
	overlaps(rival)
	resumed := b.entry("b", "x", 62, [2]int64{0, 55})
	resumed.Measured[0].Resumed = true
	want(resumed, "10-50 ")
	book(t, l, batch.Accepted, b.entry("b", "x", 62, [2]int64{50, 60}))
	rows("c x 0 10 61", "another x 0 10 20")
	book(t, l, batch.Accepted, b.entry("b", "x", 70, [2]int64{61, 70}))
	want(b.entry("a", "x", 72, [2]int64{62, 72}), "62-70 ")
	exec("UPDATE booked SET taken_ns = taken_ns - $1, node = 1", int64(batch.RivalTimeout))
	want(rival, "45-55 ")

	// A memory image of 40 s is put back: it has in common with the run before what was booked
	// by the boottime that it shows first.
	late := b.entry("a", "x", 80, [2]int64{70, 80})
	late.Boottime -= 30e9 // was long in transit
	late.Claimed, late.Measured = late.Measured, nil
	book(t, l, batch.Accepted, late)
	rows("c x 0 10 70", "another x 0 10 20")
	book(t, l, batch.Accepted, b.entry("a", "x", 90, [2]int64{70, 90}))
	restored := b.entry("a", "x", 60, [2]int64{40, 60})
	want(restored, "40-60 ")
	overlaps(restored)
	restored.Claimed, restored.Measured = restored.Measured, nil // as the receiver cuts it
	book(t, l, batch.Accepted, restored)
	rows("c x 0 10 90", "another x 0 10 20", "c x 1 10 60")
	book(t, l, batch.Accepted, b.entry("a", "x", 70, [2]int64{60, 70}))
	rows("c x 0 10 90", "another x 0 10 20", "c x 1 10 70")

	// No node books time before the machine has it, nor holds the machine's own node back.
	future := b.entry("b", "x", 70, [2]int64{70, 90})
	if r, err := tryBook(t, l, future); err != nil || !errors.Is(r[0].Err, fault.ErrInvalid) {
		t.Errorf("a window of the future: %v, %v, want invalid", r, err)
	}
	ahead := b.entry("b", "x", 3600, [2]int64{70, 3600})
	want(ahead, "")
	book(t, l, batch.Accepted, ahead)
	ahead = b.entry("b", "other", 4600, [2]int64{3600, 4600})
	ahead.Measured[0].Boot = "x" // as of an earlier boot
	book(t, l, batch.Accepted, ahead)
	want(b.entry("a", "x", 80, [2]int64{70, 80}), "")
	book(t, l, batch.Accepted, b.entry("a", "x", 80, [2]int64{70, 80}))
	rows("c x 0 10 90", "another x 0 10 20", "c x 1 10 80", "c x 2 70 4600")
	found, err := l.Audits(ctx, registry.AuditQuery{Limit: 10})
	if err != nil || !slices.ContainsFunc(found, func(a registry.Audit) bool { return a.Action == "kernel.restored" && a.Object == "x" && a.Actor == "a" }) {
		t.Errorf("audit: %v, %v", found, err)
	}
	if told, err := l.Check(ctx); err != nil || len(told) > 0 {
		t.Errorf("check: %q, %v", told, err)
	}
}

// testNumberAgain holds a ledger to its verdict on a batch whose number is booked. Once the hash is
// gone, the ledger compares their time: a spool that was restored from a backup gives numbers again.
func testNumberAgain(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	Node(t, l, "a")
	if err := l.PutNode(ctx, registry.Node{ID: "jobs", Cluster: "c", Name: "a", MachineID: registry.JobsMachineID("machine-a"), Boot: "boot", At: Day}); err != nil {
		t.Fatal(err)
	}
	began := time.Now().Add(-time.Hour)
	measured := func(began time.Time, from, to int64) []batch.Measured {
		return []batch.Measured{{Boot: "boot", Extent: usage.Extent{Scope: usage.Machine}, From: from * 1e9, To: to * 1e9, Offset: began.UnixNano()}}
	}
	overlapped := func(at time.Time, why usage.Reason) []usage.Gap {
		return []usage.Gap{{From: at, To: at.Add(time.Second), Reason: why}}
	}
	now, old := measured(began, 10, 20), measured(began.Add(-7*24*time.Hour), 10, 20)
	claimed := measured(began, 0, 20)
	db := DB(t, dsn)
	for _, c := range []struct {
		what              string
		node              string
		same, known       bool
		claimed, measured []batch.Measured
		gaps              []usage.Gap
		verdict           batch.Verdict
		booked            bool
	}{
		{"the same", "a", true, true, claimed, nil, nil, batch.Duplicate, true},
		{"the same, without windows", "a", true, true, nil, nil, nil, batch.Duplicate, true},
		{"another", "a", false, true, claimed, nil, nil, batch.Conflict, false},
		{"all of its time is booked", "a", true, false, claimed, nil, nil, batch.Duplicate, true},
		{"some is not", "a", false, false, claimed, now, nil, batch.Conflict, false},
		{"some is not, beside what overlaps", "a", false, false, claimed, nil, overlapped(began, usage.Overlapped), batch.Conflict, false},
		{"only a gap", "a", false, false, claimed, nil, overlapped(began, usage.Rebooted), batch.Duplicate, true},
		{"so old that booked time may be dropped", "a", false, false, old, old, nil, batch.Duplicate, false},
		{"so old, beside what overlaps", "a", false, false, old, nil, overlapped(began.Add(-7*24*time.Hour), usage.Overlapped), batch.Duplicate, false},
		{"measured nothing", "a", false, false, nil, nil, nil, batch.Duplicate, false},
		{"of jobs, whose time is not kept", "jobs", false, false, claimed, claimed, nil, batch.Duplicate, false},
	} {
		stream := batch.Stream{1, c.node[0]}
		mark, err := l.Mark(ctx, c.node, stream)
		if err != nil {
			t.Fatal(err)
		}
		first := Entry(c.node, stream, mark, 1, 1, minuteOf(Day))
		book(t, l, batch.Accepted, first)
		if !c.known {
			if _, err := db.Exec("DELETE FROM batch"); err != nil {
				t.Fatal(err)
			}
		}
		again := Entry(c.node, stream, mark, 1, 1, minuteOf(Day))
		if !c.same {
			again.Hash[0]++
		}
		again.Claimed, again.Measured, again.Gaps = c.claimed, c.measured, c.gaps
		if r := book(t, l, c.verdict, again)[0]; r.Booked != c.booked || r.Next != mark.Next+1 {
			t.Errorf("%s: %+v, want booked %t", c.what, r.Reply, c.booked)
		}
	}
}

// testBootPlaces holds a ledger to where it places boots: of the sender's boot where it was last, of
// an earlier one where it was first, and for each node apart.
func testBootPlaces(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	Node(t, l, "a")
	Node(t, l, "b")
	b := &bookedSeconds{t: t, l: l}
	send := func(node string, places ...batch.BootPlace) error {
		t.Helper()
		e := b.entry(node, "present", 100)
		e.Boots = places
		r, err := tryBook(t, l, e)
		if err != nil {
			t.Fatal(err)
		}
		return r[0].Err
	}
	check := func(node string, want map[string]int64) {
		t.Helper()
		got, err := l.BootPlaces(ctx, node, []string{"present", "earlier", "other"})
		if err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("places of %s: %v, %v, want %v", node, got, err, want)
		}
	}
	const ms = int64(time.Millisecond)
	for _, places := range [][]batch.BootPlace{
		{{Boot: "earlier", Offset: 5, New: true}, {Boot: "present", Offset: 7 * ms}},
		{{Boot: "earlier", Offset: 900 * ms}, {Boot: "present", Offset: 700 * ms}},
		{{Boot: "earlier", Offset: 6, New: true}},
	} {
		if err := send("a", places...); err != nil {
			t.Error(err)
		}
	}
	check("a", map[string]int64{"earlier": 5, "present": 700 * ms})
	check("b", map[string]int64{})
	// Another batch was prepared at the same time.
	if err := send("a", batch.BootPlace{Boot: "earlier", Offset: 900 * ms, New: true}); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("another place of the same boot: %v, want unavailable", err)
	}
	if err := l.Retain(ctx, time.Now().Add(10*365*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	check("a", map[string]int64{})
}

// testBookedOnce books windows that nodes draw, clipped as the receiver does, and compares what
// is booked with a set of seconds.
func testBookedOnce(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	for _, n := range []string{"a", "b", "c"} {
		Node(t, l, n)
	}
	db := DB(t, dsn)
	kernels, batches := 0, 0
	Checks(t, 40)
	rapid.Check(t, func(t *rapid.T) {
		kernels++
		boot := fmt.Sprint("boot", kernels)
		booked := map[int64]bool{}
		b := &bookedSeconds{t: t, l: l}
		at := int64(0)
		for range rapid.IntRange(1, 12).Draw(t, "batches") { // their clocks agree within a minute
			if _, err := db.Exec("UPDATE booked SET taken_ns = 0"); err != nil { // no rival is alive
				t.Fatal(err)
			}
			var free [][2]int64
			at += rapid.Int64Range(0, 4).Draw(t, "later")
			from := rapid.Int64Range(0, at).Draw(t, "from")
			e := b.entry(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node"), boot, at, [2]int64{from, at})
			batches++
			e.Stream = batch.Stream{byte(batches), byte(batches >> 8), byte(batches >> 16)}
			taken, err := l.Booked(ctx, e.Node, boot, e.Boottime, e.Measured)
			if err != nil {
				t.Fatal(err)
			}
			for s := from; s < at; s++ {
				has := slices.ContainsFunc(taken, func(m batch.Measured) bool { return m.From <= s*1e9 && s*1e9 < m.To })
				if has != booked[s] {
					t.Fatalf("second %d: booked %v, want %v", s, has, booked[s])
				}
				if has {
					continue
				}
				if n := len(free); n > 0 && free[n-1][1] == s {
					free[n-1][1]++
				} else {
					free = append(free, [2]int64{s, s + 1})
				}
			}
			whole := len(free) == 1 && free[0] == [2]int64{from, at}
			if from < at && !whole {
				if r, err := tryBook(t, l, e); err != nil || r[0].Err == nil {
					t.Fatalf("booked twice: %v, %v", r, err)
				}
			}
			e.Measured = nil
			for _, f := range free {
				e.Measured = append(e.Measured, batch.Measured{Boot: boot, Extent: usage.Extent{Scope: usage.Machine}, From: f[0] * 1e9, To: f[1] * 1e9})
				for s := f[0]; s < f[1]; s++ {
					booked[s] = true
				}
			}
			r, err := tryBook(t, l, e)
			if err != nil || r[0].Err != nil {
				t.Fatalf("%v, %v", r, err)
			}
		}
	})
	if told, err := l.Check(ctx); err != nil || len(told) > 0 {
		t.Errorf("check: %q, %v", told, err)
	}
}
