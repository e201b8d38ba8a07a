package receiver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

func TestOffer(t *testing.T) { synctest.Test(t, testOffer) }

func testOffer(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	m := newMachine("b1", time.Minute, 1)
	sent := m.batch(t, m.window(10*time.Second), m.window(10*time.Second))
	if r := offer(t, in, "n1", m.clock(), sent, batch.Accepted); r.Next != 2 {
		t.Errorf("next is %d, want 2", r.Next)
	}
	offer(t, in, "n1", m.clock(), sent, batch.Duplicate)
	e := l.taken()[0]
	if e.Node != "n1" || e.Boot != "b1" || e.Hash != batch.HashOf(sent) || string(e.Sent) != string(sent) || len(e.Shifts) != 0 || len(e.Gaps) != 0 {
		t.Errorf("entry %+v", e)
	}
	if want := m.began.Add(20 * time.Second); !e.Through.Equal(want) {
		t.Errorf("through %v, want %v", e.Through, want)
	}
	var sum int64
	for k, u := range l.minutes {
		if k.node != "n1" {
			t.Errorf("booked on %s", k.node)
		}
		sum += u.Amount[usage.CPU]
	}
	if want := 4 * int64(20*time.Second); sum != want {
		t.Errorf("booked %d ns, want %d", sum, want)
	}
	s := in.Stats()
	if s.Accepted != 1 || s.Duplicates != 1 || s.Rows != 6 || s.Bytes != int64(len(sent)) || s.Nodes != 1 || s.Queue != 0 || s.Commits != 2 {
		t.Errorf("stats %+v", s)
	}
	if boot, ok := in.LiveBoot("n1"); boot != "b1" || !ok {
		t.Errorf("live under %q, %v", boot, ok)
	}
	if boot, ok := in.LiveBoot("n2"); ok {
		t.Errorf("n2 is live under %q", boot)
	}
}

// Books that do not add up are counted, whether the agent knew or not, and booked
// once: what is known already counts no more.
func TestViolations(t *testing.T) { synctest.Test(t, testViolations) }

func testViolations(t *testing.T) {
	in := start(t, quick(), newLedger())
	m := newMachine("b1", time.Minute, 1)
	offer(t, in, "n1", m.clock(), m.batch(t, m.window(10*time.Second)), batch.Accepted)
	if n := in.Stats().Violations; n != 0 {
		t.Errorf("%d violations in good books", n)
	}
	silent, said := m.window(10*time.Second), m.window(10*time.Second)
	silent.Balance.Whole[0] += 5
	said.Balance.Whole[0], said.Balance.Violations = said.Balance.Whole[0]+5, 2
	sent := m.batch(t, silent, said)
	offer(t, in, "n1", m.clock(), sent, batch.Accepted)
	offer(t, in, "n1", m.clock(), sent, batch.Duplicate)
	if n := in.Stats().Violations; n != 3 {
		t.Errorf("%d violations, want 3", n)
	}
	// More than the machine has is booked, and counted; more than any machine has is refused.
	much, most := m.window(10*time.Second), m.window(10*time.Second)
	for _, w := range []*usage.Window{&much, &most} {
		w.Rows[0].Usage.Amount[usage.CPU] += 200e9
		w.Balance.Workloads[0], w.Balance.Skew[0] = w.Balance.Workloads[0]+200e9, 200e9
	}
	offer(t, in, "n1", m.clock(), m.batch(t, much), batch.Accepted)
	if n := in.Stats().Violations; n != 4 {
		t.Errorf("%d violations, want 4", n)
	}
	most.Rows[0].Usage.Amount[usage.CPU] = 4.5e15
	if _, err := in.Offer(context.Background(), "n1", m.clock(), m.batch(t, most)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("4.5 million CPU seconds in 10 s: %v, want invalid", err)
	}
	// A machine of 64 CPUs that lost 60 of them in a window is honest.
	big := newMachine("b2", time.Minute, 3)
	before, after := big.window(10*time.Second), big.window(10*time.Second)
	before.CPUs = 64
	after.Rows[0].Usage.Amount[usage.CPU] += 600e9
	after.Balance.Whole[0], after.Balance.Workloads[0] = after.Balance.Whole[0]+600e9, after.Balance.Workloads[0]+600e9
	offer(t, in, "n2", big.clock(), big.batch(t, before), batch.Accepted)
	offer(t, in, "n2", big.clock(), big.batch(t, after), batch.Accepted)
	if n := in.Stats().Violations; n != 4 {
		t.Errorf("%d violations after CPUs were removed, want 4", n)
	}
}

func TestLatest(t *testing.T) { synctest.Test(t, testLatest) }

func testLatest(t *testing.T) {
	cfg := quick()
	cfg.SnapshotRows = 24
	in := start(t, cfg, newLedger())
	names := func() (s string) {
		for _, p := range in.Snapshots() {
			s += fmt.Sprint(p.Node, " ", p.To.Sub(p.From), " ", len(p.Rows), " of ", p.CPUs, "; ")
			if p.Workloads != 3 {
				t.Errorf("%s: %d workloads, want 3", p.Node, p.Workloads)
			}
		}
		return s
	}
	a, b := newMachine("a", time.Minute, 1), newMachine("b", 50*time.Second, 2)
	first := a.batch(t, a.window(10*time.Second), a.window(5*time.Second))
	offer(t, in, "a", a.clock(), first, batch.Accepted)
	backlog := newMachine("a", time.Minute, 4)
	backlog.began = a.began
	offer(t, in, "a", backlog.clock(), backlog.batch(t, backlog.window(7*time.Second)), batch.Accepted)
	offer(t, in, "b", b.clock(), b.batch(t, b.window(10*time.Second)), batch.Accepted)
	if got, want := names(), "a 5s 3 of 4; b 10s 3 of 4; "; got != want {
		t.Errorf("latest: %s, want %s", got, want)
	}
	var want strings.Builder
	want.WriteString("a 5s 0 of 4; b 10s 3 of 4; ") // of the machine itself it goes on to tell
	for i, node := range []string{"c", "d", "e", "f", "g", "h", "i"} {
		m := newMachine(node, 40*time.Second, byte(10+i))
		offer(t, in, node, m.clock(), m.batch(t, m.window(10*time.Second)), batch.Accepted)
		want.WriteString(node + " 10s 3 of 4; ")
	}
	if got := names(); got != want.String() {
		t.Errorf("with room for eight, latest: %s, want %s", got, want.String())
	}
	// Windows that ended too long ago are not among the latest ones.
	old := newMachine("old", time.Hour, 5)
	offer(t, in, "old", old.clock(), old.batch(t, old.window(10*time.Second)), batch.Accepted)
	if got := names(); got != want.String() {
		t.Errorf("after an old one, latest: %s, want %s", got, want.String())
	}
}

