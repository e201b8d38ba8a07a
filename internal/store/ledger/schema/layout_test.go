package schema

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// small is a layout with a column of each kind.
var small = &Layout{Key: "thing", Columns: []Column{
	{Name: "rev", Merge: MergeLatest}, {Name: "set", Merge: MergeOr}, {Name: "peak", Merge: MergeMax}, {Name: "sum"}, {Name: "skew", Signed: true},
}}

// Rows of minutes refuse amounts of which an hour could overflow, also negative ones. Hours and days
// only refuse negative amounts, and not of columns that may be negative.
func TestDefine(t *testing.T) {
	want := map[Level][]string{
		Minutes: {"rev {int} NOT NULL DEFAULT 0", "set {int} NOT NULL DEFAULT 0", "peak {int} NOT NULL DEFAULT 0 CHECK (peak >> 57 = 0)",
			"sum {int} NOT NULL DEFAULT 0 CHECK (sum >> 57 = 0)", "skew {int} NOT NULL DEFAULT 0 CHECK (abs(skew) >> 57 = 0)"},
		Hours: {"rev {int} NOT NULL DEFAULT 0", "set {int} NOT NULL DEFAULT 0", "peak {int} NOT NULL DEFAULT 0 CHECK (peak >= 0)",
			"sum {int} NOT NULL DEFAULT 0 CHECK (sum >= 0)", "skew {int} NOT NULL DEFAULT 0"},
	}
	want[Days] = want[Hours]
	for v, lines := range want {
		for i, c := range small.Columns {
			if got := c.Define(v); got != lines[i] {
				t.Errorf("level %d: %s, want %s", v, got, lines[i])
			}
		}
	}
	if !FitsAmount(MaxMinuteAmount) || FitsAmount(MaxMinuteAmount+1) || FitsAmount(-1) || MaxMinuteAmount != 1<<57-1 || MaxMinuteAmount*60 < 0 {
		t.Errorf("the largest amount of a minute is %d", int64(MaxMinuteAmount))
	}
	wantCreate := "CREATE TABLE IF NOT EXISTS x (\n\tminute {int} NOT NULL,\n\tthing {int} NOT NULL,\n\t" + want[Hours][0] + ",\n\t" + want[Hours][1] + ",\n\t" +
		want[Hours][2] + ",\n\t" + want[Hours][3] + ",\n\t" + want[Hours][4] + ",\n\tPRIMARY KEY (minute, thing)\n) {keyed}"
	if got := small.Create("x", Hours); got != wantCreate {
		t.Errorf("%s\nwant\n%s", got, wantCreate)
	}
	if got, want := small.ColumnList(), "minute, thing, rev, set, peak, sum, skew"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The table of groups has their keys as texts, and the sums.
func TestCreateGroups(t *testing.T) {
	text := CreateGroups()
	want := "CREATE TABLE IF NOT EXISTS group_day (\n\tminute {int} NOT NULL,\n\tcluster text NOT NULL"
	if !strings.HasPrefix(text, want) || !strings.HasSuffix(text, " {int} NOT NULL DEFAULT 0\n) {strict}") {
		t.Errorf("%s, want %s ... {strict}", text, want)
	}
	if lines := strings.Split(text, ",\n\t"); len(lines) != 1+len(GroupKeys)+len(GroupColumns()) || lines[len(GroupKeys)+1] != "present {int} NOT NULL DEFAULT 0" {
		t.Errorf("%d columns: %s", len(lines), text)
	}
}

// A name is scanned with its kind, its times and its exit code, if they are known.
func TestNameRow(t *testing.T) {
	code := int64(3)
	for _, c := range []struct {
		r    NameRow
		want string
	}{
		{NameRow{name: batch.Name{Key: "k"}, kind: "job", started: 5e9, ended: 7e9, exit: &code}, "job k 1970-01-01 00:00:05 +0000 UTC 1970-01-01 00:00:07 +0000 UTC 3"},
		{NameRow{kind: "of another version"}, "unknown  0001-01-01 00:00:00 +0000 UTC 0001-01-01 00:00:00 +0000 UTC none"},
	} {
		n := c.r.Name()
		exit := "none"
		if n.Exit != nil {
			exit = fmt.Sprint(*n.Exit)
		}
		if got := fmt.Sprint(n.Kind, " ", n.Key, " ", n.Started, " ", n.Ended, " ", exit); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	if got, want := len((&NameRow{}).Targets()), len(strings.Split(NameColumns, ",")); got != want {
		t.Errorf("%d targets for %d columns", got, want)
	}
}

// A merged row has the sums, the highest peaks, all sets and the new revision.
func TestMergeClause(t *testing.T) {
	const saturated = "CASE WHEN excluded.C > 0 AND x.C > 9223372036854775807 - excluded.C THEN 9223372036854775807 WHEN excluded.C < 0 AND x.C < -9223372036854775807 - excluded.C THEN -9223372036854775807 ELSE x.C + excluded.C END"
	of := func(c string) string { return strings.ReplaceAll(saturated, ".C", "."+c) }
	head := " ON CONFLICT (minute, thing) DO UPDATE SET rev = excluded.rev, set = x.set | excluded.set, peak = "
	for d, peak := range map[*Dialect]string{SQLite: "max(x.peak, excluded.peak)", PostgreSQL: "greatest(x.peak, excluded.peak)"} {
		if got, want := small.MergeClause("x", d, false), head+peak+", sum = x.sum + excluded.sum, skew = x.skew + excluded.skew"; got != want {
			t.Errorf("%s: %s\nwant\n%s", d.Name, got, want)
		}
		if got, want := small.MergeClause("x", d, true), head+peak+", sum = "+of("sum")+", skew = "+of("skew"); got != want {
			t.Errorf("%s, saturating: %s\nwant\n%s", d.Name, got, want)
		}
	}
}

// An update merges as an upsert does, and an insert has the same parameters.
func TestRowStatements(t *testing.T) {
	update, insert := small.RowStatements("x")
	if want := "UPDATE x SET rev = ?, set = set | ?, peak = max(peak, ?), sum = sum + ?, skew = skew + ? WHERE minute = ? AND thing = ?"; update != want {
		t.Errorf("%s\nwant\n%s", update, want)
	}
	if want := "INSERT INTO x (rev, set, peak, sum, skew, minute, thing) VALUES (?, ?, ?, ?, ?, ?, ?)"; insert != want {
		t.Errorf("%s\nwant\n%s", insert, want)
	}
	for _, s := range []*Layout{UsageLayout, NodeLayout} {
		if i := s.FirstResource(); !slices.Equal(s.Columns[i:], ResourceColumns()) {
			t.Errorf("the first resource of rows of %ss is %s", s.Key, s.Columns[i].Name)
		}
	}
}

// A table of nodes has the name of the table of workloads with a prefix, and a level is known by
// its table.
func TestTables(t *testing.T) {
	day := time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC).Unix() / 60
	for s, want := range map[*Layout][4]string{
		UsageLayout: {"minute_20260309", "hour", "day", UsageMinuteTable(day)},
		NodeLayout:  {"node_minute_20260309", "node_hour", "node_day", NodeMinuteTable(day)},
	} {
		for i, v := range []Level{Minutes, Hours, Days} {
			r := Range{Level: v, From: day, To: day + 2*v.Width()}
			if got := r.Table(s); got != want[i] || s.LevelOf(want[i]) != v || r.Len() != 2 {
				t.Errorf("level %d: table %s of level %d, %d rows; want %s", v, got, s.LevelOf(want[i]), r.Len(), want[i])
			}
			if got := r.Split(); len(got) != 2 || got[0] != (Range{v, day, day + v.Width()}) || got[1] != (Range{v, day + v.Width(), r.To}) {
				t.Errorf("level %d is split into %v", v, got)
			}
		}
		if late := (Range{Minutes, day + DayMinutes - 1, day + DayMinutes}); late.Table(s) != want[0] || want[3] != want[0] {
			t.Errorf("the last minute of a day is in table %s, and its first in %s", late.Table(s), want[3])
		}
	}
	if Minutes.Width() != 1 || Hours.Width() != 60 || Days.Width() != 1440 || Hours.Name() != "hour" || Days.Name() != "day" {
		t.Error("levels")
	}
	for minute, want := range map[int64]string{day + 61: "2026-03-09T01:01Z", EndMinute - 1: "6053-01-23T02:07Z"} {
		if got := FormatMinute(minute); got != want {
			t.Errorf("minute %d is %s, want %s", minute, got, want)
		}
	}
	if got := UsageMinuteTable(DayOf(EndMinute)); got != "minute_60530123" {
		t.Errorf("the last day is in table %s", got)
	}
}

// The columns of a resource stand in its place.
func TestColumns(t *testing.T) {
	cols := ResourceColumns()
	if len(cols) != int(usage.Limit)-1 {
		t.Fatalf("%d columns", len(cols))
	}
	groups := GroupColumns()
	if len(groups) != 4+2*len(cols) || groups[0].Name != "present" || groups[1].Name != "rough" || groups[2].Name != "rough_high" || groups[3].Name != "covered_ms" {
		t.Fatalf("columns of groups: %v", groups)
	}
	for i, c := range cols {
		r := usage.Resource(i + 1)
		if c.Name != r.String() || (c.Merge == MergeMax) != (r.Detail().Kind == usage.Peak) || c.Signed {
			t.Errorf("column %d is %+v", i, c)
		}
		if groups[4+2*i].Name != c.Name+"_hi" || groups[5+2*i].Name != c.Name+"_lo" {
			t.Errorf("columns of groups at %d: %s, %s", i, groups[4+2*i].Name, groups[5+2*i].Name)
		}
	}
	names := func(s *Layout) (list []string) {
		for _, c := range s.Columns {
			list = append(list, c.Name)
		}
		return list
	}
	if got := names(UsageLayout); !slices.Equal(got[:ColRest], []string{"rev", "present", "rough", "rough_high", "covered_ms"}) || got[ColRest] != cols[0].Name || len(got) != ColRest+len(cols) {
		t.Errorf("columns of usage: %v", got)
	}
	got := names(NodeLayout)[ColRest:]
	if !slices.Equal(got[:3], []string{"cpus", "violations", "lost"}) || NodeLayout.Columns[ColRest].Merge != MergeMax || len(got) != 3+2*len(usage.Wholes)+len(cols) {
		t.Errorf("columns of nodes: %v", got)
	}
	for i, r := range usage.Wholes {
		skew := NodeLayout.Columns[ColSkew+i]
		if got[3+i] != "whole_"+r.String() || skew.Name != "skew_"+r.String() || !skew.Signed || NodeLayout.Columns[ColRest+3+i].Signed {
			t.Errorf("%s: %s and %+v", r, got[3+i], skew)
		}
	}
}

// Rows come back from the database as they were written.
func TestRows(t *testing.T) {
	drawUsage := func(t *rapid.T) (u usage.Usage) {
		for r := usage.Resource(1); r < usage.Limit; r++ {
			if rapid.Bool().Draw(t, "present") {
				u.Put(r, rapid.Int64Range(0, MaxMinuteAmount).Draw(t, "amount"), rapid.SampledFrom([]usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled}).Draw(t, "quality"))
			}
		}
		u.Covered = time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "covered")) * time.Millisecond
		return u
	}
	rapid.Check(t, func(t *rapid.T) {
		u := drawUsage(t)
		values := EncodeUsage(&u, 7)
		if got := DecodeUsage(values, ColRest); got != u || values[ColRev] != 7 || !FitsMinute(&u) {
			t.Fatalf("%+v, want %+v", got, u)
		}
		n := batch.NodeMinute{Minute: 5, CPUs: rapid.IntRange(0, 9).Draw(t, "cpus"), Violations: rapid.Int64Range(0, 9).Draw(t, "violations"), Lost: rapid.Int64Range(0, 9).Draw(t, "lost"), Covered: u.Covered, Total: u}
		n.Total.Covered = 0
		for i := range n.Whole {
			n.Whole[i], n.Skew[i] = rapid.Int64Range(0, 1e9).Draw(t, "whole"), rapid.Int64Range(-1e9, 1e9).Draw(t, "skew")
		}
		values = EncodeNodeMinute(&n, 8)
		if got := DecodeNodeMinute(5, values); got != n || values[ColRev] != 8 || len(values) != len(NodeLayout.Columns) {
			t.Fatalf("%+v, want %+v", got, n)
		}
	})
	// Flags are bits of no resource, so that they change no usage.
	var least usage.Usage
	for r := usage.Resource(1); r < usage.Limit; r++ {
		least.Put(r, 1, usage.Modelled)
	}
	values := EncodeUsage(&least, 1)
	flags := values[ColUncertainty] & (HoldsHour | HoldsDay)
	values[ColUncertainty] |= HoldsHour | HoldsDay
	if got := DecodeUsage(values, ColRest); flags != 0 || got != least || HoldsHour&HoldsDay != 0 {
		t.Errorf("flags %d, %d and %d; %+v, want %+v", HoldsHour, HoldsDay, flags, got, least)
	}
	var u usage.Usage
	u.Put(usage.CPU, MaxMinuteAmount+1, usage.Measured)
	if FitsMinute(&u) {
		t.Error("an amount beyond the limit fits a minute")
	}
	u.Present = 1 << 63 // a resource that this program does not know
	if values := EncodeUsage(&u, 1); values[ColPresent] != 0 || !FitsMinute(&u) {
		t.Errorf("an unknown resource is stored: %v", values)
	}
	for in, want := range map[time.Duration]int64{1499 * time.Microsecond: 1, 1500 * time.Microsecond: 2, 0: 0} {
		if got := millis(in); got != want {
			t.Errorf("%v is %d ms, want %d", in, got, want)
		}
	}
	const last = math.MaxInt64 / int64(time.Millisecond)
	if decodeMillis(last) != time.Duration(last)*time.Millisecond || decodeMillis(last+1) != math.MaxInt64 || decodeMillis(math.MaxInt64) != math.MaxInt64 {
		t.Error("a sum of covered time beyond 292 years is not 292 years")
	}
}

