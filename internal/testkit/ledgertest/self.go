package ledgertest

import (
	"errors"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// checkSelf compares the total use of each workload with what was sent.
func (r *queryRound) checkSelf() {
	r.Helper()
	for _, w := range r.workloads {
		got, err := r.l.Self(r.t.Context(), w.node.id, w.name.ID)
		if err != nil {
			r.Fatal(err)
		}
		var want query.Total
		var first, last int64
		for i := range r.book.rows {
			row := &r.book.rows[i]
			if row.workload != w || !w.sent {
				continue // a workload without a name cannot be queried
			}
			t := query.Total{Present: row.usage.Present, Covered: unit.Sum{}.Add(int64(row.usage.Covered.Round(time.Millisecond)))}
			if t.Present == 0 && t.Covered == (unit.Sum{}) {
				continue // a row without any use
			}
			t.Present.Each(func(res usage.Resource) {
				t.Sum[res] = t.Sum[res].Add(row.usage.Amount[res])
				t.Quality.Set(res, row.usage.Quality.Get(res))
			})
			want.Add(&t)
			if first == 0 || row.minute < first {
				first = row.minute
			}
			last = max(last, row.minute)
		}
		name := batch.Name{ID: w.name.ID}
		if w.sent {
			name = w.told
		}
		if got.Name.Name != name.Name || got.ID != name.ID || got.Kind != name.Kind || got.Node != w.node.id || got.NodeName != w.node.name || got.Cluster != w.node.cluster {
			r.Fatalf("%s is %+v, want %+v", w.name.ID, got, name)
		}
		if got.Usage.Present != want.Present || got.Usage.Sum != want.Sum || got.Usage.Quality != want.Quality {
			r.Fatalf("%s %q of %s used %v, want %v", w.name.ID, w.name.Name, w.node.id, got.Usage, want)
		}
		if first == 0 != got.First.IsZero() || first != 0 && (got.First.Unix()/60 > first || got.Last.Unix()/60 <= last) {
			r.Fatalf("%s existed from %v to %v, want minutes %d to %d", w.name.ID, got.First, got.Last, first, last)
		}
	}
}

// testSelf: the total use of a workload excludes others, and is known from its first row
// on, folded or not.
func testSelf(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a")
	Node(t, l, "b")
	mine, other := named("k"), named("l")
	mine.Name, mine.Started = "mine", Day
	theirs := mine
	short, _ := workload.ShortIDOf(mine.ID)
	m, mark := minuteOf(Day), batch.Mark{Next: 1}
	self := func(node string, id workload.ID) *query.Self {
		t.Helper()
		s, err := l.Self(t.Context(), node, id)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := self("a", mine.ID); s.Usage.Present != 0 || !s.First.IsZero() || !s.Through.IsZero() || s.NodeName != "name-a" || s.ID != mine.ID {
		t.Errorf("before anything is booked: %+v", s)
	}
	for _, n := range []string{"a", "b"} {
		e := Entry(n, batch.Stream{n[0]}, mark, short, 5, m, m+61, m+3*dayMinutes)
		e.Names = []batch.Name{theirs}
		e.Gaps = []usage.Gap{{From: Day.Add(time.Hour), To: Day.Add(2 * time.Hour), Reason: usage.Rebooted}, {From: Day.Add(-time.Hour), To: Day, Reason: usage.Rebooted}}
		book(t, l, batch.Accepted, e)
	}
	for _, age := range []time.Duration{0, 2 * time.Hour, 49 * time.Hour, 300 * time.Hour} {
		fold(t, l, Day.Add(age))
		s := self("a", mine.ID)
		if cpu := s.Usage.Sum[usage.CPU].String(); cpu != "15" || s.Name.Name != "mine" || s.Gaps != 1 || !s.First.Equal(Day) || !s.Through.Equal(Day.Add(72*time.Hour+time.Minute)) || s.Usage.Covered.Int64() != int64(30*time.Second) {
			t.Errorf("folded up to %v: CPU %s, %+v", age, cpu, s)
		}
	}
	if s := self("a", other.ID); s.Usage.Present != 0 || s.Name.Name != "" {
		t.Errorf("another workload used %+v", s)
	}
	// An id with the same prefix belongs to another workload.
	raw, _ := mine.ID.Bytes()
	raw[15]++
	if s := self("a", workload.IDFromBytes(raw)); s.Usage.Present != 0 || s.Name.Name != "" {
		t.Errorf("a workload with the same id prefix used %+v", s)
	}
	if _, err := l.Self(t.Context(), "c", mine.ID); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("unknown node: %v", err)
	}
	if _, err := l.Self(t.Context(), "a", "'"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("invalid id: %v", err)
	}
}
