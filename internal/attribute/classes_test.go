package attribute_test

import (
	"bytes"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A classForest is a forest whose groups have traffic.
type classForest struct {
	*forest
	whole map[string]*[2]int64                // counters of groups with any
	read  map[string]*usage.ClassBytes        // since the latest snapshot that shows classes
	shown map[string]*usage.ClassBytes        // in the open window
	total map[string]map[usage.Resource]int64 // of rows since the life began
	some  [2]int                              // rows whose classes are within the whole, and rows whose classes are not
}

func newClassForest(t *rapid.T) *classForest {
	f := &classForest{forest: &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}},
		whole: map[string]*[2]int64{}, read: map[string]*usage.ClassBytes{}, shown: map[string]*usage.ClassBytes{}, total: map[string]map[usage.Resource]int64{}}
	f.use(f.add(nil, 0, false), 1e12)
	for range rapid.IntRange(0, 4).Draw(t, "groups") {
		f.use(f.add(f.groups[rapid.IntRange(0, len(f.groups)-1).Draw(t, "parent")], 0, false), 1e9)
	}
	return f
}

// transfer simulates traffic since the latest snapshot. The classes of some groups exceed the whole.
func (f *classForest) transfer() {
	for _, g := range f.groups[1:] {
		if rapid.IntRange(0, 3).Draw(f.t, "transfers") == 0 {
			continue
		}
		n, c := f.whole[g.name], f.read[g.name]
		if c == nil {
			c = &usage.ClassBytes{}
			f.read[g.name] = c
		}
		if n == nil && rapid.IntRange(0, 4).Draw(f.t, "known") > 0 {
			n = &[2]int64{}
			f.whole[g.name] = n
		}
		for i, d := range usage.Directions {
			all := rapid.Int64Range(0, 1e9).Draw(f.t, "bytes")
			if n != nil {
				n[i] += all
			}
			if rapid.IntRange(0, 9).Draw(f.t, "more classes") == 0 {
				all *= 3
			}
			for r := range d.Classes.All() {
				if rapid.IntRange(0, 2).Draw(f.t, "class") == 0 {
					part := rapid.Int64Range(0, all).Draw(f.t, "part")
					c.Add(r, part)
					all -= part
				}
			}
		}
	}
}

func (f *classForest) snapshot() *usage.Snapshot {
	s := f.forest.snapshot()
	edge := rapid.Bool().Draw(f.t, "shows classes")
	for _, g := range s.Groups[1:] {
		name := g.Workload.Name
		if n := f.whole[name]; n != nil {
			g.Put(usage.NetworkRx, n[0])
			g.Put(usage.NetworkTx, n[1])
			if rapid.IntRange(0, 9).Draw(f.t, "apportioned") == 0 {
				g.Apportioned |= usage.SetOf(usage.NetworkRx)
			}
		}
		if c := f.read[name]; c != nil && (edge || g.Final) {
			g.Classes = c
			all := f.shown[name]
			if all == nil {
				all = &usage.ClassBytes{}
				f.shown[name] = all
			}
			for r, v := range c.All() {
				all.Add(r, v)
			}
			delete(f.read, name)
		}
	}
	return s
}