// TestLatestOfMany checks that a node that sends as many rows as it may does not take
// the room of another node.
func TestLatestOfMany(t *testing.T) { synctest.Test(t, testLatestOfMany) }

func testLatestOfMany(t *testing.T) {
	cfg := quick()
	cfg.SnapshotRows = 80
	in := start(t, cfg, newLedger())
	for i := range 25 {
		node := fmt.Sprint("small", i)
		m := newMachine(node, 40*time.Second, byte(10+i))
		offer(t, in, node, m.clock(), m.batch(t, m.window(10*time.Second)), batch.Accepted)
	}
	large := newMachine("large", time.Minute, 1)
	send := func(present int) {
		t.Helper()
		w := large.window(10 * time.Second)
		for i := range 80 {
			r := usage.Row{ShortID: workload.ShortID(i + 10)}
			r.Usage.Covered = 10 * time.Second
			if i < present {
				r.Usage.Put(usage.Processes, int64(i), usage.Measured)
			}
			w.Rows = append(w.Rows, r)
		}
		offer(t, in, "large", large.clock(), large.batch(t, w), batch.Accepted)
	}
	rows := func(node string) int {
		p, ok := in.Snapshot(node)
		if !ok {
			return -1
		}
		return len(p.Rows)
	}
	send(0)
	if n := rows("large"); n != 3 {
		t.Errorf("%d rows of the node, want the 3 that say something", n)
	}
	send(80)
	if n := len(in.Snapshots()); n != 26 || rows("large") != 0 {
		t.Errorf("%d nodes are shown, and %d rows of the large one; want all of the small ones' and not its", n, rows("large"))
	}
	for i := range 25 {
		if node := fmt.Sprint("small", i); rows(node) != 3 {
			t.Errorf("%s has %d rows, want 3", node, rows(node))
		}
	}

	alone := start(t, cfg, newLedger())
	in, large = alone, newMachine("large", time.Minute, 2)
	send(80)
	p, ok := in.Snapshot("large")
	if !ok || len(p.Rows) != 10 {
		t.Fatalf("%d rows of a node alone, want 10, an eighth", len(p.Rows))
	}
	for i := range 3 {
		if p.Rows[i].Amounts[live.CPU].Value == 0 {
			t.Errorf("row %d used no CPU: %+v", i, p.Rows[i])
		}
	}
}

// However batches of several streams come, early, late, twice, together, the
// ledger holds the same in the end.
func TestOrderOfOffersIsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger()
		in, stop := run(t, quick(), l, nil)
		defer stop()
		type stream struct {
			node   string
			m      *machine
			sents  [][]byte
			orders []int
		}
		var streams []*stream
		want := map[minuteKey]usage.Usage{}
		wantNodes := map[nodeKey]usage.Shares{}
		for i := range rapid.IntRange(1, 4).Draw(t, "streams") {
			s := &stream{node: rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"), m: newMachine("b", 10*time.Hour, byte(i))}
			for range rapid.IntRange(1, 5).Draw(t, "batches") {
				var ws []usage.Window
				for range rapid.IntRange(0, 3).Draw(t, "windows") {
					ws = append(ws, s.m.window(time.Duration(rapid.Int64Range(1, 150e9).Draw(t, "length"))))
				}
				s.sents = append(s.sents, s.m.batch(t, ws...))
				cuts, err := walltime.Cut(ws, make([]time.Duration, len(ws)))
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range cuts.Minutes {
					k := minuteKey{s.node, r.Minute, r.Workload}
					u := want[k]
					u.Add(&r.Usage)
					want[k] = u
				}
				for _, n := range cuts.Nodes {
					sh := wantNodes[nodeKey{s.node, n.Minute}]
					for i := range sh {
						sh[i] += n.Whole[i] + n.Skew[i]
					}
					wantNodes[nodeKey{s.node, n.Minute}] = sh
				}
			}
			s.orders = rapid.SliceOfN(rapid.IntRange(0, len(s.sents)-1), 0, 12).Draw(t, "offers")
			streams = append(streams, s)
		}
		var wg sync.WaitGroup
		errs := make(chan error, 100)
		for _, s := range streams {
			wg.Go(func() {
				try := func(n int) batch.Reply {
					r, err := in.Offer(context.Background(), s.node, s.m.clock(), s.sents[n])
					if err != nil || r.Verdict != batch.Accepted && r.Verdict != batch.Duplicate && r.Verdict != batch.OutOfOrder {
						errs <- fmt.Errorf("%v %w", r.Verdict, err)
					}
					return r
				}
				// At random first; then as an agent would.
				for _, n := range s.orders {
					try(n)
				}
				for next := uint64(1); next <= uint64(len(s.sents)); {
					next = try(int(next - 1)).Next
				}
			})
		}
		wg.Wait()
		select {
		case err := <-errs:
			t.Fatal(err)
		default:
		}
		if d := cmp.Diff(want, l.minutes); d != "" {
			t.Fatalf("minutes (-want +got):\n%s", d)
		}
		if d := cmp.Diff(wantNodes, l.nodes); d != "" {
			t.Fatalf("nodes (-want +got):\n%s", d)
		}
		// Whatever the order, each node's minutes sum to their whole.
		rows := map[nodeKey]int64{}
		for k, u := range l.minutes {
			rows[nodeKey{k.node, k.minute}] += u.Amount[usage.CPU]
		}
		for k, s := range l.nodes {
			if rows[k] != s[0] {
				t.Fatalf("minute %v: rows %d, whole %d", k, rows[k], s[0])
			}
		}
	})
}

