package check_test

import (
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func TestCheckSQLite(t *testing.T)     { testCheck(t, ledgertest.SQLite(t)) }
func TestCheckPostgreSQL(t *testing.T) { testCheck(t, ledgertest.PostgreSQL(t)) }

// testCheck checks that a sound ledger has no findings, and that each kind of damage is found.
func testCheck(t *testing.T, dsn string) {
	ctx := t.Context()
	l := ledgertest.Open(t, dsn)
	ledgertest.Node(t, l, "a")
	m := ledgertest.Day.Unix() / 60
	e := ledgertest.Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 1<<40, m, m+61, m+1440, m+2*1440)
	for _, row := range e.Minutes {
		n := batch.NodeMinute{Minute: row.Minute, CPUs: 2, Covered: time.Minute}
		n.Whole[0], n.Skew[0] = 1<<40+5, -5
		n.Total.Put(usage.NetworkRx, 7, usage.Measured)
		e.Nodes = append(e.Nodes, n)
	}
	if _, err := l.Book(ctx, []*batch.Entry{e}); err != nil {
		t.Fatal(err)
	}
	check := func() []string {
		t.Helper()
		told, err := l.Check(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return told
	}
	if told := check(); len(told) > 0 {
		t.Errorf("before folding: %q", told)
	}
	// Two days and an hour of the third, slice by slice.
	slices := 0
	for err := range l.Folding(ctx, ledgertest.Day.Add(49*time.Hour+10*time.Minute)) {
		if err != nil {
			t.Fatal(err)
		}
		if slices++; slices%4 > 0 {
			continue
		}
		if told := check(); len(told) > 0 {
			t.Fatalf("folded in part: %q", told)
		}
	}
	db := ledgertest.DB(t, dsn)
	for _, c := range []struct{ damage, repair, want string }{
		{"UPDATE minute_20260301 SET cpu = cpu + 1 WHERE minute = $1", "UPDATE minute_20260301 SET cpu = cpu - 1 WHERE minute = $1",
			"balance: node name-a (a): 2026-03-01T00:00Z: cpu: whole + skew is 1099511627776, the rows are 1099511627777"},
		{"UPDATE node_minute_20260301 SET skew_cpu = 0 WHERE minute = $1", "UPDATE node_minute_20260301 SET skew_cpu = -5 WHERE minute = $1",
			"hour: node name-a (a): 2026-03-01T00:00Z: skew_cpu is -5, the finer rows are 0"},
		{"UPDATE minute_20260301 SET energy_rest = 7 WHERE minute = $1", "UPDATE minute_20260301 SET energy_rest = 0 WHERE minute = $1",
			"balance: node name-a (a): 2026-03-01T00:00Z: energy_rest: whole + skew is 0, the rows are 7"},
		{"UPDATE node_minute_20260301 SET whole_energy_package = 7 WHERE minute = $1", "UPDATE node_minute_20260301 SET whole_energy_package = 0 WHERE minute = $1",
			"balance: node name-a (a): 2026-03-01T00:00Z: energy_package: whole + skew is 7, the rows are 0"},
		{"UPDATE minute_20260301 SET present = present | 2286984185774080, network_rx_node = 3, network_rx_zone = 4, network_rx = network_rx + 6, network_tx_node = network_tx WHERE minute = $1",
			"UPDATE minute_20260301 SET present = present - 2286984185774080, network_rx_node = 0, network_rx_zone = 0, network_rx = network_rx - 6, network_tx_node = 0 WHERE minute = $1",
			"classes: node name-a (a), workload 0000000000000001: 2026-03-01T00:00Z: network_rx: the classes have 7 bytes, all traffic has 6"},
		{"UPDATE minute_20260301 SET energy_dram = 7 WHERE minute = $1", "UPDATE minute_20260301 SET energy_dram = 0 WHERE minute = $1",
			"hour: node name-a (a), workload 0000000000000001: 2026-03-01T00:00Z: energy_dram is 0, the finer rows are 7"},
		{"UPDATE group_day SET energy_gpu_hi = 1 WHERE minute = $1", "UPDATE group_day SET energy_gpu_hi = 0 WHERE minute = $1",
			"groups: 2026-03-01T00:00Z: energy_gpu is 4294967296, the rows are 0"},
		{"UPDATE hour SET cpu = cpu + 1 WHERE minute = $1", "UPDATE hour SET cpu = cpu - 1 WHERE minute = $1",
			"hour: node name-a (a), workload 0000000000000001: 2026-03-01T00:00Z: cpu is 1099511627777, the finer rows are 1099511627776"},
		{"UPDATE day SET rough = 2 WHERE minute = $1", "UPDATE day SET rough = 0 WHERE minute = $1",
			"day: node name-a (a), workload 0000000000000001: 2026-03-01T00:00Z: presence or quality differs from the finer rows"},
		{"UPDATE hour SET minute = minute + 120 WHERE minute = $1", "UPDATE hour SET minute = minute - 120 WHERE minute = $1 + 120",
			"hour: node name-a (a), workload 0000000000000001: 2026-03-01T02:00Z: present, but nothing was folded into it"},
		{"UPDATE node_day SET minute = 0 WHERE minute = $1", "UPDATE node_day SET minute = $1 WHERE minute = 0",
			"day: node name-a (a): 2026-03-01T00:00Z: missing, but finer rows exist"},
		{"UPDATE group_day SET cpu_lo = 8 WHERE minute = $1", "UPDATE group_day SET cpu_lo = 0 WHERE minute = $1",
			"groups: 2026-03-01T00:00Z: cpu is 2199023255560, the rows are 2199023255552"},
	} {
		if _, err := db.ExecContext(ctx, c.damage, m); err != nil {
			t.Fatalf("%s: %v", c.damage, err)
		}
		if told := check(); c.want == "" && len(told) > 0 || c.want != "" && !strings.Contains("\n"+strings.Join(told, "\n")+"\n", "\n"+c.want+"\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", c.damage, strings.Join(told, "\n"), c.want)
		}
		if _, err := db.ExecContext(ctx, c.repair, m); err != nil {
			t.Fatalf("%s: %v", c.repair, err)
		}
	}
	if told := check(); len(told) > 0 {
		t.Errorf("after all repairs: %q", told)
	}
}
