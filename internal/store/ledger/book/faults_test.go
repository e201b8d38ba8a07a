package book_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/book"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestFaults checks that no call reports success if a step of its database failed, and that what failed can be
// repeated. TestSuite does so too, with what it books.
func TestFaults(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	f := ledgertest.Fill(t, l)
	day := ledgertest.Day
	m, end := day.Unix()/60, day.Add(72*time.Hour)
	try := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		if err := ledgertest.Try(t, func() error { return call(t.Context()) }); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	try("booked time", func(ctx context.Context) error {
		return second(l.Booked(ctx, "host", "b1", int64(50*time.Hour), []batch.Measured{{Boot: "b1", Extent: usage.Extent{Scope: usage.Machine}, From: int64(time.Hour), To: int64(40 * time.Hour)}}))
	})
	try("booked time of another node", func(ctx context.Context) error {
		err := second(l.Booked(ctx, "clone", "b1", int64(50*time.Hour), []batch.Measured{{Boot: "b1", Extent: usage.Extent{Scope: usage.Machine}, From: int64(time.Hour), To: int64(40 * time.Hour)}}))
		if errors.Is(err, fault.ErrUnavailable) {
			return nil // the node that booked it measures it now
		}
		return err
	})
	try("places of boots", func(ctx context.Context) error { return second(l.BootPlaces(ctx, "host", []string{"b1"})) })
	try("the end of a node", func(ctx context.Context) error { return second(l.Through(ctx, "host")) })
	try("a mark", func(ctx context.Context) error { return second(l.Mark(ctx, "host", batch.Stream{'h', 'o'})) })
	span := batch.Span{From: day, To: day.Add(time.Hour)}
	try("unsampled time", func(ctx context.Context) error { return l.MarkUnsampled(ctx, "host", span) })
	try("unsampled time of all", func(ctx context.Context) error { return l.MarkAllUnsampled(ctx, span) })
	try("all unsampled time", func(ctx context.Context) error { return second(l.Unsampled(ctx)) })
	try("sampled time", func(ctx context.Context) error { return l.ClearUnsampled(ctx, "host", span) })

	try("samples of meters", func(ctx context.Context) error {
		return l.PutMeterSamples(ctx, map[string][]external.Sample{"pdu": {{At: day.UnixNano(), Value: 1}, {At: day.Add(time.Second).UnixNano(), Value: 2}}})
	})
	try("meters", func(ctx context.Context) error {
		return second(l.ExternalMeters(ctx, []external.Meter{{Name: "pdu", Kind: power.Energy, Wait: 260 * time.Hour}}, time.Unix(60*(m+2), 0)))
	})
	try("the node of a meter", func(ctx context.Context) error { return second(l.MeterNode(ctx, "host")) })
	try("nodes of meters", func(ctx context.Context) error {
		return second(l.MeterNodes(ctx, []string{"host", "guest"}, m, end))
	})
	try("ratios of meters", func(ctx context.Context) error { return second(l.MeterRatios(ctx, day)) })
	f.MeterMinute(m+2, map[string]string{"pdu": "it does not answer"})
	f.MeterMinute(m+3, map[string]string{"pdu": "it does not answer"})
	f.Book(f.Entry("clone", "b3", m, m+4)) // late for a minute that the meter has settled
	next := m + 5*1440                     // nothing is booked of this day
	try("meters later", func(ctx context.Context) error {
		return second(l.ExternalMeters(ctx, []external.Meter{{Name: "pdu", Kind: power.Energy}}, time.Unix(60*(next-1), 0)))
	})
	f.MeterMinute(next, nil)
}

// TestVersionFaults does so with versions that another server has decided on, and with their names.
func TestVersionFaults(t *testing.T) {
	d, err := db.Open(t.Context(), ledgertest.SQLite(t), false, ledgertest.Wrap)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	const day = schema.DayMinutes
	write := func(what string, f func(x *db.Tx) error) {
		t.Helper()
		err := ledgertest.Try(t, func() error {
			return d.Write(t.Context(), func(x *db.Tx) error {
				x.HourFloor, x.MinuteFloor, x.Hour, x.Day = day, 2*day, 3*day, 3*day
				return f(x)
			})
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	write("a node", func(x *db.Tx) error {
		return second(x.Exec("INSERT INTO node (id, node_id, cluster, name, machine_id, boot, enrolled_ns, rev) VALUES (1, 'a', 'c', 'a', '', '', 0, 1)"))
	})
	versions := [][2]int64{{day + 60, 0}, {2*day + 15, 3 * day}, {0, 2*day + 30}, {0, 0}}
	for i, v := range versions {
		write("a version", func(x *db.Tx) error {
			id, err := book.SetVersion(x, 1, 5, v[0], v[1])
			if err != nil {
				return err
			}
			return book.ReplaceName(x, id, &replica.Workload{Name: &batch.Name{Kind: workload.Container, Job: fmt.Sprint("job-", i), Labels: map[string]string{"a": "b"}}})
		})
		write("rows", func(x *db.Tx) error {
			w, err := x.Workload(1, 5)
			if err != nil {
				return err
			}
			c := book.NewChange(schema.UsageLayout)
			for of, minute := range map[replica.Resolution]int64{replica.Hour: day + 120, replica.Minute: 2*day + 20 + int64(i)} {
				values := make([]int64, len(schema.UsageLayout.Columns))
				values[schema.ColRev], values[schema.ColPresent], values[schema.ColCovered] = x.Rev, int64(usage.SetOf(usage.CPU)), 1
				c.Set(of, schema.RowKey{Minute: minute, ID: w.At(minute)}, values)
			}
			return second(c.Apply(x, 0))
		})
	}
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }
