package receiver_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestMain has package wire make its encoder and its decoder, which serve the whole
// process: what one bubble made would be of no use in another.
func TestMain(m *testing.M) {
	sent, err := wire.Encode(nil, &batch.Batch{Stream: batch.Stream{1}, Number: 1})
	if err == nil {
		_, err = wire.Decode(sent, wire.Default())
	}
	if err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// ledger is a ledger in memory.
type ledger struct {
	mu      sync.Mutex
	marks   map[batch.Stream]batch.Mark
	hashes  map[batch.Stream][]batch.Hash
	minutes map[minuteKey]usage.Usage
	nodes   map[nodeKey]usage.Shares
	through map[string]time.Time
	entries []*batch.Entry // that were taken
	lost    []batch.Loss
	calls   []int // entries of each call
	begun   int   // calls, those that wait included

	fail  func(*batch.Entry) error // breaks the whole transaction
	fails map[string]error         // by method
	asked [][]string               // boots, of each call of BootPlaces
	// lookups are the calls of Booked.
	lookups int
	rival   string        // measures the machine of all others
	hold    chan struct{} // Book waits for one of these, or until it is closed
}

type minuteKey struct {
	node     string
	minute   int64
	workload workload.ShortID
}

type nodeKey struct {
	node   string
	minute int64
}

func newLedger() *ledger {
	return &ledger{
		marks: map[batch.Stream]batch.Mark{}, hashes: map[batch.Stream][]batch.Hash{},
		minutes: map[minuteKey]usage.Usage{}, nodes: map[nodeKey]usage.Shares{}, through: map[string]time.Time{},
	}
}

func (l *ledger) Book(ctx context.Context, es []*batch.Entry) ([]batch.Result, error) {
	l.mu.Lock()
	l.begun++
	l.mu.Unlock()
	if l.hold != nil {
		select {
		case <-l.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, len(es))
	if l.fail != nil {
		for _, e := range es {
			if err := l.fail(e); err != nil {
				return nil, err
			}
		}
	}
	rs := make([]batch.Result, len(es))
	for i, e := range es {
		rs[i].Reply = l.book(e)
	}
	return rs, nil
}

func (l *ledger) book(e *batch.Entry) batch.Reply {
	m, ok := l.marks[e.Stream]
	if !ok {
		m.Next = 1
	}
	var known *batch.Hash
	if hs := l.hashes[e.Stream]; e.Number >= 1 && e.Number <= uint64(len(hs)) {
		known = &hs[e.Number-1]
	}
	v := m.Judge(e.Number, e.Previous, e.Hash, known)
	if v != batch.Accepted {
		return batch.Reply{Verdict: v, Next: m.Next}
	}
	l.marks[e.Stream] = batch.Mark{Next: m.Next + 1, Last: e.Hash}
	l.hashes[e.Stream] = append(l.hashes[e.Stream], e.Hash)
	l.entries = append(l.entries, e)
	for _, r := range e.Minutes {
		k := minuteKey{e.Node, r.Minute, r.Workload}
		u := l.minutes[k]
		u.Add(&r.Usage)
		l.minutes[k] = u
	}
	for _, n := range e.Nodes {
		s := l.nodes[nodeKey{e.Node, n.Minute}]
		for i := range s {
			s[i] += n.Whole[i] + n.Skew[i]
		}
		l.nodes[nodeKey{e.Node, n.Minute}] = s
	}
	if e.Through.After(l.through[e.Node]) {
		l.through[e.Node] = e.Through
	}
	return batch.Reply{Verdict: v, Next: m.Next + 1}
}

func (l *ledger) Lost(_ context.Context, _ string, lost batch.Loss, _ time.Time) (batch.Reply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fails["Lost"]; err != nil {
		return batch.Reply{}, err
	}
	m, ok := l.marks[lost.Stream]
	if !ok {
		m.Next = 1
	}
	switch {
	case lost.To < m.Next:
		return batch.Reply{Verdict: batch.Duplicate, Next: m.Next}, nil
	case lost.From != m.Next:
		return batch.Reply{Verdict: batch.OutOfOrder, Next: m.Next}, nil
	}
	l.marks[lost.Stream] = batch.Mark{Next: lost.To + 1, Last: lost.Hash}
	l.lost = append(l.lost, lost)
	return batch.Reply{Verdict: batch.Accepted, Next: lost.To + 1}, nil
}

func (l *ledger) Through(_ context.Context, node string) (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fails["Through"]; err != nil {
		return time.Time{}, err
	}
	if node == "stranger" {
		return time.Time{}, fmt.Errorf("node %s: %w", node, fault.ErrNotFound)
	}
	return l.through[node], nil
}

func (l *ledger) Mark(_ context.Context, _ string, stream batch.Stream) (batch.Mark, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fails["Mark"]; err != nil {
		return batch.Mark{}, err
	}
	m, ok := l.marks[stream]
	if !ok {
		m.Next = 1
	}
	return m, nil
}

func (l *ledger) BootPlaces(_ context.Context, node string, boots []string) (map[string]int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fails["BootPlaces"]; err != nil {
		return nil, err
	}
	l.asked = append(l.asked, slices.Clone(boots))
	places := map[string]int64{}
	for _, e := range l.entries {
		for _, p := range e.Boots {
			if e.Node == node && slices.Contains(boots, p.Boot) {
				places[p.Boot] = p.Offset
			}
		}
	}
	return places, nil
}

func (l *ledger) Booked(_ context.Context, node, _ string, _ int64, ms []batch.Measured) (list []batch.Measured, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookups++
	if err := l.fails["Booked"]; err != nil {
		return nil, err
	}
	if l.rival != "" && node != l.rival {
		return nil, batch.RivalError(l.rival)
	}
	for _, e := range l.entries {
		for _, r := range e.Measured {
			if slices.ContainsFunc(ms, r.Overlaps) {
				list = append(list, r)
			}
		}
	}
	return list, nil
}

// taken is a copy of what was booked, in the order in which it was.
func (l *ledger) taken() []*batch.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// fatal is a test, a fuzz target or a property.
type fatal interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// run makes a Receiver that books until the function is called that comes back. m may be nil.
func run(t fatal, cfg receiver.Config, l receiver.Ledger, m receiver.Metrics) (*receiver.Receiver, func()) {
	t.Helper()
	return runLogged(t, cfg, l, m, io.Discard)
}

// runLogged is run with a log.
func runLogged(t fatal, cfg receiver.Config, l receiver.Ledger, m receiver.Metrics, log io.Writer) (*receiver.Receiver, func()) {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	in := receiver.New(cfg, l, m, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- in.Run(ctx) }()
	return in, func() {
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// start is run until the test ends.
func start(t *testing.T, cfg receiver.Config, l receiver.Ledger) *receiver.Receiver {
	t.Helper()
	return startWith(t, cfg, l, nil)
}

// startWith is start with metrics.
func startWith(t *testing.T, cfg receiver.Config, l receiver.Ledger, m receiver.Metrics) *receiver.Receiver {
	t.Helper()
	in, stop := run(t, cfg, l, m)
	t.Cleanup(stop)
	return in
}

// until waits until all others wait, and wants that the condition holds then.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	if synctest.Wait(); !is() {
		t.Fatalf("all wait, and not: %s", what)
	}
}

// quick gathers nothing.
func quick() receiver.Config {
	c := receiver.Default()
	c.GatherTime = 0
	return c
}

// machine makes batches of a node that boots so long before now.
type machine struct {
	names  []batch.Name // of the next batches
	boot   string
	began  time.Time // in truth
	ahead  time.Duration
	stream batch.Stream
	number uint64
	last   batch.Hash
	at     int64
}

func newMachine(boot string, up time.Duration, stream byte) *machine {
	return &machine{boot: boot, began: time.Now().Add(-up), stream: batch.Stream{stream}}
}

func (m *machine) clock() batch.Clock {
	b := int64(time.Since(m.began))
	return batch.Clock{Boot: m.boot, Boottime: b, Wall: m.began.UnixNano() + b + int64(m.ahead)}
}

// window makes the next window: two workloads and idle, which sum to 4 CPUs.
func (m *machine) window(length time.Duration) usage.Window {
	w := usage.Window{Boot: m.boot, Start: m.at, End: m.at + int64(length), Offset: m.began.UnixNano() + int64(m.ahead), CPUs: 4}
	m.at = w.End
	whole := 4 * int64(length)
	for i, part := range []int64{whole / 7, whole / 3, whole - whole/7 - whole/3} {
		r := usage.Row{ShortID: workload.ShortID(i + 1)}
		r.Usage.Put(usage.CPU, part, usage.Measured)
		r.Usage.Covered = length
		w.Rows = append(w.Rows, r)
	}
	w.Balance.Whole[0] = whole
	w.Balance.Workloads[0], w.Balance.Idle[0] = whole/7+whole/3, whole-whole/7-whole/3
	return w
}

// batch puts windows into the next batch and returns it as it is sent.
func (m *machine) batch(t fatal, ws ...usage.Window) []byte {
	t.Helper()
	m.number++
	sent, err := wire.Encode(nil, &batch.Batch{Stream: m.stream, Number: m.number, Previous: m.last, Names: m.names, Windows: ws})
	if err != nil {
		t.Fatal(err)
	}
	m.last = batch.HashOf(sent)
	return sent
}

// offer offers what has to be answered with this verdict.
func offer(t fatal, in *receiver.Receiver, node string, c batch.Clock, sent []byte, want batch.Verdict) batch.Reply {
	t.Helper()
	r, err := in.Offer(context.Background(), node, c, sent)
	if err != nil || r.Verdict != want {
		t.Fatalf("offer: %v %v, want %v", r.Verdict, err, want)
	}
	return r
}
