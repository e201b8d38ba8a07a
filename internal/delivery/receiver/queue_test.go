package receiver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestNew checks that small batches have room of their own: a quarter, or one half of the decoders.
// holds returns how many bytes of bodies a queue holds.
func holds(q *admissionQueue) (bytes int64) {
	for {
		r := &http.Request{ContentLength: 1}
		release, ok := q.bodies.Take(r, fmt.Sprint("cluster", bytes), 1)
		if !ok {
			return bytes
		}
		defer release()
		bytes++
	}
}

// TestShareOfCluster checks that one cluster cannot hold all bytes of bodies, but always one body of the longest.
func TestShareOfCluster(t *testing.T) {
	for _, c := range []struct{ all, largest, each int64 }{{400, 100, 300}, {400, 400, 400}, {400, 350, 350}, {4, 64, 4}} {
		q, bytes := newAdmissionQueue(c.all, c.largest, 1, 1), int64(0)
		for {
			if _, ok := q.bodies.Take(&http.Request{ContentLength: 1}, "one", 1); !ok {
				break
			}
			bytes++
		}
		if bytes != c.each {
			t.Errorf("%+v: one cluster holds %d bytes", c, bytes)
		}
		if _, ok := q.bodies.Take(&http.Request{ContentLength: 1}, "other", 1); ok != (c.each < c.all) {
			t.Errorf("%+v: another cluster holds one: %v", c, ok)
		}
	}
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		cfg         Config
		bytes, rows int64 // of small batches
		decoders    int
	}{
		{Config{BodyBytes: 403, Decoders: 5, QueueRows: 43}, 100, 10, 2},
		{Config{BodyBytes: 4, Decoders: 1, QueueRows: 1}, 1, 1, 1},
	} {
		rc := New(c.cfg, nil, nil, nil)
		if q := rc.light; holds(q) != c.bytes || q.maxRows != c.rows || cap(q.decoders) != c.decoders {
			t.Errorf("%+v: of small batches %d bytes, %d rows, %d decoders", c.cfg, holds(q), q.maxRows, cap(q.decoders))
		}
		if q := rc.heavy; holds(q) != c.cfg.BodyBytes || q.maxRows != int64(c.cfg.QueueRows) || cap(q.decoders) != c.cfg.Decoders {
			t.Errorf("%+v: of large batches %d bytes, %d rows, %d decoders", c.cfg, holds(q), q.maxRows, cap(q.decoders))
		}
		for _, q := range []*admissionQueue{rc.light, rc.heavy} {
			q.rows.Store(q.maxRows - 1)
			before := q.isFull()
			q.rows.Store(q.maxRows)
			if before || !q.isFull() {
				t.Errorf("a queue of %d rows: full with one less %t, with all %t", q.maxRows, before, q.isFull())
			}
		}
		if cap(rc.light.pending) != 4096 || cap(rc.heavy.pending) != 4096 {
			t.Errorf("%d small and %d large batches may wait, want 4096", cap(rc.light.pending), cap(rc.heavy.pending))
		}
		if rc.queueFor(64<<10) != rc.light || rc.queueFor(64<<10+1) != rc.heavy {
			t.Error("64 KiB are not the limit of a small request")
		}
	}
}

// TestLightRows checks that a batch of up to 2000 rows is a small one, whatever its size in bytes.
func TestLightRows(t *testing.T) { synctest.Test(t, testLightRows) }

func testLightRows(t *testing.T) {
	time.Sleep(30 * time.Second)                                     // a window on the edge of a minute would be cut in two
	for rows, light := range map[int]bool{1998: true, 1999: false} { // and a row of the node and one of the stream
		w := usage.Window{Boot: "b", End: 1e9, Rows: make([]usage.Row, rows)}
		for i := range w.Rows {
			w.Rows[i].ShortID = workload.ShortID(i + 1)
			w.Rows[i].Usage.Put(usage.CPU, 1, usage.Measured)
		}
		sent, err := wire.Encode(nil, &batch.Batch{Number: 1, Windows: []usage.Window{w}})
		if err != nil {
			t.Fatal(err)
		}
		rc := New(Default(), nil, nil, nil)
		s, _, err := rc.prepare(t.Context(), rc.light, "n", batch.Clock{Boot: "b", Boottime: 1e9}, sent)
		if err != nil || s.rows != int64(rows)+2 || (s.queue == rc.light) != light {
			t.Errorf("%d rows: %d are written, small %t, %v", rows, s.rows, s.queue == rc.light, err)
		}
	}
}

