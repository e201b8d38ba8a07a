package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testLate: late minutes of folded hours and days are added at all three levels.
func testLate(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a")
	m := minuteOf(Day)
	s := batch.Stream{1}
	first := Entry("a", s, batch.Mark{Next: 1}, 1, 10, m+30, m+90)
	book(t, l, batch.Accepted, first)
	fold(t, l, Day.Add(26*time.Hour))
	// The name arrives late as well, and moves the day to another group.
	n := named("k")
	n.Job = "j"
	short, _ := workload.ShortIDOf(n.ID)
	late := Entry("a", s, batch.Mark{Next: 2, Last: first.Hash}, short, 100, m+31, m+91)
	book(t, l, batch.Accepted, late)
	for i := 1; i <= 2; i++ { // folding twice changes nothing
		fold(t, l, Day.Add(26*time.Hour))
	}
	after := Entry("a", s, batch.Mark{Next: 3, Last: late.Hash}, 1, 0, m+30)
	after.Names = []batch.Name{n}
	book(t, l, batch.Accepted, after)
	fold(t, l, Day.Add(26*time.Hour))
	db := reader{t, DB(t, dsn)}
	for _, c := range []struct {
		table  string
		minute int64
		short  workload.ShortID
		want   int64
	}{
		{table("", m), m + 31, short, 100}, {"hour", m, 1, 10}, {"hour", m, short, 100}, {"hour", m + 60, short, 100},
		{"day", m, 1, 20}, {"day", m, short, 200},
	} {
		if got := db.usage(c.table)[rowKey{"a", c.short, c.minute}]; got == nil || got.Amount[usage.CPU] != c.want {
			t.Errorf("%s at %d of %d is %v, want %d", c.table, c.minute-m, c.short, got, c.want)
		}
	}
	if diff := cmp.Diff(map[group]int64{{"", m}: 20, {"j", m}: 200}, db.groups()); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if first, last := db.number("SELECT first_minute FROM workload WHERE job = 'j'"), db.number("SELECT last_minute FROM workload WHERE job = 'j'"); first != m+31 || last != m+91 {
		t.Errorf("used from %d to %d, want 31 to 91", first-m, last-m)
	}
}