// A clock that is wrong is set right, told once, and steady from then on.
func TestWrongClock(t *testing.T) { synctest.Test(t, testWrongClock) }

func testWrongClock(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	m := newMachine("b1", 10*time.Minute, 1)
	m.ahead = 3 * time.Hour
	late := m.clock()
	late.Boottime -= int64(300 * time.Millisecond) // it was on its way
	started := time.Now().Add(m.ahead - time.Hour).UTC()
	m.names = []batch.Name{
		{ID: workload.NewID("n1", workload.Job, "a"), Kind: workload.Job, Key: "a", Name: "a", Started: started, Ended: started.Add(time.Minute)},
		{ID: workload.NewID("n1", workload.Job, "b"), Kind: workload.Job, Key: "b", Name: "b"},
	}
	offer(t, in, "n1", late, m.batch(t, m.window(time.Minute)), batch.Accepted)
	offer(t, in, "n1", m.clock(), m.batch(t, m.window(time.Minute)), batch.Accepted)
	es := l.taken()
	if len(es[0].Shifts) != 1 || len(es[1].Shifts) != 0 {
		t.Fatalf("shifts %v, then %v; want one", es[0].Shifts, es[1].Shifts)
	}
	if by, want := es[0].Shifts[0].By, -3*time.Hour+300*time.Millisecond; by != want {
		t.Errorf("moved by %v, want %v", by, want)
	}
	if n, by := es[0].Names, es[0].Shifts[0].By; len(n) != 2 || !n[0].Started.Equal(started.Add(by)) || n[0].Ended.Sub(n[0].Started) != time.Minute || !n[1].Started.IsZero() || !n[1].Ended.IsZero() {
		t.Errorf("names %+v, want their times moved by %v", n, by)
	}
	if d := es[1].Through.Sub(es[0].Through); d != time.Minute {
		t.Errorf("the windows' ends are %v apart, want a minute", d)
	}
}

// The backlog of an earlier boot without a battery takes several batches. Each minute is covered once, and
// the last one ends where the present boot began. Of an agent that does not state the boot, the first one does.
func TestBacklogOfEarlierBoot(t *testing.T) { synctest.Test(t, testBacklogOfEarlierBoot) }

func testBacklogOfEarlierBoot(t *testing.T) {
	l := newLedger()
	_, s := serve(t, quick(), l)
	for node, c := range map[string]struct {
		batches int
		stated  bool
		after   time.Duration // from the beginning of the present boot to the end of the last batch
	}{
		"stated": {3, true, 0},
		"older":  {2, false, time.Hour},
	} {
		present, m := newMachine("present", time.Hour, 1), newMachine("earlier", 0, byte(c.batches))
		m.began = time.Unix(0, 0)
		for range c.batches {
			var ws []usage.Window
			for range 60 {
				ws = append(ws, m.window(time.Minute))
			}
			clock := present.clock()
			if c.stated {
				clock.Earlier = []batch.BootEnd{{Boot: "earlier", End: int64(c.batches) * int64(time.Hour)}}
			}
			if w, r, _ := do(t, s, ask(t, s, node, clock, m.batch(t, ws...))); r.Verdict != batch.Accepted {
				t.Fatalf("%s: %s, %v", node, w.Status, r.Verdict)
			}
		}
		covered, cpu := map[int64]time.Duration{}, int64(0)
		for _, e := range l.taken() {
			for _, n := range e.Nodes {
				if e.Node == node {
					covered[n.Minute] += n.Covered
					cpu += n.Whole[0]
				}
			}
		}
		for minute, d := range covered {
			if d > time.Minute {
				t.Fatalf("%s: minute %d is covered for %v", node, minute, d)
			}
		}
		if want := 4 * int64(c.batches) * int64(time.Hour); cpu != want {
			t.Errorf("%s: %d ns of CPU are booked, want %d", node, cpu, want)
		}
		if through := l.through[node]; through.Sub(present.began) != c.after {
			t.Errorf("%s: the boot ends at %v, the next one began at %v", node, through, present.began)
		}
	}
}

func TestStateLost(t *testing.T) { synctest.Test(t, testStateLost) }

func testStateLost(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	first := func(m *machine) []byte {
		w := m.window(10 * time.Second)
		w.StartReason = usage.StartFirst
		return m.batch(t, w)
	}
	a := newMachine("b1", time.Hour, 1)
	offer(t, in, "n1", a.clock(), first(a), batch.Accepted)
	b := newMachine("b1", time.Hour, 2)
	b.began, b.at = a.began, int64(30*time.Minute)
	sent := first(b)
	offer(t, in, "n1", b.clock(), sent, batch.Accepted)
	offer(t, in, "n1", b.clock(), sent, batch.Duplicate)
	es := l.taken()
	if len(es) != 2 || len(es[0].Gaps) != 0 || len(es[1].Gaps) != 1 {
		t.Fatalf("%d entries, want 2, the second with a gap", len(es))
	}
	g := es[1].Gaps[0]
	if g.Reason != usage.StateLost || !g.From.Equal(a.began.Add(10*time.Second)) || !g.To.Equal(a.began.Add(30*time.Minute)) {
		t.Errorf("gap %+v", g)
	}
	c := newMachine("b1", time.Hour, 3)
	if _, err := in.Offer(context.Background(), "stranger", c.clock(), first(c)); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("offer of an unknown node: %v, want denied", err)
	}
}

func TestClone(t *testing.T) { synctest.Test(t, testClone) }

func testClone(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	a, b := newMachine("a", time.Hour, 1), newMachine("b", time.Hour, 2)
	a.at, b.at = int64(59*time.Minute), int64(59*time.Minute)
	offer(t, in, "n1", a.clock(), a.batch(t, a.window(time.Second)), batch.Accepted)
	offer(t, in, "n1", b.clock(), b.batch(t, b.window(time.Second)), batch.Accepted)
	// Nothing newer than that yet: it may have been on its way.
	offer(t, in, "n1", a.clock(), a.batch(t, a.window(time.Second)), batch.Accepted)
	// The first machine goes on, so the second is the clone.
	a.at = int64(time.Since(a.began))
	offer(t, in, "n1", a.clock(), a.batch(t, a.window(time.Second)), batch.Accepted)
	offer(t, in, "n1", b.clock(), b.batch(t, b.window(time.Second)), batch.Clone)
	offer(t, in, "n1", a.clock(), a.batch(t, a.window(time.Second)), batch.Accepted)
	if s := in.Stats(); s.Accepted != 5 || s.Clones != 1 || len(l.taken()) != 5 {
		t.Errorf("%d booked, stats %+v", len(l.taken()), s)
	}
}