// checkWindow checks the classes of a window's rows against what was shown, and their totals.
func (f *classForest) checkWindow(w *usage.Window) {
	t := f.t
	t.Helper()
	if w.Balance.Violations > 0 {
		t.Fatalf("%d violations", w.Balance.Violations)
	}
	for i := range w.Rows {
		row := &w.Rows[i]
		name, u := row.Workload.Name, &row.Usage
		shown := f.shown[name]
		if shown == nil {
			shown = &usage.ClassBytes{}
		}
		for _, d := range usage.Directions {
			whole, known := u.Get(d.Whole)
			sum, want := int64(0), int64(0)
			for r := range d.Classes.All() {
				sum += u.Amount[r]
				want += shown[r-usage.NetworkRxNode]
			}
			if !known && (sum != 0 || u.Present&d.Classes != 0) || sum > whole {
				t.Fatalf("%s: classes have %d of %d %s, known %v", name, sum, whole, d.Whole, known)
			}
			if known && sum != min(want, whole) {
				t.Fatalf("%s: classes have %d of %d %s, %d were shown", name, sum, whole, d.Whole, want)
			}
			for r := range d.Classes.All() {
				n, q := shown[r-usage.NetworkRxNode], u.Quality.Get(r)
				switch got := u.Amount[r]; {
				case !known || n == 0:
					if got != 0 || u.Present.Has(r) {
						t.Fatalf("%s: %d of %s, none was shown", name, got, r)
					}
				case want <= whole:
					f.some[0]++
					if got != n || q != u.Quality.Get(d.Whole) {
						t.Fatalf("%s: %d of %s, %s; %d were shown", name, got, r, q, n)
					}
				default:
					f.some[1]++
					if exact := float64(n) * float64(whole) / float64(want); float64(got) < exact-1.001 || float64(got) > exact+1.001 || q != usage.Apportioned {
						t.Fatalf("%s: %d of %s, %s, want %f", name, got, r, q, exact)
					}
				}
			}
		}
		if name == "idle" {
			continue
		}
		total := f.total[name]
		if total == nil {
			total = map[usage.Resource]int64{}
			f.total[name] = total
		}
		for r := range (usage.Classified | usage.SetOf(usage.NetworkRx, usage.NetworkTx)).All() {
			total[r] += u.Amount[r]
			if row.Total[r] != total[r] || total[r] != 0 && !row.Has.Has(r) {
				t.Fatalf("%s: in all %d of %s, want %d", name, row.Total[r], r, total[r])
			}
		}
	}
	clear(f.shown)
}

// checkLive checks that the classes of live rows do not exceed the whole, and that showing them changes nothing.
func (f *classForest) checkLive(acc *attribute.Accounts) {
	before := acc.Checkpoint(nil, true)
	for _, row := range acc.Live().Rows {
		for _, d := range usage.Directions {
			number := func(r usage.Resource) int64 {
				v, ok := row.Total[r.String()]
				n, err := strconv.ParseInt(v, 10, 64)
				if ok && err != nil {
					f.t.Fatal(err)
				}
				return n
			}
			sum := int64(0)
			for r := range d.Classes.All() {
				sum += number(r)
			}
			if whole := number(d.Whole); sum > whole {
				f.t.Fatalf("%s: classes have %d of %d %s", row.ID, sum, whole, d.Whole)
			}
		}
	}
	if !bytes.Equal(before, acc.Checkpoint(nil, true)) {
		f.t.Fatal("live rows change the accounts")
	}
}

// TestClassesAddUp checks the traffic by class of windows: it is what was shown if that is within the traffic as a whole, and
// in its ratio the whole otherwise. Rows of a workload go on after restarts, from full records and from deltas, and
// live rows change nothing.
func TestClassesAddUp(t *testing.T) {
	var some [2]int
	restarts := 0
	rapid.Check(t, func(t *rapid.T) {
		f := newClassForest(t)
		acc, src := attribute.New("n"), &source{slots: map[uint64]usage.Slot{}, base: 1}
		var v recordLog
		var w usage.Window
		acc.Tick(src.show(f.snapshot()))
		for range rapid.IntRange(1, 20).Draw(t, "ticks") {
			f.step()
			f.transfer()
			acc.Tick(src.show(f.snapshot()))
			f.calm = false
			if rapid.Bool().Draw(t, "live") {
				f.checkLive(acc)
			}
			if rapid.Bool().Draw(t, "window goes on") {
				continue
			}
			acc.CloseWindow(&w)
			f.checkWindow(&w)
			switch rapid.IntRange(0, 3).Draw(t, "then") {
			case 0: // saving failed
				_ = acc.Checkpoint(nil, false)
			case 1:
				v.save(acc, rapid.Bool().Draw(t, "full"))
			case 2:
				v.save(acc, rapid.Bool().Draw(t, "full before the end"))
				checkSame(t, acc, v.restore(t))
				acc, f.calm = v.restore(t), true
				src.restart()
				restarts++
			}
		}
		some[0] += f.some[0]
		some[1] += f.some[1]
	})
	if some[0] < 100 || some[1] < 100 || restarts < 20 {
		t.Errorf("%d classes within the whole, %d beyond, %d restarts: too few", some[0], some[1], restarts)
	}
}

// traffic gives a group traffic and classes.
func traffic(rx, tx int64, classes map[usage.Resource]int64) func(*usage.Group) {
	return func(g *usage.Group) {
		job(g)
		g.Put(usage.NetworkRx, rx)
		g.Put(usage.NetworkTx, tx)
		if classes != nil {
			g.Classes = &usage.ClassBytes{}
			for r, n := range classes {
				g.Classes.Add(r, n)
			}
		}
	}
}

