package v1_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/ui/table"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	utc    = table.Style{Zone: time.UTC}
	sums   = cmp.AllowUnexported(unit.Sum{})
	length = time.Hour
)

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func sum(vs ...int64) (s unit.Sum) {
	for _, v := range vs {
		s = s.Add(v)
	}
	return s
}

func put(t *query.Total, r usage.Resource, q usage.Quality, vs ...int64) {
	t.Present |= 1 << r
	t.Quality.Set(r, q)
	t.Sum[r] = sum(vs...)
}

// used is a total with CPU seconds and a level of memory over an hour.
func used(cpu float64, memory int64) (t query.Total) {
	put(&t, usage.CPU, usage.Measured, int64(cpu*1e9))
	put(&t, usage.Memory, usage.Measured, memory*3600)
	t.Covered = unit.Sum{}.Add(int64(length))
	return t
}

// hour is what two CPUs and 8 GiB did in an hour.
func hour() *query.Answer {
	group := func(name string, t query.Total) query.Group {
		return query.Group{Keys: []string{name}, Nodes: 1, First: noon.Add(-length), Last: noon, Usage: t}
	}
	a := &query.Answer{From: noon.Add(-length), To: noon, AveragedOver: length, By: []query.Dimension{query.ByJob}, Gaps: 2}
	build := used(1800.5, 2<<30)
	put(&build, usage.MemoryPeak, usage.Measured, 3<<30)
	put(&build, usage.MemoryAnon, usage.Apportioned, 1<<30*3600)
	put(&build, usage.DiskRead, usage.Measured, 1536<<20)
	put(&build, usage.DiskWritten, usage.Measured, 1<<53+1)
	put(&build, usage.NetworkRx, usage.Apportioned, 12_345_678)
	put(&build, usage.NetworkTx, usage.Modelled, 0)
	put(&build, usage.Processes, usage.Measured, 1_234_567)
	put(&build, usage.OOMKills, usage.Measured, 1)
	put(&build, usage.PIDs, usage.Measured, 7200)
	put(&build, usage.EnergyPackage, usage.Apportioned, 7_200_000e6)
	put(&build, usage.EnergyRest, usage.Modelled, 36_000e6)
	put(&build, usage.EnergyError, usage.Modelled, 723_600e6)
	idle := used(5000, 4<<30)
	put(&idle, usage.EnergyPackage, usage.Apportioned, 3_600e6)
	put(&idle, usage.EnergyRest, usage.Modelled, 1_400e6)
	put(&idle, usage.EnergyError, usage.Modelled, 500e6)
	evil := used(99.5, 1<<30)
	a.Groups = []query.Group{group("idle", idle), group("build", build), group("system", used(300, 1<<30)),
		group("evil\x1b[2J\n\u202etxt", evil), group("", query.Total{})}
	put(&a.Capacity, usage.CPU, usage.Measured, 7200e9)
	put(&a.Capacity, usage.Memory, usage.Measured, 8<<30*3600)
	put(&a.Capacity, usage.EnergyPackage, usage.Measured, 7_203_600e6)
	put(&a.Capacity, usage.EnergyRest, usage.Modelled, 37_400e6)
	return a
}

