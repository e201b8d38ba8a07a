package top_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/toptest"
	"mete.dev/mete/internal/ui/top"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares got with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestText(t *testing.T) {
	m := toptest.Machine(3)
	folded := map[workload.ID]bool{m.Rows[0].ID: true}
	for _, c := range []struct {
		name  string
		width int
		opt   top.Options
	}{
		{"wide.txt", 0, top.Options{}},
		{"100.txt", 100, top.Options{Folded: folded}},
		{"80-flat-memory.txt", 80, top.Options{Flat: true, Sort: top.ByMemory}},
		{"60-ascii-filter.txt", 60, top.Options{ASCII: true, Filter: "ISTIO", Percent: true}},
		{"80-sums-name.txt", 80, top.Options{Sums: true, Sort: top.ByName, HideIdle: true}},
	} {
		golden(t, c.name, top.Text(m, c.width, c.opt))
	}
}

func TestDetails(t *testing.T) {
	m := toptest.Machine(3)
	var b strings.Builder
	for _, l := range top.Details(m, &m.Rows[3], nil, 100, top.Options{}) {
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	golden(t, "details.txt", b.String())
}

// The power line has the error and the source of any power, and a power that does not sum
// up is reported.
func TestPower(t *testing.T) {
	m := toptest.Machine(3)
	if tbl := top.Arrange(m, top.Options{}); len(tbl.Differs) > 0 {
		t.Errorf("differs: %v, want nothing", tbl.Differs)
	}
	line := func(e *live.Energy) string {
		m.Energy = e
		return top.Header(m, 0, top.Options{ASCII: true})[3].String()
	}
	for _, c := range []struct {
		energy *live.Energy
		want   string
	}{
		{nil, "Power -  not known on this machine"},
		{&live.Energy{Watts: 20, Error: 8, Idle: 12.5, Quality: usage.Modelled, Domains: []live.Domain{
			{Name: "rest", Watts: 20, Error: 8, Idle: 12.5, Quality: usage.Modelled, Source: "a generic curve"}}},
			"Power =20.0 W +-8.00 W  idle 12.5 W  modelled: a generic curve"},
		{&live.Energy{Watts: 110, Error: 1, Idle: 12.5, Quality: usage.Measured, Ratios: map[string]float64{"board": 0.8}, Domains: []live.Domain{
			{Name: "package", Watts: 80, Error: 0.5, Idle: 10, Quality: usage.Measured, Source: "rapl/package-0"},
			{Name: "rest", Watts: 30, Error: 0.5, Idle: 2.5, Quality: usage.Measured, Source: "rapl/psys less rapl/package-0"}}},
			"Power 110 W +-1.00 W  idle 12.5 W  package 80.0 W +-500 mW measured: rapl/package-0" +
				"  rest 30.0 W +-500 mW measured: rapl/psys less rapl/package-0  parts/board 80%"},
	} {
		if got := line(c.energy); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	m.Energy = &live.Energy{Watts: 1}
	if tbl := top.Arrange(m, top.Options{}); !slices.Contains(tbl.Differs, "power") {
		t.Errorf("differs: %v, want power", tbl.Differs)
	}
	m = toptest.Machine(3)
	m.Memory.Whole, m.Memory.Skew = m.Memory.Whole-(1<<30), m.Memory.Skew+(1<<30) // the kernel was read while memory was freed
	if tbl := top.Arrange(m, top.Options{}); len(tbl.Differs) > 0 {
		t.Errorf("differs with a skew: %v, want nothing", tbl.Differs)
	}
}

// machines draws any machine, even invalid ones with parents that come later, are missing,
// or are the row itself.
func machines(t *rapid.T) *live.Machine {
	m := &live.Machine{CPUs: 2, Host: hostile.Draw(t, "host"), Notes: rapid.SliceOfN(hostile, 0, 2).Draw(t, "notes")}
	n := rapid.IntRange(0, 25).Draw(t, "rows")
	id := rapid.Map(rapid.IntRange(-1, n), func(i int) workload.ID {
		if i < 0 {
			return ""
		}
		return workload.ID(fmt.Sprintf("w%d", i))
	})
	cores := rapid.Map(rapid.IntRange(0, 4096), func(i int) *float64 { v := float64(i) / 1024; return &v }) // adds without rounding
	bytes := rapid.Map(rapid.Int64Range(0, 1<<45), func(i int64) *int64 { return &i })
	for range n {
		r := live.Row{ID: id.Draw(t, "id"), Parent: id.Draw(t, "parent"), Kind: workload.Kind(rapid.IntRange(0, 15).Draw(t, "kind")),
			Name: hostile.Draw(t, "name"), Path: hostile.Draw(t, "path"), Ended: rapid.Bool().Draw(t, "ended")}
		maybe := func() bool { return rapid.IntRange(0, 3).Draw(t, "absent") > 0 }
		for _, p := range []**float64{&r.CPU, &r.DiskRead, &r.DiskWritten, &r.NetworkRx, &r.NetworkTx, &r.Power, &r.PressureCPU} {
			if maybe() {
				*p = cores.Draw(t, "amount")
			}
		}
		if maybe() {
			r.Memory = bytes.Draw(t, "bytes")
		}
		if maybe() {
			tasks := float64(*bytes.Draw(t, "tasks"))
			r.PIDs = &tasks
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

var hostile = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x1b[2J\x1b[H", "a\nb\tc\r", "\u202eevil", "名前が長いワークロード", "👩‍👩‍👧‍👦👍🏽🇩🇪",
	"\u009b31m", "e\u0301\u0301\u0301\u0301\u0301\u0301", "\u0301", strings.Repeat("long", 100), "\xff\xfe", "x\u200b\ufe0f", "각ᄀ", "/a/b/"}))

func options(t *rapid.T, m *live.Machine) top.Options {
	o := top.Options{Flat: rapid.Bool().Draw(t, "flat"), Sort: top.Sort(rapid.IntRange(0, 7).Draw(t, "sort")),
		Reverse: rapid.Bool().Draw(t, "reverse"), HideIdle: rapid.Bool().Draw(t, "hide"), Sums: rapid.Bool().Draw(t, "sums"),
		Percent: rapid.Bool().Draw(t, "percent"), ASCII: rapid.Bool().Draw(t, "ascii"), Folded: map[workload.ID]bool{}}
	o.Filter = rapid.OneOf(rapid.Just(""), hostile, rapid.SampledFrom([]string{"pod", "a", "w1"})).Draw(t, "filter")
	for i := range m.Rows {
		if rapid.Bool().Draw(t, "fold") {
			o.Folded[m.Rows[i].ID] = true
		}
	}
	return o
}

// The rows on the screen and the line of the rest sum to the machine, in a tree and in a
// list, with any filter and folding.
func TestArrangeLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := machines(t)
		o := options(t, m)
		o.Sums = false // subtrees overlap
		var cpu, memory float64
		for _, r := range m.Rows {
			if r.CPU != nil {
				cpu += *r.CPU
			}
			if r.Memory != nil {
				memory += float64(*r.Memory)
			}
		}
		for _, o.Flat = range []bool{false, true} {
			tbl := top.Arrange(m, o)
			gotCPU, gotMemory := tbl.Rest[live.CPU].Value, tbl.Rest[live.Memory].Value
			for _, r := range tbl.Rows {
				gotCPU += r.Figures[live.CPU].Value
				gotMemory += r.Figures[live.Memory].Value
			}
			if gotCPU != cpu || gotMemory != memory {
				t.Errorf("flat %v: rows and rest = %v cores, %v bytes, want %v, %v", o.Flat, gotCPU, gotMemory, cpu, memory)
			}
			if tbl.Total[live.CPU].Value != cpu || tbl.Total[live.Memory].Value != memory {
				t.Errorf("flat %v: total = %v, want %v cores, %v bytes", o.Flat, tbl.Total, cpu, memory)
			}
			rows := len(tbl.Rows) + tbl.RestCount
			for _, r := range tbl.Rows {
				if r.Folded {
					rows += r.Below
				}
			}
			if rows != len(m.Rows) {
				t.Errorf("flat %v: %d workloads shown or not, want %d", o.Flat, rows, len(m.Rows))
			}
		}
	})
}

// No line is wider than the screen, and none has a control character.
func TestLinesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := machines(t)
		o := options(t, m)
		width := rapid.IntRange(1, 200).Draw(t, "width")
		tbl := top.Arrange(m, o)
		lines := append(top.Header(m, width, o), top.Notes(m, width, o)...)
		lines = append(lines, tbl.Titles(width, o))
		lines = append(append(lines, tbl.Lines(width, o)...), tbl.Foot(width, o)...)
		for i := range m.Rows {
			lines = append(lines, top.Details(m, &m.Rows[i], nil, width, o)...)
		}
		for _, l := range lines {
			if w := l.Width(); w > width {
				t.Errorf("line of %d cells on a screen of %d: %q", w, width, l)
			}
			harmless(t, l.String(), o.ASCII)
		}
	})
}