// testSlices: the sums are right with any writes between two slices, and wherever folding
// is interrupted.
func testSlices(t *testing.T, dsn string) {
	ctx := t.Context()
	cfg := ledger.Default()
	cfg.Slice = 1
	l := OpenWith(t, dsn, cfg)
	Node(t, l, "a")
	m := minuteOf(Day)
	mark := batch.Mark{Next: 1}
	want := map[workload.ShortID]int64{}
	send := func(short workload.ShortID, minutes ...int64) {
		e := Entry("a", batch.Stream{1}, mark, short, 10, minutes...)
		e.Nodes = []batch.NodeMinute{{Minute: minutes[0], CPUs: 1}}
		for range minutes {
			e.Nodes[0].Whole[0] += 10
		}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, l, batch.Accepted, e)
		want[short] += 10 * int64(len(minutes))
	}
	for short := range workload.ShortID(4) {
		send(short, m+30, m+31, m+90)
	}
	db := reader{t, DB(t, dsn)}
	slices, ended := 0, false
	// Each round folds one more slice with a new call, and then the rest, while rows arrive
	// for all of them.
	for _, rest := range []bool{false, true} {
		for more := true; more; {
			more = false
			for err := range l.Folding(ctx, Day.Add(26*time.Hour)) {
				if err != nil {
					t.Fatal(err)
				}
				if slices++; !ended {
					more = !rest
					short := workload.ShortID(slices % 4)
					// The last row is for a workload whose groups were just summed.
					if ended = slices > 50 && db.number("SELECT coalesce(max(next), 0) FROM stale_day") > 0; ended {
						short = 0
					}
					send(short, m+30+int64(slices%2)*60)
				}
				if !rest {
					break
				}
			}
		}
	}
	fold(t, l, Day.Add(26*time.Hour))
	var total int64
	for short, ns := range want {
		total += ns
		if got := db.usage("day")[rowKey{"a", short, m}].Amount[usage.CPU]; got != ns {
			t.Errorf("the day of %d has %d, want %d", short, got, ns)
		}
	}
	if diff := cmp.Diff(map[group]int64{{"", m}: total}, db.groups()); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if !ended || db.number("SELECT count(*) FROM stale_day") > 0 {
		t.Errorf("%d slices; some days are stale", slices)
	}
	findings, err := l.Check(ctx)
	for _, line := range findings {
		if !strings.HasPrefix(line, "balance: ") { // a batch's node is in one of its minutes
			t.Error(line)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func testRetain(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	Node(t, l, "a")
	m := minuteOf(Day)
	mark := batch.Mark{Next: 1}
	send := func(minutes ...int64) {
		e := Entry("a", batch.Stream{1}, mark, 1, 10, minutes...)
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, l, batch.Accepted, e)
	}
	send(m, m+dayMinutes)
	at := func(age time.Duration) time.Time { return Day.Add(age) }
	keep := func(now time.Time) {
		t.Helper()
		if err := Try(t, func() error { return l.Retain(ctx, now) }); err != nil {
			t.Fatal(err)
		}
	}
	db := reader{t, DB(t, dsn)}
	keep(at(100 * 24 * time.Hour))
	if days := db.keptDays(); len(days) != 2 {
		t.Fatalf("kept %v: an unfolded day was dropped", days)
	}
	fold(t, l, at(3*24*time.Hour))
	keep(at(8*24*time.Hour + time.Hour))
	if days := db.keptDays(); len(days) != 1 || days[0] != m+dayMinutes {
		t.Fatalf("kept %v, want the second day", days)
	}
	// A late minute of a day whose minutes are dropped is in its hour and day.
	send(m+1, m+dayMinutes)
	if days := db.keptDays(); len(days) != 1 {
		t.Fatalf("kept %v: a dropped day exists again", days)
	}
	if got := db.usage("hour")[rowKey{"a", 1, m}]; got == nil || got.Amount[usage.CPU] != 20 {
		t.Errorf("the hour is %v, want 20", got)
	}
	keep(time.Now().Add(47 * time.Hour))
	if n := db.number("SELECT count(*) FROM batch"); n != 2 {
		t.Errorf("%d batches are kept after less than two days, want 2", n)
	}
	if _, err := DB(t, dsn).ExecContext(ctx, "UPDATE batch SET taken_ns = 0"); err != nil {
		t.Fatal(err)
	}
	keep(at(800 * 24 * time.Hour))
	send(m + 2)
	if got := db.usage("hour"); len(got) != 0 {
		t.Errorf("hours %v are left", got)
	}
	if got := db.usage("day"); got[rowKey{"a", 1, m}].Amount[usage.CPU] != 30 || got[rowKey{"a", 1, m + dayMinutes}].Amount[usage.CPU] != 20 {
		t.Errorf("days are %v", got)
	}
	if n := db.number("SELECT count(*) FROM batch"); n != 1 {
		t.Errorf("%d batches are kept, want the last", n)
	}

	// By size: folded days are dropped, the oldest first.
	small := ledger.Default()
	small.MinuteBytes = 1
	l2, err := ledger.Open(ctx, dsn, small, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer closeLedger(t, l2)
	now := at(1000 * 24 * time.Hour)
	send(minuteOf(now), minuteOf(now)+dayMinutes)
	if err := l2.Fold(ctx, now.Add(25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := l2.Retain(ctx, now.Add(25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if days := db.keptDays(); len(days) != 1 || days[0] != minuteOf(now)+dayMinutes {
		t.Errorf("kept %v, want the last day", days)
	}
}

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
	undoMigrations(t, DB(t, dsn), 5)
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
	for i := range 3 {
		if err := l.Audit(ctx, registry.Audit{At: Day, Actor: "local", Action: "token.create", Object: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := l.Audits(ctx, 2)
	want := []registry.Audit{{At: Day, Actor: "local", Action: "token.create", Object: "2"}, {At: Day, Actor: "local", Action: "token.create", Object: "1"}}
	if diff := cmp.Diff(want, lines); err != nil || diff != "" {
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

// testSchema: a schema of an older program is completed, that of a newer one is refused.
func testSchema(t *testing.T, dsn string) {
	ctx := context.Background()
	db := DB(t, dsn)
	l := Open(t, dsn)
	Node(t, l, "a")
	m := minuteOf(Day)
	e := Entry("a", batch.Stream{1}, batch.Mark{Next: 1}, 1, 10, m)
	e.Minutes[0].Usage.Put(usage.PressureIO, 4, usage.Modelled)
	book(t, l, batch.Accepted, e)
	epoch := l.Epoch()
	closeLedger(t, l)
	do := func(statements ...string) {
		t.Helper()
		for _, s := range statements {
			if _, err := db.ExecContext(ctx, s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	// As created by a program that does not know pressure_io.
	for _, tab := range []string{table("", m), table("node_", m), "hour", "node_hour", "day", "node_day"} {
		do("ALTER TABLE " + tab + " DROP COLUMN pressure_io")
	}
	do("ALTER TABLE group_day DROP COLUMN pressure_io_hi", "ALTER TABLE group_day DROP COLUMN pressure_io_lo",
		fmt.Sprintf("UPDATE %s SET present = 2, rough = 0", table("", m)))
	l = Open(t, dsn)
	if l.Epoch() != epoch || epoch == "" {
		t.Errorf("epoch is %q, was %q", l.Epoch(), epoch)
	}
	next := Entry("a", batch.Stream{1}, batch.Mark{Next: 2, Last: e.Hash}, 1, 10, m)
	next.Minutes[0].Usage.Put(usage.PressureIO, 6, usage.Measured)
	book(t, l, batch.Accepted, next)
	fold(t, l, Day.Add(25*time.Hour))
	if got := (reader{t, db}).usage("day")[rowKey{"a", 1, m}]; got.Amount[usage.PressureIO] != 6 || got.Amount[usage.CPU] != 20 {
		t.Errorf("the day is %v", got)
	}
	closeLedger(t, l)
	refused := func(why string) {
		t.Helper()
		_, err := ledger.Open(ctx, dsn, ledger.Default(), quiet)
		if !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) == "" {
			t.Errorf("%s: %v, hint %q", why, err, fault.Hint(err))
		}
	}
	do("ALTER TABLE hour ADD COLUMN gpu integer")
	refused("a column of a newer program")
	do("ALTER TABLE hour DROP COLUMN gpu", "UPDATE meta SET value = '1000' WHERE key = 'ledger.schema'")
	refused("a schema of a newer program")
}

// retry makes a call until it returns anything but fault.ErrUnavailable. SQLite lets a handle wait for another one in
// no order, and for a limited time.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, fault.ErrUnavailable) {
			return err
		}
	}
}

// testConcurrent: several goroutines write, fold and read through two handles.
func testConcurrent(t *testing.T, dsn string) {
	ctx := t.Context()
	cfg := ledger.Default()
	cfg.Slice = 1
	ls := []*ledger.Ledger{OpenWith(t, dsn, cfg), OpenWith(t, dsn, cfg)}
	const writers, batches = 6, 10
	m := minuteOf(Day)
	for i := range writers {
		Node(t, ls[0], fmt.Sprint("n", i))
	}
	var wait sync.WaitGroup
	for i := range writers {
		wait.Go(func() {
			mark := batch.Mark{Next: 1}
			for j := range int64(batches) {
				e := Entry(fmt.Sprint("n", i), batch.Stream{byte(i)}, mark, 1, 10, m+17*j, m+17*j+1)
				var results []batch.Result
				err := retry(func() (err error) {
					results, err = ls[i%2].Book(ctx, []*batch.Entry{e})
					return err
				})
				if err != nil || results[0].Verdict != batch.Accepted {
					t.Errorf("booking: %v, %v", results, err)
					return
				}
				mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
			}
		})
	}
	for i := range 2 {
		wait.Go(func() {
			for j := range 8 {
				if err := retry(func() error { return ls[i].Fold(ctx, Day.Add(time.Duration(j+1)*4*time.Hour)) }); err != nil {
					t.Errorf("folding: %v", err)
				}
			}
		})
	}
	wait.Wait()
	var total int64
	for _, u := range (reader{t, DB(t, dsn)}).usage("day") {
		total += u.Amount[usage.CPU]
	}
	if total != writers*batches*2*10 {
		t.Errorf("the day has %d, want %d", total, writers*batches*2*10)
	}
	// Two that sum the groups of a day conflict, but do no harm.
	mark := batch.Mark{Next: 1}
	for range 5 {
		e := Entry("n0", batch.Stream{100}, mark, 1, 10, m)
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, ls[0], batch.Accepted, e)
		total += 10
		for _, l := range ls {
			wait.Go(func() {
				if err := retry(func() error { return l.Fold(ctx, Day) }); err != nil {
					t.Errorf("folding: %v", err)
				}
			})
		}
		wait.Wait()
		if diff := cmp.Diff(map[group]int64{{"", m}: total}, (reader{t, DB(t, dsn)}).groups()); diff != "" {
			t.Errorf("groups (-want +got):\n%s", diff)
		}
	}
}
