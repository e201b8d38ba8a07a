package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/outlier"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// triedBackups counts the calls of Backup in all runs of TestFaults: a fault that one run had is not
// repeated in the next.
var triedBackups int

// TestFaults checks that no call of a ledger reports success if a step of its database failed, and
// that what failed can be repeated. The suite does so too, with what it books and folds.
func TestFaults(t *testing.T) {
	cfg := ledger.Default()
	cfg.Upstream = true
	l := ledgertest.OpenWith(t, ledgertest.SQLite(t), cfg)
	f := ledgertest.Fill(t, l)
	day, m := ledgertest.Day, dayMinute
	end := day.Add(72 * time.Hour)
	all := query.Scope{All: true}
	try := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		if err := ledgertest.Try(t, func() error { return call(t.Context()) }); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	try("nodes", func(ctx context.Context) error { return second(l.Nodes(ctx, all)) })
	try("nodes of clusters", func(ctx context.Context) error {
		return second(l.Nodes(ctx, query.Scope{Clusters: []string{"c"}}))
	})
	try("sources", func(ctx context.Context) error { return second(l.DownstreamServers(ctx, all)) })
	try("streams", func(ctx context.Context) error { return second(l.Streams(ctx, query.StreamQuery{Scope: all})) })
	try("gaps", func(ctx context.Context) error { return second(l.Gaps(ctx, day, end, "", all)) })
	try("uptimes", func(ctx context.Context) error { return second(l.Uptimes(ctx, day, end, "", all)) })
	try("each gap", func(ctx context.Context) error { return l.EachGap(ctx, day, end, all, func(*query.Gap) {}) })
	try("dimensions", func(ctx context.Context) error { return second(l.Dimensions(ctx, all)) })
	try("times of gaps", func(ctx context.Context) error { return second(l.GapTimes(ctx)) })
	try("virtual machines", func(ctx context.Context) error { return second(l.VMs(ctx, day, end, all)) })
	try("names", func(ctx context.Context) error {
		short, _ := workload.ShortIDOf(workload.NewID("host", workload.System, ""))
		return second(l.Names(ctx, "host", []workload.ShortID{short}))
	})
	try("a workload of its own", func(ctx context.Context) error {
		return second(l.Self(ctx, "host", workload.NewID("host", workload.System, "")))
	})
	try("minutes", func(ctx context.Context) error {
		return l.Minutes(ctx, []string{"host", "guest"}, day, end, func(int, *batch.Minute) error { return nil })
	})
	try("wholes", func(ctx context.Context) error {
		return l.Wholes(ctx, []string{"host", "guest"}, day, end, func(int, *batch.NodeMinute) error { return nil })
	})
	f.Book(jobRuns(f.Entry("jobs", "b1", m+2), m+2))
	for _, q := range []query.Query{
		{By: []query.Dimension{query.ByNode}},
		{By: []query.Dimension{query.ByLabel + "app", query.ByCluster}},
		{By: []query.Dimension{query.ByNamespace, query.ByProject}},
		{By: []query.Dimension{query.ByWorkload}, Idle: "used", Where: map[query.Dimension][]string{query.ByNode: {"same"}}},
		{By: []query.Dimension{query.ByKind}, OmitOwn: true, Where: map[query.Dimension][]string{query.ByLabel + "app": {"x"}}},
	} {
		q.From, q.To, q.Scope = day.Add(time.Minute), end, all
		try("usage", func(ctx context.Context) error { return second(l.Usage(ctx, q)) })
		try("periods", func(ctx context.Context) error {
			return l.EachPeriod(ctx, q, query.Daily, func(*query.Answer) error { return nil })
		})
		try("runs", func(ctx context.Context) error { return second(l.Runs(ctx, query.RunQuery{Query: q})) })
		q.Limit = 2
		try("workloads", func(ctx context.Context) error { return second(l.Workloads(ctx, q)) })
	}
	try("stats", func(ctx context.Context) error { return second(l.Stats(ctx)) })
	try("check", func(ctx context.Context) error { return second(l.Check(ctx)) })
	try("backup", func(ctx context.Context) error {
		triedBackups++
		return l.Backup(ctx, filepath.Join(t.TempDir(), "backup"))
	})
	if triedBackups < 2 {
		t.Error("no step of a backup failed")
	}

	f.MeterMinute(m+2, map[string]string{"pdu": "it does not answer"})
	f.Book(f.Entry("clone", "b3", m, m+4)) // late for a minute that the meter has settled

	try("an audit line", func(ctx context.Context) error { return l.Audit(ctx, registry.Audit{At: day, Action: "x"}) })
	try("audit", func(ctx context.Context) error { return second(l.Audits(ctx, registry.AuditQuery{Limit: 10})) })
	token := registry.Token{ID: "t", Hash: [32]byte{1}, Role: registry.Agent, Uses: 2, Created: day}
	try("a token", func(ctx context.Context) error { return l.PutToken(ctx, token) })
	try("use of a token", func(ctx context.Context) error { return second(l.UseToken(ctx, "t", token.Hash, token.Role, "k", day)) })
	try("tokens", func(ctx context.Context) error { return second(l.Tokens(ctx)) })
	try("revoking a token", func(ctx context.Context) error { return l.RevokeToken(ctx, "t", day) })
	try("a value", func(ctx context.Context) error { return l.SetMeta(ctx, "k", "v") })
	try("the value", func(ctx context.Context) error { return second(l.Meta(ctx, "k")) })
	try("a secret", func(ctx context.Context) error { return second(l.Secret(ctx, "s")) })
	try("a server below", func(ctx context.Context) error {
		return l.PutSource(ctx, registry.Node{ID: "below", Cluster: "c", Name: "below", MachineID: "e", At: day})
	})
	try("servers below", func(ctx context.Context) error { return second(l.Sources(ctx, "e")) })
	try("a node", func(ctx context.Context) error { return second(l.Node(ctx, "host")) })
	try("nodes of a machine", func(ctx context.Context) error { return second(l.NodesByMachine(ctx, "1")) })
	try("a certificate", func(ctx context.Context) error { return l.Certify(ctx, "host", end) })
	try("a clone", func(ctx context.Context) error {
		return l.PutNode(ctx, registry.Node{ID: "copy", Root: "host", Cluster: "c", Name: "same", At: day})
	})
	try("another cluster", func(ctx context.Context) error {
		return l.PutNode(ctx, registry.Node{ID: "clone", Cluster: "d", Name: "clone", MachineID: "3", At: day})
	})

	// A server above takes pages, and again after its copy has other floors.
	above := ledgertest.Open(t, ledgertest.SQLite(t))
	src := replica.Source{ID: "below", Cluster: "eu"}
	take := func(rows int) {
		t.Helper()
		for {
			var p *replica.Page
			try("a page", func(ctx context.Context) error {
				mark, err := above.StatesMark(ctx, src)
				if err == nil {
					p, err = l.States(ctx, mark, replica.Offer{Rows: rows})
				}
				return err
			})
			if t.Failed() || p.Empty() {
				return
			}
			try("taking a page", func(ctx context.Context) error {
				if err := second(above.TakeStates(ctx, src, p, end)); !errors.Is(err, fault.ErrConflict) {
					return err
				}
				return nil // it was taken, and the fault was in reading the mark; or the mark begins again
			})
		}
	}
	take(50)
	old := day.AddDate(0, 0, 20)
	try("folding above", func(ctx context.Context) error { return above.Fold(ctx, old) })
	try("dropping minutes above", func(ctx context.Context) error { return above.Retain(ctx, old) })
	f.Book(f.Entry("host", "b1", m+2, m+1500), f.Entry("guest", "b2", m+2))
	try("folding", func(ctx context.Context) error { return l.Fold(ctx, old) })
	take(7)

	try("revoking a node", func(ctx context.Context) error { return l.RevokeNode(ctx, "jobs", day) })
	try("revoking a server", func(ctx context.Context) error { return l.RevokeNode(ctx, "below", day) })
	try("revoked nodes", func(ctx context.Context) error { return second(l.RevokedNodes(ctx)) })
	checkLedger(t, l)
	checkLedger(t, above)
	for _, age := range []int{10, 800, 2000} {
		try("dropping", func(ctx context.Context) error { return l.Retain(ctx, day.AddDate(0, 0, age)) })
	}
	checkLedger(t, l)
}

// jobRuns adds runs of one job to an entry, enough to compare the latest with, and a workload below each.
func jobRuns(e *batch.Entry, minute int64) *batch.Entry {
	for i := range outlier.MinSample + 2 {
		at := time.Unix(60*minute+int64(i), 0).UTC()
		run := batch.Name{ID: workload.NewID(e.Node, workload.Job, fmt.Sprint(i)), Kind: workload.Job, Key: fmt.Sprint(i), Name: "build", Started: at, Ended: at.Add(time.Second)}
		below := batch.Name{ID: workload.NewID(e.Node, workload.Container, fmt.Sprint(i)), Kind: workload.Container, Key: fmt.Sprint(i), Name: "step", Parent: run.ID}
		for _, n := range []batch.Name{run, below} {
			short, _ := workload.ShortIDOf(n.ID)
			u := usage.Usage{Covered: time.Second}
			u.Put(usage.CPU, 0, usage.Measured)
			e.Names, e.Minutes = append(e.Names, n), append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
		}
	}
	return e
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }
