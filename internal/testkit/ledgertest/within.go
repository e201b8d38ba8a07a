package ledgertest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// window returns an entry of a node with a window of ten seconds in which it used some CPU, in ns. The
// entry is the only one of its stream.
func (h *handoverTest) window(node string, end time.Time, cpu int64, hs ...batch.TimedHandover) *batch.Entry {
	e := h.entry(node, end, hs...)
	e.Stream, e.Number, e.Previous = batch.Stream([]byte(batch.HashOf(fmt.Append(nil, node, end)).String())[:16]), 1, batch.Hash{}
	m := minuteOf(end.Add(-1))
	row := batch.Minute{Workload: 9, Minute: m, Usage: usage.Usage{Covered: 10 * time.Second}}
	row.Usage.Put(usage.CPU, cpu, usage.Measured)
	e.Minutes = append(e.Minutes, row)
	e.Nodes[0].Whole[slices.Index(usage.Wholes[:], usage.CPU)] = cpu
	return e
}

// cpu returns the CPU time of all nodes, or of some, between two times.
func cpuOf(t testing.TB, l *ledger.Ledger, from, to time.Time, cluster string, nodes ...string) string {
	t.Helper()
	q := query.Query{From: from, To: to, By: []query.Dimension{query.ByCluster}, Scope: query.Scope{All: true}, Where: map[query.Dimension][]string{query.ByCluster: {cluster}}}
	if len(nodes) > 0 {
		q.Where[query.ByNode] = nodes
	}
	a, err := l.Usage(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Groups) == 0 {
		return "0"
	}
	return a.Groups[0].Usage.Sum[usage.CPU].String()
}

