package registry_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/ledger/db"
	stored "mete.dev/mete/internal/store/ledger/registry"
	"mete.dev/mete/internal/testkit/ledgertest"
)

var day = ledgertest.Day

// A fixture is a ledger whose calls are made with faults of the database before they succeed.
type fixture struct {
	*ledger.Ledger
	t   *testing.T
	dsn string
}

func open(t *testing.T) *fixture {
	dsn := ledgertest.SQLite(t)
	return &fixture{ledgertest.Open(t, dsn), t, dsn}
}

// try makes a call, which must end with the error want.
func (f *fixture) try(what string, want error, call func() error) {
	f.t.Helper()
	if err := ledgertest.Try(f.t, call); !errors.Is(err, want) {
		f.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// put enrolls nodes.
func (f *fixture) put(nodes ...registry.Node) {
	f.t.Helper()
	for _, n := range nodes {
		f.try("node "+n.ID, nil, func() error { return f.PutNode(f.t.Context(), n) })
	}
}

// exec changes the database.
func (f *fixture) exec(statements ...string) {
	f.t.Helper()
	for _, s := range statements {
		if _, err := ledgertest.DB(f.t, f.dsn).ExecContext(f.t.Context(), s); err != nil {
			f.t.Fatalf("%s: %v", s, err)
		}
	}
}

// number returns the integer of a query.
func (f *fixture) number(query string) (n int64) {
	f.t.Helper()
	if err := ledgertest.DB(f.t, f.dsn).QueryRowContext(f.t.Context(), query).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// get returns the result of a call.
func get[T any](f *fixture, what string, want error, call func() (T, error)) (result T) {
	f.t.Helper()
	f.try(what, want, func() (err error) {
		result, err = call()
		return err
	})
	return result
}

// equal compares a result.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// A node is what enrolled last, apart from its root and from a certificate that ends later.
func TestNodes(t *testing.T) {
	f := open(t)
	ctx := t.Context()
	a := registry.Node{ID: "a", Cluster: "c", Name: "x", MachineID: "m", Boot: "b", At: day, Certified: day.Add(time.Hour), KeyHash: "k", Token: "t"}
	b := registry.Node{ID: "b", Cluster: "c", Name: "y", MachineID: "m", Boot: "b", At: day.Add(time.Hour), Root: "a"}
	other := registry.Node{ID: "other", Cluster: "c", Name: "z", MachineID: "n", Boot: "b", At: day}
	f.put(a, b, other)
	node := func(id string, want error) registry.Node {
		t.Helper()
		return get(f, "node "+id, want, func() (registry.Node, error) { return f.Node(ctx, id) })
	}
	equal(t, "a", node("a", nil), a)
	equal(t, "b", node("b", nil), b)
	equal(t, "the nodes of a machine", get(f, "machine", nil, func() ([]registry.Node, error) { return f.NodesByMachine(ctx, "m") }), []registry.Node{b, a})
	equal(t, "those of no machine", get(f, "machine", nil, func() ([]registry.Node, error) { return f.NodesByMachine(ctx, "none") }), nil)
	node("none", fault.ErrNotFound)

	again := registry.Node{ID: "a", Cluster: "d", Name: "w", MachineID: "m2", Boot: "b2", At: day.Add(2 * time.Hour), Root: "b", KeyHash: "k2", Token: "t2"}
	f.put(again)
	again.Root, again.Certified = "", a.Certified
	equal(t, "a again", node("a", nil), again)
	for _, until := range []time.Duration{3 * time.Hour, 2 * time.Hour} {
		for _, id := range []string{"a", "none"} {
			f.try("certify "+id, nil, func() error { return f.Certify(ctx, id, day.Add(until)) })
		}
	}
	again.Certified = day.Add(3 * time.Hour)
	equal(t, "a with a certificate", node("a", nil), again)
}

// A node that comes into another cluster leaves groups that are to be summed again.
func TestMovedGroups(t *testing.T) {
	f := open(t)
	n := registry.Node{ID: "a", Cluster: "c", MachineID: "m", At: day}
	f.put(n)
	f.exec("INSERT INTO group_day (minute, cluster, namespace, job, username, project, kind, pool) VALUES (1440, 'c', '', '', '', '', '', ''), (2880, 'd', '', '', '', '', '', '')",
		"INSERT INTO stale_day (minute, next) VALUES (1440, 7)")
	f.put(n)
	equal(t, "stale days without a move", f.number("SELECT count(*) FROM stale_day WHERE next = 0"), 0)
	n.Cluster = "e"
	f.put(n)
	equal(t, "stale days", f.number("SELECT count(*) FROM stale_day WHERE minute = 1440 AND next = 0"), 1)
	equal(t, "all stale days", f.number("SELECT count(*) FROM stale_day"), 1)
}

// The second node of a host name has the end of its id in its name, and a third with the same end has
// the whole id, whether that is taken or not.
func TestNames(t *testing.T) {
	f := open(t)
	name := func(id, cluster, machine, host, want string) {
		t.Helper()
		f.put(registry.Node{ID: id, Cluster: cluster, Name: host, MachineID: machine, At: day})
		if n, err := f.Node(t.Context(), id); err != nil || n.Name != want {
			t.Errorf("%s has the name %q, %v; want %q", id, n.Name, err, want)
		}
	}
	name("A1234567", "c", "m", "box", "box")
	name("B1234567", "c", "m", "box", "box~234567")
	name("C1234567", "c", "m", "box", "box~C1234567")
	name("E", "c", "m", "box", "box~E") // shorter than the end of an id
	name("D1234567", "d", "m", "box", "box")
	name("J1234567", "c", "m jobs", "box", "box")
	name("K1234567", "c", "m jobs", "box", "box~234567")
	name("N1", "c", "m", "", "")
	name("N2", "c", "m", "", "")
	for _, id := range []string{"B1234567", "C1234567", "K1234567"} { // each keeps its name
		f.put(registry.Node{ID: id, Cluster: "c", Name: "box", MachineID: "m" + map[bool]string{true: " jobs"}[id[0] == 'K'], At: day})
	}
	name("F7654321", "c", "m", "box~G7654321", "box~G7654321")
	name("G7654321", "c", "m", "box", "box~654321")
	name("H7654321", "c", "m", "box~I7654321", "box~I7654321")
	name("I7654321", "c", "m", "box", "box~I7654321") // no name is left for it

	// It keeps a name although the plain one becomes free, and gets one again that it lost.
	name("A1234567", "c", "m", "other", "other")
	name("B1234567", "c", "m", "box", "box~234567")
	name("A1234567", "c", "m", "box", "box")
	f.try("revoke", nil, func() error { return f.RevokeNode(t.Context(), "A1234567", day) })
	name("L0000001", "c", "m", "box", "box")
	// As an older program left them: two nodes of one name.
	f.exec("UPDATE node SET name = 'box' WHERE node_id = 'C1234567'")
	name("C1234567", "c", "m", "box", "box~C1234567")
	// A node of a server below does not take a name here.
	f.exec("INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, source) VALUES ('far', 'c', 'far', 'm', '', 0, 1, 1)")
	name("M0000001", "c", "m", "far", "far")
}

// Clones are revoked with the node they are of, and there are no new ones of a revoked node.
func TestRevokeNodes(t *testing.T) {
	f := open(t)
	ctx := t.Context()
	node := func(id, root string) registry.Node {
		return registry.Node{ID: id, Root: root, Cluster: "c", MachineID: "m", At: day}
	}
	f.put(node("r", ""), node("one", "r"), node("two", "r"), node("alone", ""))
	f.try("server", nil, func() error { return f.PutSource(ctx, registry.Node{ID: "s", Cluster: "c"}) })
	f.exec("INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, source) VALUES ('far', 'c', 'far', 'm', '', 0, 1, 1)")
	revoke := func(id string, at time.Time, want error, all ...string) {
		t.Helper()
		f.try("revoke "+id, want, func() error { return f.RevokeNode(ctx, id, at) })
		equal(t, "revoked", get(f, "revoked", nil, func() ([]string, error) { return f.RevokedNodes(ctx) }), all)
	}
	revoke("none", day, fault.ErrNotFound)
	revoke("far", day, fault.ErrNotFound)
	revoke("two", day, nil, "two")
	f.put(node("three", "r"))
	revoke("r", day.Add(time.Hour), nil, "one", "r", "three", "two")
	revoke("s", day, nil, "one", "r", "s", "three", "two")
	for i, query := range []string{"SELECT revoked_ns FROM node WHERE node_id = 'two'", "SELECT revoked_ns FROM node WHERE node_id = 'r'"} {
		equal(t, query, f.number(query), day.Add(time.Duration(i)*time.Hour).UnixNano())
	}
	f.try("a clone of a revoked node", fault.ErrDenied, func() error { return f.PutNode(ctx, node("late", "r")) })
	f.try("the clone", fault.ErrNotFound, func() error { return second(f.Node(ctx, "late")) })
	f.put(node("free", "alone"))
	nodes := get(f, "machine", nil, func() ([]registry.Node, error) { return f.NodesByMachine(ctx, "m") })
	equal(t, "nodes that are not revoked", nodes, []registry.Node{node("free", "alone"), node("alone", "")})
}

func second[T any](_ T, err error) error { return err }

// A token is used as often as it says, by its role, until it ends.
func TestTokens(t *testing.T) {
	f := open(t)
	ctx := t.Context()
	some := registry.Token{ID: "some", Hash: [32]byte{1}, Role: registry.Agent, Cluster: "c", Node: "n", Uses: 3, Created: day, Expires: day.Add(time.Hour)}
	any := registry.Token{ID: "any", Hash: [32]byte{2}, Role: registry.Viewer, Uses: -1, Created: day.Add(1)}
	gone := registry.Token{ID: "gone", Hash: [32]byte{3}, Role: registry.Agent, Uses: 1, Created: day.Add(2), Revoked: day}
	for _, k := range []registry.Token{some, any, gone} {
		f.try("token "+k.ID, nil, func() error { return f.PutToken(ctx, k) })
	}
	f.try("the same again", fault.ErrConflict, func() error { return f.PutToken(ctx, some) })
	all := func(want ...registry.Token) {
		t.Helper()
		equal(t, "tokens", get(f, "tokens", nil, func() ([]registry.Token, error) { return f.Tokens(ctx) }), want)
	}
	all(gone, any, some)
	for i, c := range []struct {
		id   string
		hash byte
		role registry.Role
		key  string
		at   time.Duration
		want error
		left int
	}{
		{"none", 1, registry.Agent, "", 0, fault.ErrNotFound, 0},
		{"some", 2, registry.Agent, "", 0, fault.ErrNotFound, 0},
		{"some", 1, registry.Viewer, "", 0, fault.ErrDenied, 0},
		{"some", 1, registry.Agent, "", time.Hour, fault.ErrDenied, 0},
		{"gone", 3, registry.Agent, "", 0, fault.ErrDenied, 0},
		{"any", 2, registry.Viewer, "", 9999 * time.Hour, nil, -1},
		{"any", 2, registry.Viewer, "k1", 0, nil, -1},
		{"some", 1, registry.Agent, "k1", time.Hour - 1, nil, 2},
		{"some", 1, registry.Agent, "k1", 0, nil, 2}, // it has used it
		{"some", 1, registry.Agent, "", 0, nil, 1},
		{"some", 1, registry.Agent, "", 0, nil, 0},
		{"some", 1, registry.Agent, "", 0, fault.ErrDenied, 0},
		{"some", 1, registry.Agent, "k2", 0, fault.ErrDenied, 0},
		{"some", 1, registry.Agent, "k1", 0, nil, 0},
		{"some", 1, registry.Agent, "k1", time.Hour, fault.ErrDenied, 0},
		{"some", 1, registry.Viewer, "k1", 0, fault.ErrDenied, 0},
	} {
		var k registry.Token
		f.try(c.id, c.want, func() (err error) {
			k, err = f.UseToken(ctx, c.id, [32]byte{c.hash}, c.role, c.key, day.Add(c.at))
			return err
		})
		if want := map[bool]string{true: c.id}[c.want == nil]; k.ID != want || k.Uses != c.left {
			t.Errorf("use %d is of %q and leaves %d, want %q and %d", i, k.ID, k.Uses, want, c.left)
		}
	}
	some.Uses = 0
	all(gone, any, some)
	revoke := func(id string, at time.Time, want error) {
		t.Helper()
		f.try("revoke "+id, want, func() error { return f.RevokeToken(ctx, id, at) })
	}
	revoke("none", day, fault.ErrNotFound)
	revoke("any", day, nil)
	revoke("any", day.Add(time.Hour), nil) // the first time counts
	any.Revoked = day
	all(gone, any, some)
	f.try("a revoked token", fault.ErrDenied, func() error { return second(f.UseToken(ctx, "any", any.Hash, any.Role, "k1", day)) })
}

// Requests with the same key that come at the same time take one use, and those without a key one each.
func TestTokenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		d, err := db.Open(ctx, ledgertest.SQLite(t), false, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := stored.New(d)
		if err := r.PutToken(ctx, registry.Token{ID: "t", Role: registry.Agent, Uses: 3}); err != nil {
			t.Fatal(err)
		}
		results := make(chan int, 4)
		err = d.Write(ctx, func(*db.Tx) error {
			for _, key := range []string{"k", "k", "", ""} {
				go func() {
					k, err := r.UseToken(ctx, "t", [32]byte{}, registry.Agent, key, day)
					if err != nil {
						t.Error(err)
					}
					results <- k.Uses
				}()
			}
			synctest.Wait() // until each has read the token, and waits for its turn to write
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		var left []int
		for range 4 {
			left = append(left, <-results)
		}
		if slices.Min(left) != 0 || slices.Max(left) != 2 {
			t.Errorf("%v uses are left after each, want 2 to 0", left)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Lines, values and secrets are those that were stored.
func TestAuditAndMeta(t *testing.T) {
	f := open(t)
	ctx := t.Context()
	var want []registry.Audit
	for i := range 3 {
		a := registry.Audit{At: day.Add(time.Duration(3-i) * time.Hour), Actor: "local", Action: "token.create", Object: "o", Detail: "d"}
		f.try("audit", nil, func() error { return f.Audit(ctx, a) })
		want = slices.Insert(want, 0, a)
	}
	equal(t, "lines", get(f, "lines", nil, func() ([]registry.Audit, error) { return f.Audits(ctx, registry.AuditQuery{Limit: 2}) }), want[:2])

	f.try("no value", fault.ErrNotFound, func() error { return second(f.Meta(ctx, "k")) })
	for _, v := range []string{"1", "2"} {
		f.try("set", nil, func() error { return f.SetMeta(ctx, "k", v) })
		equal(t, "value", get(f, "value", nil, func() (string, error) { return f.Meta(ctx, "k") }), v)
	}

	secret := func(key string) string {
		return get(f, "secret", nil, func() (string, error) { return f.Secret(ctx, key) })
	}
	a, b := secret("a"), secret("b")
	if len(a) < 40 || a == b {
		t.Errorf("secrets are %q and %q", a, b)
	}
	equal(t, "the secret again", secret("a"), a)
	equal(t, "it as a value", get(f, "value", nil, func() (string, error) { return f.Meta(ctx, "a") }), a)
}

// A downstream server is what enrolled last. Nodes and servers are found by token and key.
func TestSources(t *testing.T) {
	f := open(t)
	ctx := t.Context()
	put := func(n registry.Node) {
		t.Helper()
		f.try("server", nil, func() error { return f.PutSource(ctx, n) })
	}
	a := registry.Node{ID: "a", Cluster: "c", Name: "x", MachineID: "e", Boot: "b", At: day, KeyHash: "k", Token: "t"}
	b := registry.Node{ID: "b", Cluster: "c", Name: "x", MachineID: "e", At: day.Add(time.Hour)}
	put(registry.Node{ID: "a", Cluster: "d"})
	put(a)
	put(b)
	source := func(id string, want error) registry.Node {
		t.Helper()
		return get(f, "server "+id, want, func() (registry.Node, error) { return f.Source(ctx, id) })
	}
	equal(t, "a", source("a", nil), a)
	source("none", fault.ErrNotFound)
	servers := func(want ...registry.Node) {
		t.Helper()
		equal(t, "servers", get(f, "servers", nil, func() ([]registry.Node, error) { return f.Sources(ctx, "e") }), want)
	}
	servers(b, a)
	f.try("revoke", nil, func() error { return f.RevokeNode(ctx, "b", day) })
	servers(a)

	f.put(registry.Node{ID: "old", KeyHash: "k", Token: "t", At: day.Add(-1)}, registry.Node{ID: "n", KeyHash: "k", Token: "u", At: day})
	enrolled := func(token, key, want string) {
		t.Helper()
		equal(t, "by "+token+" and "+key, get(f, "enrolled", nil, func() (string, error) { return f.Enrolled(ctx, token, key) }), want)
	}
	enrolled("t", "k", "a")
	enrolled("u", "k", "n")
	enrolled("t", "l", "")
	f.put(registry.Node{ID: "new", KeyHash: "k", Token: "t", At: day.Add(1)})
	enrolled("t", "k", "new")
}
