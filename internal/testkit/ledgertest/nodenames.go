package ledgertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger"
)

// testNodeNames checks that the nodes of a cluster have different names: the first node of a host
// name has the plain name and a later one the end of its id with it, permanently.
func testNodeNames(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	put := func(id, cluster, machine, name string) {
		t.Helper()
		if err := l.PutNode(ctx, registry.Node{ID: id, Cluster: cluster, Name: name, MachineID: machine, Boot: "b", At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, nodeNames(t, l)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	want := map[string]string{
		"01TWINA00001": "box", "01TWINB00002": "box~B00002", "01TWINCB00002": "box~01TWINCB00002", "01ELSEWHERE3": "box",
		"01JOBS000004": "box", "01JOBS000005": "box~000005", "01NONAME0006": "", "01NONAME0007": "",
	}
	enroll := func() {
		t.Helper()
		put("01TWINA00001", "lab", "m1", "box")
		put("01TWINB00002", "lab", "m2", "box")
		put("01TWINCB00002", "lab", "m3", "box") // its id has the same end
		put("01ELSEWHERE3", "prod", "m1", "box")
		put("01JOBS000004", "lab", "m1 jobs", "box")
		put("01JOBS000005", "lab", "m2 jobs", "box")
		put("01NONAME0006", "lab", "m6", "")
		put("01NONAME0007", "lab", "m7", "")
	}
	enroll()
	check("enrolled", want)
	closeLedger(t, l)
	l = Open(t, dsn)
	enroll()
	check("enrolled again after a restart", want)

	put("01TWINA00001", "lab", "m1", "other")
	put("01TWINB00002", "lab", "m2", "box")
	want["01TWINA00001"] = "other"
	check("the first one has another host name", want)
	put("01TWINA00001", "lab", "m1", "box")
	want["01TWINA00001"] = "box"
	check("and its former one again", want)

	if err := l.RevokeNode(ctx, "01TWINA00001", Day); err != nil {
		t.Fatal(err)
	}
	put("01TWINB00002", "lab", "m2", "box")
	put("01REPLACED08", "lab", "m1", "box")
	want["01REPLACED08"] = "box"
	check("a new node instead of a revoked one", want)

	// As an older program left them: nodes of one name.
	closeLedger(t, l)
	db := DB(t, dsn)
	if _, err := db.ExecContext(t.Context(), "UPDATE node SET name = 'box' WHERE name <> ''"); err != nil {
		t.Fatal(err)
	}
	UndoMigrations(t, db, 8)
	l = Open(t, dsn)
	want["01TWINB00002"], want["01TWINCB00002"], want["01REPLACED08"] = "box", "box~B00002", "box~ACED08"
	check("an older ledger", want)
	put("01TWINB00002", "lab", "m2", "box")
	put("01REPLACED08", "lab", "m1", "box")
	put("01LATER00009", "lab", "m9", "box")
	want["01LATER00009"] = "box~R00009"
	check("and enrolled again", want)
}

func nodeNames(t *testing.T, l *ledger.Ledger) map[string]string {
	t.Helper()
	nodes, err := l.Nodes(t.Context(), query.Scope{All: true})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, n := range nodes {
		names[n.ID] = n.Name
	}
	return names
}