// TestStabilizeClock checks that the boottime of a sender follows from the believed start of its boot, if
// the two are not more than a second apart, and is never negative.
func TestStabilizeClock(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		boot           string
		unheard        bool
		boottime, held int64 // held is how long ago the boot began
		want           int64
	}{
		{"b", false, 100e9, 100e9 + 1e9, 101e9}, {"b", false, 100e9, 100e9 - 1e9, 99e9}, {"b", false, 100e9, 100e9 + 1e9 + 1, 100e9},
		{"b", false, 0, 1, 1}, {"b", false, 5, -5e8, 0}, {"b", false, -1, 5, -1},
		{"c", false, 100e9, 100e9 + 1e9, 100e9}, {"b", true, 100e9, 100e9 + 1e9, 100e9},
	} {
		rc := New(Default(), nil, nil, nil)
		rc.nodeState("n").boots.current = bootRecord{boot: "b", unheard: c.unheard, began: now.UnixNano() - c.held}
		if got := rc.stabilizeClock("n", now, batch.Clock{Boot: c.boot, Boottime: c.boottime}).Boottime; got != c.want {
			t.Errorf("%+v: boottime %d", c, got)
		}
	}
}

// later reports whether an error asks the sender to try again in two seconds.
func later(err error) bool {
	after, ok := fault.RetryAfter(err)
	return errors.Is(err, fault.ErrUnavailable) && ok && after == 2*time.Second
}