// TestCloneAfterRestart checks that after a restart of the server a copy of a machine that sends first
// does not pass for the machine, which was booked before.
func TestCloneAfterRestart(t *testing.T) { synctest.Test(t, testCloneAfterRestart) }

func testCloneAfterRestart(t *testing.T) {
	in := start(t, quick(), newLedger())
	in.SeedBoots(map[string]string{"n1": "a", "n2": "x"})
	if boot, ok := in.LiveBoot("n1"); ok {
		t.Errorf("a node that sent nothing since the start is live in boot %q", boot)
	}
	a, b := newMachine("a", time.Hour, 1), newMachine("b", time.Hour, 2)
	b.at = int64(59 * time.Minute)
	offer(t, in, "n1", b.clock(), b.batch(t, b.window(time.Second)), batch.Accepted)
	a.at = int64(time.Since(a.began))
	offer(t, in, "n1", a.clock(), a.batch(t, a.window(time.Second)), batch.Accepted)
	offer(t, in, "n1", b.clock(), b.batch(t, b.window(time.Second)), batch.Clone)
	offer(t, in, "n1", a.clock(), a.batch(t, a.window(time.Second)), batch.Accepted)
}

// newPoisoned returns a ledger whose transactions fail with a batch of the node "bad".
func newPoisoned() *ledger {
	l := newLedger()
	l.fail = func(e *batch.Entry) error {
		if e.Node == "bad" {
			return errors.New("disk: bad row")
		}
		return nil
	}
	return l
}

// TestPoison checks that one batch that breaks the transaction does not make the
// receiver refuse the others.
func TestPoison(t *testing.T) { synctest.Test(t, testPoison) }

func testPoison(t *testing.T) {
	l := newPoisoned()
	cfg := quick()
	cfg.GatherTime = 50 * time.Millisecond
	in := start(t, cfg, l)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]error{}
	for i, node := range []string{"n1", "bad", "n2"} {
		wg.Go(func() {
			m := newMachine("b", time.Minute, byte(i))
			_, err := in.Offer(context.Background(), node, m.clock(), m.batch(t, m.window(time.Second)))
			mu.Lock()
			got[node] = err
			mu.Unlock()
		})
	}
	wg.Wait()
	if got["n1"] != nil || got["n2"] != nil || !errors.Is(got["bad"], fault.ErrUnavailable) {
		t.Errorf("errors %v", got)
	}
	// While the database is unavailable, the batches of a group are not booked one by one.
	l.mu.Lock()
	l.calls = nil
	l.fail = func(*batch.Entry) error { return fmt.Errorf("database: %w", fault.ErrUnavailable) }
	l.mu.Unlock()
	for i := range 3 {
		wg.Go(func() {
			m := newMachine("b", time.Minute, byte(10+i))
			if _, err := in.Offer(context.Background(), "n1", m.clock(), m.batch(t, m.window(time.Second))); !errors.Is(err, fault.ErrUnavailable) {
				t.Errorf("offer: %v, want unavailable", err)
			}
		})
	}
	wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := 0
	for _, n := range l.calls {
		sum += n
	}
	if sum != 3 || in.Stats().Queue != 0 {
		t.Errorf("the transactions had %v batches, want each batch once; %d rows wait", l.calls, in.Stats().Queue)
	}
}

// TestPoisonPair checks that of two batches, of which one breaks the transaction, the other one is booked.
func TestPoisonPair(t *testing.T) { synctest.Test(t, testPoisonPair) }

func testPoisonPair(t *testing.T) {
	l := newPoisoned()
	cfg := quick()
	cfg.GatherTime = 50 * time.Millisecond
	in := start(t, cfg, l)
	var wg sync.WaitGroup
	for i, node := range []string{"good", "bad"} {
		wg.Go(func() {
			m := newMachine("b", time.Minute, byte(i))
			if _, err := in.Offer(context.Background(), node, m.clock(), m.batch(t, m.window(time.Second))); (err == nil) != (node == "good") {
				t.Errorf("%s: %v", node, err)
			}
		})
	}
	wg.Wait()
	if st := in.Stats(); !cmp.Equal(l.calls, []int{2, 1, 1}) || st.Queue != 0 || st.Accepted != 1 || st.Unavailable != 1 || st.Commits != 3 {
		t.Errorf("transactions of %v batches, %+v", l.calls, st)
	}
}

func TestBackPressure(t *testing.T) { synctest.Test(t, testBackPressure) }

