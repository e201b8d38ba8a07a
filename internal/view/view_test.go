package view_test

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

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/live"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/view"
	"mete.dev/mete/internal/view/viewtest"
	"mete.dev/mete/internal/workload"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares got with a file, whole.
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
	m := viewtest.Machine(3)
	folded := map[workload.ID]bool{m.Rows[0].ID: true}
	for _, c := range []struct {
		name  string
		width int
		opt   view.Options
	}{
		{"wide.txt", 0, view.Options{}},
		{"100.txt", 100, view.Options{Folded: folded}},
		{"80-flat-memory.txt", 80, view.Options{Flat: true, Sort: view.ByMemory}},
		{"60-ascii-filter.txt", 60, view.Options{ASCII: true, Filter: "ISTIO", Percent: true}},
		{"80-sums-name.txt", 80, view.Options{Sums: true, Sort: view.ByName, HideIdle: true}},
	} {
		golden(t, c.name, view.Text(m, c.width, c.opt))
	}
}

func TestDetails(t *testing.T) {
	m := viewtest.Machine(3)
	var b strings.Builder
	for _, l := range view.Details(m, &m.Rows[3], 100, view.Options{}) {
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	golden(t, "details.txt", b.String())
}

// The line of the machine's power says what it may be off and where it is from,
// whatever shows it, and a power that does not add up is named.
func TestPower(t *testing.T) {
	m := viewtest.Machine(3)
	if tbl := view.Arrange(m, view.Options{}); len(tbl.Differs) > 0 {
		t.Errorf("differs: %v, want nothing", tbl.Differs)
	}
	line := func(e *live.Energy) string {
		m.Energy = e
		return view.Header(m, 0, view.Options{ASCII: true})[3].String()
	}
	for _, c := range []struct {
		energy *live.Energy
		want   string
	}{
		{nil, "Power -  nothing shows it here"},
		{&live.Energy{Watts: 20, Error: 8, Idle: 12.5, Quality: meter.Modelled, Domains: []live.Domain{
			{Name: "rest", Watts: 20, Error: 8, Idle: 12.5, Quality: meter.Modelled, Source: "a generic curve"}}},
			"Power =20.0 W +-8.00 W  idle 12.5 W  modelled: a generic curve"},
		{&live.Energy{Watts: 110, Error: 1, Idle: 12.5, Quality: meter.Measured, Ratios: map[string]float64{"board": 0.8}, Domains: []live.Domain{
			{Name: "package", Watts: 80, Error: 0.5, Idle: 10, Quality: meter.Measured, Source: "rapl/package-0"},
			{Name: "rest", Watts: 30, Error: 0.5, Idle: 2.5, Quality: meter.Measured, Source: "rapl/psys less rapl/package-0"}}},
			"Power 110 W +-1.00 W  idle 12.5 W  package 80.0 W +-500 mW measured: rapl/package-0" +
				"  rest 30.0 W +-500 mW measured: rapl/psys less rapl/package-0  parts/board 80%"},
	} {
		if got := line(c.energy); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	m.Energy = &live.Energy{Watts: 1}
	if tbl := view.Arrange(m, view.Options{}); !slices.Contains(tbl.Differs, "power") {
		t.Errorf("differs: %v, want power", tbl.Differs)
	}
}

// machines draws any machine: also one that no sampler should make, with
// parents that come late, are missing, or are the row itself.
func machines(t *rapid.T) *live.Machine {
	m := &live.Machine{CPUs: 2, Host: hostile.Draw(t, "host"), Notes: rapid.SliceOfN(hostile, 0, 2).Draw(t, "notes")}
	n := rapid.IntRange(0, 25).Draw(t, "rows")
	id := rapid.Map(rapid.IntRange(-1, n), func(i int) workload.ID {
		if i < 0 {
			return ""
		}
		return workload.ID(fmt.Sprintf("w%d", i))
	})
	cores := rapid.Map(rapid.IntRange(0, 4096), func(i int) *float64 { v := float64(i) / 1024; return &v }) // adds exactly
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
		for _, p := range []**int64{&r.Memory, &r.PIDs} {
			if maybe() {
				*p = bytes.Draw(t, "level")
			}
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

var hostile = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x1b[2J\x1b[H", "a\nb\tc\r", "\u202eevil", "名前が長いワークロード", "👩‍👩‍👧‍👦👍🏽🇩🇪",
	"\u009b31m", "e\u0301\u0301\u0301\u0301\u0301\u0301", "\u0301", strings.Repeat("long", 100), "\xff\xfe", "x\u200b\ufe0f", "각ᄀ", "/a/b/"}))

func options(t *rapid.T, m *live.Machine) view.Options {
	o := view.Options{Flat: rapid.Bool().Draw(t, "flat"), Sort: view.Sort(rapid.IntRange(0, 7).Draw(t, "sort")),
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

// What is on the screen, with the line for what is not, is the machine, in a
// tree and in a list, however filtered and folded.
func TestArrangeLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := machines(t)
		o := options(t, m)
		o.Sums = false // subtrees overlap, and say so
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
			tbl := view.Arrange(m, o)
			gotCPU, gotMemory := tbl.Rest[view.CPU].Value, tbl.Rest[view.Memory].Value
			for _, r := range tbl.Rows {
				gotCPU += r.Figures[view.CPU].Value
				gotMemory += r.Figures[view.Memory].Value
			}
			if gotCPU != cpu || gotMemory != memory {
				t.Errorf("flat %v: rows and rest = %v cores, %v bytes, want %v, %v", o.Flat, gotCPU, gotMemory, cpu, memory)
			}
			if tbl.Total[view.CPU].Value != cpu || tbl.Total[view.Memory].Value != memory {
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

// No line is wider than the screen, and none brings a control character.
func TestLinesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := machines(t)
		o := options(t, m)
		width := rapid.IntRange(1, 200).Draw(t, "width")
		tbl := view.Arrange(m, o)
		lines := append(view.Header(m, width, o), view.Notes(m, width, o)...)
		lines = append(lines, tbl.Titles(width, o))
		lines = append(append(lines, tbl.Lines(width, o)...), tbl.Foot(width, o)...)
		for i := range m.Rows {
			lines = append(lines, view.Details(m, &m.Rows[i], width, o)...)
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
		m := viewtest.Machine(1)
		m.Rows[4].Name, m.Rows[6].Path, m.Rows[7].Name = name, name, ""
		width = max(1, width%300)
		o := view.Options{Filter: filter, Flat: flags&1 != 0, ASCII: flags&2 != 0, Sort: view.Sort(flags >> 2 & 7), HideIdle: flags&32 != 0}
		for line := range strings.Lines(view.Text(m, width, o)) {
			line = strings.TrimSuffix(line, "\n")
			if w := view.Width(line); w > width {
				t.Errorf("line of %d cells on a screen of %d: %q", w, width, line)
			}
			harmless(t, line, o.ASCII)
		}
	})
}

func labels(tbl *view.Table) (out []string) {
	for i := range tbl.Rows {
		out = append(out, view.Label(tbl.Rows[i].Row))
	}
	return out
}

func TestFilterKeepsTheWayAndTheSubtree(t *testing.T) {
	m := viewtest.Machine(0)
	got := labels(view.Arrange(m, view.Options{Filter: "postgres-0"}))
	want := []string{"kubepods.slice", "guaranteed", "db/postgres-0", "postgres"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	got = labels(view.Arrange(m, view.Options{Filter: "POSTGRES-0", Flat: true, Sort: view.ByName}))
	if diff := cmp.Diff([]string{"db/postgres-0", "postgres"}, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if tbl := view.Arrange(m, view.Options{Filter: "no such thing"}); len(tbl.Rows) != 0 || tbl.RestCount != len(m.Rows) {
		t.Errorf("filter of nothing shows %d rows and hides %d, want 0 and %d", len(tbl.Rows), tbl.RestCount, len(m.Rows))
	}
}

// What is called by its path is called by the rest of it below another.
func TestPathsAreShortInTheTree(t *testing.T) {
	m := &live.Machine{}
	for _, p := range []string{"/a", "/a/b/c", "/a/b/c/d", "/ab"} {
		m.Rows = append(m.Rows, live.Row{ID: workload.ID(p), Kind: workload.Path, Name: p, Path: p})
	}
	m.Rows[1].Parent, m.Rows[2].Parent, m.Rows[3].Parent = "/a", "/a/b/c", "/a"
	for flat, want := range map[bool][]string{false: {"/a", "/ab", "b/c", "d"}, true: {"/a", "/a/b/c", "/a/b/c/d", "/ab"}} {
		var got []string
		for _, r := range view.Arrange(m, view.Options{Flat: flat, Sort: view.ByName}).Rows {
			got = append(got, r.Label)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("flat %v (-want +got):\n%s", flat, diff)
		}
	}
}

func TestSort(t *testing.T) {
	m := viewtest.Machine(0)
	value := map[view.Sort]func(*live.Row) float64{
		view.ByCPU:    func(r *live.Row) float64 { return *r.CPU },
		view.ByMemory: func(r *live.Row) float64 { return float64(*r.Memory) },
		view.ByPIDs:   func(r *live.Row) float64 { return float64(*r.PIDs) },
		view.ByPower:  func(r *live.Row) float64 { return *r.Power },
		view.ByDisk:   func(r *live.Row) float64 { return *r.DiskRead + *r.DiskWritten },
	}
	for by, of := range value {
		for _, reverse := range []bool{false, true} {
			tbl := view.Arrange(m, view.Options{Flat: true, Sort: by, Reverse: reverse})
			n := len(tbl.Rows)
			if a, b := tbl.Rows[n-2].Row.Kind, tbl.Rows[n-1].Row.Kind; a != workload.System || b != workload.Idle {
				t.Errorf("by %v, reverse %v: last are %v, %v, want system, idle", by, reverse, a, b)
			}
			if !slices.IsSortedFunc(tbl.Rows[:n-2], func(a, b view.Row) int {
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

// The order of rows that are equal does not change from tick to tick.
func TestSortIsStable(t *testing.T) {
	m := viewtest.Machine(0)
	want := labels(view.Arrange(m, view.Options{Sort: view.ByDisk}))
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		c := *m
		c.Rows = slices.Clone(m.Rows)
		// Containers of one pod change places.
		i := 3 + 3*rng.IntN(4)
		c.Rows[i], c.Rows[i+1] = c.Rows[i+1], c.Rows[i]
		if diff := cmp.Diff(want, labels(view.Arrange(&c, view.Options{Sort: view.ByDisk}))); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

func TestQualityMarks(t *testing.T) {
	one := 1.5
	m := &live.Machine{CPU: live.CPU{Whole: 4.5}}
	for i, q := range []meter.Quality{meter.Measured, meter.Apportioned, meter.Modelled} {
		m.Rows = append(m.Rows, live.Row{ID: workload.ID(rune('a' + i)), Name: q.String(), CPU: &one,
			Quality: map[string]meter.Quality{"cpu": q}})
	}
	m.Rows = append(m.Rows, live.Row{ID: "z", Name: "absent", Quality: map[string]meter.Quality{}})
	tbl := view.Arrange(m, view.Options{Sort: view.ByName})
	var got []string
	for i := range tbl.Rows {
		got = append(got, strings.Join(strings.Fields(tbl.Line(&tbl.Rows[i], 32, view.Options{}).String()), " "))
	}
	want := []string{"absent – –", "apportioned ~1.500 –", "measured 1.500 –", "modelled ≈1.500 –"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(tbl.Differs) != 0 {
		t.Errorf("Differs = %v, want none", tbl.Differs)
	}
	m.CPU.Whole = 4.6
	if got := view.Arrange(m, view.Options{}).Differs; !slices.Equal(got, []string{"cpu"}) {
		t.Errorf("Differs = %v, want [cpu]", got)
	}
}

func TestNotesTellOfBrokenBooks(t *testing.T) {
	m := &live.Machine{Balance: meter.Balance{Violations: 2, Lost: 1}, Notes: []string{"x\x1b"}}
	var got []string
	for _, l := range view.Notes(m, 24, view.Options{}) {
		got = append(got, l.String())
	}
	want := []string{"defect: 2 sums of parts…", "lost: 1 births or ends …", "note: x\uFFFD"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseSort(t *testing.T) {
	for in, want := range map[string]view.Sort{"cpu": view.ByCPU, "mem": view.ByMemory, "Net": view.ByNetwork, "name": view.ByName, "pids": view.ByPIDs, "po": view.ByPower} {
		if got, err := view.ParseSort(in); got != want || err != nil {
			t.Errorf("ParseSort(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "energy"} {
		if _, err := view.ParseSort(in); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("ParseSort(%q) = %v, want invalid with a hint", in, err)
		}
	}
}

func BenchmarkText(b *testing.B) {
	m := viewtest.Machine(0)
	for len(m.Rows) < 5000 {
		r := m.Rows[len(m.Rows)%33]
		r.ID = workload.ID(fmt.Sprint(len(m.Rows)))
		m.Rows = append(m.Rows, r)
	}
	for b.Loop() {
		tbl := view.Arrange(m, view.Options{})
		tbl.Titles(120, view.Options{})
	}
}