// TestCommit checks what a submission gets from a full queue, from one with too many batches, when its
// sender gives up and when the receiver ends.
func TestCommit(t *testing.T) {
	submit := func(rc *Receiver, rows int64) *submission {
		return &submission{rows: rows, queue: rc.light, done: make(chan batch.Result, 1)}
	}
	rc := New(Default(), nil, nil, nil)
	q := rc.light
	q.rows.Store(q.maxRows)
	if _, err := rc.commit(t.Context(), submit(rc, 3)); !later(err) || q.rows.Load() != q.maxRows || len(q.pending) != 0 {
		t.Errorf("full: %v, %d rows", err, q.rows.Load())
	}
	q.rows.Store(5)
	for len(q.pending) < cap(q.pending) {
		q.pending <- nil
	}
	if _, err := rc.commit(t.Context(), submit(rc, 3)); !later(err) || q.rows.Load() != 5 {
		t.Errorf("too many batches: %v, %d rows", err, q.rows.Load())
	}

	rc = New(Default(), nil, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := rc.commit(ctx, submit(rc, 3)); !errors.Is(err, context.Canceled) || rc.light.rows.Load() != 3 || len(rc.light.pending) != 1 {
		t.Errorf("given up: %v, %d rows in %d batches", err, rc.light.rows.Load(), len(rc.light.pending))
	}

	close(rc.stopped)
	if _, err := rc.commit(t.Context(), submit(rc, 3)); !later(err) {
		t.Errorf("the receiver ended: %v", err)
	}
	booked := errors.New("booked")
	for range 100 { // whichever the receiver notices first
		s := submit(rc, 3)
		s.done <- batch.Result{Reply: batch.Reply{Next: 7}, Err: booked}
		if r, err := rc.commit(t.Context(), s); r.Next != 7 || !errors.Is(err, booked) {
			t.Fatalf("the receiver ended after it booked: %v, %v", r, err)
		}
	}
}

// TestGather checks what one transaction takes of batches that wait, where ten rows are a group: small
// ones up to that, a large one beside them, and more large ones while there is room.
func TestGather(t *testing.T) {
	for _, c := range []struct {
		name                 string
		light, heavy         int // batches
		lightRows, heavyRows int64
		want                 [2]int
	}{
		{"small ones", 12, 0, 1, 0, [2]int{10, 0}},
		{"fewer small ones", 3, 0, 3, 0, [2]int{3, 0}},
		{"small ones that exceed it", 5, 0, 3, 0, [2]int{4, 0}},
		{"large ones", 0, 9, 0, 3, [2]int{0, 4}},
		{"one large one", 0, 9, 0, 10, [2]int{0, 1}},
		{"both", 12, 2, 1, 50, [2]int{10, 1}},
		{"both, with room", 2, 9, 1, 3, [2]int{2, 3}},
	} {
		for range 100 { // whichever it takes first
			cfg := Default()
			cfg.GroupRows, cfg.GatherTime = 10, 0
			rc := New(cfg, nil, nil, nil)
			for range c.light {
				rc.light.pending <- &submission{rows: c.lightRows, queue: rc.light}
			}
			for range c.heavy {
				rc.heavy.pending <- &submission{rows: c.heavyRows, queue: rc.heavy}
			}
			var got [2]int
			for _, s := range rc.gather(t.Context()) {
				if s.queue == rc.light {
					got[0]++
				} else {
					got[1]++
				}
			}
			if got != c.want {
				t.Fatalf("%s: %d small and %d large ones, want %v", c.name, got[0], got[1], c.want)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if group := rc.gather(ctx); group != nil {
				t.Fatalf("%s: %d batches after the end", c.name, len(group))
			}
		}
	}
}

// TestClassify checks that an error of a ledger keeps its kind, and that one of no kind is unavailable.
func TestClassify(t *testing.T) {
	for _, kind := range []error{fault.ErrInvalid, fault.ErrDenied, fault.ErrUnavailable, context.Canceled} {
		if err := fmt.Errorf("x: %w", kind); classify(err) != err { //nolint:errorlint // the same error
			t.Errorf("%v becomes %v", err, classify(err))
		}
	}
	for _, other := range []error{errors.New("disk"), context.DeadlineExceeded, fault.ErrNotFound} {
		if err := classify(other); !errors.Is(err, fault.ErrUnavailable) || !errors.Is(err, other) {
			t.Errorf("%v becomes %v", other, err)
		}
	}
}

// TestRecord checks that each outcome of an offer counts once, as what it is.
func TestRecord(t *testing.T) {
	x := func(kind error) error { return fmt.Errorf("x: %w", kind) }
	for _, c := range []struct {
		verdict batch.Verdict
		err     error
		want    Stats
	}{
		{0, x(fault.ErrInvalid), Stats{Invalid: 1}},
		{0, x(fault.ErrDenied), Stats{Denied: 1}},
		{0, x(fault.ErrUnavailable), Stats{Unavailable: 1}},
		{batch.Accepted, context.Canceled, Stats{Unavailable: 1}},
		{batch.Accepted, nil, Stats{Accepted: 1}},
		{batch.Duplicate, nil, Stats{Duplicates: 1}},
		{batch.OutOfOrder, nil, Stats{OutOfOrder: 1}},
		{batch.Conflict, nil, Stats{Conflicts: 1}},
		{batch.Clone, nil, Stats{Clones: 1}},
		{0, nil, Stats{}},
	} {
		var s Stats
		if s.record(batch.Reply{Verdict: c.verdict}, c.err); s != c.want {
			t.Errorf("%v, %v: %+v, want %+v", c.verdict, c.err, s, c.want)
		}
	}
}

// TestPut checks which latest windows a store with room for ten rows keeps. A word is a node, the
// second at which its window ended, and its number of rows; one without rows keeps the rest of its
// figures. Windows that ended before second 100 are stale.
func TestPut(t *testing.T) {
	for puts, want := range map[string]string{
		"a110/4":                             "a110/4",
		"a110/4 a111/2":                      "a111/2",
		"a111/4 a110/2":                      "a111/4",
		"a110/4 a110/2":                      "a110/4",
		"a110/4 b111/6":                      "a110/4 b111/6",
		"a110/4 b111/3 c112/4":               "a110/0 b111/3 c112/4",
		"a112/4 b111/3 c110/4":               "a112/4 b111/3 c110/0",
		"a110/2 b112/7 c111/2":               "a110/2 b112/0 c111/2",
		"a112/11":                            "a112/0",
		"a110/9 a111/1 b110/9":               "a111/1 b110/9",
		"a110/1 b111/5 c112/4 d113/9":        "a110/1 b111/5 c112/4 d113/0",
		"a110/3 b111/3 c112/3 d113/3":        "a110/0 b111/3 c112/3 d113/3",
		"a110/5 b111/5 c112/3":               "a110/0 b111/5 c112/3",
		"a110/4 b111/4 c112/4 d113/4 e114/4": "a110/0 b111/0 c112/0 d113/4 e114/4",
		// Stale ones are removed first, and as a whole.
		"a99/2 b111/7 c112/2":         "b111/7 c112/2",
		"a100/2 b111/7 c112/2":        "a100/2 b111/0 c112/2",
		"a99/2 b98/2 c112/7":          "a99/2 c112/7",
		"a98/2 b99/3 c112/6":          "a98/2 c112/6",
		"a98/3 b99/3 c112/5":          "b99/3 c112/5",
		"a99/1 b98/1 c112/9":          "a99/1 c112/9",
		"a99/4 b111/6":                "a99/4 b111/6",
		"a98/4 b99/4 c112/9":          "c112/9",
		"a98/1 b112/9 c113/1":         "b112/9 c113/1",
		"a111/0 b112/9 c113/2":        "a111/0 b112/0 c113/2",
		"a98/0 b112/9 c113/2":         "a98/0 b112/0 c113/2",
		"a111/0 b112/9 c113/2 b114/8": "a111/0 b114/8 c113/2",
	} {
		s := snapshotStore{nodes: map[string]NodeSnapshot{}}
		workloads := map[string]int{} // of the window that a node should have
		at := func(second int) time.Time { return time.Unix(int64(second), 0) }
		for word := range strings.FieldsSeq(puts) {
			var second, rows int
			_, _ = fmt.Sscanf(word[1:], "%d/%d", &second, &rows)
			n := NodeSnapshot{Node: word[:1], To: at(second), Rows: make([]SnapshotRow, rows)}
			if n.Workloads = rows; n.To.After(s.nodes[n.Node].To) {
				workloads[n.Node] = rows
			}
			s.put(n, 10, at(100))
		}
		var got []string
		rows := 0
		for node, n := range s.nodes {
			got = append(got, fmt.Sprintf("%s%d/%d", node, n.To.Unix(), len(n.Rows)))
			rows += len(n.Rows)
			if n.Workloads != workloads[node] {
				t.Errorf("%s: node %s has %d workloads, want %d", puts, node, n.Workloads, workloads[node])
			}
		}
		slices.Sort(got)
		if g := strings.Join(got, " "); g != want || s.rows != rows {
			t.Errorf("%s: %s with %d rows, want %s with %d", puts, g, s.rows, want, rows)
		}
	}
}

// TestNewSnapshot checks which rows a snapshot has: those with use, and the busiest of them if not all
// fit. It also checks which rows count as workloads, with a row or without.
func TestNewSnapshot(t *testing.T) {
	id := func(kind workload.Kind) workload.ShortID {
		short, ok := workload.ShortIDOf(workload.NewID("n", kind, ""))
		if !ok {
			t.Fatal(kind)
		}
		return short
	}
	w := &usage.Window{CPUs: 3, End: 10e9, Offset: 5e9}
	for i, short := range []workload.ShortID{1, 2, id(workload.System), 3, id(workload.Idle), 4} {
		r := usage.Row{ShortID: short}
		if short != 2 {
			r.Usage.Put(usage.CPU, int64(10+i%2), usage.Measured) // more for 3 and 4
		}
		if short == 3 { // started again: it has two rows
			first := usage.Row{ShortID: short, Ended: true}
			first.Usage.Put(usage.CPU, 9, usage.Measured)
			r.Usage.Put(usage.CPU, r.Usage.Amount[usage.CPU]-9, usage.Measured)
			w.Rows = append(w.Rows, first)
		}
		w.Rows = append(w.Rows, r)
	}
	for _, c := range []struct {
		room, workloads int
		want            []workload.ShortID
	}{
		{5, 3, []workload.ShortID{1, id(workload.System), 3, id(workload.Idle), 4}},
		{4, 3, []workload.ShortID{3, 4, 1, id(workload.System)}},
		{3, 3, []workload.ShortID{3, 4, 1}},
		{1, 3, []workload.ShortID{3}},
		{0, 3, nil},
	} {
		s := newSnapshot("n", w, time.Second, c.room)
		var got []workload.ShortID
		for _, r := range s.Rows {
			got = append(got, r.Workload)
			if residual := r.Workload == id(workload.System) || r.Workload == id(workload.Idle); r.Residual != residual {
				t.Errorf("row %v is system or idle: %t", r.Workload, r.Residual)
			}
		}
		if !slices.Equal(got, c.want) || s.Workloads != c.workloads || s.CPUs != 3 || !s.From.Equal(time.Unix(6, 0)) || !s.To.Equal(time.Unix(16, 0)) {
			t.Errorf("room for %d rows: %v, %d workloads, %d CPUs, from %v to %v; want %v, %d", c.room, got, s.Workloads, s.CPUs, s.From, s.To, c.want, c.workloads)
		}
	}
}
