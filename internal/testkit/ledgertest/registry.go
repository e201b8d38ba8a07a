package ledgertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
)

func testNodes(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	a := registry.Node{ID: "a", Cluster: "c", Name: "n", MachineID: "m", Boot: "b", At: Day}
	b := registry.Node{ID: "b", Cluster: "c", Name: "n", MachineID: "m", Boot: "b2", At: Day.Add(time.Hour)}
	for _, n := range []registry.Node{a, b, a} {
		if err := l.PutNode(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	b.Name = "n~b" // as a has the plain name
	got, err := l.NodesByMachine(ctx, "m")
	if diff := cmp.Diff([]registry.Node{b, a}, got); err != nil || diff != "" {
		t.Errorf("%v, nodes (-want +got):\n%s", err, diff)
	}
	a.Cluster, a.Boot, a.Certified, a.KeyHash, a.Token = "d", "b3", Day.Add(time.Hour), "k", "t"
	if err := l.PutNode(ctx, a); err != nil {
		t.Fatal(err)
	}
	for _, until := range []time.Duration{3 * time.Hour, 2 * time.Hour} { // the later one stays
		if err := errors.Join(l.Certify(ctx, "a", Day.Add(until)), l.Certify(ctx, "x", Day.Add(until)), l.PutNode(ctx, a)); err != nil {
			t.Fatal(err)
		}
	}
	a.Certified = Day.Add(3 * time.Hour)
	if n, err := l.Node(ctx, "a"); err != nil || n != a {
		t.Errorf("node is %v, %v; want %v", n, err, a)
	}
	if _, err := l.Node(ctx, "x"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("node x: %v", err)
	}
	if err := l.RevokeNode(ctx, "x", Day); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("revoking x: %v", err)
	}
	if err := l.RevokeNode(ctx, "b", Day); err != nil {
		t.Fatal(err)
	}
	if ids, err := l.RevokedNodes(ctx); err != nil || len(ids) != 1 || ids[0] != "b" {
		t.Errorf("revoked: %v, %v", ids, err)
	}
	if got, err := l.NodesByMachine(ctx, "m"); err != nil || len(got) != 1 || got[0].ID != "a" {
		t.Errorf("nodes of the machine are %v, %v", got, err)
	}
	list, err := l.Nodes(ctx, query.Scope{All: true})
	if err != nil || len(list) != 2 || list[0].ID != "b" || list[0].State != "revoked" || !list[0].Revoked.Equal(Day) || list[1].State == "revoked" {
		t.Errorf("nodes are %+v, %v", list, err)
	}
}

// testClones checks that clones are revoked with their root.
func testClones(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	root := registry.Node{ID: "r", Cluster: "c", MachineID: "m", At: Day}
	one, two := root, root
	one.ID, one.Root, two.ID, two.Root = "one", "r", "two", "r"
	for _, n := range []registry.Node{root, one, two} {
		if err := l.PutNode(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	again := one
	again.Root, again.Boot = "", "b2"
	if err := l.PutNode(ctx, again); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Node(ctx, "one"); err != nil || n.Root != "r" || n.Boot != "b2" {
		t.Errorf("a clone that enrolled again: %+v, %v", n, err)
	}
	revoked := func(id string, want ...string) {
		t.Helper()
		if err := l.RevokeNode(ctx, id, Day); err != nil {
			t.Fatal(err)
		}
		if ids, err := l.RevokedNodes(ctx); err != nil || !slices.Equal(ids, want) {
			t.Errorf("with %s there are revoked %v, %v; want %v", id, ids, err, want)
		}
	}
	revoked("two", "two")
	revoked("r", "one", "r", "two")
	late := root
	late.ID, late.Root = "late", "r"
	if err := l.PutNode(ctx, late); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a clone of a revoked node: %v", err)
	}
	// Clones made by an older program are in the audit log; a node that enrolled with its
	// own token is not a clone.
	for _, made := range [][2]string{{"token", "alone"}, {"token", "o1"}, {"o1", "o2"}, {"o2", "o3"}, {"o3", "o4"}} {
		n := root
		n.ID = made[1]
		action := "node.clone"
		if n.ID == "o1" {
			action = "node.enrol"
		}
		if err := errors.Join(l.PutNode(ctx, n), l.Audit(ctx, registry.Audit{At: Day, Actor: made[0], Action: action, Object: made[1]})); err != nil {
			t.Fatal(err)
		}
	}
	const life = 30 * 24 * time.Hour
	for _, at := range []time.Time{Day.Add(24 * time.Hour), Day.Add(time.Hour)} {
		if err := l.Audit(ctx, registry.Audit{At: at, Actor: "o3", Action: "node.renew", Object: "o3"}); err != nil {
			t.Fatal(err)
		}
	}
	closeLedger(t, l)
	UndoMigrations(t, DB(t, dsn), 5)
	l = Open(t, dsn)
	for id, want := range map[string]string{"alone": "", "o1": "", "o2": "o1", "o3": "o1", "o4": "o1"} {
		if n, err := l.Node(ctx, id); err != nil || n.Root != want {
			t.Errorf("%s, created before roots existed, has %q, %v; want %q", id, n.Root, err, want)
		}
	}
	// Nor are ends of certificates: they are assumed from the last renewal.
	if n, err := l.Node(ctx, "o2"); err != nil || !n.Certified.Equal(Day.Add(life)) {
		t.Errorf("a node of before has a certificate until %v, %v", n.Certified, err)
	}
	if n, err := l.Node(ctx, "o3"); err != nil || !n.Certified.Equal(Day.Add(24*time.Hour+life)) {
		t.Errorf("a node of before, with a renewed certificate, has it until %v, %v", n.Certified, err)
	}
}

// testEnrolled: a node or server below is found by the token and the key with which it enrolled last.
func testEnrolled(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	for _, n := range []registry.Node{
		{ID: "old", KeyHash: "k1", Token: "t1", At: Day}, {ID: "a", KeyHash: "k1", Token: "t1", At: Day.Add(1)}, {ID: "b", KeyHash: "k1", Token: "t2", At: Day},
		{ID: "c", KeyHash: "k2", Token: "t1", At: Day}, {ID: "c", KeyHash: "k3", Token: "t1", At: Day.Add(1)}, {ID: "d", At: Day},
	} {
		if err := l.PutNode(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []registry.Node{{ID: "s", KeyHash: "k4", Token: "t1", At: Day}, {ID: "s", KeyHash: "k5", Token: "t3", At: Day}} {
		if err := l.PutSource(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range [][3]string{{"t1", "k1", "a"}, {"t2", "k1", "b"}, {"t1", "k2", ""}, {"t1", "k3", "c"}, {"t1", "k4", ""}, {"t3", "k5", "s"}, {"t9", "k1", ""}, {"t1", "k9", ""}} {
		if id, err := l.Enrolled(ctx, c[0], c[1]); err != nil || id != c[2] {
			t.Errorf("by token %s and key %s: %q, %v, want %q", c[0], c[1], id, err, c[2])
		}
	}
}

func testTokens(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	k := registry.Token{ID: "k", Hash: [32]byte{1}, Role: registry.Agent, Cluster: "c", Node: "n", Uses: 8, Created: Day, Expires: Day.Add(time.Hour)}
	free := registry.Token{ID: "f", Hash: [32]byte{2}, Role: registry.Viewer, Uses: -1, Created: Day.Add(1)}
	for _, k := range []registry.Token{k, free} {
		if err := l.PutToken(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.PutToken(ctx, k); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("the same again: %v", err)
	}
	got, err := l.Tokens(ctx)
	if diff := cmp.Diff([]registry.Token{free, k}, got); err != nil || diff != "" {
		t.Errorf("%v, tokens (-want +got):\n%s", err, diff)
	}
	use := func(id string, hash byte, role registry.Role, now time.Time) error {
		_, err := l.UseToken(ctx, id, [32]byte{hash}, role, "", now)
		return err
	}
	for i, c := range []struct {
		id   string
		hash byte
		role registry.Role
		now  time.Time
		want error
	}{
		{"x", 1, registry.Agent, Day, fault.ErrNotFound},
		{"k", 2, registry.Agent, Day, fault.ErrNotFound},
		{"k", 1, registry.Viewer, Day, fault.ErrDenied},
		{"k", 1, registry.Agent, Day.Add(time.Hour), fault.ErrDenied},
		{"f", 2, registry.Viewer, Day.Add(10000 * time.Hour), nil},
	} {
		if err := use(c.id, c.hash, c.role, c.now); !errors.Is(err, c.want) {
			t.Errorf("%d: %v, want %v", i, err, c.want)
		}
	}
	// Of twenty concurrent uses eight succeed.
	var wait sync.WaitGroup
	got20 := make(chan error, 20)
	for range 20 {
		wait.Go(func() { got20 <- use("k", 1, registry.Agent, Day) })
	}
	wait.Wait()
	close(got20)
	used := 0
	for err := range got20 {
		if err == nil {
			used++
		} else if !errors.Is(err, fault.ErrDenied) {
			t.Error(err)
		}
	}
	if used != 8 {
		t.Errorf("used %d times, want 8", used)
	}
	// A key takes one use, also of a token that is used up meanwhile.
	if err := l.PutToken(ctx, registry.Token{ID: "u", Hash: [32]byte{3}, Role: registry.Agent, Uses: 2, Created: Day.Add(2), Expires: Day.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		key  string
		now  time.Time
		want error
		left int
	}{
		{"k1", Day, nil, 1}, {"k1", Day, nil, 1}, {"k2", Day, nil, 0}, {"k1", Day, nil, 0}, {"k2", Day, nil, 0}, {"k3", Day, fault.ErrDenied, 0}, {"", Day, fault.ErrDenied, 0},
		{"k1", Day.Add(time.Hour), fault.ErrDenied, 0},
	} {
		k, err := l.UseToken(ctx, "u", [32]byte{3}, registry.Agent, c.key, c.now)
		if !errors.Is(err, c.want) || err == nil && k.Uses != c.left {
			t.Errorf("use %d, by key %q: %v, %d are left, want %v, %d", i, c.key, err, k.Uses, c.want, c.left)
		}
	}
	if err := l.RevokeToken(ctx, "u", Day); err != nil {
		t.Fatal(err)
	}
	if _, err := l.UseToken(ctx, "u", [32]byte{3}, registry.Agent, "k1", Day); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a revoked one by a key that used it: %v", err)
	}
	if err := l.RevokeToken(ctx, "f", Day); err != nil {
		t.Fatal(err)
	}
	if err := use("f", 2, registry.Viewer, Day); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a revoked one: %v", err)
	}
	if err := l.RevokeToken(ctx, "x", Day); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("revoking x: %v", err)
	}
}

func testAudit(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	var all []registry.Audit // newest first
	for i, line := range strings.Fields("token.create/local/o token.revoke/local/x tokens/local/y silence.create/x/w node.enrol/o/z") {
		word := strings.Split(line, "/")
		a := registry.Audit{At: Day.Add(time.Duration(i) * time.Hour), Actor: word[1], Action: word[0], Object: word[2], Detail: fmt.Sprint(i)}
		if err := l.Audit(ctx, a); err != nil {
			t.Fatal(err)
		}
		all = slices.Insert(all, 0, a)
	}
	hour := func(n int) time.Time { return Day.Add(time.Duration(n) * time.Hour) }
	for _, c := range []struct {
		q    registry.AuditQuery
		want string // details, newest first
	}{
		{registry.AuditQuery{Limit: 9}, "43210"},
		{registry.AuditQuery{Limit: 2}, "43"},
		{registry.AuditQuery{From: hour(2), Limit: 9}, "432"},
		{registry.AuditQuery{To: hour(2), Limit: 9}, "10"},
		{registry.AuditQuery{From: hour(2), To: hour(3), Limit: 9}, "2"},
		{registry.AuditQuery{From: hour(9), Limit: 9}, ""},
		{registry.AuditQuery{Action: "token", Limit: 9}, "10"},
		{registry.AuditQuery{Action: "token", Limit: 1}, "1"},
		{registry.AuditQuery{Action: "token.create", Limit: 9}, "0"},
		{registry.AuditQuery{Action: "t%", Limit: 9}, ""},
		{registry.AuditQuery{About: "x", Limit: 9}, "31"},
		{registry.AuditQuery{About: "o", Limit: 9}, "40"},
		{registry.AuditQuery{About: "o", Action: "node", Limit: 9}, "4"},
	} {
		lines, err := l.Audits(ctx, c.q)
		var got strings.Builder
		for _, a := range lines {
			got.WriteString(a.Detail)
		}
		if err != nil || got.String() != c.want {
			t.Errorf("%+v: %q, %v, want %q", c.q, got.String(), err, c.want)
		}
	}
	lines, err := l.Audits(ctx, registry.AuditQuery{Limit: 2})
	if diff := cmp.Diff(all[:2], lines); err != nil || diff != "" {
		t.Errorf("%v, lines (-want +got):\n%s", err, diff)
	}
	if _, err := l.Meta(ctx, "k"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("no value: %v", err)
	}
	for _, v := range []string{"1", "2"} {
		if err := l.SetMeta(ctx, "k", v); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Meta(ctx, "k"); err != nil || got != v {
			t.Errorf("value is %q, %v; want %q", got, err, v)
		}
	}
}
