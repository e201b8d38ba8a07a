package ledger_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// onBoth runs a test on both databases.
func onBoth(t *testing.T, f func(t *testing.T, dsn string)) {
	t.Run("SQLite", func(t *testing.T) { f(t, ledgertest.SQLite(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { f(t, ledgertest.PostgreSQL(t)) })
}

var dayMinute = ledgertest.Day.Unix() / 60

// machineEntry returns an entry of a node's minutes: 20 s of CPU of one service, 10 s of the
// system, 30 s idle, and 10 J, 5 J and 15 J of energy.
func machineEntry(node string, number uint64, q usage.Quality, minutes ...int64) *batch.Entry {
	e := &batch.Entry{Node: node, Stream: batch.Stream{node[0]}, Number: number, Boot: "b", Sent: fmt.Appendf(nil, "%s %d", node, number)}
	e.Hash = batch.HashOf(e.Sent)
	if number > 1 {
		e.Previous = batch.HashOf(fmt.Appendf(nil, "%s %d", node, number-1))
	}
	for _, m := range minutes {
		n := batch.NodeMinute{Minute: m, Covered: time.Minute, CPUs: 1}
		for i, r := range usage.Wholes {
			switch r {
			case usage.CPU:
				n.Whole[i] = 60e9
			case usage.EnergyPackage:
				n.Whole[i] = 30e6
			}
		}
		e.Nodes = append(e.Nodes, n)
		for i, k := range []workload.Kind{workload.Service, workload.System, workload.Idle} {
			id := workload.NewID(node, k, "")
			short, _ := workload.ShortIDOf(id)
			if m == minutes[0] {
				e.Names = append(e.Names, batch.Name{ID: id, Kind: k, Name: k.String()})
			}
			u := usage.Usage{Covered: time.Minute}
			u.Put(usage.CPU, []int64{20e9, 10e9, 30e9}[i], usage.Measured)
			u.Put(usage.EnergyPackage, []int64{10e6, 5e6, 15e6}[i], q)
			u.Put(usage.EnergyError, []int64{1e6, 5e5, 15e5}[i], q)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: m, Usage: u})
		}
		e.Through = time.Unix(60*(m+1), 0).UTC()
	}
	return e
}

func bookAll(t *testing.T, l *ledger.Ledger, es ...*batch.Entry) {
	t.Helper()
	results, err := l.Book(t.Context(), es)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil || r.Verdict != batch.Accepted {
			t.Fatalf("%v, %v", r.Verdict, r.Err)
		}
	}
}

