package ledgertest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testLate: late minutes of folded hours and days are added at all three levels.
func testLate(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a")
	m := minuteOf(Day)
	s := batch.Stream{1}
	first := Entry("a", s, batch.Mark{Next: 1}, 1, 10, m+30, m+90)
	book(t, l, batch.Accepted, first)
	fold(t, l, Day.Add(26*time.Hour))
	// The name arrives late as well, and moves the day to another group.
	n := named("k")
	n.Job = "j"
	short, _ := workload.ShortIDOf(n.ID)
	late := Entry("a", s, batch.Mark{Next: 2, Last: first.Hash}, short, 100, m+31, m+91)
	book(t, l, batch.Accepted, late)
	for i := 1; i <= 2; i++ { // folding twice changes nothing
		fold(t, l, Day.Add(26*time.Hour))
	}
	after := Entry("a", s, batch.Mark{Next: 3, Last: late.Hash}, 1, 0, m+30)
	after.Names = []batch.Name{n}
	book(t, l, batch.Accepted, after)
	fold(t, l, Day.Add(26*time.Hour))
	db := reader{t, DB(t, dsn)}
	for _, c := range []struct {
		table  string
		minute int64
		short  workload.ShortID
		want   int64
	}{
		{table("", m), m + 31, short, 100}, {"hour", m, 1, 10}, {"hour", m, short, 100}, {"hour", m + 60, short, 100},
		{"day", m, 1, 20}, {"day", m, short, 200},
	} {
		if got := db.usage(c.table)[rowKey{"a", c.short, c.minute}]; got == nil || got.Amount[usage.CPU] != c.want {
			t.Errorf("%s at %d of %d is %v, want %d", c.table, c.minute-m, c.short, got, c.want)
		}
	}
	if diff := cmp.Diff(map[group]int64{{"", m}: 20, {"j", m}: 200}, db.groups()); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if first, last := db.number("SELECT first_minute FROM workload WHERE job = 'j'"), db.number("SELECT last_minute FROM workload WHERE job = 'j'"); first != m+31 || last != m+91 {
		t.Errorf("used from %d to %d, want 31 to 91", first-m, last-m)
	}
}

// testSlices: the sums are right with any writes between two slices, and wherever folding
// is interrupted.
func testSlices(t *testing.T, dsn string) {
	ctx := t.Context()
	cfg := ledger.Default()
	cfg.Slice = 1
	l := OpenWith(t, dsn, cfg)
	Node(t, l, "a")
	m := minuteOf(Day)
	mark := batch.Mark{Next: 1}
	want := map[workload.ShortID]int64{}
	send := func(short workload.ShortID, minutes ...int64) {
		e := Entry("a", batch.Stream{1}, mark, short, 10, minutes...)
		e.Nodes = []batch.NodeMinute{{Minute: minutes[0], CPUs: 1}}
		for range minutes {
			e.Nodes[0].Whole[0] += 10
		}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, l, batch.Accepted, e)
		want[short] += 10 * int64(len(minutes))
	}
	for short := range workload.ShortID(4) {
		send(short, m+30, m+31, m+90)
	}
	db := reader{t, DB(t, dsn)}
	slices, ended := 0, false
	// Each round folds one more slice with a new call, and then the rest, while rows arrive
	// for all of them.
	for _, rest := range []bool{false, true} {
		for more := true; more; {
			more = false
			for err := range l.Folding(ctx, Day.Add(26*time.Hour)) {
				if err != nil {
					t.Fatal(err)
				}
				if slices++; !ended {
					more = !rest
					short := workload.ShortID(slices % 4)
					// The last row is for a workload whose groups were just summed.
					if ended = slices > 50 && db.number("SELECT coalesce(max(next), 0) FROM stale_day") > 0; ended {
						short = 0
					}
					send(short, m+30+int64(slices%2)*60)
				}
				if !rest {
					break
				}
			}
		}
	}
	fold(t, l, Day.Add(26*time.Hour))
	var total int64
	for short, ns := range want {
		total += ns
		if got := db.usage("day")[rowKey{"a", short, m}].Amount[usage.CPU]; got != ns {
			t.Errorf("the day of %d has %d, want %d", short, got, ns)
		}
	}
	if diff := cmp.Diff(map[group]int64{{"", m}: total}, db.groups()); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if !ended || db.number("SELECT count(*) FROM stale_day") > 0 {
		t.Errorf("%d slices; some days are stale", slices)
	}
	findings, err := l.Check(ctx)
	for _, line := range findings {
		if !strings.HasPrefix(line, "balance: ") { // a batch's node is in one of its minutes
			t.Error(line)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func testRetain(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	Node(t, l, "a")
	m := minuteOf(Day)
	mark := batch.Mark{Next: 1}
	send := func(minutes ...int64) {
		e := Entry("a", batch.Stream{1}, mark, 1, 10, minutes...)
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, l, batch.Accepted, e)
	}
	send(m, m+dayMinutes)
	at := func(age time.Duration) time.Time { return Day.Add(age) }
	keep := func(now time.Time) {
		t.Helper()
		if err := Try(t, func() error { return l.Retain(ctx, now) }); err != nil {
			t.Fatal(err)
		}
	}
	db := reader{t, DB(t, dsn)}
	keep(at(100 * 24 * time.Hour))
	if days := db.keptDays(); len(days) != 2 {
		t.Fatalf("kept %v: an unfolded day was dropped", days)
	}
	fold(t, l, at(3*24*time.Hour))
	keep(at(8*24*time.Hour + time.Hour))
	if days := db.keptDays(); len(days) != 1 || days[0] != m+dayMinutes {
		t.Fatalf("kept %v, want the second day", days)
	}
	// A late minute of a day whose minutes are dropped is in its hour and day.
	send(m+1, m+dayMinutes)
	if days := db.keptDays(); len(days) != 1 {
		t.Fatalf("kept %v: a dropped day exists again", days)
	}
	if got := db.usage("hour")[rowKey{"a", 1, m}]; got == nil || got.Amount[usage.CPU] != 20 {
		t.Errorf("the hour is %v, want 20", got)
	}
	keep(time.Now().Add(47 * time.Hour))
	if n := db.number("SELECT count(*) FROM batch"); n != 2 {
		t.Errorf("%d batches are kept after less than two days, want 2", n)
	}
	if _, err := DB(t, dsn).ExecContext(ctx, "UPDATE batch SET taken_ns = 0"); err != nil {
		t.Fatal(err)
	}
	keep(at(800 * 24 * time.Hour))
	send(m + 2)
	if got := db.usage("hour"); len(got) != 0 {
		t.Errorf("hours %v are left", got)
	}
	if got := db.usage("day"); got[rowKey{"a", 1, m}].Amount[usage.CPU] != 30 || got[rowKey{"a", 1, m + dayMinutes}].Amount[usage.CPU] != 20 {
		t.Errorf("days are %v", got)
	}
	if n := db.number("SELECT count(*) FROM batch"); n != 1 {
		t.Errorf("%d batches are kept, want the last", n)
	}

	// By size: folded days are dropped, the oldest first.
	small := ledger.Default()
	small.MinuteBytes = 1
	l2, err := ledger.Open(ctx, dsn, small, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer closeLedger(t, l2)
	now := at(1000 * 24 * time.Hour)
	send(minuteOf(now), minuteOf(now)+dayMinutes)
	if err := l2.Fold(ctx, now.Add(25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := l2.Retain(ctx, now.Add(25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if days := db.keptDays(); len(days) != 1 || days[0] != minuteOf(now)+dayMinutes {
		t.Errorf("kept %v, want the last day", days)
	}
}