func testBackPressure(t *testing.T) {
	l := newLedger()
	l.hold = make(chan struct{})
	cfg := quick()
	cfg.QueueRows = 4
	in := start(t, cfg, l)
	a, b := newMachine("a", time.Minute, 1), newMachine("b", time.Minute, 2)
	// Larger than the queue as a whole, so it goes alone.
	sent := a.batch(t, a.window(time.Second), a.window(time.Second))
	done := make(chan error)
	go func() {
		_, err := in.Offer(context.Background(), "a", a.clock(), sent)
		done <- err
	}()
	until(t, "a batch is queued", func() bool { return in.Stats().Queue > 0 })
	sent2 := b.batch(t, b.window(time.Second))
	_, err := in.Offer(context.Background(), "b", b.clock(), sent2)
	if _, later := fault.RetryAfter(err); !errors.Is(err, fault.ErrUnavailable) || !later {
		t.Errorf("offer to a full queue: %v, want unavailable, and when to come back", err)
	}
	close(l.hold)
	if err := <-done; err != nil {
		t.Error(err)
	}
	offer(t, in, "b", b.clock(), sent2, batch.Accepted)
	if s := in.Stats(); s.Queue != 0 || s.Unavailable != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestGroupsAndGoingDown checks that many nodes share transactions, and that an offer
// to a stopped receiver fails with fault.ErrUnavailable.
func TestGroupsAndGoingDown(t *testing.T) { synctest.Test(t, testGroupsAndGoingDown) }

func testGroupsAndGoingDown(t *testing.T) {
	l := newLedger()
	l.hold = make(chan struct{})
	in, stop := run(t, receiver.Default(), l, nil)
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			m := newMachine("b", time.Minute, byte(i))
			offer(t, in, fmt.Sprint("n", i), m.clock(), m.batch(t, m.window(time.Second)), batch.Accepted)
		})
	}
	until(t, "all batches are queued", func() bool { return in.Stats().Queue == n*5 })
	close(l.hold)
	wg.Wait()
	l.mu.Lock()
	// The first transaction has the batches that came within its gathering time.
	if calls := len(l.calls); calls > 2 {
		t.Errorf("%d batches made %d transactions", n, calls)
	}
	l.mu.Unlock()
	stop()
	m := newMachine("b", time.Minute, 99)
	if _, err := in.Offer(context.Background(), "n", m.clock(), m.batch(t, m.window(time.Second))); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("offer after the end: %v, want unavailable", err)
	}
}

// TestGivenUp checks that a client that stops waiting gets its own error, and that
// its batch is booked: a second offer of the batch is a duplicate.
func TestGivenUp(t *testing.T) { synctest.Test(t, testGivenUp) }

func testGivenUp(t *testing.T) {
	l := newLedger()
	l.hold = make(chan struct{})
	in := start(t, quick(), l)
	m := newMachine("b", time.Minute, 1)
	sent := m.batch(t, m.window(time.Second))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := in.Offer(ctx, "n", m.clock(), sent)
		done <- err
	}()
	until(t, "a batch is queued", func() bool { return in.Stats().Queue > 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("offer: %v, want canceled", err)
	}
	close(l.hold)
	offer(t, in, "n", m.clock(), sent, batch.Duplicate)
}

func TestLost(t *testing.T) { synctest.Test(t, testLost) }

func testLost(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	far := time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)
	lost := batch.Loss{Stream: batch.Stream{1}, From: 1, To: 3, Gap: usage.Gap{From: time.Now().Add(-time.Hour), To: far, Reason: usage.Forgotten, Detail: "a\x00" + strings.Repeat("é", 9999)}}
	if r, err := in.ReportLoss(context.Background(), "n", lost); err != nil || r.Verdict != batch.Accepted || r.Next != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	g := l.lost[0].Gap
	if g.To.After(time.Now().Add(walltime.Tolerance)) || len(g.Detail) > 4096 || strings.ContainsAny(g.Detail, "\x00") || strings.ToValidUTF8(g.Detail, "?") != g.Detail {
		t.Errorf("gap to %v with a detail of %d bytes", g.To, len(g.Detail))
	}
	lost.From, lost.To, lost.Gap.Detail = 4, 4, strings.Repeat("x", 4096)
	if r, err := in.ReportLoss(context.Background(), "n", lost); err != nil || r.Next != 5 || l.lost[1].Gap.Detail != lost.Gap.Detail {
		t.Errorf("a detail of 4096 bytes: %+v, %v, booked with %d", r, err, len(l.lost[1].Gap.Detail))
	}
	lost.From, lost.To = 5, 1<<64-2
	if r, err := in.ReportLoss(context.Background(), "n", lost); err != nil || r.Next != 1<<64-1 {
		t.Errorf("the last number: %+v, %v", r, err)
	}
	for _, n := range [][2]uint64{{0, 1}, {2, 1}, {1, 1<<64 - 1}} {
		lost.From, lost.To = n[0], n[1]
		if _, err := in.ReportLoss(context.Background(), "n", lost); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v: %v, want invalid", n, err)
		}
	}
}