// register registers meters and checks the next minute of the first.
func register(t *testing.T, l *ledger.Ledger, next int64, names ...string) {
	t.Helper()
	var ms []external.Meter
	for _, n := range names {
		ms = append(ms, external.Meter{Name: n, Kind: power.Energy, Wait: 26 * time.Hour})
	}
	kept, err := l.ExternalMeters(t.Context(), ms, time.Unix(60*(next-1), 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if kept[n].Next != next {
			t.Fatalf("meter %s is at minute %d, want %d", n, kept[n].Next, next)
		}
	}
}

// groupMinute returns what one meter showed for nodes.
func groupMinute(minute int64, uJ int64, nodes ...string) *external.GroupMinute {
	return &external.GroupMinute{Minute: minute, Meters: []external.MeterEnergy{{Meter: "pdu", Nodes: nodes, Energy: uJ, Error: uJ / 100}},
		NeededFrom: map[string]int64{"pdu": external.MinuteStart(minute)}, Failures: map[string]string{}}
}

func bookMinute(t *testing.T, l *ledger.Ledger, b *external.GroupMinute, want bool) []external.Adjustment {
	t.Helper()
	out, done, err := l.BookMeterMinute(t.Context(), b)
	if err != nil || done != want {
		t.Fatalf("minute %d booked: %v, %v; want %v", b.Minute, done, err, want)
	}
	return out
}

// energyOf returns the energy of [from, to) by node and kind, in uJ, with the worst quality and the
// error.
func energyOf(t *testing.T, l *ledger.Ledger, from, to int64) map[string]string {
	t.Helper()
	a, err := l.Usage(t.Context(), query.Query{From: time.Unix(60*from, 0), To: time.Unix(60*to, 0), By: []query.Dimension{query.ByNode, query.ByKind}, Scope: query.Scope{All: true}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, g := range a.Groups {
		sum, q := g.Usage.Energy()
		got[strings.TrimPrefix(strings.Join(g.Keys, " "), "name-")] = fmt.Sprintf("%s %s ± %s", sum, q, g.Usage.Sum[usage.EnergyError])
	}
	var whole, sum = query.Total{}, query.Total{}
	for _, g := range a.Groups {
		sum.Add(&g.Usage)
	}
	whole = a.Capacity
	w, _ := whole.Energy()
	if s, _ := sum.Energy(); s != w {
		t.Errorf("rows sum to %s uJ, the nodes' whole is %s", s, w)
	}
	return got
}

func checkLedger(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	if faults, err := l.Check(t.Context()); err != nil || len(faults) > 0 {
		t.Errorf("check: %q, %v", faults, err)
	}
}

// TestBookMeterMinute checks that a minute is adjusted to its meter once, and its hours and days
// with it, whether they were folded before or are folded later.
func TestBookMeterMinute(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		l := ledgertest.Open(t, dsn)
		m := dayMinute
		for _, n := range []string{"a", "b"} {
			ledgertest.Node(t, l, n)
		}
		bookAll(t, l, machineEntry("a", 1, usage.Apportioned, m, m+1, m+70), machineEntry("b", 1, usage.Modelled, m, m+70))
		register(t, l, m, "pdu")
		out := bookMinute(t, l, groupMinute(m, 60e6, "a"), true)
		if len(out) != 1 || out[0].Inside != 30e6 || out[0].Measured != 30e6 || out[0].Meter != 60e6 {
			t.Errorf("adjustments: %+v", out)
		}
		bookMinute(t, l, groupMinute(m, 60e6, "a"), false) // the meter has moved on
		want := map[string]string{
			"a service": "20000000 apportioned ± 2200000", "a system": "10000000 apportioned ± 1100000", "a idle": "30000000 apportioned ± 3300000",
			"b service": "10000000 modelled ± 1000000", "b system": "5000000 modelled ± 500000", "b idle": "15000000 modelled ± 1500000",
		}
		if diff := cmp.Diff(want, energyOf(t, l, m, m+1)); diff != "" {
			t.Errorf("after the first minute (-want +got):\n%s", diff)
		}
		checkLedger(t, l)

		// Modelled energy falls to what the meter showed, in folded rows too.
		if err := l.Fold(t.Context(), ledgertest.Day.Add(72*time.Hour)); err != nil {
			t.Fatal(err)
		}
		register(t, l, m, "plug")
		b := groupMinute(m, 12e6, "b")
		b.Meters[0].Meter, b.NeededFrom = "plug", map[string]int64{"plug": 0}
		bookMinute(t, l, b, true)
		bookMinute(t, l, groupMinute(m+1, 0, "a"), true) // the machine measured more, which stays
		if err := l.Fold(t.Context(), ledgertest.Day.Add(73*time.Hour)); err != nil {
			t.Fatal(err)
		}
		checkLedger(t, l)
		want["b service"], want["b system"], want["b idle"] = "4000000 apportioned ± 240000", "2000000 apportioned ± 120000", "6000000 apportioned ± 360000"
		if diff := cmp.Diff(want, energyOf(t, l, m, m+1)); diff != "" {
			t.Errorf("after the second (-want +got):\n%s", diff)
		}
		want = map[string]string{
			"a service": "40000000 apportioned ± 4200000", "a system": "20000000 apportioned ± 2100000", "a idle": "60000000 apportioned ± 6300000",
			"b service": "14000000 modelled ± 1240000", "b system": "7000000 modelled ± 620000", "b idle": "21000000 modelled ± 1860000",
		}
		if diff := cmp.Diff(want, energyOf(t, l, m, m+24*60)); diff != "" {
			t.Errorf("the day (-want +got):\n%s", diff)
		}
	})
}

// TestBookMeterMinuteWithoutRows checks that a node without rows gets all energy in its idle row,
// that a strip of two machines is divided by what they measured, and that late rows get their part of
// the meter's energy.
func TestBookMeterMinuteWithoutRows(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		l := ledgertest.Open(t, dsn)
		m := dayMinute
		for _, n := range []string{"a", "b"} {
			ledgertest.Node(t, l, n)
		}
		register(t, l, m, "pdu")
		bookAll(t, l, machineEntry("a", 1, usage.Apportioned, m+1), machineEntry("b", 1, usage.Apportioned, m+1))
		bookMinute(t, l, groupMinute(m, 60e6, "a"), true)
		bookMinute(t, l, groupMinute(m+1, 80e6, "a", "b"), true)
		checkLedger(t, l)
		if diff := cmp.Diff(map[string]string{"a idle": "60000000 apportioned ± 600000"}, energyOf(t, l, m, m+1)); diff != "" {
			t.Errorf("without rows (-want +got):\n%s", diff)
		}
		if got := energyOf(t, l, m+1, m+2); !strings.HasPrefix(got["a idle"], "20000000 ") || !strings.HasPrefix(got["b idle"], "20000000 ") {
			t.Errorf("a strip of two: %v", got)
		}
		bookAll(t, l, machineEntry("a", 2, usage.Apportioned, m))
		want := map[string]string{"a service": "20000000 apportioned ± 2200000", "a system": "10000000 apportioned ± 1100000", "a idle": "30000000 apportioned ± 3300000"}
		if diff := cmp.Diff(want, energyOf(t, l, m, m+1)); diff != "" {
			t.Errorf("rows that came late (-want +got):\n%s", diff)
		}
		checkLedger(t, l)
		ratios, err := l.MeterRatios(t.Context(), ledgertest.Day)
		if err != nil || len(ratios) != 2 || ratios[0].Meter.String() != "100000000" || ratios[0].Measured.String() != "60000000" || ratios[0].Minutes != 2 || ratios[1].Name != "name-b" {
			t.Errorf("ratios: %+v, %v", ratios, err)
		}
	})
}

