package ledgertest

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testModel books random entries, with repeats, forgeries, late minutes, folds, drops and
// restarts in between, and compares the whole content with the model.
func testModel(t *testing.T, dsn string) {
	checks(t, dsn)
	round, db := 0, DB(t, dsn)
	rapid.Check(t, func(rt *rapid.T) {
		// All rounds use one database: each has nodes and days of its own, since marks only
		// move forward.
		round++
		r := &modelRound{
			T: rt, t: t, dsn: dsn, model: newModel(), db: reader{t, db}, named: map[rowKey]bool{},
			// Long ago, so that no batch is dropped meanwhile.
			day: minuteOf(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC)) + int64(round)*10*dayMinutes,
		}
		r.open()
		defer func() { closeLedger(t, r.l) }()
		for i := range 2 {
			id := fmt.Sprintf("r%d-%d", round, i)
			Node(t, r.l, id)
			r.nodes = append(r.nodes, id)
		}
		for i := range byte(4) {
			s := batch.Stream{byte(round >> 8), byte(round), i}
			r.streams = append(r.streams, s)
			r.model.streams[s] = &modelStream{node: r.nodes[i%2]}
		}
		for range rapid.IntRange(3, 12).Draw(rt, "steps") {
			r.step()
		}
		r.check()
	})
	l := Open(t, dsn)
	findings, err := l.Check(t.Context())
	// Random rows do not balance.
	findings = slices.DeleteFunc(findings, func(s string) bool { return strings.HasPrefix(s, "balance: ") })
	if err != nil || len(findings) > 0 {
		t.Errorf("the check reports %q, %v", findings, err)
	}
}

// checks sets a small default number of rounds, unless -rapid.checks sets it.
func checks(t *testing.T, dsn string) {
	n := 10
	if strings.HasPrefix(dsn, "postgres") {
		n = 8
	}
	Checks(t, n)
}

// Checks sets the number of rounds of a property until the test ends, unless -rapid.checks
// or a parent test sets it.
func Checks(t *testing.T, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Value.Set(f.DefValue); err != nil {
			t.Error(err)
		}
	})
}

// A modelRound is one round.
type modelRound struct {
	*rapid.T
	t       *testing.T
	dsn     string
	l       *ledger.Ledger
	db      reader
	model   *model
	nodes   []string
	streams []batch.Stream
	named   map[rowKey]bool
	day     int64 // the first minute of its days
	sent    int
}

