package tsdb_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/tsdb"
)

// fakeRegistry has a node and its workloads, and the node of the machine's standalone jobs.
type fakeRegistry map[workload.ShortID]batch.Name

func (r fakeRegistry) Node(_ context.Context, id string) (registry.Node, error) {
	machine, ok := map[string]string{"n1": "m", "n1 jobs": "m jobs"}[id]
	if !ok {
		return registry.Node{}, fault.ErrNotFound
	}
	return registry.Node{ID: id, Name: "box", Cluster: "lab", MachineID: machine}, nil
}

func (r fakeRegistry) Names(_ context.Context, _ string, shorts []workload.ShortID) (map[workload.ShortID]batch.Name, error) {
	found := map[workload.ShortID]batch.Name{}
	for _, s := range shorts {
		if n, ok := r[s]; ok {
			found[s] = n
		}
	}
	return found, nil
}

func (r fakeRegistry) put(key string) (workload.ShortID, workload.ID) {
	id := workload.NewID("n1", workload.Container, key)
	short, _ := workload.ShortIDOf(id)
	r[short] = batch.Name{ID: id, Kind: workload.Container, Name: key}
	return short, id
}

func openDB(t *testing.T, dir string, r fakeRegistry) *tsdb.Store {
	t.Helper()
	cfg := tsdb.Default()
	cfg.Dir = dir
	s, err := tsdb.Open(cfg, r, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A world generates windows of one node.
type world struct {
	rand   *rand.Rand
	at     int64 // ns of boottime
	offset int64
	totals map[workload.ShortID]*[usage.Limit]int64
}

var resources = []usage.Resource{usage.CPU, usage.Memory, usage.NetworkRx, usage.EnergyRest}

func (w *world) window(length int64, shorts ...workload.ShortID) usage.Window {
	win := usage.Window{Boot: "b", Start: w.at, End: w.at + length, Offset: w.offset, CPUs: 2}
	w.at += length
	for _, s := range shorts {
		row := usage.Row{ShortID: s}
		row.Usage.Covered = time.Duration(length)
		t := w.totals[s]
		if t == nil {
			t = new([usage.Limit]int64)
			w.totals[s] = t
		}
		for _, res := range resources {
			v := w.rand.Int64N(1 << 30)
			row.Usage.Put(res, v, usage.Measured)
			t[res] += v
			row.Has |= usage.SetOf(res)
			row.Total[res] = t[res]
		}
		win.Rows = append(win.Rows, row)
	}
	return win
}

// ask returns the value of an instant query with at most one series; false without one.
func ask(t *testing.T, s *tsdb.Store, query string, at time.Time) (float64, bool) {
	t.Helper()
	e := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Hour, Parser: parser.NewParser(parser.Options{})})
	q, err := e.NewInstantQuery(t.Context(), s.Queryable(), nil, query, at)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	v, err := q.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatal(err)
	}
	switch len(v) {
	case 0:
		return 0, false
	case 1:
		return v[0].F, true
	}
	t.Fatalf("%s: %d series, want at most one", query, len(v))
	return 0, false
}

// cut cuts windows that are where their stamps say.
func cut(t *testing.T, ws ...usage.Window) []walltime.CutWindow {
	t.Helper()
	cuts, err := walltime.Cut(ws, make([]time.Duration, len(ws)))
	if err != nil {
		t.Fatal(err)
	}
	return cuts.Windows
}