// TestBookMeterFailure checks that a failed minute is a gap, that consecutive ones form one gap,
// and that nothing else changes.
func TestBookMeterFailure(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		l := ledgertest.Open(t, dsn)
		m := dayMinute
		ledgertest.Node(t, l, "a")
		bookAll(t, l, machineEntry("a", 1, usage.Apportioned, m, m+1, m+2))
		register(t, l, m, "pdu")
		before := energyOf(t, l, m, m+3)
		for i := range int64(3) {
			b := groupMinute(m+i, 0, "a", "unknown")
			b.Failures["pdu"] = "gone"
			bookMinute(t, l, b, true)
		}
		if diff := cmp.Diff(before, energyOf(t, l, m, m+3)); diff != "" {
			t.Errorf("a failed meter changed (-before +after):\n%s", diff)
		}
		gaps, err := l.Gaps(t.Context(), ledgertest.Day, ledgertest.Day.Add(time.Hour), "", query.Scope{All: true})
		want := usage.Gap{From: ledgertest.Day, To: ledgertest.Day.Add(3 * time.Minute), Reason: usage.MeterFailed, Detail: "meter pdu: gone"}
		if err != nil || len(gaps) != 1 || gaps[0].Gap != want {
			t.Errorf("gaps: %+v, %v", gaps, err)
		}
	})
}