// open opens the ledger, so that it folds in slices of one key, of some or of all.
func (r *modelRound) open() {
	cfg := ledger.Default()
	cfg.Slice = rapid.SampledFrom([]int{1, 180, cfg.Slice, cfg.Slice}).Draw(r.T, "slice")
	l, err := openFaulty(r, r.dsn, cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.l = l
}

// fold folds some slices; other steps may come between them and the rest.
func (r *modelRound) fold(slices int) error {
	for err := range r.l.Folding(r.t.Context(), r.now()) {
		if err != nil {
			return err
		}
		if slices--; slices <= 0 {
			return nil
		}
		if slices < 10 && rapid.Bool().Draw(r.T, "meanwhile") {
			r.book()
		}
	}
	return nil
}

// now draws a moment of the round's three days and a little later.
func (r *modelRound) now() time.Time {
	return time.Unix(60*(r.day+int64(rapid.IntRange(0, 4*dayMinutes).Draw(r.T, "now"))), 0)
}

func (r *modelRound) step() {
	ctx := r.t.Context()
	var err error
	switch rapid.SampledFrom([]string{"book", "book", "book", "book", "fold", "fold", "retain", "reopen", "lost", "check"}).Draw(r.T, "step") {
	case "book":
		r.book()
	case "fold":
		err = r.fold(rapid.SampledFrom([]int{1, 3, 10, 200}).Draw(r.T, "slices"))
	case "retain":
		now := r.now().Add(time.Duration(rapid.SampledFrom([]int{0, 6, 7, 8, 780}).Draw(r.T, "days")) * 24 * time.Hour)
		err = Try(r, func() error { return r.l.Retain(ctx, now) })
	case "reopen":
		closeLedger(r.t, r.l)
		r.open()
	case "lost":
		s := rapid.SampledFrom(r.streams).Draw(r.T, "stream")
		m := r.model.streams[s]
		next := uint64(len(m.taken)) + 1
		lost := batch.Loss{Stream: s, From: next, To: next + 1, Hash: batch.Hash{byte(next)}, Gap: usage.Gap{From: Day, To: r.now(), Reason: usage.Forgotten}}
		var reply batch.Reply
		now := r.now()
		err = Try(r, func() (err error) {
			reply, err = r.l.Lost(ctx, m.node, lost, now)
			return err
		})
		if reply.Next != next+2 {
			r.Fatalf("lost %d and %d: %v, %v", next, next+1, reply, err)
		}
		m.taken, m.last = append(m.taken, nil, nil), lost.Hash
	case "check":
		r.check()
	}
	if err != nil {
		r.Fatal(err)
	}
}

// book offers some entries, valid and invalid.
func (r *modelRound) book() {
	type expected struct {
		verdict batch.Verdict // 0 is an error
		next    uint64
		names   []workload.ShortID
	}
	var es []*batch.Entry
	var want []expected
	for range rapid.IntRange(1, 4).Draw(r.T, "entries") {
		s := rapid.SampledFrom(r.streams).Draw(r.T, "stream")
		m := r.model.streams[s]
		next := uint64(len(m.taken)) + 1
		e := r.entry(s, m, next)
		x := expected{next: next}
		switch rapid.SampledFrom([]string{"good", "good", "good", "again", "ahead", "torn", "forged", "large", "stranger"}).Draw(r.T, "entry") {
		case "good":
			r.model.book(e)
			for _, n := range e.Names {
				short, _ := workload.ShortIDOf(n.ID)
				r.named[rowKey{node: e.Node, workload: short}] = true
			}
			x = expected{batch.Accepted, next + 1, r.model.nameless(e, r.named)}
		case "again":
			i := rapid.IntRange(0, len(m.taken)).Draw(r.T, "number")
			if i == len(m.taken) || m.taken[i] == nil {
				continue
			}
			e, x.verdict = m.taken[i], batch.Duplicate
		case "ahead":
			e.Number += uint64(rapid.IntRange(1, 3).Draw(r.T, "ahead"))
			x.verdict = batch.OutOfOrder
		case "torn":
			e.Previous[31] ^= 1
			x.verdict = batch.Conflict
		case "forged":
			if next == 1 || m.taken[next-2] == nil {
				continue
			}
			e.Number--
			x.verdict = batch.Conflict
		case "large":
			if len(e.Minutes) == 0 {
				continue
			}
			e.Minutes[0].Usage.Put(usage.CPU, 1<<60, usage.Measured)
			x = expected{}
		case "stranger":
			e.Node = r.nodes[(slices.Index(r.nodes, e.Node)+1)%2]
			x = expected{}
			if len(m.taken) == 0 {
				continue // not used yet
			}
		}
		es, want = append(es, e), append(want, x)
	}
	results, err := tryBook(r.t, r.l, es...)
	if err != nil {
		r.Fatal(err)
	}
	for i, got := range results {
		slices.Sort(got.Names)
		if w := want[i]; got.Verdict != w.verdict || w.verdict != 0 && got.Next != w.next || !slices.Equal(got.Names, w.names) || (w.verdict == 0) != (got.Err != nil) {
			r.Fatalf("entry %d: %+v, want %+v", i, got, w)
		}
	}
}

// entry creates the next entry of a stream.
func (r *modelRound) entry(s batch.Stream, m *modelStream, next uint64) *batch.Entry {
	r.sent++
	e := &batch.Entry{Node: m.node, Stream: s, Number: next, Previous: m.last, Sent: fmt.Append(nil, r.sent), Boot: "boot"}
	e.Hash = batch.HashOf(e.Sent)
	minutes := rapid.Int64Range(r.day, r.day+3*dayMinutes-1)
	resources := rapid.SampledFrom([]usage.Resource{usage.CPU, usage.Memory, usage.MemoryPeak, usage.NetworkRx, usage.PressureIO})
	amount := rapid.Int64Range(0, 1<<44)
	usage := func() (u usage.Usage) {
		for range rapid.IntRange(0, 3).Draw(r.T, "resources") {
			u.Put(resources.Draw(r.T, "resource"), amount.Draw(r.T, "amount"), usage.Quality(rapid.IntRange(1, 3).Draw(r.T, "quality")))
		}
		return u
	}
	for range rapid.IntRange(0, 4).Draw(r.T, "rows") {
		name := r.name(m.node)
		short, _ := workload.ShortIDOf(name.ID)
		row := batch.Minute{Workload: short, Minute: minutes.Draw(r.T, "minute"), Usage: usage()}
		row.Usage.Covered = time.Duration(rapid.Int64Range(0, 1e10).Draw(r.T, "covered"))
		e.Minutes = append(e.Minutes, row)
		e.Through = time.Unix(60*(row.Minute+1), 0).UTC()
		if rapid.Bool().Draw(r.T, "named") {
			name.Job = rapid.SampledFrom([]string{"", "j1"}).Draw(r.T, "job")
			e.Names = append(e.Names, name)
		}
	}
	for range rapid.IntRange(0, 2).Draw(r.T, "node rows") {
		n := batch.NodeMinute{
			Minute: minutes.Draw(r.T, "minute"), Covered: time.Duration(rapid.Int64Range(0, 1e10).Draw(r.T, "covered")),
			CPUs: rapid.IntRange(1, 8).Draw(r.T, "cpus"), Violations: 1, Total: usage(),
		}
		n.Whole[0], n.Skew[0] = amount.Draw(r.T, "whole"), -amount.Draw(r.T, "skew")
		e.Nodes = append(e.Nodes, n)
	}
	return e
}

func (r *modelRound) name(node string) batch.Name {
	key := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(r.T, "workload")
	return batch.Name{ID: workload.NewID(node, workload.Job, key), Kind: workload.Job, Key: key}
}

// check compares the whole content of this round with the model, which must be the same at
// each level.
func (r *modelRound) check() {
	_, _, minuteFloor, _ := r.db.marks()
	hours, days := r.db.parts()
	nodes, workloads := r.db.ids()
	var tables, nodeTables []string
	for _, d := range r.db.keptDays() {
		tables, nodeTables = append(tables, table("", d)), append(nodeTables, table("node_", d))
	}
	for _, level := range []struct {
		width int64
		folded
		tables, nodes []string
	}{
		{1, folded{floor: minuteFloor, mark: r.day + 4*dayMinutes}, tables, nodeTables},
		{hourMinutes, hours, []string{"hour"}, []string{"node_hour"}},
		{dayMinutes, days, []string{"day"}, []string{"node_day"}},
	} {
		there := func(at rowKey, id, before int64) bool {
			return at.minute >= level.floor && (at.minute < level.mark || at.minute == level.mark && id < before)
		}
		want := r.model.usage(level.width, func(at rowKey) bool {
			return there(at, workloads[rowKey{node: at.node, workload: at.workload}], level.workload)
		})
		if diff := cmp.Diff(want, ofRound(r, r.db.usage(level.tables...)), rows...); diff != "" {
			r.Fatalf("rows of %d minutes (-want +got):\n%s", level.width, diff)
		}
		whole := r.model.whole(level.width, func(at rowKey) bool { return there(at, nodes[at.node], level.node) })
		if diff := cmp.Diff(whole, ofRound(r, r.db.whole(level.nodes...)), rows...); diff != "" {
			r.Fatalf("node rows of %d minutes (-want +got):\n%s", level.width, diff)
		}
	}
	fold(r, r.l, time.Unix(0, 0)) // only stale days
	groups := r.db.groups()
	for g := range groups {
		if g.day < r.day {
			delete(groups, g)
		}
	}
	_, day, _, _ := r.db.marks()
	if diff := cmp.Diff(r.model.groups(day), groups); diff != "" {
		r.Fatalf("groups (-want +got):\n%s", diff)
	}
	for _, s := range r.streams {
		m := r.model.streams[s]
		want := batch.Mark{Next: uint64(len(m.taken)) + 1, Last: m.last}
		if got, err := r.l.Mark(r.t.Context(), m.node, s); err != nil || got != want {
			r.Fatalf("mark of %s is %v, %v; want %v", s, got, err, want)
		}
	}
	for node, want := range r.model.through {
		if got, err := r.l.Through(r.t.Context(), node); err != nil || !got.Equal(want) {
			r.Fatalf("through of %s is %v, %v; want %v", node, got, err, want)
		}
	}
}

var rows = cmp.Options{cmp.AllowUnexported(rowKey{})}

// ofRound drops the rows of other rounds.
func ofRound[V any](r *modelRound, all map[rowKey]V) map[rowKey]V {
	for at := range all {
		if !slices.Contains(r.nodes, at.node) {
			delete(all, at)
		}
	}
	return all
}