// Between two minute edges a series grows by the amount that the ledger books, independent
// of the edges, the order and the repetition of windows.
func TestMinutes(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, idA := names.put("a")
	b, _ := names.put("b")
	begin := time.Now().Add(-2 * time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(1, 2)), at: 7e9, totals: map[workload.ShortID]*[usage.Limit]int64{}}
	w.offset = begin.UnixNano() - 7e9 + 13_000_000_017 // 13.000000017 s after a minute
	var all []usage.Window
	for range 120 {
		all = append(all, w.window(int64(5e9)+w.rand.Int64N(40e9), a, b))
	}
	cuts, err := walltime.Cut(all, make([]time.Duration, len(all)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := openDB(t, dir, names)
	put := func(from, to int) {
		t.Helper()
		if _, err := s.Append(t.Context(), "n1", nil, cuts.Windows[from:to]); err != nil {
			t.Fatal(err)
		}
	}
	put(0, 30)
	put(60, 90) // live windows, while the backlog is sent
	put(30, 45)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openDB(t, dir, names)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	put(90, 120)
	put(40, 60)
	put(0, 120) // again
	if n := s.Stats().Refused; n > 0 {
		t.Errorf("%d samples differ from stored ones", n)
	}
	compared := 0
	for _, res := range resources {
		f := metric.FamilyOf(res)
		query := fmt.Sprintf(`%s{workload=%q,node="box",cluster="lab"}`, f.Name, idA)
		var sum int64
		first := cuts.Minutes[0].Minute + 1
		base, ok := ask(t, s, query, time.Unix(first*60, 0))
		if !ok {
			t.Fatalf("%s: no sample at the first edge", query)
		}
		for _, m := range cuts.Minutes {
			if m.Workload != a || m.Minute < first {
				continue
			}
			sum += m.Usage.Amount[res]
			edge := time.Unix((m.Minute+1)*60, 0)
			if edge.UnixNano() > all[len(all)-1].End+w.offset {
				continue
			}
			v, ok := ask(t, s, query, edge)
			if want := f.Value(sum); !ok || math.Abs(v-base-want) > 1e-9*v {
				t.Fatalf("%s at %v: grew by %v (%v), the ledger has %v", query, edge, v-base, ok, want)
			}
			compared++
		}
	}
	if compared < 100 {
		t.Errorf("%d comparisons", compared)
	}
}

// The series of an idle workload, which is in no window, continue, also after a restart. When
// it ends, they end at once.
func TestIdle(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, id := names.put("a")
	b, _ := names.put("b")
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(3, 4)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	dir := t.TempDir()
	s := openDB(t, dir, names)
	put := func(win usage.Window) {
		t.Helper()
		if _, err := s.Append(t.Context(), "n1", nil, cut(t, win)); err != nil {
			t.Fatal(err)
		}
	}
	query := fmt.Sprintf(`mete_workload_cpu_seconds_total{workload=%q}`, id)
	exists := func(query string, want bool) {
		t.Helper()
		if _, ok := ask(t, s, query, begin.Add(time.Duration(w.at))); ok != want {
			t.Fatalf("%s at %v: %v, want %v", query, time.Duration(w.at), ok, want)
		}
	}
	put(w.window(10e9, a, b))
	for range 60 {
		put(w.window(10e9, b))
	}
	exists(query, true)
	exists(fmt.Sprintf(`mete_workload_info{workload=%q,name="a"}`, id), true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openDB(t, dir, names)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 60 {
		put(w.window(10e9, b))
	}
	exists(query, true)

	renamed := names[a]
	renamed.Name = "a2"
	if _, err := s.Append(t.Context(), "n1", []batch.Name{renamed}, cut(t, w.window(70e9, a, b))); err != nil {
		t.Fatal(err)
	}
	exists(fmt.Sprintf(`mete_workload_info{workload=%q}`, id), true)
	exists(fmt.Sprintf(`mete_workload_info{workload=%q,name="a2"}`, id), true)

	last := w.window(10e9, a, b)
	last.Rows[0].Ended = true
	put(last)
	put(w.window(10e9, b))
	exists(query, false)
	exists(fmt.Sprintf(`mete_workload_info{workload=%q}`, id), false)
}

// Workloads that live for less than a window share one series, which counts each once.
func TestShortLived(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, _ := names.put("a")
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(5, 6)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	dir := t.TempDir()
	s := openDB(t, dir, names)
	var want int64
	for i := range 20 {
		short, _ := names.put(fmt.Sprint("job", i))
		win := w.window(10e9, a, short)
		win.Rows[1].Ended = true
		want += win.Rows[1].Usage.Amount[usage.CPU]
		for range 2 { // append it twice
			if _, err := s.Append(t.Context(), "n1", nil, cut(t, win)); err != nil {
				t.Fatal(err)
			}
		}
		if i%7 == 6 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openDB(t, dir, names)
		}
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	at := begin.Add(time.Duration(w.at))
	if v, ok := ask(t, s, `mete_workload_cpu_seconds_total{workload="brief"}`, at); !ok || math.Abs(v-float64(want)/1e9) > 1e-6 {
		t.Errorf("short-lived workloads used %v s, want %v", v, float64(want)/1e9)
	}
	if v, _ := ask(t, s, `count(mete_workload_cpu_seconds_total)`, at); v != 2 {
		t.Errorf("%v series, want that of a and the shared one", v)
	}
}

// Workloads above the limit share the series of the short-lived ones, so that the sum is
// complete. The store logs it once.
func TestLimit(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(15, 16)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	var log bytes.Buffer
	cfg := tsdb.Default()
	cfg.Dir, cfg.Workloads = t.TempDir(), 5
	open := func() *tsdb.Store {
		s, err := tsdb.Open(cfg, names, nil, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	var want int64
	put := func(shorts ...workload.ShortID) {
		t.Helper()
		win := w.window(10e9, shorts...)
		var news []batch.Name
		for i, short := range shorts {
			news = append(news, names[short])
			want += win.Rows[i].Usage.Amount[usage.CPU]
		}
		for range 2 { // append it twice
			if _, err := s.Append(t.Context(), "n1", news, cut(t, win)); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(when string) {
		t.Helper()
		at := begin.Add(time.Duration(w.at))
		if v, ok := ask(t, s, `sum(mete_workload_cpu_seconds_total)`, at); !ok || math.Abs(v-float64(want)/1e9) > 1e-6 {
			t.Errorf("%s: sum of all series %v s, want %v", when, v, float64(want)/1e9)
		}
		if v, _ := ask(t, s, `count(mete_workload_cpu_seconds_total)`, at); v != 6 {
			t.Errorf("%s: %v series, want those of 5 workloads and the shared one", when, v)
		}
	}
	var all []workload.ShortID
	for i := range 20 {
		short, _ := names.put(fmt.Sprint("steady", i))
		all = append(all, short)
	}
	for range 20 {
		put(all...)
	}
	check("twenty")
	overLimit := s.Stats().OverLimit
	if overLimit != 2*20*15 { // counts repeated windows
		t.Errorf("%d rows above the limit, want %d", overLimit, 2*20*15)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 20 {
		put(all...)
	}
	check("after a restart")
}

// If room becomes free within a batch, because a workload with series ended an hour ago, the
// workloads above the limit share the series until the next batch and have their own then.
func TestLimitMakesRoom(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	begin := time.Now().Add(-3 * time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(19, 20)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	cfg := tsdb.Default()
	cfg.Dir, cfg.Workloads = t.TempDir(), 5
	open := func() *tsdb.Store {
		s, err := tsdb.Open(cfg, names, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var want int64
	var all []workload.ShortID
	for i := range 10 {
		short, _ := names.put(fmt.Sprint("steady", i))
		all = append(all, short)
	}
	put := func(ended int, shorts ...workload.ShortID) {
		t.Helper()
		var news []batch.Name
		for _, short := range shorts {
			news = append(news, names[short])
		}
		ws := make([]usage.Window, 3)
		for i := range ws {
			ws[i] = w.window(60e9, shorts...)
			for j := range ws[i].Rows {
				want += ws[i].Rows[j].Usage.Amount[usage.CPU]
			}
		}
		for i := range ended {
			ws[2].Rows[i].Ended = true
		}
		if _, err := s.Append(t.Context(), "n1", news, cut(t, ws...)); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(when string) {
		t.Helper()
		if v, ok := ask(t, s, `sum(max_over_time(mete_workload_cpu_seconds_total[3h]))`, begin.Add(time.Duration(w.at))); !ok || math.Abs(v-float64(want)/1e9) > 1e-6 {
			t.Errorf("%s: sum of all series %v s, want %v", when, v, float64(want)/1e9)
		}
	}
	put(0, all...)
	put(3, all...)
	sum("three ended")
	for range 21 {
		put(0, all[3:]...)
	}
	sum("an hour later")

	// After a restart there is room for other workloads. A new series grows by all that its
	// workload uses from then on.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	before, since := want, w.at
	for range 2 {
		put(0, all[3:]...)
	}
	grew, _ := ask(t, s, fmt.Sprintf(`sum(max_over_time(mete_workload_cpu_seconds_total[%[1]dms]) - min_over_time(mete_workload_cpu_seconds_total[%[1]dms]))`,
		(w.at-since)/1e6+1), begin.Add(time.Duration(w.at)))
	if used := float64(want-before) / 1e9; math.Abs(grew-used) > 1e-6 {
		t.Errorf("with room for others: all series grew by %v s, want %v", grew, used)
	}
	if v, _ := ask(t, s, `count(mete_workload_cpu_seconds_total)`, begin.Add(time.Duration(w.at))); v != 6 {
		t.Errorf("%v series, want those of 5 workloads and the shared one", v)
	}
}

// A node that changes names with each window does not get more series, neither for new
// workloads that end nor for a renamed one.
func TestLimitRenames(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(17, 18)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	cfg := tsdb.Default()
	cfg.Dir, cfg.Workloads = t.TempDir(), 10
	s, err := tsdb.Open(cfg, names, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	a, _ := names.put("a")
	before := a
	for i := range 300 {
		renamed := names[a]
		renamed.Name = fmt.Sprint("a", i)
		next, _ := names.put(fmt.Sprint("next", i))
		win := w.window(3*60e9, a, before, next)
		if win.Rows[1].Ended = true; i == 0 {
			win.Rows = append(win.Rows[:1], win.Rows[2:]...)
		}
		if _, err := s.Append(t.Context(), "n1", []batch.Name{renamed, names[next]}, cut(t, win)); err != nil {
			t.Fatal(err)
		}
		before = next
	}
	// Each workload has 4 counters, at most one memory peak, and an info series.
	if n := s.Stats().Series; n > 10*6+60 {
		t.Errorf("%d series in memory for a limit of 10 workloads", n)
	}
}