// TestBookMeterMinuteUpstream checks that adjusted rows and their gaps reach the upstream ledger,
// whether it had folded the rows or not.
func TestBookMeterMinuteUpstream(t *testing.T) {
	below, above := pair(t)
	offer := replica.Offer{Finest: replica.Minute, Rows: 2}
	bookAll(t, below.Ledger, machineEntry("a", 1, usage.Modelled, first, first+1, first+2, first+70), machineEntry("b", 1, usage.Modelled, first))
	register(t, below.Ledger, first, "pdu")
	push(below, above, offer)
	for _, s := range []*side{below, above} {
		if err := s.Fold(t.Context(), at(3*day)); err != nil {
			t.Fatal(err)
		}
	}
	bookMinute(t, below.Ledger, groupMinute(first, 12e6, "a"), true)
	for i := range int64(2) {
		b := groupMinute(first+1+i, 0, "a")
		b.Failures["pdu"] = "gone"
		bookMinute(t, below.Ledger, b, true)
		push(below, above, offer)
	}
	for range 2 {
		for _, s := range []*side{below, above} {
			if err := s.Fold(t.Context(), at(4*day)); err != nil {
				t.Fatal(err)
			}
		}
		push(below, above, offer)
	}
	for _, table := range []string{"minute_20100101", "hour", "day"} {
		if diff := cmp.Diff(below.usage(table, 0), above.usage(table, 0)); diff != "" {
			t.Errorf("%s (-below +above):\n%s", table, diff)
		}
	}
	if diff := cmp.Diff(below.gaps(), above.gaps()); diff != "" || len(above.gaps()) != 1 {
		t.Errorf("gaps (-below +above):\n%s", diff)
	}
	if diff := cmp.Diff(energyOf(t, below.Ledger, first, first+day), energyOf(t, above.Ledger, first, first+day)); diff != "" {
		t.Errorf("the day (-below +above):\n%s", diff)
	}
	checkLedger(t, below.Ledger)
	checkLedger(t, above.Ledger)
}

// TestMeterSamples checks that samples survive restarts until they are not needed, that a meter of
// another kind starts over, and that one that was away for long does not go back far.
func TestMeterSamples(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		l := ledgertest.Open(t, dsn)
		ledgertest.Node(t, l, "a")
		m := dayMinute
		register(t, l, m, "pdu", "plug")
		at := func(s int64) external.Sample { return external.Sample{At: external.MinuteStart(m) + s*1e9, Value: s} }
		for range 2 {
			if err := l.PutMeterSamples(t.Context(), map[string][]external.Sample{"pdu": {at(-5), at(55), at(65)}, "plug": {at(3)}}); err != nil {
				t.Fatal(err)
			}
		}
		b := groupMinute(m, 60e6, "a")
		b.NeededFrom["pdu"] = at(55).At
		bookMinute(t, l, b, true)
		pdu := external.Meter{Name: "pdu", Kind: power.Energy, Wait: 26 * time.Hour}
		look := func(m external.Meter, now time.Time) *ledger.ExternalMeter {
			t.Helper()
			kept, err := l.ExternalMeters(t.Context(), []external.Meter{m}, now)
			if err != nil {
				t.Fatal(err)
			}
			return kept[m.Name]
		}
		if diff := cmp.Diff(&ledger.ExternalMeter{Next: m + 1, Samples: []external.Sample{at(55), at(65)}}, look(pdu, ledgertest.Day.Add(time.Hour))); diff != "" {
			t.Errorf("stored (-want +got):\n%s", diff)
		}
		if got := look(pdu, ledgertest.Day.Add(100*time.Hour)).Next; got != m+74*60+1 {
			t.Errorf("a meter that was away continues at minute %d of the day", got-m)
		}
		pdu.Kind = power.Power
		if diff := cmp.Diff(&ledger.ExternalMeter{Next: m + 121}, look(pdu, ledgertest.Day.Add(2*time.Hour))); diff != "" {
			t.Errorf("another kind (-want +got):\n%s", diff)
		}
	})
}

// TestMeterNodes checks that nodes are found by id and name, and how far their rows have come.
func TestMeterNodes(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		l := ledgertest.Open(t, dsn)
		ledgertest.Node(t, l, "a")
		twin := registry.Node{ID: "z", Cluster: "d", Name: "name-a", MachineID: "m", Boot: "b", At: ledgertest.Day}
		if err := l.PutNode(t.Context(), twin); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"a": "a", "z": "z", "c/name-a": "a", "d/name-a": "z"} {
			if id, err := l.MeterNode(t.Context(), name); err != nil || id != want {
				t.Errorf("%s is %q, %v", name, id, err)
			}
		}
		for name, want := range map[string]error{"name-a": fault.ErrConflict, "unknown": fault.ErrNotFound} {
			if _, err := l.MeterNode(t.Context(), name); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		bookAll(t, l, machineEntry("a", 1, usage.Apportioned, dayMinute))
		for minute, want := range map[int64]time.Duration{dayMinute: time.Minute, dayMinute + 1: 0, dayMinute + 3000: 0} {
			n, err := l.MeterNodes(t.Context(), []string{"a"}, minute, time.Now())
			if err != nil || len(n) != 1 || n[0].Covered != want || n[0].Streams != 1 || !n[0].BookedUntil.Equal(ledgertest.Day.Add(time.Minute)) {
				t.Errorf("minute %d: %+v, %v", minute, n, err)
			}
		}
	})
}