func nodes() v1.List[v1.Node] {
	return v1.ListOf([]query.Node{
		{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y5Z", Name: "web-1", Cluster: "lab", MachineID: "m1", Boot: "b1", CPUs: 8, Enrolled: noon.Add(-48 * time.Hour),
			Through: noon, Streams: 2, State: "live"},
		{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y60", Name: "we\x1bb", Cluster: "", State: "silent"},
		{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y61", Name: "web-2", State: "revoked", Revoked: noon.Add(time.Hour), Source: "01K5X3V7QZ8R9S0T1V2W3X4Y62"},
		{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y64", Name: "guest", State: "live", Nested: &query.Nesting{Host: "01K5X3V7QZ8R9S0T1V2W3X4Y5Z", HostName: "we\x1bb-1",
			Workload: workload.NewID("web-1", workload.VM, "k"), Name: "vm\u202e7", Since: noon.Add(-length), Seen: noon}},
		{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y65", Name: "told above", State: "live", Nested: &query.Nesting{Host: "H"}},
	}, v1.NodeOf)
}

func vms() v1.List[v1.VM] {
	full := query.VM{Guest: "00112233-4455-6677-8899-aabbccddeeff", Name: "v\x1bm", Host: "H", HostName: "metal", Workload: workload.NewID("H", workload.VM, "k"), Node: "G", NodeName: "guest",
		Compared: 8640, Differing: 2, Largest: 1_500_000, N: 1<<53 + 1, Last: noon}
	put(&full.Usage, usage.EnergyRest, usage.Apportioned, 7_200_000e6)
	put(&full.Usage, usage.EnergyIdle, usage.Apportioned, 1_800_000e6)
	put(&full.Usage, usage.EnergyError, usage.Apportioned, 360_000e6)
	plain := query.VM{Guest: "00112233-4455-6677-8899-aabbccddeef0", Host: "H", HostName: "metal"}
	put(&plain.Usage, usage.EnergyRest, usage.Modelled, 500)
	return v1.ListOf([]query.VM{full, plain, {Guest: "00112233-4455-6677-8899-aabbccddeef1", Name: "silent", Host: "H", HostName: "metal"}}, v1.VMOf)
}

func sources() v1.List[v1.Source] {
	return v1.ListOf([]query.Source{
		{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y62", Name: "co\x1bre", Cluster: "lab", Nodes: 3, Pages: 17, Epoch: "EPOCH", Enrolled: noon.Add(-48 * time.Hour),
			Seen: noon, Through: noon.Add(-90 * time.Second), State: "live"},
		{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y63", State: "revoked", Revoked: noon},
	}, v1.SourceOf)
}

func gaps() v1.List[v1.Gap] {
	var list []query.Gap
	for r := usage.UnknownReason; r <= usage.Refused; r++ {
		from := noon.Add(time.Duration(r) * time.Minute)
		list = append(list, query.Gap{Node: "N" + r.String(), Name: "web-1", Booked: noon.Add(time.Hour),
			Gap: usage.Gap{From: from, To: from.Add(1500 * time.Millisecond), Reason: r}})
	}
	list[1].Detail, list[2].Name = "kernel\x07 panic", ""
	for i, by := range []time.Duration{2*time.Hour + 3*time.Minute + 4*time.Nanosecond, -40 * 365 * 24 * time.Hour} {
		at := noon.Add(time.Duration(i+30) * time.Minute)
		list = append(list, query.Gap{Node: "Nshifted", Name: "web-1", Booked: noon.Add(time.Hour), Shift: by, Gap: usage.Gap{From: at, To: at}})
	}
	return v1.ListOf(list, v1.GapOf)
}

func workloads() v1.List[v1.Workload] {
	exit := 137
	w := query.Workload{Node: "N1", Cluster: "lab", First: noon.Add(-length), Last: noon}
	w.ID, w.Kind, w.Name.Name, w.Key, w.Path = workload.NewID("N1", workload.Job, "k"), workload.Job, "make\r", "k", "/mete-run-k"
	w.Started, w.Ended, w.Job, w.User, w.Labels, w.Exit = noon.Add(-length), noon, "build", "ann", map[string]string{"b": "2", "a": "<1>"}, &exit
	v := query.Workload{Node: "N1"}
	v.ID, v.Kind, v.Path = workload.NewID("N1", workload.Path, "/x"), workload.Path, "/x"
	return v1.ListOf([]query.Workload{w, v}, v1.WorkloadOf)
}

func tokens() v1.List[v1.Token] {
	return v1.ListOf([]registry.Token{
		{ID: "abcd2345", Role: registry.Agent, Cluster: "lab", Uses: 3, Created: noon, Expires: noon.Add(length)},
		{ID: "abcd2346", Role: registry.Agent, Uses: 0, Created: noon},
		{ID: "abcd2347", Role: registry.Viewer, Uses: -1, Created: noon},
		{ID: "abcd2348", Role: registry.Viewer, Uses: -1, Created: noon.Add(-length), Expires: noon},
		{ID: "abcd2349", Role: registry.Upstream, Uses: -1, Created: noon, Revoked: noon},
	}, func(t *registry.Token) v1.Token { return v1.TokenOf(t, noon) })
}

func TestForms(t *testing.T) {
	a := hour()
	golden(t, "usage.txt", []byte(table.Text(v1.UsageOf(a, nil), utc)))
	golden(t, "usage.json", v1.JSON(v1.UsageOf(a, nil)))
	golden(t, "usage.csv", v1.CSV(v1.UsageOf(a, nil)))
	golden(t, "nodes.txt", []byte(table.NodesText(nodes().Items, utc)))
	golden(t, "nodes.json", v1.JSON(nodes()))
	golden(t, "nodes.csv", v1.CSV(nodes()))
	golden(t, "sources.txt", []byte(table.SourcesText(sources().Items, noon, utc)))
	golden(t, "sources.json", v1.JSON(sources()))
	golden(t, "sources.csv", v1.CSV(sources()))
	golden(t, "gaps.txt", []byte(table.GapsText(gaps().Items, utc)))
	golden(t, "gaps.json", v1.JSON(gaps()))
	golden(t, "gaps.csv", v1.CSV(gaps()))
	golden(t, "vms.txt", []byte(table.VMsText(vms().Items, utc)))
	golden(t, "vms.json", v1.JSON(vms()))
	golden(t, "vms.csv", v1.CSV(vms()))
	golden(t, "workloads.txt", []byte(table.WorkloadsText(workloads().Items, utc)))
	golden(t, "workloads.json", v1.JSON(workloads()))
	golden(t, "workloads.csv", v1.CSV(workloads()))
	golden(t, "tokens.txt", []byte(table.TokensText(tokens().Items, utc)))
	golden(t, "tokens.json", v1.JSON(tokens()))
	golden(t, "tokens.csv", v1.CSV(tokens()))
}

// The table says where idle is, what is left out, what differs from the whole.
func TestTextVariants(t *testing.T) {
	a := hour()
	v1.LimitGroups(a, 2)
	a.Capacity.Sum[usage.CPU] = sum(1)
	a.AveragedOver = 10 * time.Minute
	a.To = a.From.Add(50 * time.Hour)
	golden(t, "limited.txt", []byte(table.Text(v1.UsageOf(a, nil), table.Style{Zone: time.UTC, ASCII: true})))

	b := hour()
	b.By, b.Gaps, b.Capacity = []query.Dimension{query.ByNode}, 0, query.Total{}
	golden(t, "bynode.txt", []byte(table.Text(v1.UsageOf(b, nil), utc)))

	c := hour()
	c.Idle = power.Used.String()
	for i := range c.Groups {
		g := &c.Groups[i].Usage
		for _, r := range usage.Energies {
			if c.Groups[i].Keys[0] == "idle" {
				g.Sum[r] = unit.Sum{}
			}
		}
		g.Sum[usage.EnergyError] = sum(1)
		g.IdleQuality = usage.Modelled
	}
	c.Groups[1].Usage.Idle, c.Groups[1].Usage.IdleError = sum(4_000e6), sum(400e6)
	c.Groups[3].Usage.Idle, c.Groups[3].Usage.IdleError = sum(1_000e6), sum(100e6)
	put(&c.Groups[3].Usage, usage.EnergyPackage, usage.Measured, 0)
	golden(t, "divided.json", v1.JSON(v1.UsageOf(c, nil)))
	golden(t, "divided.csv", v1.CSV(v1.UsageOf(c, nil)))
	for i := range c.Groups { // a table shows errors that are known alone
		put(&c.Groups[i].Usage, usage.EnergyError, usage.Modelled, 1)
	}
	golden(t, "divided.txt", []byte(table.Text(v1.UsageOf(c, nil), utc)))

	d := hour()
	d.By, d.Nested, d.NestedNodes, d.NestedOmitted = []query.Dimension{query.ByNode}, query.NestedAlso, 2, 3
	d.NestedGroups = slices.Clone(d.Groups[1:4])
	golden(t, "nested.txt", []byte(table.Text(v1.UsageOf(d, nil), utc)))
	golden(t, "nested.json", v1.JSON(v1.UsageOf(d, nil)))
	golden(t, "nested.csv", v1.CSV(v1.UsageOf(d, nil)))
	e := hour()
	e.Nested, e.NestedNodes = query.NestedOnly, 1
	left := hour()
	left.NestedNodes = 1
	none := &query.Answer{From: noon.Add(-length), To: noon, By: e.By, Nested: query.NestedOnly}
	golden(t, "guests.txt", []byte(table.Text(v1.UsageOf(e, nil), table.Style{Zone: time.UTC, ASCII: true})+"\n"+table.Text(v1.UsageOf(left, nil), utc)+"\n"+table.Text(v1.UsageOf(none, nil), utc)))

	golden(t, "empty.txt", []byte(table.Text(v1.UsageOf(&query.Answer{From: noon.Add(-24 * time.Hour), To: noon, By: b.By}, nil), utc)))
	for _, text := range []string{table.NodesText(nil, utc), table.SourcesText(nil, noon, utc), table.GapsText(nil, utc), table.VMsText(nil, utc), table.WorkloadsText(nil, utc), table.TokensText(nil, utc)} {
		if strings.Count(text, "\n") != 1 {
			t.Errorf("an empty list is %q, want one line that says so", text)
		}
	}
}

// Keys that mean the same as in a report are the same.
func TestKeysAreThoseOfReports(t *testing.T) {
	var theirs map[string]any
	if err := json.Unmarshal(new(report.Report).JSON(), &theirs); err != nil {
		t.Fatal(err)
	}
	var ours struct{ Groups []map[string]any }
	if err := json.Unmarshal(v1.JSON(v1.UsageOf(hour(), nil)), &ours); err != nil {
		t.Fatal(err)
	}
	only := []string{"machine_cpu_seconds", "machine_share", "memory_anon_peak_bytes", "memory_file_peak_bytes"}
	for k := range theirs["quality"].(map[string]any) {
		if _, ok := ours.Groups[0][k]; !ok && !slices.Contains(only, k) {
			t.Errorf("a group has no %s", k)
		}
	}
	row := ours.Groups[1]
	for k, want := range map[string]any{
		"job": "build", "wall_seconds": 3600.0, "cpu_seconds": 1800.5, "memory_average_bytes": float64(2 << 30),
		"memory_byte_seconds": float64(2 << 30 * 3600), "disk_written_bytes": "9007199254740993", "cpu_user_seconds": nil,
		"covered_seconds": 3600.0, "pids_seconds": 7200.0, "oom_kills": 1.0,
	} {
		if row[k] != want {
			t.Errorf("%s = %v, want %v", k, row[k], want)
		}
	}
	quality := row["quality"].(map[string]any)
	if quality["memory_anon_average_bytes"] != "apportioned" || quality["cpu_user_seconds"] != "absent" {
		t.Errorf("quality = %v", quality)
	}
}

// draw makes any answer there can be.
func draw(t *rapid.T) *query.Answer {
	stamp := rapid.Int64Range(0, 1<<33)
	at := func(s int64) time.Time { return time.Unix(s, 0).UTC() }
	total := func() (u query.Total) {
		for r := usage.Resource(1); r < usage.Limit; r++ {
			if q := usage.Quality(rapid.IntRange(0, 3).Draw(t, "quality")); q != usage.Absent {
				put(&u, r, q, rapid.SliceOfN(rapid.Int64Min(0), 1, 3).Draw(t, "amount")...)
			}
		}
		if _, q := u.Energy(); q != usage.Absent && rapid.Bool().Draw(t, "divided") {
			u.Idle, u.IdleError, u.IdleQuality = sum(rapid.Int64Min(0).Draw(t, "idle")), sum(rapid.Int64Min(0).Draw(t, "off")), q
		}
		if u.Present != 0 {
			u.Covered = sum(rapid.Int64Min(0).Draw(t, "covered"))
		}
		return u
	}
	a := &query.Answer{From: at(stamp.Draw(t, "from")), Gaps: rapid.IntRange(0, 9).Draw(t, "gaps")}
	a.Idle = rapid.SampledFrom([]string{"", "equal", "used"}).Draw(t, "policy")
	a.AveragedOver = time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "over"))
	a.To = a.From.Add(a.AveragedOver)
	a.By = rapid.SampledFrom([][]query.Dimension{{"job"}, {"node", "kind"}, {"label:job"}, {"label:<&\"", "user"}}).Draw(t, "by")
	a.Nested = rapid.SampledFrom([]string{"", "only", "also"}).Draw(t, "nested")
	a.NestedNodes, a.NestedOmitted = rapid.IntRange(0, 2).Draw(t, "guests"), rapid.IntRange(0, 2).Draw(t, "more")
	group := func() query.Group {
		g := query.Group{Nodes: rapid.IntRange(0, 9).Draw(t, "nodes"), First: at(stamp.Draw(t, "first")), Last: at(stamp.Draw(t, "last")), Usage: total()}
		for range a.By {
			g.Keys = append(g.Keys, rapid.String().Draw(t, "key"))
		}
		return g
	}
	for range rapid.IntRange(0, 4).Draw(t, "groups") {
		a.Groups = append(a.Groups, group())
	}
	for range rapid.IntRange(0, 2).Draw(t, "groups of guests") {
		a.NestedGroups = append(a.NestedGroups, group())
	}
	if rapid.Bool().Draw(t, "rest") {
		a.Other, a.OtherGroups, a.Capacity = total(), 7, total()
	}
	return a
}

// TestRoundTrip checks that JSON preserves every amount exactly, and that the table contains
// no control characters.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := draw(t)
		want := v1.UsageOf(drawn, nil)
		body := v1.JSON(want)
		var got v1.Usage
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(*want, got, cmpopts.IgnoreUnexported(v1.Usage{}, v1.Group{}, v1.Figures{}), cmpopts.EquateEmpty(), sums); d != "" || got.Over() != want.Over() {
			t.Fatalf("-want +got:\n%s", d)
		}
		same := func(total *query.Total, f *v1.Figures) {
			for _, k := range v1.ListFigures() {
				if r := k.Resource; r != 0 && (f.Get(k.Key) != v1.Amount{Value: total.Sum[r], Quality: total.Quality.Get(r)}) {
					t.Fatalf("%s is %v, want %v", k.Key, f.Get(k.Key), total.Sum[r])
				}
			}
			if idle, off := f.Get("energy_idle_joules"), f.Get("energy_idle_error_joules"); idle.Quality != total.IdleQuality || idle.Value != total.Idle || off.Value != total.IdleError {
				t.Fatalf("idle energy is %v with error %v, want %v with %v", idle, off, total.Idle, total.IdleError)
			}
		}
		for i := range drawn.Groups {
			same(&drawn.Groups[i].Usage, &got.Groups[i].Figures)
		}
		for i := range drawn.NestedGroups {
			same(&drawn.NestedGroups[i].Usage, &got.NestedGroups[i].Figures)
		}
		same(&drawn.Other, got.Rest)
		same(&drawn.Capacity, got.Whole)
		if again := v1.JSON(&got); !bytes.Equal(again, body) {
			t.Fatalf("written again it differs:\n%s", cmp.Diff(string(body), string(again)))
		}
		for _, c := range table.Text(&got, utc) {
			if c < ' ' && c != '\n' || c == 0x7f || c == '\u202e' {
				t.Fatalf("text holds %q", c)
			}
		}
		rows, err := csv.NewReader(bytes.NewReader(v1.CSV(&got))).ReadAll()
		if want := len(got.Groups) + 1 + min(got.RestGroups, 1) + len(got.NestedGroups); err != nil || len(rows) != want {
			t.Fatalf("CSV has %d rows, %v, want %d", len(rows), err, want)
		}
	})
}