// testWithin: rows of a guest are left out of sums only for the time in which its host measured it too.
func testWithin(t *testing.T, dsn string) {
	s := newHandoverTest(t, dsn)
	for _, id := range []string{"host", "other", "guest"} {
		if err := s.l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "c", Name: id, MachineID: id, At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(d time.Duration) time.Time { return Day.Add(d) }
	check := func(when, want string, nodes ...string) {
		t.Helper()
		if got := cpuOf(t, s.l, Day, Day.Add(24*time.Hour), "c", nodes...); got != want {
			t.Errorf("%s, nodes %v: %s ns, want %s", when, nodes, got, want)
		}
	}
	// At 1 no host meters the guest, at 12 one does.
	s.book(s.window("guest", at(time.Hour), 1000))
	s.book(s.window("guest", at(12*time.Hour), 10, handover(at(12*time.Hour), "", "e", 0, 3)))
	s.book(s.window("host", at(12*time.Hour), 10, handover(at(12*time.Hour), vm("host"), "e", 0, 1, 2, 3)))
	check("with a host at 12", "1010")
	check("by itself", "1010", "guest")
	check("without the host", "1010", "guest", "other")
	// It moves within the hour: a query for one host counts what the other one had.
	s.book(s.window("guest", at(12*time.Hour+10*time.Minute), 100), s.window("guest", at(12*time.Hour+20*time.Minute), 7, handover(at(12*time.Hour+20*time.Minute), "", "f", 0, 2)))
	s.book(s.window("other", at(12*time.Hour+20*time.Minute), 7, handover(at(12*time.Hour+20*time.Minute), vm("other"), "f", 0, 1, 2)))
	s.book(s.window("host", at(12*time.Hour+25*time.Minute), 0))
	for _, when := range []string{"after the move", "folded into hours", "folded into days"} {
		check(when, "1117")
		check(when, "1117", "host", "guest") // 10 of the host; 1000, 100 and 7 of the guest
		check(when, "1117", "other", "guest")
		check(when, "1117", "guest")
		check(when, "17", "host", "other")
		if got := cpuOf(t, s.l, at(12*time.Hour), at(13*time.Hour), "c", "host", "guest"); got != "107" {
			t.Errorf("%s: %s ns from 12 to 13, want 107", when, got)
		}
		if findings, err := s.l.Check(t.Context()); err != nil || len(findings) > 0 {
			t.Errorf("%s: the check reports %q, %v", when, findings, err)
		}
		fold(t, s.l, map[string]time.Time{"after the move": at(14 * time.Hour), "folded into hours": at(50 * time.Hour)}[when])
	}
	// A host that says it gave energy that its rows do not have nests nothing.
	entry := s.window("other", at(15*time.Hour), 0, handover(at(15*time.Hour), vm("other"), "g", 0, 1, 2))
	entry.Minutes, entry.Nodes = nil, nil
	s.book(entry, s.window("guest", at(15*time.Hour), 5, handover(at(15*time.Hour), "", "g", 0, 2)))
	check("energy that is not booked", "1122")
	check("energy that is not booked", "1122", "other", "guest")
}

// testInner: what a standalone job measured is within an agent of its machine for the time that the
// agent booked too, whichever came first.
func testInner(t *testing.T, dsn string) {
	l := Open(t, dsn)
	round := byte(0)
	for _, order := range [][]string{{"job", "agent"}, {"agent", "job"}, {"together"}} {
		round++
		cluster := fmt.Sprint("inner", round)
		node := func(name, machine, of string) string {
			n := registry.Node{ID: cluster + "-" + name, Cluster: of, Name: cluster + "-" + name, MachineID: machine, At: Day}
			if err := l.PutNode(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			return n.ID
		}
		// The agent's boottime is 0 at the beginning of the day.
		entry := func(node string, number byte, from, to time.Duration, scope usage.Scope, used int64) *batch.Entry {
			e := &batch.Entry{Node: node, Stream: batch.Stream{round, number, node[len(node)-1]}, Number: 1, Boot: cluster, Boottime: int64(to), Through: Day.Add(to)}
			e.Hash = batch.HashOf(fmt.Append(nil, node, number))
			e.Measured = []batch.Measured{{Boot: cluster, Extent: usage.Extent{Scope: scope}, From: int64(from), To: int64(to), Offset: Day.UnixNano()}}
			for at := from - from%time.Minute; at < to; at += time.Minute {
				row := batch.Minute{Workload: 1, Minute: minuteOf(Day.Add(at)), Usage: usage.Usage{Covered: time.Second}}
				row.Usage.Put(usage.CPU, used, usage.Measured)
				e.Minutes = append(e.Minutes, row)
			}
			return e
		}
		agent, jobs, far := node("agent", "m", cluster), node("jobs", registry.JobsMachineID("m"), cluster), node("far", registry.JobsMachineID("m"), cluster+"x")
		job := usage.ScopeOf(77)
		entries := map[string][]*batch.Entry{
			// One job runs before the agent measures anything, one while it is away, one is killed after it.
			"job": {entry(jobs, 1, 0, 5*time.Minute, job, 1), entry(jobs, 2, 20*time.Minute, 25*time.Minute, job, 10), entry(jobs, 3, 59*time.Minute, 62*time.Minute, job, 100),
				entry(far, 1, 20*time.Minute, 25*time.Minute, job, 10_000)},
			"agent": {entry(agent, 1, 5*time.Minute, 18*time.Minute, usage.Machine, 1000), entry(agent, 2, 18*time.Minute, 60*time.Minute, usage.Machine, 1000)},
		}
		entries["together"] = append(slices.Clone(entries["agent"]), entries["job"]...)
		for _, which := range order {
			book(t, l, batch.Accepted, entries[which]...)
		}
		for range 2 {
			// Of the machine 55 minutes; of jobs 5 minutes before, and 2 of 3 after.
			for want, nodes := range map[string][]string{"55205": {agent, jobs}, "355": {jobs}} {
				if got := cpuOf(t, l, Day, Day.Add(24*time.Hour), cluster, nodes...); got != want {
					t.Errorf("%v: %v: %s ns, want %s", order, nodes, got, want)
				}
			}
			a, err := l.Usage(t.Context(), query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{query.ByCluster}, Scope: query.Scope{All: true}})
			if err != nil || !slices.ContainsFunc(a.Groups, func(g query.Group) bool {
				return g.Keys[0] == cluster+"x" && g.Usage.Sum[usage.CPU].String() == "50000"
			}) {
				t.Errorf("%v: among all clusters %+v, %v; want 50000 ns of another cluster's jobs", order, a, err)
			}
			fold(t, l, Day.Add(30*time.Hour))
		}
	}
	if n := (reader{t, DB(t, dsn)}).number("SELECT count(*) FROM booked WHERE scope <> '/'"); n != 0 {
		t.Errorf("jobs booked %d ranges of a machine", n)
	}
}

// testNestedDays: an older ledger has nested days, as a whole; their rows stay out of sums.
func testNestedDays(t *testing.T, dsn string) {
	s := newHandoverTest(t, dsn)
	at := func(d time.Duration) time.Time { return Day.Add(d) }
	for _, d := range []time.Duration{time.Hour, 20 * time.Hour, 25 * time.Hour, 49*time.Hour + 30*time.Minute} {
		s.book(s.window("guest", at(d), int64(d/time.Hour)), s.window("host", at(d), 100))
	}
	// The second day is folded in part.
	fold(t, s.l, at(25*time.Hour+30*time.Minute))
	closeLedger(t, s.l)
	db := DB(t, dsn)
	UndoMigrations(t, db, 11)
	for _, day := range []int64{0, 2} {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO nested_day (node, minute, host, workload, rev)
			SELECT g.id, $1, h.id, w.id, 1 FROM node g, node h JOIN workload w ON w.node = h.id WHERE g.node_id = 'guest' AND h.node_id = 'host' AND w.short = 9`, minuteOf(Day)+day*dayMinutes); err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), "INSERT INTO stale_day (minute) VALUES ($1)", minuteOf(Day)+day*dayMinutes); err != nil {
			t.Fatal(err)
		}
	}
	s.l = Open(t, dsn)
	for _, when := range []string{"opened", "folded"} {
		for want, nodes := range map[string][]string{"425": {}, "95": {"guest"}, "400": {"host"}} {
			if got := cpuOf(t, s.l, Day, at(72*time.Hour), "c", nodes...); got != want {
				t.Errorf("%s: nodes %v: %s ns, want %s", when, nodes, got, want)
			}
		}
		if findings, err := s.l.Check(t.Context()); err != nil || len(findings) > 0 {
			t.Errorf("%s: the check reports %q, %v", when, findings, err)
		}
		fold(t, s.l, at(80*time.Hour))
	}
	// A late row of a nested day is nested too.
	s.book(s.window("guest", at(2*time.Hour), 1000))
	if got := cpuOf(t, s.l, Day, at(72*time.Hour), "c"); got != "425" {
		t.Errorf("with a late row: %s ns, want 425", got)
	}
}

// withinSlot is the unit of time of testWithinDrawn. Everything begins and ends at one.
const withinSlot = 10 * time.Second

// A drawnVM is a virtual machine in the course of some hours: in which slots which host has it, and the
// windows of all agents.
type drawnVM struct {
	first   time.Time
	windows []drawnWindow
	used    map[string][]int64 // ns of CPU by node and slot
}

type drawnWindow struct {
	node     string
	from, to int // slots
	epoch    string
	closing  int // the guest's share, or 0
	shares   []int
}

// testWithinDrawn: sums depend on what was booked, not on the order in which it came, and not on which
// rows are folded.
func testWithinDrawn(t *testing.T, dsn string) {
	checks(t, dsn)
	l := Open(t, dsn)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		d := drawVM(rt, Day.AddDate(0, 0, 4*round).Add(22*time.Hour))
		for order := range 2 {
			cluster := fmt.Sprintf("w%d-%d", round, order)
			d.book(rt, t, l, cluster)
			for _, when := range []string{"minutes", "hours", "days"} {
				d.check(rt, t, l, cluster, when)
				fold(t, l, d.first.Add(map[string]time.Duration{"minutes": 4 * time.Hour, "hours": 60 * time.Hour, "days": 60 * time.Hour}[when]))
			}
		}
	})
	findings, err := l.Check(t.Context())
	if err != nil || len(findings) > 0 {
		t.Errorf("the check reports %q, %v", findings, err)
	}
}

// drawVM draws four hours around midnight.
func drawVM(t *rapid.T, first time.Time) *drawnVM {
	const slots = 4 * 360
	d := &drawnVM{first: first, used: map[string][]int64{}}
	// The host of the virtual machine in each slot, and its epoch.
	where, epochs := make([]string, slots), make([]string, slots)
	for at, n := 0, 0; at < slots; n++ {
		end := min(slots, at+rapid.IntRange(1, 400).Draw(t, "stay"))
		host := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "host")
		for ; at < end; at++ {
			where[at], epochs[at] = host, fmt.Sprint(first.Unix(), " ", n)
		}
	}
	for _, node := range []string{"a", "b", "guest"} {
		used := make([]int64, slots)
		stop := slots
		if rapid.IntRange(0, 3).Draw(t, "dies") == 0 {
			stop = rapid.IntRange(1, slots).Draw(t, "until")
		}
		for at := 0; at < stop; {
			w := drawnWindow{node: node, from: at, to: min(stop, at+rapid.SampledFrom([]int{6, 30, 180}).Draw(t, "length"))}
			if rapid.IntRange(0, 9).Draw(t, "missing") == 0 {
				at = w.to
				continue
			}
			for ; at < w.to; at++ {
				used[at] = rapid.Int64Range(0, 9).Draw(t, "cpu")
				switch {
				case node == "guest" && where[at] != "":
					w.closing, w.epoch = at+1, epochs[at]
				case node == where[at] && (w.epoch == "" || w.epoch == epochs[at]):
					w.epoch = epochs[at]
					w.shares = append(w.shares, at+1)
				}
			}
			if node == "guest" && rapid.IntRange(0, 9).Draw(t, "without a share") == 0 {
				w.closing = 0
			}
			d.windows = append(d.windows, w)
		}
		d.used[node] = used
	}
	return d
}

func (d *drawnVM) time(slot int) time.Time { return d.first.Add(time.Duration(slot) * withinSlot) }

// book enrolls nodes and books all windows in some order, some of them together.
func (d *drawnVM) book(rt *rapid.T, t *testing.T, l *ledger.Ledger, cluster string) {
	id := func(node string) string { return cluster + "-" + node }
	for _, node := range []string{"a", "b", "guest"} {
		if err := l.PutNode(t.Context(), registry.Node{ID: id(node), Cluster: cluster, Name: id(node), MachineID: id(node), At: Day}); err != nil {
			rt.Fatal(err)
		}
	}
	order := make([]int, len(d.windows))
	for i := range order {
		order[i] = i
	}
	if rapid.Bool().Draw(rt, "shuffled") {
		order = rapid.Permutation(order).Draw(rt, "order")
	} else {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.windows[a].to, d.windows[b].to) })
	}
	share := func(slot int, epoch string) power.Share {
		return power.Share{Epoch: cluster + epoch, N: int64(slot), Active: int64(7 * slot), Idle: int64(slot)}
	}
	var es []*batch.Entry
	for n, i := range order {
		w := &d.windows[i]
		e := &batch.Entry{Node: id(w.node), Stream: batch.Stream([]byte(batch.HashOf(fmt.Append(nil, cluster, i)).String())[:16]), Number: 1, Through: d.time(w.to)}
		e.Hash = batch.HashOf(fmt.Append(nil, cluster, i))
		minutes := map[int64]int{}
		for slot := w.from; slot < w.to; slot++ {
			m := minuteOf(d.time(slot))
			at, ok := minutes[m]
			if !ok {
				at = len(e.Nodes)
				minutes[m] = at
				row := batch.Minute{Workload: 9, Minute: m}
				row.Usage.Put(usage.CPU, 0, usage.Measured)
				e.Minutes, e.Nodes = append(e.Minutes, row), append(e.Nodes, batch.NodeMinute{Minute: m, CPUs: 1})
			}
			e.Minutes[at].Usage.Amount[usage.CPU] += d.used[w.node][slot]
			e.Minutes[at].Usage.Covered += withinSlot
			e.Nodes[at].Whole[slices.Index(usage.Wholes[:], usage.CPU)] += d.used[w.node][slot]
			e.Nodes[at].Covered += withinSlot
		}
		h := batch.TimedHandover{From: d.time(w.from), To: d.time(w.to)}
		h.Guest = guestUUID
		switch {
		case w.node == "guest" && w.closing > 0:
			h.Shares = []power.Share{share(w.closing, w.epoch)}
			e.Handovers = []batch.TimedHandover{h}
		case len(w.shares) > 0:
			h.Workload = vm(id(w.node))
			h.Opened = share(w.shares[0]-1, w.epoch)
			for _, slot := range w.shares {
				h.Shares = append(h.Shares, share(slot, w.epoch))
			}
			e.Handovers = []batch.TimedHandover{h}
			short, _ := workload.ShortIDOf(h.Workload)
			row := batch.Minute{Workload: short, Minute: minuteOf(d.time(w.to - 1))}
			given := 8 * int64(w.shares[len(w.shares)-1]-w.shares[0]+1)
			row.Usage.Put(usage.EnergyRest, given, usage.Apportioned)
			e.Minutes = append(e.Minutes, row)
			e.Nodes[len(e.Nodes)-1].Whole[slices.Index(usage.Wholes[:], usage.EnergyRest)] = given
		}
		es = append(es, e)
		if n+1 == len(order) || rapid.IntRange(0, 3).Draw(rt, "together") == 0 {
			book(t, l, batch.Accepted, es...)
			es = nil
		}
		if rapid.IntRange(0, 19).Draw(rt, "fold") == 0 {
			fold(t, l, d.time(w.to))
		}
	}
}

// hosts returns the host that the guest's rows of each minute are within.
func (d *drawnVM) hosts() map[int64]string {
	type stay struct {
		host     string
		from, to int
		equal    bool
	}
	stays := map[string]*stay{}
	through := map[string]int{}
	given := map[[2]string]bool{}
	for _, w := range d.windows {
		through[w.node] = max(through[w.node], w.to)
		if len(w.shares) == 0 {
			continue
		}
		s := stays[w.epoch]
		if s == nil {
			s = &stay{host: w.node, from: w.from}
			stays[w.epoch] = s
		}
		s.from, s.to = min(s.from, w.from), max(s.to, w.to)
		for _, n := range w.shares {
			given[[2]string{w.epoch, fmt.Sprint(n)}] = true
		}
	}
	for _, w := range d.windows {
		if w.node == "guest" && w.closing > 0 && given[[2]string{w.epoch, fmt.Sprint(w.closing)}] {
			stays[w.epoch].equal = true
		}
	}
	overlap := map[int64]map[string]int{}
	for _, s := range stays {
		if !s.equal {
			continue
		}
		end := s.to
		if through[s.host] <= s.to+12 && through["guest"] <= s.to+30 {
			end = s.to + 30
			for _, o := range stays {
				if o.equal && o.from > s.from && o.from >= s.to {
					end = min(end, o.from)
				}
			}
		}
		for slot := s.from; slot < end; slot++ {
			m := minuteOf(d.time(slot))
			if overlap[m] == nil {
				overlap[m] = map[string]int{}
			}
			overlap[m][s.host]++
		}
	}
	hosts := map[int64]string{}
	for m, n := range overlap {
		if hosts[m] = "a"; n["b"] > n["a"] {
			hosts[m] = "b"
		}
	}
	return hosts
}

// check compares the sums of some views and ranges.
func (d *drawnVM) check(rt *rapid.T, t *testing.T, l *ledger.Ledger, cluster, when string) {
	hosts := d.hosts()
	for _, nodes := range [][]string{{"a", "b", "guest"}, {"a", "guest"}, {"b", "guest"}, {"guest"}} {
		ends := []int{rapid.IntRange(0, 240).Draw(rt, "from"), rapid.IntRange(0, 240).Draw(rt, "to")}
		slices.Sort(ends)
		if rapid.Bool().Draw(rt, "all") {
			ends = []int{0, 240}
		}
		var want int64
		for _, node := range nodes {
			for slot, cpu := range d.used[node] {
				if slot < 6*ends[0] || slot >= 6*ends[1] || node == "guest" && slices.Contains(nodes, hosts[minuteOf(d.time(slot))]) {
					continue
				}
				want += cpu
			}
		}
		var ids []string
		for _, n := range nodes {
			ids = append(ids, cluster+"-"+n)
		}
		if got := cpuOf(t, l, d.time(6*ends[0]), d.time(6*ends[1]), cluster, ids...); got != fmt.Sprint(want) {
			rt.Fatalf("%s of %s, minutes %v of %v: %s ns, want %d", when, cluster, ends, nodes, got, want)
		}
	}
}