func harmless(t interface{ Errorf(string, ...any) }, s string, ascii bool) {
	for _, r := range s {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) || ascii && r >= 0x80 {
			t.Errorf("%q holds %U", s, r)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("web", "web", 80, uint8(0))
	f.Add("\x1b]0;title\a", "é", 1, uint8(255))
	f.Add("\u2028🧑🏿‍🚀\u202e", "\xff", 30, uint8(3))
	f.Fuzz(func(t *testing.T, name, filter string, width int, flags uint8) {
		m := toptest.Machine(1)
		m.Rows[4].Name, m.Rows[6].Path, m.Rows[7].Name = name, name, ""
		width = max(1, width%300)
		o := top.Options{Filter: filter, Flat: flags&1 != 0, ASCII: flags&2 != 0, Sort: top.Sort(flags >> 2 & 7), HideIdle: flags&32 != 0}
		for line := range strings.Lines(top.Text(m, width, o)) {
			line = strings.TrimSuffix(line, "\n")
			if w := top.Width(line); w > width {
				t.Errorf("line of %d cells on a screen of %d: %q", w, width, line)
			}
			harmless(t, line, o.ASCII)
		}
	})
}

func labels(tbl *top.Table) (out []string) {
	for i := range tbl.Rows {
		out = append(out, top.Label(tbl.Rows[i].Row))
	}
	return out
}

func TestFilterKeepsAncestorsAndSubtree(t *testing.T) {
	m := toptest.Machine(0)
	got := labels(top.Arrange(m, top.Options{Filter: "postgres-0"}))
	want := []string{"kubepods.slice", "guaranteed", "db/postgres-0", "postgres"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	got = labels(top.Arrange(m, top.Options{Filter: "POSTGRES-0", Flat: true, Sort: top.ByName}))
	if diff := cmp.Diff([]string{"db/postgres-0", "postgres"}, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if tbl := top.Arrange(m, top.Options{Filter: "no such thing"}); len(tbl.Rows) != 0 || tbl.RestCount != len(m.Rows) {
		t.Errorf("filter without matches shows %d rows and hides %d, want 0 and %d", len(tbl.Rows), tbl.RestCount, len(m.Rows))
	}
}

// A workload named by its path has only the rest of it below a parent.
func TestShortPathsInTree(t *testing.T) {
	m := &live.Machine{}
	for _, p := range []string{"/a", "/a/b/c", "/a/b/c/d", "/ab"} {
		m.Rows = append(m.Rows, live.Row{ID: workload.ID(p), Kind: workload.Path, Name: p, Path: p})
	}
	m.Rows[1].Parent, m.Rows[2].Parent, m.Rows[3].Parent = "/a", "/a/b/c", "/a"
	for flat, want := range map[bool][]string{false: {"/a", "/ab", "b/c", "d"}, true: {"/a", "/a/b/c", "/a/b/c/d", "/ab"}} {
		var got []string
		for _, r := range top.Arrange(m, top.Options{Flat: flat, Sort: top.ByName}).Rows {
			got = append(got, r.Label)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("flat %v (-want +got):\n%s", flat, diff)
		}
	}
}

func TestSort(t *testing.T) {
	m := toptest.Machine(0)
	value := map[top.Sort]func(*live.Row) float64{
		top.ByCPU:    func(r *live.Row) float64 { return *r.CPU },
		top.ByMemory: func(r *live.Row) float64 { return float64(*r.Memory) },
		top.ByPIDs:   func(r *live.Row) float64 { return float64(*r.PIDs) },
		top.ByPower:  func(r *live.Row) float64 { return *r.Power },
		top.ByDisk:   func(r *live.Row) float64 { return *r.DiskRead + *r.DiskWritten },
	}
	for by, of := range value {
		for _, reverse := range []bool{false, true} {
			tbl := top.Arrange(m, top.Options{Flat: true, Sort: by, Reverse: reverse})
			n := len(tbl.Rows)
			if kind := tbl.Rows[n-1].Row.Kind; kind != workload.Idle {
				t.Errorf("by %v, reverse %v: %v is last, want idle", by, reverse, kind)
			}
			rows := slices.DeleteFunc(slices.Clone(tbl.Rows[:n-1]), func(r top.Row) bool { // system has not all figures
				f := map[top.Sort]live.Field{top.ByMemory: live.Memory, top.ByPIDs: live.PIDs, top.ByPower: live.Power, top.ByDisk: live.DiskRead}[by]
				return r.Row.Kind == workload.System && r.Figures[f].Quality == usage.Absent
			})
			if by == top.ByCPU && !reverse && rows[len(rows)-1].Row.Kind == workload.System {
				t.Error("system is last before idle, although others use less CPU")
			}
			if !slices.IsSortedFunc(rows, func(a, b top.Row) int {
				d := int(math.Copysign(1, of(b.Row)-of(a.Row)))
				if of(a.Row) == of(b.Row) {
					return 0
				}
				if reverse {
					return -d
				}
				return d
			}) {
				t.Errorf("by %v, reverse %v: out of order: %v", by, reverse, labels(tbl))
			}
		}
	}
}

// The order of equal rows does not change between ticks.
func TestSortIsStable(t *testing.T) {
	m := toptest.Machine(0)
	want := labels(top.Arrange(m, top.Options{Sort: top.ByDisk}))
	rng := rand.New(rand.NewPCG(1, 0))
	for range 20 {
		c := *m
		c.Rows = slices.Clone(m.Rows)
		// swap containers of one pod
		i := 3 + 3*rng.IntN(4)
		c.Rows[i], c.Rows[i+1] = c.Rows[i+1], c.Rows[i]
		if diff := cmp.Diff(want, labels(top.Arrange(&c, top.Options{Sort: top.ByDisk}))); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

func TestQualityMarks(t *testing.T) {
	one := 1.5
	m := &live.Machine{CPU: live.CPUParts{Whole: 4.5}}
	for i, q := range []usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled} {
		m.Rows = append(m.Rows, live.Row{ID: workload.ID(rune('a' + i)), Name: q.String(), Rates: live.Rates{CPU: &one},
			Quality: map[string]usage.Quality{"cpu": q}})
	}
	m.Rows = append(m.Rows, live.Row{ID: "z", Name: "absent", Quality: map[string]usage.Quality{}})
	tbl := top.Arrange(m, top.Options{Sort: top.ByName})
	var got []string
	for i := range tbl.Rows {
		got = append(got, strings.Join(strings.Fields(tbl.Line(&tbl.Rows[i], 32, top.Options{}).String()), " "))
	}
	want := []string{"absent – –", "apportioned ~1.500 –", "measured 1.500 –", "modelled ≈1.500 –"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(tbl.Differs) != 0 {
		t.Errorf("Differs = %v, want none", tbl.Differs)
	}
	m.CPU.Whole = 4.6
	if got := top.Arrange(m, top.Options{}).Differs; !slices.Equal(got, []string{"cpu"}) {
		t.Errorf("Differs = %v, want [cpu]", got)
	}
}

func TestNotesReportErrors(t *testing.T) {
	m := &live.Machine{Balance: usage.Balance{Violations: 2, Lost: 1}, Notes: []string{"x\x1b"}}
	var got []string
	for _, l := range top.Notes(m, 24, top.Options{}) {
		got = append(got, l.String())
	}
	want := []string{"error: 2 times the rows…", "lost: 1 births or ends …", "note: x\uFFFD"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseSort(t *testing.T) {
	for in, want := range map[string]top.Sort{"cpu": top.ByCPU, "mem": top.ByMemory, "Net": top.ByNetwork, "name": top.ByName, "pids": top.ByPIDs, "po": top.ByPower} {
		if got, err := top.ParseSort(in); got != want || err != nil {
			t.Errorf("ParseSort(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "energy"} {
		if _, err := top.ParseSort(in); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("ParseSort(%q) = %v, want invalid with a hint", in, err)
		}
	}
}

// A cell of a title sorts by its column, on any screen.
func TestSortAt(t *testing.T) {
	m := toptest.Machine(0)
	orders := map[string]top.Sort{"WORKLOAD": top.ByName, "MEMORY": top.ByMemory, "POWER": top.ByPower, "READ/s": top.ByDisk, "WRITE/s": top.ByDisk,
		"DISK/s": top.ByDisk, "RX/s": top.ByNetwork, "TX/s": top.ByNetwork, "NET/s": top.ByNetwork, "PIDS": top.ByPIDs,
		"P.CPU": top.ByPressure, "P.IO": top.ByPressure, "PRESS": top.ByPressure}
	for _, o := range []top.Options{{}, {Flat: true, Hidden: top.Columns(0).Toggle(top.ByPower)}} {
		table := top.Arrange(m, o)
		for width := 20; width < 200; width++ {
			titles := table.Titles(width, o).String()
			for title, want := range orders {
				before, _, ok := strings.Cut(titles, title)
				if !ok {
					continue
				}
				for i := range len(title) {
					if by, ok := table.SortAt(utf8.RuneCountInString(before)+i, width, o); by != want || !ok {
						t.Errorf("width %d: cell %d of %s sorts by %v, %v", width, i, title, by, ok)
					}
				}
			}
			if before, _, ok := strings.Cut(titles, "KIND"); ok {
				if by, ok := table.SortAt(utf8.RuneCountInString(before), width, o); ok {
					t.Errorf("width %d: KIND sorts by %v", width, by)
				}
			}
			if by, ok := table.SortAt(utf8.RuneCountInString(titles), width, o); ok && utf8.RuneCountInString(titles) > 30 {
				t.Errorf("width %d: behind the last title sorts by %v", width, by)
			}
		}
	}
}

func BenchmarkText(b *testing.B) {
	m := toptest.Machine(0)
	for len(m.Rows) < 5000 {
		r := m.Rows[len(m.Rows)%33]
		r.ID = workload.ID(fmt.Sprint(len(m.Rows)))
		m.Rows = append(m.Rows, r)
	}
	for b.Loop() {
		tbl := top.Arrange(m, top.Options{})
		tbl.Titles(120, top.Options{})
	}
}
