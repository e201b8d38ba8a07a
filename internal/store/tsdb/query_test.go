package tsdb_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/tsdb"
)

// constantUse fills a store with windows of ten seconds of one workload, which holds and uses the same
// in all of them, and returns when they begin and end.
func constantUse(t *testing.T, s *tsdb.Store, short workload.ShortID, start time.Time, windows int, jitter func(i int) int64) (from, to time.Time) {
	t.Helper()
	var at, total int64
	var ws []usage.Window
	for i := range windows {
		length := int64(10*time.Second) + jitter(i)
		row := usage.Row{ShortID: short, Has: usage.SetOf(usage.Memory, usage.CPU)}
		row.Usage.Covered = time.Duration(length)
		total += length // one core
		row.Usage.Put(usage.CPU, length, usage.Measured)
		row.Usage.Put(usage.Memory, length, usage.Measured)
		row.Total[usage.CPU], row.Total[usage.Memory] = total, total
		ws = append(ws, usage.Window{Boot: "b", Start: at, End: at + length, Offset: start.UnixNano(), CPUs: 2, Rows: []usage.Row{row}})
		at += length
	}
	for i := range ws { // as an agent sends them
		if _, err := s.Append(t.Context(), "n1", nil, cut(t, ws[i])); err != nil {
			t.Fatal(err)
		}
	}
	return start, start.Add(time.Duration(at))
}

// TestRateOfConstantUse checks that the rate of a constant use is constant: over ranges of some windows
// and of minutes, at any instant, for windows that minute edges cut anywhere.
func TestRateOfConstantUse(t *testing.T) {
	for _, offset := range []time.Duration{0, time.Millisecond, 500 * time.Millisecond, 3 * time.Second, 7 * time.Second, 9*time.Second + 999*time.Millisecond} {
		r := fakeRegistry{}
		short, _ := r.put("c")
		s := openDB(t, t.TempDir(), r)
		start := time.Unix(1.7e9, 0).Truncate(time.Minute).Add(offset)
		from, to := constantUse(t, s, short, start, 90, func(i int) int64 { return int64(i%3-1) * int64(2*time.Millisecond) })
		for _, over := range []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute} {
			engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Hour, Parser: parser.NewParser(parser.Options{})})
			text := fmt.Sprintf("rate(mete_workload_cpu_seconds_total[%s])", over)
			q, err := engine.NewRangeQuery(t.Context(), s.Queryable(), nil, text, from.Add(over+10*time.Second), to, 700*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			m, err := q.Exec(t.Context()).Matrix()
			if err != nil || len(m) != 1 {
				t.Fatalf("%d series, %v", len(m), err)
			}
			for _, p := range m[0].Floats {
				if math.Abs(p.F-1) > 0.01 {
					t.Errorf("windows begin %v after a minute: %s is %.4f cores at %v, want 1", offset, text, p.F, time.UnixMilli(p.T).UTC().Format(time.StampMilli))
					break
				}
			}
			if want := int(to.Sub(from.Add(over+10*time.Second)) / (700 * time.Millisecond)); len(m[0].Floats) < want {
				t.Errorf("%s has %d values, want %d", text, len(m[0].Floats), want)
			}
			q.Close()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTotalsAtMinuteEdges checks that a counter shows at each minute edge what was used until then,
// and that ranges have the windows' ends only.
func TestTotalsAtMinuteEdges(t *testing.T) {
	r := fakeRegistry{}
	short, _ := r.put("c")
	s := openDB(t, t.TempDir(), r)
	t.Cleanup(func() { _ = s.Close() })
	start := time.Unix(1.7e9, 0).Truncate(time.Minute).Add(7 * time.Second)
	_, to := constantUse(t, s, short, start, 30, func(int) int64 { return 0 })
	for at := start.Truncate(time.Minute).Add(time.Minute); at.Before(to); at = at.Add(time.Minute) {
		if got, ok := ask(t, s, "mete_workload_cpu_seconds_total", at); !ok || math.Abs(got-at.Sub(start).Seconds()) > 1e-6 {
			t.Errorf("at %v the counter shows %v s, want %v", at, got, at.Sub(start).Seconds())
		}
		if !at.After(start.Add(time.Minute)) {
			continue
		}
		for _, end := range []time.Time{at, at.Add(2 * time.Second)} { // of which the first edge or the last one is at an end
			if got, ok := ask(t, s, "count_over_time(mete_workload_cpu_seconds_total[1m])", end); !ok || got != 6 {
				t.Errorf("a minute to %v has %v samples, want 6", end, got)
			}
		}
	}
}

// Ranges of gauges and of several kinds of series have all samples.
func TestRangesOfGauges(t *testing.T) {
	r := fakeRegistry{}
	short, _ := r.put("c")
	s := openDB(t, t.TempDir(), r)
	t.Cleanup(func() { _ = s.Close() })
	start := time.Unix(1.7e9, 0).Truncate(time.Minute).Add(7 * time.Second)
	constantUse(t, s, short, start, 30, func(int) int64 { return 0 })
	end := start.Truncate(time.Minute).Add(4 * time.Minute)
	for query, want := range map[string]float64{
		`count_over_time(mete_node_cpus[1m])`:                                     6,
		`count_over_time(mete_workload_cpu_seconds_total[1m])`:                    6,
		`sum(count_over_time({__name__=~"mete_workload_cpu_seconds_total"}[1m]))`: 7, // with the edge
	} {
		if got, ok := ask(t, s, query, end); !ok || got != want {
			t.Errorf("%s is %v, %v, want %v", query, got, ok, want)
		}
	}
}
