package tsdb_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Agents omit totals that follow from the previous row. Each window still gets its sample,
// also after a restart of the server, and a repeated window counts once.
func TestThinRows(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, id := names.put("a")
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(7, 8)), at: 10e9, totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	dir := t.TempDir()
	s := openDB(t, dir, names)
	var totals []int64
	var ends []time.Time
	for i := range 40 {
		if i == 17 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openDB(t, dir, names)
		}
		win := w.window(10e9, a)
		totals = append(totals, win.Rows[0].Total[usage.CPU])
		ends = append(ends, time.Unix(0, win.End+w.offset))
		if i%20 != 0 {
			win.Rows[0].Has, win.Rows[0].Total = 0, [usage.Limit]int64{}
		}
		for range 2 {
			if _, err := s.Append(t.Context(), "n1", nil, cut(t, win)); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, end := range ends {
		got, ok := ask(t, s, fmt.Sprintf(`mete_workload_cpu_seconds_total{workload=%q}`, id), end)
		if want := float64(totals[i]) / 1e9; !ok || got != want { // to the last bit
			t.Errorf("window %d: %v, %t, want %v", i, got, ok, want)
		}
	}
}

// A counter summed from amounts never exceeds the next total: otherwise it would decrease,
// which rate() treats as a counter reset.
func TestThinDoesNotDecrease(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, id := names.put("a")
	begin := time.Now().Add(-3 * time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(9, 10)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	s := openDB(t, t.TempDir(), names)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	begun := w.totals[a]
	if begun == nil {
		begun = new([usage.Limit]int64)
		w.totals[a] = begun
	}
	begun[usage.Memory] = 1<<60 + 1 // more than a float64 represents exactly
	for i := range 600 {
		win := w.window(10e9, a)
		if i%30 == 29 { // only a total, without use
			for _, res := range resources {
				begun[res] -= win.Rows[0].Usage.Amount[res]
				win.Rows[0].Usage.Put(res, 0, usage.Measured)
				win.Rows[0].Total[res] = begun[res]
			}
		} else if i > 0 {
			win.Rows[0].Has, win.Rows[0].Total = 0, [usage.Limit]int64{}
		}
		if _, err := s.Append(t.Context(), "n1", nil, cut(t, win)); err != nil {
			t.Fatal(err)
		}
	}
	for _, res := range resources {
		query := fmt.Sprintf(`resets(%s{workload=%q}[3h])`, metric.FamilyOf(res).Name, id)
		if n, ok := ask(t, s, query, begin.Add(2*time.Hour)); !ok || n != 0 {
			t.Errorf("%s is %v, %t", query, n, ok)
		}
	}
}

// The info series has a workload's name with its first sample, and a new name at once.
func TestInfo(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, _ := names.put("a")
	b, id := names.put("b")
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(11, 12)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	s := openDB(t, t.TempDir(), names)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	put := func(news []batch.Name, win usage.Window) {
		t.Helper()
		if _, err := s.Append(t.Context(), "n1", news, cut(t, win)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name string) {
		t.Helper()
		if _, ok := ask(t, s, fmt.Sprintf(`mete_workload_info{workload=%q,name=%q} * on (workload) mete_workload_cpu_seconds_total`, id, name), begin.Add(time.Duration(w.at))); !ok {
			t.Errorf("after %v no workload has the name %s", time.Duration(w.at), name)
		}
	}
	put(nil, w.window(10e9, a))
	put(nil, w.window(10e9, a, b))
	check("b")
	renamed := names[b]
	renamed.Name = "b2"
	put([]batch.Name{renamed}, w.window(10e9, a, b))
	check("b2")
}

// A counter without a source, because its meter is gone, continues while its workload lives.
func TestCounterContinues(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, id := names.put("a")
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	w := &world{rand: rand.New(rand.NewPCG(13, 14)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: begin.UnixNano()}
	s := openDB(t, t.TempDir(), names)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	want := 0.0
	for i := range 100 {
		win := w.window(10e9, a)
		row := &win.Rows[0]
		if i == 0 {
			want = float64(row.Total[usage.EnergyRest]) / 1e6
		} else {
			row.Has &^= usage.SetOf(usage.EnergyRest)
			row.Usage.Present &^= usage.SetOf(usage.EnergyRest)
			row.Usage.Amount[usage.EnergyRest], row.Total[usage.EnergyRest] = 0, 0
		}
		if _, err := s.Append(t.Context(), "n1", nil, cut(t, win)); err != nil {
			t.Fatal(err)
		}
	}
	query := fmt.Sprintf(`mete_workload_energy_joules_total{workload=%q}`, id)
	if got, ok := ask(t, s, query, begin.Add(time.Duration(w.at))); !ok || got != want {
		t.Errorf("%s is %v, %t, want %v", query, got, ok, want)
	}
}

// The levels of a node have the averages of each part.
func TestLevels(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	a, _ := names.put("a")
	idle, _ := workload.ShortIDOf(workload.NewID("n1", workload.Idle, ""))
	system, _ := workload.ShortIDOf(workload.NewID("n1", workload.System, ""))
	w := &world{rand: rand.New(rand.NewPCG(7, 8)), totals: map[workload.ShortID]*[usage.Limit]int64{}, offset: time.Now().Add(-time.Hour).UnixNano()}
	s := openDB(t, t.TempDir(), names)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	win := w.window(10e9, a, idle, system)
	win.Total.Put(usage.DiskRead, 50_000, usage.Measured)
	if _, err := s.Append(t.Context(), "n1", nil, cut(t, win)); err != nil {
		t.Fatal(err)
	}
	end := time.Unix(0, win.End+w.offset)
	for i, part := range []metric.Part{metric.Workloads, metric.Idle, metric.System} {
		u := &win.Rows[i].Usage
		for query, want := range map[string]float64{
			`mete_node_cpu_cores{node="box",part=%q}`:         float64(u.Amount[usage.CPU]) / 10e9,
			`mete_node_memory_held_bytes{node="box",part=%q}`: float64(u.Amount[usage.Memory]) / 10,
			`mete_node_power_watts{node="box",part=%q}`:       float64(u.Amount[usage.EnergyRest]) / 10e6,
		} {
			query = fmt.Sprintf(query, part)
			if got, ok := ask(t, s, query, end); !ok || math.Abs(got-want) > 1e-9*want {
				t.Errorf("%s = %v, %t, want %v", query, got, ok, want)
			}
		}
	}
	if got, ok := ask(t, s, `mete_node_disk_bytes_per_second{direction="read"}`, end); !ok || got != 5000 {
		t.Errorf("read: %v, %t, want 5000", got, ok)
	}
	// In a window without workloads their part is zero.
	end = end.Add(10 * time.Second)
	if _, err := s.Append(t.Context(), "n1", nil, cut(t, w.window(10e9, idle, system))); err != nil {
		t.Fatal(err)
	}
	if got, ok := ask(t, s, `mete_node_cpu_cores{part="workloads"}`, end); !ok || got != 0 {
		t.Errorf("workloads: %v, %t, want 0", got, ok)
	}
	// An absent level has no series.
	if got, ok := ask(t, s, `mete_node_network_bytes_per_second{direction="sent"}`, end); ok {
		t.Errorf("sent: %v, want no series", got)
	}
	if got, ok := ask(t, s, `mete_node_power_error_watts`, end); ok {
		t.Errorf("power error: %v, want no series", got)
	}
}
