package usage_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// openLedger opens an empty ledger until the test ends.
func openLedger(t *testing.T) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), ledger.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestFromALedger checks that the tables show what a ledger contains, and that it sums to the
// machine.
func TestFromALedger(t *testing.T) {
	l := openLedger(t)
	now := time.Now().UTC().Truncate(time.Minute)
	const id = "01K5X3V7QZ8R9S0T1V2W3X4Y5Z"
	if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "default", Name: "web-1", MachineID: "m", Boot: "b", At: now.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	minute := now.Add(-10*time.Minute).Unix() / 60
	e := &batch.Entry{Node: id, Stream: batch.Stream{1}, Number: 1, Hash: batch.HashOf([]byte("1")), Sent: []byte("1"), Boot: "b", Through: now.Add(-9 * time.Minute),
		Gaps:   []usage.Gap{{From: now.Add(-9 * time.Minute), To: now.Add(-8 * time.Minute), Reason: usage.Unwatched}},
		Shifts: []batch.Shift{{Boot: "b", At: now, By: 90 * time.Minute, From: now.Add(-10 * time.Minute)}}}
	whole := batch.NodeMinute{Minute: minute, Covered: time.Minute, CPUs: 2, Whole: usage.Shares{120e9, 60 * 8 << 30}}
	whole.Whole[slices.Index(usage.Wholes[:], usage.EnergyRest)] = 1200e6
	used := func(kind workload.Kind, name, job string, cpu, memory int64) {
		n := batch.Name{ID: workload.NewID(id, kind, name), Kind: kind, Name: name, Job: job}
		short, ok := workload.ShortIDOf(n.ID)
		if !ok {
			t.Fatalf("no short id of %s", n.ID)
		}
		var u usage.Usage
		u.Covered = time.Minute
		u.Put(usage.CPU, cpu, usage.Measured)
		u.Put(usage.Memory, memory*60, usage.Measured)
		u.Put(usage.EnergyRest, cpu/100, usage.Modelled) // 10 W for each CPU
		u.Put(usage.EnergyError, cpu/400, usage.Modelled)
		e.Names = append(e.Names, n)
		e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
	}
	used(workload.Job, "make", "build", 60e9, 2<<30)
	used(workload.Service, "nginx.service", "", 10e9, 1<<30)
	used(workload.Service, "mete-agent.service", "", 1e9, 1<<30)
	used(workload.System, "system", "", 9e9, 1<<30)
	used(workload.Idle, "idle", "", 40e9, 3<<30)
	e.Nodes = []batch.NodeMinute{whole}
	if r, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
		t.Fatalf("Book: %v, %v", r, err)
	}

	authorize := func(*http.Request) (query.Scope, error) { return query.Scope{All: true}, nil }
	s := httptest.NewServer(api.New(l, nil, nil, authorize, time.Now, slog.New(slog.NewTextHandler(t.Output(), nil))))
	defer s.Close()
	t.Setenv("METE_SERVER", s.URL)
	for line, want := range map[string][]string{
		"usage":                     {"build ", "nginx.service ", " (1 day), averages over 1m with data", "SUM", "120.000 s", "the rows add up to the machine", "gaps: 1 in this range"},
		"usage --idle used":         {"≈600 J + 338 J ±25%", "≈15.6 W", "≈800 J + 400 J ±25%", "≈1.20 kJ ", "≈20.0 W", "the rows add up to the machine"},
		"usage --idle used -o json": {`"job":"build"`, `"energy_joules":600,"energy_idle_joules":338.028169,"energy_idle_error_joules":84.507042,"energy_average_watts":15.633803,`, `"idle":"used"`},
		"usage --idle used --where job=build -o csv": {",600,338.028169,84.507042,15.633803,"},
		"usage --idle equal --omit-own -o json":      {`"energy_joules":600,"energy_idle_joules":133.333333,`, `"energy_joules":100,"energy_idle_joules":133.33333`},
		"usage --idle used --by node":                {"≈800 J + 400 J ±25%"},
		"usage --by kind -o json":                    {`"kind":"service","nodes":1,`, `"cpu_seconds":60,`, `"whole":{"cpu_seconds":120,`},
		"usage --by workload --omit-own":             {"make "},
		"usage --by node --where node=web-1":         {"web-1 ", "120.000 s", "--by node,kind"},
		"usage --where job=build":                    {"build ", "60.000 s"},
		"usage --by label:x --limit 1 -o csv":        {"label:x,nodes,"},
		"nodes":                                      {"web-1 ", id, "default"},
		"gaps --node web-1":                          {"unwatched", "60.0", "no meter was running", "clock-shifted", "+1h30m0s"},
		"gaps -o json":                               {`"reason":"unwatched"`, `"reason":"clock-shifted"`, `"shift_seconds":5400`},
		"workloads --where kind=job -o json":         {`"name":"make","job":"build"`},
	} {
		out, err := run(strings.Fields(line)...)
		if err != nil {
			t.Errorf("mete %s: %v", line, err)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("mete %s has no %q:\n%s", line, w, out)
			}
		}
		if strings.Contains(line, "--omit-own") && strings.Contains(out, "mete-agent") {
			t.Errorf("mete %s shows what mete used:\n%s", line, out)
		}
	}
}
