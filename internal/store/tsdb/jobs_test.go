package tsdb_test

import (
	"fmt"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// The short-lived workloads of a machine and its standalone jobs, whose node has the same name, have
// a series each: in one series their totals would alternate.
func TestShortLivedJobs(t *testing.T) {
	t.Parallel()
	names := fakeRegistry{}
	s := openDB(t, t.TempDir(), names)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	for i := range int64(6) {
		node, cpu, cpus := "n1", int64(9e9), 2
		if i%2 == 1 {
			node, cpu, cpus = "n1 jobs", 1e9, 0 // jobs do not know the machine
		}
		short, _ := names.put(fmt.Sprint("brief", i))
		w := usage.Window{Boot: "b", Start: i * 10e9, End: (i + 1) * 10e9, Offset: begin.UnixNano(), CPUs: cpus}
		row := usage.Row{ShortID: short, Has: usage.SetOf(usage.CPU), Ended: true}
		row.Usage.Covered = 10 * time.Second
		row.Usage.Put(usage.CPU, cpu, usage.Measured)
		row.Total[usage.CPU] = cpu
		w.Rows = append(w.Rows, row)
		if _, err := s.Append(t.Context(), node, []batch.Name{names[short]}, cut(t, w)); err != nil {
			t.Fatal(err)
		}
	}
	for workload, want := range map[string]float64{"brief": 27, "brief-jobs": 3} {
		query := fmt.Sprintf(`last_over_time(mete_workload_cpu_seconds_total{node="box",workload=%q}[10m])`, workload)
		if v, ok := ask(t, s, query, begin.Add(2*time.Minute)); !ok || v != want {
			t.Errorf("%s: %v s, want %v", workload, v, want)
		}
	}
	for query, want := range map[string]float64{
		`min_over_time(mete_node_cpus[10m])`:                              2,
		`min_over_time(mete_node_cpu_cores{part="workloads"}[10m])`:       0.9,
		`count_over_time(mete_workload_info{workload="brief-jobs"}[10m])`: 3,
	} {
		if v, ok := ask(t, s, query, begin.Add(2*time.Minute)); !ok || v != want {
			t.Errorf("%s: %v, want %v", query, v, want)
		}
	}
	if v, _ := ask(t, s, `sum(resets(mete_workload_cpu_seconds_total[10m]))`, begin.Add(2*time.Minute)); v != 0 {
		t.Errorf("%v resets of counters, want none", v)
	}
}