// same checks that a list is read as it was written, in JSON and in CSV of what was read.
func same[T v1.Element](t *testing.T, want v1.List[T]) {
	t.Helper()
	want.Next = "on"
	var got v1.List[T]
	if err := json.Unmarshal(v1.JSON(want), &got); err != nil {
		t.Errorf("%s: %v", want.ListKey(), err)
	}
	if d := cmp.Diff(want, got); d != "" || !bytes.Equal(v1.CSV(want), v1.CSV(got)) {
		t.Errorf("%s (-want +got): %s", want.ListKey(), d)
	}
}

func TestListsRoundTrip(t *testing.T) {
	same(t, nodes())
	same(t, sources())
	same(t, gaps())
	same(t, vms())
	same(t, workloads())
	same(t, tokens())
	for _, body := range []string{"", "[]", "{}", `{"nodes":1}`} {
		var l v1.List[v1.Node]
		if err := l.UnmarshalJSON([]byte(body)); err == nil {
			t.Errorf("%q is a list of nodes", body)
		}
	}
}

// However many groups are shown, the sum is the same.
func TestLimitKeepsTheSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := draw(t)
		a.Other, a.OtherGroups = query.Total{}, 0
		before, groups := v1.Sum(a), len(a.Groups)
		n := rapid.IntRange(1, 5).Draw(t, "limit")
		v1.LimitGroups(a, n)
		if d := cmp.Diff(before, v1.Sum(a), sums); d != "" {
			t.Fatalf("-want +got:\n%s", d)
		}
		if len(a.Groups)+a.OtherGroups != groups {
			t.Fatalf("%d groups and %d in the rest, of %d", len(a.Groups), a.OtherGroups, groups)
		}
	})
}

