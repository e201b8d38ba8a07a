package ledgertest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
)

// testUnsampled holds a ledger to what it stores of missing samples: with the batch that is
// booked, one span for each node, until that span is cleared.
func testUnsampled(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	Node(t, l, "a")
	Node(t, l, "b")
	span := func(from, to int) batch.Span {
		return batch.Span{From: Day.Add(time.Duration(from) * time.Minute), To: Day.Add(time.Duration(to) * time.Minute)}
	}
	want := func(when string, want map[string]batch.Span) {
		t.Helper()
		got, err := l.Unsampled(ctx)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", when, err, d)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want("empty", map[string]batch.Span{})
	e := Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 1, minuteOf(Day))
	book(t, l, batch.Accepted, e)
	want("a batch with all samples", map[string]batch.Span{})
	e = Entry("a", batch.Stream{1}, batch.Mark{Next: 2, Last: e.Hash}, 1, 1, minuteOf(Day)+1)
	e.Unsampled = span(10, 11)
	book(t, l, batch.Accepted, e)
	want("a batch without samples", map[string]batch.Span{"a": span(10, 11)})
	again := *e
	again.Unsampled = span(0, 60)
	book(t, l, batch.Duplicate, &again)
	want("a duplicate", map[string]batch.Span{"a": span(10, 11)})

	check(l.MarkUnsampled(ctx, "a", span(5, 8)))
	check(l.MarkUnsampled(ctx, "b", span(1, 2)))
	check(l.MarkUnsampled(ctx, "unknown", span(1, 2)))
	want("marked", map[string]batch.Span{"a": span(5, 11), "b": span(1, 2)})
	check(l.ClearUnsampled(ctx, "a", span(10, 11)))
	want("cleared before it was extended", map[string]batch.Span{"a": span(5, 11), "b": span(1, 2)})
	check(l.ClearUnsampled(ctx, "b", span(1, 2)))
	want("cleared", map[string]batch.Span{"a": span(5, 11)})

	through, err := l.Through(ctx, "a")
	check(err)
	check(l.MarkAllUnsampled(ctx, batch.Span{From: Day.Add(-time.Hour), To: through.Add(time.Hour)}))
	want("all that is booked since", map[string]batch.Span{"a": {From: Day.Add(-time.Hour), To: span(5, 11).Union(batch.Span{From: Day, To: through}).To}})
	check(l.MarkAllUnsampled(ctx, batch.Span{From: through, To: through.Add(time.Hour)}))
	want("all that is booked after that", map[string]batch.Span{"a": {From: Day.Add(-time.Hour), To: span(5, 11).Union(batch.Span{From: Day, To: through}).To}})
}