// TestEndsKeepClasses checks that the record of an ending job, and that of the end of a group, have its traffic by class.
func TestEndsKeepClasses(t *testing.T) {
	for _, ends := range []bool{false, true} {
		for _, more := range []int64{0, 1000} {
			s := newScenario(t)
			s.tick(10*second, 1000)
			s.v.save(s.acc, true)
			s.tick(11*second, 1100, namedGroup{name: "job", life: 5, cpu: 50, mem: 30, born: true,
				also: traffic(500, 100, map[usage.Resource]int64{usage.NetworkRxNode: 100, usage.NetworkTxNode: 10})})
			s.tick(12*second, 1300, namedGroup{name: "job", life: 5, cpu: 250, mem: 30, final: ends,
				also: traffic(1000, 200, map[usage.Resource]int64{usage.NetworkRxNode: 200, usage.NetworkRxInternet: 600 + more, usage.NetworkTxInternet: 20})})
			rec := s.acc.Ends(nil, func(*workload.Workload) bool { return !ends })
			if len(rec) == 0 {
				t.Fatal("no record")
			}
			s.v.records = append(s.v.records, rec)
			s.acc.MarkEndsSaved()
			check := func() {
				t.Helper()
				s.close()
				s.want("job", usage.NetworkRx, 1000, usage.Measured)
				node, internet, q := int64(300), int64(600), usage.Measured
				if more > 0 {
					node, internet, q = 157, 843, usage.Apportioned // 300 and 1600 of 1900
				}
				s.want("job", usage.NetworkRxNode, node, q)
				s.want("job", usage.NetworkRxInternet, internet, q)
				s.want("job", usage.NetworkTxNode, 10, usage.Measured)
				s.want("job", usage.NetworkTxInternet, 20, usage.Measured)
				row := s.row("job")
				if row.Total[usage.NetworkRxInternet] != internet || row.Total[usage.NetworkTxNode] != 10 {
					t.Errorf("totals %v", row.Total)
				}
			}
			// Killed, and restarted.
			killed := s.acc
			s.acc = s.v.restore(t)
			clear(s.known)
			s.tick(20*second, 1310)
			check()
			s.acc = killed
			check()
		}
	}
}

// TestClassesOfUnknown checks that classes without traffic as a whole are not booked, and are once it is known.
func TestClassesOfUnknown(t *testing.T) {
	s := newScenario(t)
	group := func(cpu int64, also func(*usage.Group)) namedGroup {
		return namedGroup{name: "a", life: 5, cpu: cpu, mem: 30, also: also}
	}
	s.tick(10*second, 1000, group(10, nil))
	only := func(g *usage.Group) { g.Classes = &usage.ClassBytes{7} }
	s.tick(11*second, 1100, group(20, only))
	s.close()
	s.v.save(s.acc, true)
	if u := s.row("a").Usage; u.Present&usage.Classified != 0 || u.Amount[usage.NetworkRxNode] != 0 {
		t.Errorf("%d of class node without traffic", u.Amount[usage.NetworkRxNode])
	}
	if row := s.row("a"); row.Has&usage.Classified != 0 {
		t.Errorf("totals of %v", row.Has&usage.Classified)
	}
	// The first reading of traffic books none, since the group was there before.
	s.tick(12*second, 1200, group(20, traffic(500, 0, map[usage.Resource]int64{usage.NetworkRxNode: 5})))
	s.close()
	s.want("a", usage.NetworkRx, 0, usage.Measured)
	s.want("a", usage.NetworkRxNode, 0, usage.Apportioned)
	s.v.save(s.acc, false)
	s.acc = s.v.restore(t)
	clear(s.known)
	s.tick(13*second, 1300, group(20, traffic(600, 0, map[usage.Resource]int64{usage.NetworkRxNode: 60})))
	s.close()
	s.want("a", usage.NetworkRx, 100, usage.Measured)
	s.want("a", usage.NetworkRxNode, 60, usage.Measured)
	if row := s.row("a"); row.Total[usage.NetworkRxNode] != 60 {
		t.Errorf("in all %d, want 60", row.Total[usage.NetworkRxNode])
	}
}