// TestLimitOfMachines checks that the idle use of machines without a listed job is one group
// without a node name.
func TestLimitOfMachines(t *testing.T) {
	a := &query.Answer{By: []query.Dimension{query.ByJob, query.ByNode}}
	for i := range 40 {
		node := fmt.Sprint("n", i)
		for k, name := range []string{"job" + node, "idle", "system"} {
			g := query.Group{Keys: []string{name, node}, Nodes: 1, First: noon.Add(time.Duration(-i) * time.Hour), Last: noon.Add(time.Duration(i) * time.Hour)}
			put(&g.Usage, usage.CPU, usage.Measured, int64(100*i+k))
			a.Groups = append(a.Groups, g)
		}
	}
	before := v1.Sum(a)
	v1.LimitGroups(a, 2)
	if d := cmp.Diff(before, v1.Sum(a), sums); d != "" {
		t.Fatalf("-want +got:\n%s", d)
	}
	var got []string
	for _, g := range a.Groups {
		got = append(got, fmt.Sprintf("%s %s %d %v", g.Keys[0], g.Keys[1], g.Nodes, g.Usage.Sum[usage.CPU]))
	}
	want := []string{"jobn0 n0 1 0", "idle n0 1 1", "system n0 1 2", "jobn1 n1 1 100", "idle n1 1 101", "system n1 1 102", "idle  38 77938", "system  38 77976"}
	if d := cmp.Diff(want, got); d != "" || a.OtherGroups != 38 {
		t.Errorf("%d in the rest, -want +got:\n%s", a.OtherGroups, d)
	}
	if g := a.Groups[6]; !g.First.Equal(noon.Add(-39*time.Hour)) || !g.Last.Equal(noon.Add(39*time.Hour)) {
		t.Errorf("idle from %v to %v", g.First, g.Last)
	}
}