// Rows of one key add up. Sums that overflow are refused, and saturate where days are folded.
func TestPending(t *testing.T) {
	for _, c := range []struct {
		a, b, sum, saturated int64
		refused              bool
	}{
		{1, 2, 3, 3, false}, {5, -7, -2, -2, false}, {math.MaxInt64 - 1, 1, math.MaxInt64, math.MaxInt64, false},
		{math.MaxInt64, 1, 0, math.MaxInt64, true}, {math.MaxInt64 - 1, 5, 0, math.MaxInt64, true}, {-math.MaxInt64 + 1, -5, 0, -math.MaxInt64, true}, {math.MaxInt64, 0, math.MaxInt64, math.MaxInt64, false}, {math.MinInt64 + 1, -1, math.MinInt64, -math.MaxInt64, false},
		{math.MinInt64, -1, 0, -math.MaxInt64, true}, {math.MinInt64, math.MinInt64, 0, -math.MaxInt64, true}, {-math.MaxInt64 + 1, -1, -math.MaxInt64, -math.MaxInt64, false}, {math.MinInt64 + 1, 0, math.MinInt64 + 1, math.MinInt64 + 1, false},
	} {
		p, k := NewPending(small), RowKey{1, 2}
		if err := p.Add(k, []int64{1, 5, 3, c.a, c.a}); err != nil {
			t.Fatal(err)
		}
		have := slices.Clone(p.Rows[k])
		switch err := p.Add(k, []int64{2, 6, 4, c.b, c.b}); {
		case c.refused:
			if !errors.Is(err, ErrRange) {
				t.Errorf("%d + %d: %v", c.a, c.b, err)
			}
		case err != nil || !slices.Equal(p.Rows[k], []int64{2, 7, 4, c.sum, c.sum}):
			t.Errorf("%d + %d: %v, %v", c.a, c.b, p.Rows[k], err)
		}
		p.AddSaturating(have, []int64{2, 2, 9, c.b, c.b})
		if want := []int64{1, 7, 9, c.saturated, c.saturated}; !slices.Equal(have, want) {
			t.Errorf("%d + %d saturates to %v, want %v", c.a, c.b, have, want)
		}
	}
	// Rows are written in the order of tables. Usage without content is not written.
	p := NewPending(UsageLayout)
	row := func(present, covered int64) []int64 {
		v := make([]int64, len(UsageLayout.Columns))
		v[ColPresent], v[ColCovered] = present, covered
		return v
	}
	for k, v := range map[RowKey][]int64{{2, 1}: row(1, 0), {1, 9}: row(0, 1), {1, 3}: row(1, 1), {0, 0}: row(0, 0)} {
		if err := p.Add(k, v); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.SortedKeys(); !slices.Equal(got, []RowKey{{1, 3}, {1, 9}, {2, 1}}) {
		t.Errorf("rows %v", got)
	}
	nodes := NewPending(NodeLayout)
	if err := nodes.Add(RowKey{}, make([]int64, len(NodeLayout.Columns))); err != nil || len(nodes.Rows) != 1 {
		t.Errorf("a node's row without content: %v, %v", nodes.Rows, err)
	}
}

// A row is folded if its hour or day is, or the part of it up to its key.
func TestIsFolded(t *testing.T) {
	m := Marks{Hour: 600, Day: 1440, HourProgress: Progress{Workload: 5, Node: 3}, DayProgress: Progress{Workload: 7, Node: 9}}
	for _, c := range []struct {
		v    Level
		s    *Layout
		k    RowKey
		want bool
	}{
		{Hours, UsageLayout, RowKey{599, 100}, true}, {Hours, UsageLayout, RowKey{600, 4}, true}, {Hours, UsageLayout, RowKey{600, 5}, false},
		{Hours, UsageLayout, RowKey{659, 4}, true}, {Hours, UsageLayout, RowKey{660, 4}, false}, {Hours, NodeLayout, RowKey{600, 2}, true},
		{Hours, NodeLayout, RowKey{600, 3}, false}, {Days, UsageLayout, RowKey{1439, 100}, true}, {Days, UsageLayout, RowKey{1440, 6}, true},
		{Days, UsageLayout, RowKey{2879, 7}, false}, {Days, NodeLayout, RowKey{2879, 8}, true}, {Days, NodeLayout, RowKey{2880, 8}, false},
	} {
		if got := m.IsFolded(c.v, c.s, c.k); got != c.want {
			t.Errorf("level %d, key %+v of %ss: %t", c.v, c.k, c.s.Key, got)
		}
	}
}

// Keys hold both ids, and rows within a node follow all others.
func TestKeys(t *testing.T) {
	for _, id := range []int64{0, 1, FirstWithin - 1} {
		for _, within := range []int64{0, 1, EndWithin - 1} {
			k := Key(id, within)
			if i, w := SplitKey(k); i != id || w != within || k < 0 || (k >= FirstWithin) != (within > 0) {
				t.Errorf("the key of %d within %d is %d, of %d within %d", id, within, k, i, w)
			}
		}
	}
	if IDOf("u.w") != "(u.w & 1099511627775)" || WithinOf("u.w") != "(u.w >> 40)" || HasContent("u") != "(u.present <> 0 OR u.covered_ms <> 0)" {
		t.Error(IDOf("u.w"), WithinOf("u.w"), HasContent("u"))
	}
	var s MinuteSpan
	for _, m := range []int64{5, 9, 3, 7} {
		s = s.Extend(m)
	}
	if s != (MinuteSpan{3, 9}) {
		t.Error(s)
	}
}

// Texts and times are stored as both databases can.
func TestText(t *testing.T) {
	if got := Clean("a\x00b\xffc"); got != "ab\uFFFDc" {
		t.Errorf("%q", got)
	}
	if got := JoinInts([]int64{1, -2, 3}); got != "1, -2, 3" || JoinInts(nil) != "" {
		t.Error(got)
	}
	at := time.Date(2026, 3, 1, 0, 0, 1, 5, time.UTC)
	if Nanos(time.Time{}) != 0 || !FromNanos(0).IsZero() || Nanos(at) != at.UnixNano() || !FromNanos(at.UnixNano()).Equal(at) || FromNanos(at.UnixNano()).Location() != time.UTC {
		t.Error("times")
	}
	const last = math.MaxInt64 / int64(time.Second)
	for in, want := range map[time.Time]int64{at: at.UnixNano(), time.Unix(-9, 3): 3, time.Unix(last-1, 4): (last-1)*1e9 + 4, time.Unix(last+5, 6): (last-1)*1e9 + 6} {
		if got := ClampNanos(in); got != want {
			t.Errorf("%v: %d, want %d", in, got, want)
		}
	}
	// md5 of columns is of their lengths too, so that no two rows have the same.
	if got := hashSQL([]string{"a", "b"}); got != "md5(length(a)::text || ':' || a || length(b)::text || ':' || b)" {
		t.Error(got)
	}
}