const settleDSN = "METE_TEST_SETTLE_DSN"

// TestBookMeterMinuteCrash kills a process that books meter minutes at random moments: each minute
// up to the meter's next must be booked exactly once.
func TestBookMeterMinuteCrash(t *testing.T) {
	if dsn := os.Getenv(settleDSN); dsn != "" {
		bookMinutesForever(t, dsn)
		return
	}
	const minutes = 2000
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	ledgertest.Node(t, l, "a")
	var all []int64
	for i := range int64(minutes) {
		all = append(all, dayMinute+i)
	}
	bookAll(t, l, machineEntry("a", 1, usage.Modelled, all...))
	register(t, l, dayMinute, "pdu")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	random := killTimes(t)
	for range 5 {
		told := killed(t, dsn, 1+random.IntN(30), time.Duration(random.IntN(3000))*time.Microsecond)
		l := ledgertest.Open(t, dsn)
		kept, err := l.ExternalMeters(t.Context(), []external.Meter{{Name: "pdu", Kind: power.Energy, Wait: 1000 * time.Hour}}, ledgertest.Day)
		if err != nil {
			t.Fatal(err)
		}
		next := kept["pdu"].Next
		if next <= told {
			t.Errorf("minute %d was booked, but the next is %d", told, next)
		}
		db := ledgertest.DB(t, dsn)
		for _, table := range []string{"minute_20260301", "minute_20260302"} {
			rows, err := db.Query("SELECT minute, sum(energy_package), sum(energy_rest) FROM " + table + " GROUP BY minute")
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var m, pkg, rest int64
				if err := rows.Scan(&m, &pkg, &rest); err != nil {
					t.Fatal(err)
				}
				if done := m < next; done && (pkg != 0 || rest != meterEnergy(m)) || !done && (pkg != 30e6 || rest != 0) {
					t.Errorf("minute %d of %d has %d and %d uJ", m-dayMinute, next-dayMinute, pkg, rest)
				}
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				t.Fatal(err)
			}
		}
		checkLedger(t, l)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// meterEnergy returns what the meter shows in a minute.
func meterEnergy(minute int64) int64 { return 10e6 + minute%7*1e6 }

func bookMinutesForever(t *testing.T, dsn string) {
	l := ledgertest.Open(t, dsn)
	kept, err := l.ExternalMeters(t.Context(), []external.Meter{{Name: "pdu", Kind: power.Energy, Wait: 1000 * time.Hour}}, ledgertest.Day)
	if err != nil {
		t.Fatal(err)
	}
	for m := kept["pdu"].Next; m < dayMinute+2000; m++ {
		if _, done, err := l.BookMeterMinute(t.Context(), groupMinute(m, meterEnergy(m), "a")); err != nil || !done {
			t.Fatal(done, err)
		}
		fmt.Println("settled", m)
	}
	fmt.Println("settled all")
	select {} // until killed
}

// killed runs bookMinutesForever until it has reported some minutes and a little longer, and
// returns the last reported one.
func killed(t *testing.T, dsn string, minutes int, later time.Duration) (told int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBookMeterMinuteCrash$")
	cmd.Env = append(os.Environ(), settleDSN+"="+dsn)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); {
		text, ok := strings.CutPrefix(lines.Text(), "settled ")
		if text == "all" {
			_ = cmd.Process.Kill()
		}
		if !ok || text == "all" {
			continue
		}
		if told, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatal(err)
		}
		if n++; n == minutes {
			time.AfterFunc(later, func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the process exited")
	}
	return told
}
