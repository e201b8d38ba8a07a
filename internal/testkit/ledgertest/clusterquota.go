package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testClusterQuota: the nodes of a cluster add together what the quotas of some nodes allow in a day, also
// across restarts of the server, however many nodes there are. All amounts are booked, and another
// cluster has its own quota.
func testClusterQuota(t *testing.T, dsn string) {
	for name, c := range map[string]struct {
		limit func(*ledger.Config)
		add   func(*batch.Entry, int) // what the i-th batch of a node adds, beside its use
		waits string                  // why a batch waits; "" if it is booked without what it adds
	}{
		"workloads": {func(c *ledger.Config) { c.Quota.Workloads = 2 }, nil, ""},
		"bytes":     {func(c *ledger.Config) { c.Quota.Bytes = 9000 }, nil, ""},
		"streams":   {func(c *ledger.Config) { c.Quota.Streams = 2 }, func(e *batch.Entry, i int) { e.Stream[5] = byte(i) }, "streams"},
		"batches":   {func(c *ledger.Config) { c.Quota.Batches = 2 }, nil, "batches"},
		"ranges": {func(c *ledger.Config) { c.Quota.Ranges = 4 }, func(e *batch.Entry, i int) {
			e.Measured = []batch.Measured{{Boot: fmt.Sprint(e.Node, i), Extent: usage.Extent{Scope: usage.Machine}, From: 1, To: 2}} // a kernel run and a range
		}, "booked time"},
		"handovers": {func(c *ledger.Config) { c.Quota.Handovers = 2 }, func(e *batch.Entry, i int) {
			e.Handovers = []batch.TimedHandover{{From: Day, To: Day.Add(time.Second), Handover: usage.Handover{Guest: "00000000-0000-0000-0000-000000000001"}}}
		}, "handovers"},
	} {
		cfg := ledger.Default()
		cfg.ClusterNodes = 3
		c.limit(&cfg)
		clusterQuotaCase(t, dsn, name, cfg, c.add, c.waits)
	}
}

func clusterQuotaCase(t *testing.T, dsn, name string, cfg ledger.Config, add func(*batch.Entry, int), waits string) {
	AfterMidnight()
	l := OpenWith(t, dsn, cfg)
	marks, booked := map[batch.Stream]batch.Mark{}, map[string]int64{}
	send := func(node string, i int) error {
		t.Helper()
		id := workload.NewID(node, workload.Job, fmt.Sprint(i))
		short, _ := workload.ShortIDOf(id)
		e := Entry(node, batch.Stream{1, node[0], name[0], name[1]}, batch.Mark{Next: 1}, short, 1, minuteOf(Day))
		e.Names = []batch.Name{{ID: id, Kind: workload.Job, Key: "k", Name: "n", Labels: map[string]string{"l": strings.Repeat("x", 4000)}}}
		if add != nil {
			add(e, i)
		}
		if mark, ok := marks[e.Stream]; ok {
			e.Number, e.Previous = mark.Next, mark.Last
		}
		e.Hash[1] = byte(i)
		r, err := l.Book(t.Context(), []*batch.Entry{e})
		if err != nil {
			t.Fatal(err)
		}
		if r[0].Err == nil {
			marks[e.Stream] = batch.Mark{Next: r[0].Next, Last: e.Hash}
			booked[node]++
		}
		return r[0].Err
	}
	count := func(query string, args ...any) (n int64) {
		t.Helper()
		if err := DB(t, dsn).QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	cluster := "many-" + name
	for i, node := range []string{"a-" + name, "b-" + name, "c-" + name, "d-" + name, "e-" + name, "z-" + name} {
		n := registry.Node{ID: node, Cluster: cluster, Name: node, MachineID: node, Boot: "boot", At: Day}
		if i == 5 {
			n.Cluster = "other-" + name
		}
		if err := l.PutNode(context.Background(), n); err != nil {
			t.Fatal(err)
		}
	}
	// named reports how many workloads of a node have their labels.
	named := func(node string) int64 {
		return count("SELECT count(*) FROM workload w JOIN node n ON n.id = w.node WHERE n.node_id = $1 AND EXISTS (SELECT 1 FROM workload_label l WHERE l.workload = w.id)", node)
	}
	for i := range 2 {
		for _, node := range []string{"a-" + name, "b-" + name, "c-" + name} {
			if err := send(node, i); err != nil || named(node) != int64(i+1) {
				t.Errorf("%s: batch %d of %s: %v, %d names", name, i, node, err, named(node))
			}
		}
	}
	closeLedger(t, l)
	l = OpenWith(t, dsn, cfg)
	for _, node := range []string{"d-" + name, "e-" + name} {
		err := send(node, 0)
		if after, ok := fault.RetryAfter(err); waits != "" && (!errors.Is(err, fault.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "cluster "+cluster+" is over its quota") || !strings.Contains(fmt.Sprint(err), waits) || !ok || after > 24*time.Hour) {
			t.Errorf("%s: %s beyond the quota of its cluster: %v", name, node, err)
		}
		if waits == "" && (err != nil || named(node) != 0) {
			t.Errorf("%s: %s beyond the quota of its cluster: %v, %d names", name, node, err, named(node))
		}
	}
	if err := send("z-"+name, 0); err != nil || named("z-"+name) != 1 {
		t.Errorf("%s: another cluster: %v, %d names", name, err, named("z-"+name))
	}
	if n := count("SELECT count(*) FROM audit WHERE action = 'cluster.quota' AND object = $1", cluster); n != 1 {
		t.Errorf("%s: %d audit lines, want 1", name, n)
	}
	if n := count("SELECT count(*) FROM audit WHERE action = 'node.quota'"); n != 0 {
		t.Errorf("%s: %d audit lines of nodes", name, n)
	}
	if _, err := DB(t, dsn).ExecContext(t.Context(), "UPDATE cluster_quota SET day = day - 1"); err != nil {
		t.Fatal(err)
	}
	if err := send("d-"+name, 1); err != nil || named("d-"+name) != 1 {
		t.Errorf("%s: the next day: %v, %d names", name, err, named("d-"+name))
	}
	for node, want := range booked {
		if n := count("SELECT COALESCE(sum(m.cpu), 0) FROM minute_"+Day.Format("20060102")+" m JOIN workload w ON w.id = m.workload JOIN node n ON n.id = w.node WHERE n.node_id = $1", node); n != want {
			t.Errorf("%s: %d ns of %s are booked, want %d", name, n, node, want)
		}
	}
}