func TestPeaksDoNotAdd(t *testing.T) {
	var a, b query.Total
	put(&a, usage.MemoryPeak, usage.Measured, 5)
	put(&b, usage.MemoryPeak, usage.Apportioned, 3)
	a.Add(&b)
	if a.Sum[usage.MemoryPeak] != sum(5) || a.Quality.Get(usage.MemoryPeak) != usage.Apportioned {
		t.Errorf("peak of 5 and 3 is %v, %v", a.Sum[usage.MemoryPeak], a.Quality.Get(usage.MemoryPeak))
	}
}

// Averages are over the time that can have figures.
func TestNarrow(t *testing.T) {
	day := func() *query.Answer { return &query.Answer{From: noon.Add(-24 * time.Hour), To: noon} }
	at := func(d time.Duration) time.Time { return noon.Add(-d) }
	for _, c := range []struct {
		name            string
		enrolled, until time.Time
		first, last     time.Time
		want            time.Duration
	}{
		{"old", at(48 * time.Hour), noon, time.Time{}, time.Time{}, 24 * time.Hour},
		{"new", at(10 * time.Minute), at(time.Minute), time.Time{}, time.Time{}, 9 * time.Minute},
		{"new, with groups", at(10*time.Minute - time.Second), at(2*time.Minute + time.Second), at(10 * time.Minute), at(2 * time.Minute), 8*time.Minute - 2*time.Second},
		{"booked by a node that is gone", at(10 * time.Minute), at(9 * time.Minute), at(10 * time.Minute), at(time.Minute), 9 * time.Minute},
		{"booked before it enrolled", at(10 * time.Minute), noon, at(time.Hour), at(time.Minute), time.Hour},
		{"nothing booked", at(10 * time.Minute), time.Time{}, time.Time{}, time.Time{}, 24 * time.Hour},
		{"no nodes", time.Time{}, time.Time{}, time.Time{}, time.Time{}, 24 * time.Hour},
	} {
		a := day()
		if !c.first.IsZero() {
			a.Groups = []query.Group{{First: c.first, Last: c.last}}
		}
		v1.SetAveragedOver(a, []query.Node{{Enrolled: c.enrolled, Through: c.until}, {Enrolled: c.enrolled}})
		if a.AveragedOver != c.want {
			t.Errorf("%s: averages over %v, want %v", c.name, a.AveragedOver, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := string(v1.JSON(v1.UsageOf(hour(), nil)))
	for name, body := range map[string]string{
		"empty":     "",
		"list":      "[]",
		"other":     "{}",
		"newer":     strings.Replace(good, `"format":1`, `"format":2`, 1),
		"no by":     strings.Replace(good, `"by":["job"]`, `"by":[]`, 1),
		"other by":  strings.Replace(good, `"by":["job"]`, `"by":["pod"]`, 1),
		"no number": strings.Replace(good, `"cpu_seconds":5000`, `"cpu_seconds":"many"`, 1),
		"negative":  strings.Replace(good, `"cpu_seconds":5000`, `"cpu_seconds":-5000`, 1),
		"quality":   strings.Replace(good, `"measured"`, `"guessed"`, 1),
	} {
		var u v1.Usage
		if err := u.UnmarshalJSON([]byte(body)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"format":1,"from":"2026-03-01T11:00:00Z","to":"2026-03-01T12:00:00Z","averages_over_seconds":3600,"by":["job"],"gaps":1,"groups":[
{"job":"a","nodes":1,"cpu_seconds":1.5,"memory_byte_seconds":"9007199254740993","quality":{"cpu_seconds":"measured","memory_byte_seconds":"modelled"}}],
"rest_groups":1,"rest":{"cpu_seconds":2,"quality":{"cpu_seconds":"apportioned"}},"whole":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var a v1.Usage
		if err := json.Unmarshal(body, &a); err != nil {
			return
		}
		table.Text(&a, utc)
		v1.CSV(&a)
		if err := new(v1.Usage).UnmarshalJSON(v1.JSON(&a)); err != nil {
			t.Fatalf("%v\n%s", err, v1.JSON(&a))
		}
	})
}

// TestTextWithoutValues checks that a table by a dimension that no workload has says so in place of rows.
func TestTextWithoutValues(t *testing.T) {
	group := func(keys ...string) v1.Group { return v1.Group{Keys: keys} }
	const none = "no workload in this range has a "
	for _, c := range []struct {
		by     []query.Dimension
		groups []v1.Group
		want   string // "" is a table
	}{
		{[]query.Dimension{query.ByNamespace}, []v1.Group{group(""), group("system"), group("idle")}, none + "namespace:"},
		{[]query.Dimension{query.ByLabel + "team"}, []v1.Group{group("")}, none + "label team:"},
		{[]query.Dimension{query.ByNamespace}, []v1.Group{group(""), group("shop"), group("idle")}, ""},
		{[]query.Dimension{query.ByNamespace}, []v1.Group{group("system"), group("idle")}, ""},
		{[]query.Dimension{query.ByNode}, []v1.Group{group("")}, ""},
		{[]query.Dimension{query.ByUser, query.ByNamespace}, []v1.Group{group("", "")}, ""},
	} {
		got := table.Text(&v1.Usage{By: c.by, Groups: c.groups, AveragedOver: "60"}, utc)
		if c.want == "" && (strings.Contains(got, none) || !strings.Contains(got, "CPU TIME")) || !strings.Contains(got, c.want) || c.want != "" && strings.Contains(got, "CPU TIME") {
			t.Errorf("by %v, groups %v:\n%s", c.by, c.groups, got)
		}
	}
}
