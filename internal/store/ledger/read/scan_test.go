package read_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/read"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// days returns a range of days from the one that begins with a minute.
func days(first, n int64) schema.Range {
	return schema.Range{Level: schema.Days, From: first, To: first + n*schema.DayMinutes}
}

// TestHelpers checks that helpers read when there is much to read, also if others did so before, that
// they stop after an error, that they do not wait for connections, and that all see one snapshot.
func TestHelpers(t *testing.T) {
	if db.MaxWorkers() == 0 {
		t.Skip("no helper on one CPU")
	}
	const many = 40
	workloads := read.MinParallelRows / many
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	data := ledgertest.DB(t, dsn)
	from, _ := fill(t, data, workloads, many)
	first := from.Unix() / 60
	scan := func(n int64, use func(int64) error) error {
		l.DropBlocks()
		return l.InView(t.Context(), func(v *db.View) error { return l.Scan(v, true, use, days(first, n)) })
	}
	cached := func() int { n, _, _ := l.CachedBlocks(); return n }
	var want int64
	calls := 0
	err := scan(many-1, func(cpu int64) error {
		want += cpu
		if calls++; cached() != calls {
			t.Errorf("%d blocks of few rows are read, want %d", cached(), calls)
		}
		return nil
	})
	if err != nil || calls != many-1 {
		t.Fatal(calls, err)
	}
	for range db.MaxWorkers() + 1 {
		calls = 0
		err := scan(many, func(int64) error {
			if calls++; calls == 1 {
				testkit.Eventually(t, "a helper reads a block", func() bool { return cached() > 1 })
			}
			return nil
		})
		if err != nil || calls != many {
			t.Fatal(calls, err)
		}
	}
	failed := errors.New("failed")
	calls = 0
	if err := scan(many, func(int64) error { calls++; return failed }); !errors.Is(err, failed) || cached() > 2*(db.MaxWorkers()+1) {
		t.Errorf("%v, after which %d blocks were read", err, cached())
	}
	leave, err := l.HoldConnections(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	calls = 0
	if err := scan(many, func(int64) error { calls++; return nil }); err != nil || calls != many {
		t.Errorf("%d blocks without helpers, %v", calls, err)
	}
	if err := leave(); err != nil {
		t.Error(err)
	}
	// Another process writes.
	l.DropBlocks()
	err = l.InView(t.Context(), func(v *db.View) error {
		run(t, data, "UPDATE counter SET rev = rev + 1", "UPDATE day SET cpu = cpu + 1")
		var got int64
		err := l.Scan(v, true, func(cpu int64) error { got += cpu; return nil }, days(first, many-1), days(first+(many-1)*schema.DayMinutes, 1))
		var last int64
		for id := range int64(workloads) {
			last += ((id+1)*7919 + (many-1)*104729 + 1) % 65521 * 100000000000
		}
		if got != want+last {
			t.Errorf("%d ns, want %d", got, want+last)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestParts checks that a block is joined from its parts where most of them are cached, and replaces
// them.
func TestParts(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	l.SetMinQuiet(0)
	data := ledgertest.DB(t, dsn)
	from, _ := fill(t, data, 1, 8)
	first := from.Unix() / 60
	first += (4*schema.DayMinutes - first%(4*schema.DayMinutes)) % (4 * schema.DayMinutes)
	run(t, data, "UPDATE day SET cpu = 1")
	scan := func(ranges ...schema.Range) (sum int64) {
		t.Helper()
		err := l.InView(t.Context(), func(v *db.View) error {
			return l.Scan(v, false, func(cpu int64) error { sum += cpu; return nil }, ranges...)
		})
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	for _, c := range []struct{ parts, sum, cached int64 }{{0, 40, 1}, {1, 40, 2}, {2, 40, 3}, {3, 13, 1}, {4, 4, 1}} {
		l.DropBlocks()
		run(t, data, "UPDATE day SET cpu = 1")
		for day := range c.parts {
			scan(days(first+day*schema.DayMinutes, 1))
		}
		run(t, data, "UPDATE day SET cpu = 10") // what is cached does not notice
		sum := scan(days(first, 4))
		if n, _, _ := l.CachedBlocks(); sum != c.sum || int64(n) != c.cached {
			t.Errorf("with %d parts cached: sum %d, %d blocks; want %d, %d", c.parts, sum, n, c.sum, c.cached)
		}
	}
	l.DropBlocks()
	scan(days(first, 1), days(first+schema.DayMinutes, 1), days(first+2*schema.DayMinutes, 1))
	run(t, data, "ALTER TABLE day RENAME TO gone")
	err := l.InView(t.Context(), func(v *db.View) error {
		return l.Scan(v, false, func(int64) error { return nil }, days(first, 4))
	})
	if err == nil {
		t.Error("no error although the part that is not cached cannot be read")
	}
}

// TestIndex checks that what is known of workloads is kept by query and is that of the query's snapshot.
func TestIndex(t *testing.T) {
	const workloads = 74
	ctx := t.Context()
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	data := ledgertest.DB(t, dsn)
	from, to := fill(t, data, workloads, 2)
	all := query.Scope{All: true}
	q := query.Query{From: from, To: to, By: []query.Dimension{query.ByJob}, Scope: all}
	rename := func() {
		run(t, data, "UPDATE counter SET rev = rev + 1", "UPDATE workload SET job = 'new', rev = (SELECT rev FROM counter)")
	}
	groups := func(q query.Query) int {
		t.Helper()
		a, err := l.Usage(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		return len(a.Groups)
	}
	if n := groups(q); n != 37 {
		t.Fatalf("%d groups", n)
	}
	index, n, err := l.Index(ctx, q)
	if err != nil || n != workloads {
		t.Errorf("%d workloads are known, %v", n, err)
	}
	err = l.InView(ctx, func(v *db.View) error {
		old, err := l.GroupsAfter(v, q, func() {
			rename()
			if n := groups(q); n != 1 {
				t.Errorf("%d groups after all have another name", n)
			}
		})
		if len(old) != 37 || err != nil {
			t.Errorf("%d groups in a query that began before, %v", len(old), err)
		}
		a, err := l.UsageOf(v, q)
		if err == nil && len(a.Groups) != 37 {
			t.Errorf("%d groups in the older snapshot", len(a.Groups))
		}
		return err
	})
	if err != nil || groups(q) != 1 {
		t.Errorf("%d groups, %v", groups(q), err)
	}
	if again, n, err := l.Index(ctx, q); err != nil || again != index || n != workloads {
		t.Errorf("%d workloads are known, %v", n, err)
	}

	// With more workloads than the limit it begins again.
	last := q
	last.From = from.AddDate(0, 0, 1)
	run(t, data, fmt.Sprintf("DELETE FROM day WHERE minute = %d AND workload > 10", last.From.Unix()/60))
	for most, want := range map[int]int{workloads: workloads, workloads - 1: 10} {
		groups(q)
		read.LimitIndex(index, most)
		run(t, data, "UPDATE counter SET rev = rev + 1")
		groups(last)
		if _, n, err := l.Index(ctx, q); err != nil || n != want {
			t.Errorf("%d workloads are known with a limit of %d, want %d; %v", n, most, want, err)
		}
	}

	// Queries with other dimensions, filters, scopes and nodes have others; those used last stay.
	seen := map[any]int{index: 0}
	others := []query.Query{{By: []query.Dimension{query.ByKind}, Scope: all}, {By: []query.Dimension{query.ByLabel + "a"}, Scope: all}, {By: []query.Dimension{query.ByLabel + "b"}, Scope: all},
		{By: q.By, Scope: query.Scope{Clusters: []string{"c"}}}, {By: q.By, Scope: query.Scope{Projects: []string{"c"}}}}
	for i := range read.MaxIndexes - 6 {
		others = append(others, query.Query{By: q.By, Scope: all, Where: map[query.Dimension][]string{query.ByUser: {fmt.Sprint(i)}}})
	}
	for i, o := range others {
		x, _, err := l.Index(ctx, o)
		if at, ok := seen[x]; ok || err != nil {
			t.Errorf("queries %d and %d have the same index, %v", i, at, err)
		}
		seen[x] = i + 1
	}
	if x, _, err := l.Index(ctx, q); x != index || err != nil { // now the one used last
		t.Errorf("the first index is gone, %v", err)
	}
	second, _, _ := l.Index(ctx, others[1])
	more := query.Query{By: []query.Dimension{query.ByNamespace}, Scope: all}
	if _, _, err := l.Index(ctx, more); err != nil {
		t.Error(err)
	}
	for i, o := range []query.Query{q, others[1]} {
		if x, _, err := l.Index(ctx, o); x != []any{index, second}[i] || err != nil {
			t.Errorf("index %d is gone, %v", i, err)
		}
	}
	if x, _, _ := l.Index(ctx, others[0]); seen[x] != 0 {
		t.Error("the index that was used longest ago is there")
	}
	run(t, data, "UPDATE node SET name = 'x' WHERE id = 1")
	if x, _, _ := l.Index(ctx, q); x == index {
		t.Error("the index is the same after a node has another name")
	}
}

// TestPages checks that a query remembers the workloads of a limited number of pages.
func TestPages(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	var full, over []int64
	for i := range int64(read.MaxPages) {
		full = append(full, i*read.PageSize)
	}
	over = append(over, read.MaxPages*read.PageSize)
	err := l.InView(t.Context(), func(v *db.View) error {
		pages, err := l.AddRows(v, query.Query{By: []query.Dimension{query.ByKind}, Scope: query.Scope{All: true}}, full, over, over)
		if want := []int{read.MaxPages, read.MaxPages + 1, 1}; err == nil && fmt.Sprint(pages) != fmt.Sprint(want) {
			t.Errorf("%v pages, want %v", pages, want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLookUpLimits checks up to how many workloads are looked up by key, and when a scan of all rows costs
// less than to filter all workloads.
func TestLookUpLimits(t *testing.T) {
	const workloads, n = 1700, 12
	most := read.MaxKeyLookups / n
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	data := ledgertest.DB(t, dsn)
	from, to := fill(t, data, workloads, n)
	q := query.Query{From: from, To: to, By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}, Where: map[query.Dimension][]string{query.ByUser: {"u"}}}
	check := func(what string, want int) {
		t.Helper()
		if got, err := l.KeyLookups(t.Context(), q); err != nil || got != want {
			t.Errorf("%s: %d lookups, want %d; %v", what, got, want, err)
		}
	}
	run(t, data, fmt.Sprintf("UPDATE workload SET username = 'u' WHERE id <= %d", most))
	check("as many as possible", most)
	run(t, data, fmt.Sprintf("UPDATE workload SET username = 'u' WHERE id = %d", most+1))
	check("too many", -1)

	// The rows of three days cost as much as all workloads, judged by the second.
	q.To = from.AddDate(0, 0, 3)
	rows := 20
	run(t, data, "UPDATE workload SET username = '' WHERE id > 5", "DELETE FROM day WHERE workload > "+fmt.Sprint(rows),
		fmt.Sprintf("DELETE FROM workload WHERE id > %d", 3*rows*read.WorkloadsPerRow),
		fmt.Sprintf("DELETE FROM day WHERE minute <> %d AND workload > 3", from.Unix()/60+schema.DayMinutes))
	check("as many rows as allowed", -1)
	run(t, data, fmt.Sprintf("INSERT INTO day (minute, workload, rev) VALUES (%d, 500, 0)", from.Unix()/60+schema.DayMinutes))
	check("more rows", 5)
}

// TestLookUpCost checks that the rows of many workloads are scanned, and those of few too where their blocks are cached.
func TestLookUpCost(t *testing.T) {
	const workloads = 1500
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	data := ledgertest.DB(t, dsn)
	from, _ := fill(t, data, workloads, 1)
	q := query.Query{From: from, To: from.AddDate(0, 0, 1), By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}, Where: map[query.Dimension][]string{query.ByUser: {"u"}}, Resources: usage.SetOf(usage.CPU)}
	check := func(what string, want bool) {
		t.Helper()
		if got, err := l.LooksUp(t.Context(), q); err != nil || got != want {
			t.Errorf("%s: looked up: %t, want %t; %v", what, got, want, err)
		}
	}
	few := (workloads - 1) / read.RowsPerLookup
	run(t, data, fmt.Sprintf("UPDATE workload SET username = 'u' WHERE id <= %d", few))
	check("few", true)
	run(t, data, fmt.Sprintf("UPDATE workload SET username = 'u' WHERE id = %d", few+1))
	check("many", false)
	run(t, data, "UPDATE workload SET username = '' WHERE id > 5")
	check("five", true)
	all := q
	all.Where = nil
	if _, err := l.Usage(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	check("five of cached rows", false)
	q.Resources |= usage.SetOf(usage.Memory)
	check("five, with a figure that is not cached", true)
	q.Resources = all.Resources
	check("five of cached rows, again", false)
	run(t, data, "DELETE FROM workload WHERE id > 100")
	check("more rows than workloads", true)
}

// TestLimits checks limits of groups and of filter values.
func TestLimits(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	from, to := fill(t, ledgertest.DB(t, dsn), 100, 2)
	q := query.Query{From: from, To: to, By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}}
	all, err := l.Usage(t.Context(), q)
	if err != nil || len(all.Groups) != 37 || all.NestedGroups != nil {
		t.Fatal(all, err)
	}
	for _, n := range []int{1, 36, 37, 38} {
		q.Limit = n
		a, err := l.Usage(t.Context(), q)
		if err != nil || len(a.Groups) != min(n, 37) || a.Groups[0].Keys[0] != all.Groups[0].Keys[0] {
			t.Errorf("limit %d: %d groups, %v", n, len(a.Groups), err)
		}
	}
	// Where no node was measured as a whole there is no average to rank by, and all groups are returned.
	q.Limit = 0
	q.Top = &query.Top{Limit: 2, AlwaysKept: func([]string) bool { return false }}
	if a, err := l.Usage(t.Context(), q); err != nil || len(a.Groups) != 37 || a.OtherGroups != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	q.Top.Limit = 0
	if a, err := l.Usage(t.Context(), q); err != nil || len(a.Groups) != 0 || a.OtherGroups != 37 {
		t.Errorf("%+v, %v", a, err)
	}
	q.Top, q.From, q.To = nil, to, to.AddDate(0, 0, 1)                                           // without rows
	for n, ok := range map[int]bool{read.MaxArguments - 2: true, read.MaxArguments - 1: false} { // two are the range
		q.Where = map[query.Dimension][]string{query.ByUser: make([]string, n)}
		if _, err := l.Usage(t.Context(), q); (err == nil) != ok || !ok && (!errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "") {
			t.Errorf("%d values: %v", n, err)
		}
	}
}

// TestHoursKept checks that hours are refused where only days are kept.
func TestHoursKept(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	_, to := fill(t, ledgertest.DB(t, dsn), 1, 2) // hours are kept from there on
	for _, c := range []struct {
		from  time.Time
		every query.Period
		want  error
	}{{to, query.Hourly, nil}, {to.Add(-time.Minute), query.Hourly, fault.ErrInvalid}, {to.Add(-time.Minute), query.Daily, nil}} {
		q := query.Query{From: c.from, To: to.Add(2 * time.Hour), By: []query.Dimension{query.ByKind}, Scope: query.Scope{All: true}}
		if err := l.EachPeriod(t.Context(), q, c.every, func(*query.Answer) error { return nil }); !errors.Is(err, c.want) {
			t.Errorf("from %v by %v: %v, want %v", c.from, time.Duration(c.every), err, c.want)
		}
	}
}
