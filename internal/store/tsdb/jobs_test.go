package tsdb_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/tsdb"
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

// A renamingRegistry gives its node another name.
type renamingRegistry struct {
	fakeRegistry
	name *string
}

func (r renamingRegistry) Node(ctx context.Context, id string) (registry.Node, error) {
	n, err := r.fakeRegistry.Node(ctx, id)
	n.Name = *r.name
	return n, err
}

// TestRenamedNode checks that a node that gets another name writes no more samples under the one that it had, which may be
// that of another node.
func TestRenamedNode(t *testing.T) {
	t.Parallel()
	name := "first"
	names := renamingRegistry{fakeRegistry{}, &name}
	cfg := tsdb.Default()
	cfg.Dir = t.TempDir()
	s, err := tsdb.Open(cfg, names, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	short, _ := names.put("a")
	begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
	for i := range int64(4) {
		if i == 2 {
			name = "second"
		}
		s.RenameNode("n1", "lab", name)
		w := usage.Window{Boot: "b", Start: i * 60e9, End: (i + 1) * 60e9, Offset: begin.UnixNano(), CPUs: 2}
		row := usage.Row{ShortID: short, Has: usage.SetOf(usage.CPU)}
		row.Usage.Covered = time.Minute
		row.Usage.Put(usage.CPU, 1e9, usage.Measured)
		row.Total[usage.CPU] = (i + 1) * 1e9
		w.Rows = append(w.Rows, row)
		if _, err := s.Append(t.Context(), "n1", []batch.Name{names.fakeRegistry[short]}, cut(t, w)); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]float64{
		`count_over_time(mete_node_cpus{node="first"}[10m])`:                  2,
		`count_over_time(mete_node_cpus{node="second"}[10m])`:                 2,
		`last_over_time(mete_workload_cpu_seconds_total{node="first"}[10m])`:  2,
		`last_over_time(mete_workload_cpu_seconds_total{node="second"}[10m])`: 4,
	} {
		if v, ok := ask(t, s, query, begin.Add(5*time.Minute)); !ok || v != want {
			t.Errorf("%s: %v, want %v", query, v, want)
		}
	}
}