// TestConfig checks each limit with the least value that works, and with the next lower one.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*receiver.Config)
		ok     bool
	}{
		{"default", func(*receiver.Config) {}, true},
		{"one decoder", func(c *receiver.Config) { c.Decoders = 1 }, true},
		{"no decoder", func(c *receiver.Config) { c.Decoders = 0 }, false},
		{"queue of a row", func(c *receiver.Config) { c.QueueRows = 1 }, true},
		{"no queue", func(c *receiver.Config) { c.QueueRows = 0 }, false},
		{"group of a row", func(c *receiver.Config) { c.GroupRows = 1 }, true},
		{"no group", func(c *receiver.Config) { c.GroupRows = 0 }, false},
		{"no gathering", func(c *receiver.Config) { c.GatherTime = 0 }, true},
		{"less than no gathering", func(c *receiver.Config) { c.GatherTime = -1 }, false},
		{"shortest commit", func(c *receiver.Config) { c.CommitTimeout = 1 }, true},
		{"no commit", func(c *receiver.Config) { c.CommitTimeout = 0 }, false},
		{"batch of a byte", func(c *receiver.Config) { c.Limits.Sent = 1 }, true},
		{"no batch", func(c *receiver.Config) { c.Limits.Sent = 0 }, false},
		{"bodies of one batch", func(c *receiver.Config) { c.BodyBytes = int64(c.Limits.Sent) }, true},
		{"bodies of less", func(c *receiver.Config) { c.BodyBytes = int64(c.Limits.Sent) - 1 }, false},
		{"shortest idle time", func(c *receiver.Config) { c.IdleTimeout = 1 }, true},
		{"no idle time", func(c *receiver.Config) { c.IdleTimeout = 0 }, false},
		{"shortest request", func(c *receiver.Config) { c.RequestTimeout = 1 }, true},
		{"no request", func(c *receiver.Config) { c.RequestTimeout = 0 }, false},
		{"lowest rate", func(c *receiver.Config) { c.Rate = 0x1p-1000 }, true},
		{"no rate", func(c *receiver.Config) { c.Rate = 0 }, false},
		{"burst of one", func(c *receiver.Config) { c.Burst = 1 }, true},
		{"no burst", func(c *receiver.Config) { c.Burst = 0 }, false},
		{"one at once", func(c *receiver.Config) { c.Parallel = 1 }, true},
		{"none at once", func(c *receiver.Config) { c.Parallel = 0 }, false},
		{"no snapshots", func(c *receiver.Config) { c.SnapshotRows = 0 }, true},
		{"less than none", func(c *receiver.Config) { c.SnapshotRows = -1 }, false},
		{"shortest life", func(c *receiver.Config) { c.SnapshotTTL = 1 }, true},
		{"no life", func(c *receiver.Config) { c.SnapshotTTL = 0 }, false},
	} {
		cfg := receiver.Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestDefault checks the limits of a server of 2 cores and 1 GB: they say how much memory the requests
// and rows of agents take, and how much an agent may send.
func TestDefault(t *testing.T) {
	want := receiver.Config{
		Limits: wire.Default(), Decoders: 2, QueueRows: 200_000, GroupRows: 20_000, GatherTime: 5 * time.Millisecond, CommitTimeout: 30 * time.Second,
		BodyBytes: 64 << 20, IdleTimeout: 10 * time.Second, RequestTimeout: time.Minute, Rate: 20, Burst: 200, Parallel: 8,
		SnapshotRows: 100_000, SnapshotTTL: 5 * time.Minute,
	}
	if d := cmp.Diff(want, receiver.Default()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestLedgerFails lets each method of the ledger fail, with an error of no kind and with one that
// refuses: the sender gets an error of the same kind, nothing is booked, and the same batch is booked
// when the ledger works again.
func TestLedgerFails(t *testing.T) { synctest.Test(t, testLedgerFails) }

func testLedgerFails(t *testing.T) {
	for _, method := range []string{"BootPlaces", "Booked", "Mark", "Through"} {
		l := newLedger()
		in := startWith(t, quick(), l, &metrics{})
		m := newMachine("b1", time.Hour, 1)
		earlier := newMachine("b0", 3*time.Hour, 1)
		first := earlier.window(time.Minute)
		first.StartReason = usage.StartFirst
		present := m.window(time.Minute)
		present.Scope = usage.Machine
		sent := m.batch(t, first, present)
		for _, kind := range []error{fault.ErrUnavailable, fault.ErrDenied} {
			cause := errors.New("disk")
			if kind == fault.ErrDenied { //nolint:errorlint // one of two
				cause = kind
			}
			l.fails = map[string]error{method: cause}
			if _, err := in.Offer(t.Context(), "n1", m.clock(), sent); !errors.Is(err, kind) || !errors.Is(err, cause) {
				t.Errorf("%s fails with %v: %v", method, cause, err)
			}
			if n := len(l.taken()); n != 0 {
				t.Fatalf("%s fails with %v: %d batches are booked", method, cause, n)
			}
		}
		l.fails = nil
		offer(t, in, "n1", m.clock(), sent, batch.Accepted)
	}
	l := newLedger()
	in := start(t, quick(), l)
	lost := batch.Loss{Stream: batch.Stream{1}, From: 1, To: 3}
	l.fails = map[string]error{"Lost": errors.New("disk")}
	if _, err := in.ReportLoss(t.Context(), "n1", lost); !errors.Is(err, fault.ErrUnavailable) || in.Stats().Losses != 0 {
		t.Errorf("Lost fails: %v, %d losses", err, in.Stats().Losses)
	}
	l.fails = nil
	if _, err := in.ReportLoss(t.Context(), "n1", lost); err != nil || in.Stats().Losses != 1 {
		t.Errorf("a loss: %v, %d losses", err, in.Stats().Losses)
	}
}

// TestBootPlacesAsked checks for which boots the receiver queries the ledger: the earlier ones that have
// windows in the batch, and then those that the sender states; none if all windows are of the present
// boot.
func TestBootPlacesAsked(t *testing.T) { synctest.Test(t, testBootPlacesAsked) }

func testBootPlacesAsked(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	m := newMachine("p", time.Hour, 1)
	a, b := newMachine("a", 9*time.Hour, 1), newMachine("b", 5*time.Hour, 1)
	c := m.clock()
	c.Earlier = []batch.BootEnd{{Boot: "x", End: 1}, {Boot: "a", End: int64(2 * time.Minute)}, {Boot: "b", End: int64(time.Minute)}, {Boot: "y", End: 1}}
	offer(t, in, "n1", c, m.batch(t, m.window(time.Minute)), batch.Accepted)
	if len(l.asked) != 0 {
		t.Errorf("without windows of earlier boots: %v", l.asked)
	}
	offer(t, in, "n1", c, m.batch(t, b.window(time.Minute), a.window(time.Minute), a.window(time.Minute), m.window(time.Minute)), batch.Accepted)
	if want := [][]string{{"b", "a", "x", "y"}}; !cmp.Equal(l.asked, want) {
		t.Errorf("asked of %v, want %v", l.asked, want)
	}
}

// TestLiveBoot checks that a node is live for two minutes after its last request.
func TestLiveBoot(t *testing.T) { synctest.Test(t, testLiveBoot) }

func testLiveBoot(t *testing.T) {
	in := start(t, quick(), newLedger())
	m := newMachine("b1", time.Minute, 1)
	offer(t, in, "n1", m.clock(), m.batch(t, m.window(time.Second)), batch.Accepted)
	time.Sleep(2 * time.Minute)
	if boot, ok := in.LiveBoot("n1"); boot != "b1" || !ok {
		t.Errorf("after two minutes: %q, %t", boot, ok)
	}
	time.Sleep(time.Nanosecond)
	if boot, ok := in.LiveBoot("n1"); boot != "" || ok {
		t.Errorf("after more: %q, %t", boot, ok)
	}
}

// TestSnapshotAge checks that a latest window is shown until it is five minutes old, and that one which
// is older when it comes is never shown.
func TestSnapshotAge(t *testing.T) { synctest.Test(t, testSnapshotAge) }

func testSnapshotAge(t *testing.T) {
	in := start(t, quick(), newLedger())
	shown := func(node string) bool {
		_, ok := in.Snapshot(node)
		if all := in.Snapshots(); ok != (len(all) == 1) || ok && all[0].Node != node {
			t.Errorf("%s is shown %t, of all %v", node, ok, all)
		}
		return ok
	}
	m := newMachine("b1", time.Minute, 1)
	offer(t, in, "n1", m.clock(), m.batch(t, m.window(time.Minute)), batch.Accepted)
	time.Sleep(5 * time.Minute)
	if !shown("n1") {
		t.Error("a window of five minutes ago is not shown")
	}
	time.Sleep(time.Nanosecond)
	if shown("n1") {
		t.Error("an older window is shown")
	}
	for node, age := range map[string]time.Duration{"n2": 5 * time.Minute, "n3": 5*time.Minute + 1} {
		in := start(t, quick(), newLedger())
		m := newMachine("b1", time.Minute+age, 1)
		offer(t, in, node, m.clock(), m.batch(t, m.window(time.Minute)), batch.Accepted)
		if _, ok := in.Snapshot(node); ok != (node == "n2") {
			t.Errorf("a window that comes after %v is shown %t", age, ok)
		}
	}
}

// TestLatestWindow checks that the window that ends last, wherever it is in a batch, says through when a
// node is booked and what it uses at present.
func TestLatestWindow(t *testing.T) { synctest.Test(t, testLatestWindow) }

func testLatestWindow(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	m, before := newMachine("b1", time.Minute, 1), newMachine("b0", 10*time.Minute, 1)
	ws := []usage.Window{m.window(20 * time.Second), m.window(10 * time.Second), before.window(5 * time.Second)}
	ws[1].CPUs = 7
	offer(t, in, "n1", m.clock(), m.batch(t, ws...), batch.Accepted)
	e := l.taken()[0]
	if want := m.began.Add(30 * time.Second); !e.Through.Equal(want) {
		t.Errorf("through %v, want %v", e.Through, want)
	}
	if s, ok := in.Snapshot("n1"); !ok || s.CPUs != 7 || s.To.Sub(s.From) != 10*time.Second {
		t.Errorf("latest %+v", s)
	}
}

// TestNodeStatus checks the status of a node: its anomalies and its spool.
func TestNodeStatus(t *testing.T) { synctest.Test(t, testNodeStatus) }

func testNodeStatus(t *testing.T) {
	in, s := serve(t, quick(), newLedger())
	want := func(what string, anomalies receiver.Anomalies, spool receiver.SpoolUsage) {
		t.Helper()
		if a, u := in.NodeStatus("n1"); a != anomalies || u != spool {
			t.Errorf("%s: %+v, %+v; want %+v, %+v", what, a, u, anomalies, spool)
		}
	}
	m := newMachine("b1", time.Minute, 1)
	want("unknown", receiver.Anomalies{}, receiver.SpoolUsage{})
	send := func(spool string) {
		t.Helper()
		w := m.window(10 * time.Second)
		w.Balance.Violations, w.Balance.Lost = 2, 3
		r := ask(t, s, "n1", m.clock(), m.batch(t, w))
		if spool != "" {
			r.Header.Set(wire.HeaderSpool, spool)
		}
		if w, _, _ := do(t, s, r); w.StatusCode != 200 {
			t.Fatal(w.Status)
		}
	}
	send("")
	want("without a spool", receiver.Anomalies{Violations: 2, Missed: 3}, receiver.SpoolUsage{})
	send(wire.FormatSpool(5, 9))
	want("with a spool", receiver.Anomalies{Violations: 4, Missed: 6}, receiver.SpoolUsage{Bytes: 5, Limit: 9})
	send("nonsense")
	want("with nonsense", receiver.Anomalies{Violations: 6, Missed: 9}, receiver.SpoolUsage{Bytes: 5, Limit: 9})
}

// TestShiftAgain checks that a shift is booked again when it differs by more than two seconds, or is of
// another boot.
func TestShiftAgain(t *testing.T) { synctest.Test(t, testShiftAgain) }

func testShiftAgain(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	m := newMachine("b1", 10*time.Minute, 1)
	for _, c := range []struct {
		ahead time.Duration
		want  int
	}{
		{time.Hour, 1}, {time.Hour, 0}, {time.Hour + 2*time.Second, 0}, {time.Hour + 2*time.Second + 1, 1},
		{time.Hour + 1, 0}, {time.Hour, 1}, {time.Hour - 2*time.Second, 0}, {0, 0}, {time.Hour - 2*time.Second - 1, 1},
	} {
		m.ahead = c.ahead
		offer(t, in, "n1", m.clock(), m.batch(t, m.window(time.Second)), batch.Accepted)
		all := l.taken()
		if got := all[len(all)-1].Shifts; len(got) != c.want {
			t.Errorf("%v ahead: shifts %v, want %d", c.ahead, got, c.want)
		}
	}
	m.ahead = time.Hour - 2*time.Second
	two := []usage.Window{m.window(time.Second), m.window(time.Second)}
	two[1].Offset += int64(time.Hour)
	offer(t, in, "n1", m.clock(), m.batch(t, two...), batch.Accepted)
	all := l.taken()
	if got := all[len(all)-1].Shifts; len(got) != 1 || got[0].By != -2*time.Hour+2*time.Second {
		t.Errorf("one as before and one more: %v", got)
	}
	again := newMachine("b2", 5*time.Second, 2)
	again.ahead = 2 * time.Hour
	offer(t, in, "n1", again.clock(), again.batch(t, again.window(time.Second)), batch.Accepted)
	all = l.taken()
	if got := all[len(all)-1].Shifts; len(got) != 1 {
		t.Errorf("of another boot: %v", got)
	}
}

// TestDecoders checks that a batch waits while as many are decoded as may be, until its sender gives up.
func TestDecoders(t *testing.T) { synctest.Test(t, testDecoders) }

func testDecoders(t *testing.T) {
	l := newLedger()
	cfg := quick()
	cfg.Decoders = 2 // of small batches one
	slow := &slowMetrics{hold: make(chan struct{})}
	in := startWith(t, cfg, l, slow)
	var wg sync.WaitGroup
	a, b := newMachine("a", time.Minute, 1), newMachine("b", time.Minute, 2)
	first, second := a.batch(t, a.window(time.Second)), b.batch(t, b.window(time.Second))
	wg.Go(func() { offer(t, in, "n1", a.clock(), first, batch.Accepted) })
	synctest.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := in.Offer(ctx, "n2", b.clock(), second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second one: %v", err)
	}
	if slow.calls != 1 {
		t.Errorf("%d batches are decoded at once", slow.calls)
	}
	close(slow.hold)
	wg.Wait()
	offer(t, in, "n2", b.clock(), second, batch.Accepted)
}

// Whatever sound bytes claim, nothing panics, an error is the sender's and books
// nothing, and what is booked sums to what was sent and is not of the future.
func TestOddBatches(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	number := byte(0)
	odd := rapid.OneOf(rapid.SampledFrom([]int64{0, 1, -1, 1e9, 60e9, 1 << 51, 1 << 52, 1<<63 - 1, -1 << 63, time.Now().UnixNano()}), rapid.Int64Range(0, 1e13), rapid.Int64())
	rapid.Check(t, func(t *rapid.T) {
		b := batch.Batch{Stream: batch.Stream{number, 1}, Number: 1}
		number++
		delete(l.marks, b.Stream)
		at := int64(0)
		for range rapid.IntRange(0, 3).Draw(t, "windows") {
			w := usage.Window{Boot: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "boot"), Start: at, Offset: odd.Draw(t, "offset"), StartReason: usage.StartReason(rapid.IntRange(0, 3).Draw(t, "opening"))}
			w.End = w.Start + rapid.Int64Range(0, 1e15).Draw(t, "length")
			at = w.End
			for i := range rapid.IntRange(0, 3).Draw(t, "rows") {
				r := usage.Row{ShortID: workload.ShortID(i)}
				r.Usage.Put(usage.Resource(rapid.IntRange(1, usage.Limit-1).Draw(t, "resource")), max(0, odd.Draw(t, "amount")), usage.Measured)
				r.Usage.Covered = time.Duration(max(0, odd.Draw(t, "covered")))
				w.Rows = append(w.Rows, r)
			}
			w.Balance.Whole[0], w.Balance.Skew[1] = max(0, odd.Draw(t, "whole")), odd.Draw(t, "skew")
			b.Windows = append(b.Windows, w)
		}
		if rapid.Bool().Draw(t, "gap") {
			b.Gaps = []usage.Gap{{From: time.Unix(0, odd.Draw(t, "from")), To: time.Unix(0, odd.Draw(t, "to")), Reason: usage.Rebooted}}
		}
		sent, err := wire.Encode(nil, &b)
		if err != nil {
			return
		}
		before := len(l.taken())
		r, err := in.Offer(context.Background(), "n", batch.Clock{Boot: "b", Boottime: odd.Draw(t, "boottime")}, sent)
		booked := l.taken()[before:]
		switch {
		case err != nil && !errors.Is(err, fault.ErrInvalid):
			t.Fatalf("error %v, want invalid", err)
		case (err == nil && r.Verdict == batch.Accepted) != (len(booked) > 0):
			t.Fatalf("%v, %v: %d booked", r.Verdict, err, len(booked))
		case len(booked) == 0:
			return
		}
		late := time.Now().Add(walltime.Tolerance)
		for _, m := range booked[0].Minutes {
			if m.Minute < 0 || time.Unix(m.Minute*60, 0).After(late) {
				t.Fatalf("booked in minute %d", m.Minute)
			}
		}
		for _, g := range booked[0].Gaps {
			if g.To.Before(g.From) || g.To.After(late) || g.From.Unix() < 0 {
				t.Fatalf("gap from %v to %v", g.From, g.To)
			}
		}
		var sum, want int64
		for _, m := range booked[0].Minutes {
			sum += m.Usage.Amount[usage.CPU]
		}
		for _, w := range b.Windows {
			for _, r := range w.Rows {
				want += r.Usage.Amount[usage.CPU]
			}
		}
		if sum != want {
			t.Fatalf("booked %d ns, want %d", sum, want)
		}
	})
}

// BenchmarkOffer is what a window row costs up to the ledger.
func BenchmarkOffer(b *testing.B) {
	const rows = 500
	l := newLedger()
	in, stop := run(b, quick(), l, nil)
	defer stop()
	m := newMachine("b", time.Hour, 1)
	w := m.window(10 * time.Second)
	for i := len(w.Rows); i < rows; i++ {
		r := usage.Row{ShortID: workload.ShortID(i) << 40}
		for _, res := range []usage.Resource{usage.CPUUser, usage.Memory, usage.MemoryPeak, usage.NetworkRx, usage.PIDs} {
			r.Usage.Put(res, int64(i)*1234567, usage.Measured)
		}
		w.Rows = append(w.Rows, r)
	}
	sent := m.batch(b, w)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := in.Offer(context.Background(), "n", m.clock(), sent); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}

// Whatever bytes come, nothing panics, and an error books nothing.
func FuzzOffer(f *testing.F) {
	m := newMachine("b", time.Hour, 1)
	f.Add([]byte(nil), int64(0))
	f.Add([]byte("garbage"), int64(1))
	f.Add(m.batch(f, m.window(time.Minute)), int64(time.Hour))
	w := m.window(200 * time.Hour)
	w.StartReason = usage.StartBooted
	f.Add(m.batch(f, w, m.window(0)), int64(300*time.Hour))
	l := newLedger()
	in, stop := run(f, quick(), l, nil)
	f.Cleanup(stop)
	f.Fuzz(func(t *testing.T, sent []byte, boottime int64) {
		before := len(l.taken())
		r, err := in.Offer(context.Background(), "n", batch.Clock{Boot: "b", Boottime: boottime}, sent)
		after := l.taken()
		if (err == nil && r.Verdict == batch.Accepted) != (len(after) > before) {
			t.Fatalf("%v, %v: %d booked", r.Verdict, err, len(after)-before)
		}
		if err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("error %v, want invalid", err)
		}
		for _, e := range after[before:] {
			for _, r := range e.Minutes {
				if at := time.Unix(r.Minute*60, 0); at.After(time.Now().Add(walltime.Tolerance)) || r.Minute < 0 {
					t.Fatalf("booked at %v", at)
				}
			}
		}
	})
}
