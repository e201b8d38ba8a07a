package sender_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// A window is what the fake spool holds of one.
type window struct {
	ID int
	At time.Time
}

// A parcel is what the fake spool sends, as JSON.
type parcel struct {
	Stream   batch.Stream
	Number   uint64
	Previous batch.Hash
	Windows  []window
}

// A row is a stream in the fake spool.
type row struct {
	id      batch.Stream
	sent    [][]byte // batch n at n-1; nil where it is gone
	hashes  []batch.Hash
	next    uint64 // to be offered
	acked   uint64
	waiting []window
}

// fakeSpool is a spool in memory, with the contract of the real one.
type fakeSpool struct {
	mu      sync.Mutex
	changed chan struct{}
	rows    []*row // the live one last
	opened  byte
	windows int
	most    int // windows in a batch
	refused []window
	asides  int
	fail    error       // of Offer
	format  wire.Format // of each batch; zero is the first
}

func newSpool() *fakeSpool {
	p := &fakeSpool{changed: make(chan struct{}, 1), most: 360}
	p.open()
	return p
}

func (p *fakeSpool) open() *row {
	p.opened++
	r := &row{id: batch.Stream{p.opened}, next: 1}
	p.rows = append(p.rows, r)
	return r
}

// add appends n windows.
func (p *fakeSpool) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.rows[len(p.rows)-1]
	for range n {
		p.windows++
		live.waiting = append(live.waiting, window{p.windows, time.Now()})
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// backlog makes what is there a backlog of n windows, in batches of most.
func (p *fakeSpool) backlog(n, most int) {
	p.add(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = most
	p.open()
}

func (p *fakeSpool) Changes() <-chan struct{} { return p.changed }

func (p *fakeSpool) Streams() (all []spool.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows = slices.DeleteFunc(p.rows, func(r *row) bool {
		return r != p.rows[len(p.rows)-1] && len(r.waiting) == 0 && r.acked == uint64(len(r.sent))
	})
	for i, r := range p.rows {
		all = append(all, spool.Status{Stream: r.id, Live: i == len(p.rows)-1})
	}
	return all
}

func (p *fakeSpool) find(st batch.Stream) *row {
	for _, r := range p.rows {
		if r.id == st {
			return r
		}
	}
	return nil
}

func (p *fakeSpool) NextOffer(st batch.Stream) (spool.Offer, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.find(st)
	if r == nil || p.fail != nil {
		return spool.Offer{}, false, p.fail
	}
	for r.next <= uint64(len(r.sent)) && r.sent[r.next-1] == nil {
		r.next++
	}
	if n := min(len(r.waiting), p.most); r.next > uint64(len(r.sent)) && n > 0 {
		b := parcel{Stream: st, Number: r.next, Windows: r.waiting[:n]}
		if r.next > 1 {
			b.Previous = r.hashes[r.next-2]
		}
		bytes, _ := json.Marshal(b)
		r.sent, r.hashes, r.waiting = append(r.sent, bytes), append(r.hashes, batch.HashOf(bytes)), r.waiting[n:]
	}
	if r.next > uint64(len(r.sent)) {
		return spool.Offer{}, false, nil
	}
	sent := r.sent[r.next-1]
	return spool.Offer{Stream: st, Number: r.next, Hash: batch.HashOf(sent), Bytes: sent, Format: p.format}, true, nil
}

func (p *fakeSpool) ApplyReply(st batch.Stream, reply batch.Reply) (*batch.Loss, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.find(st)
	switch reply.Verdict {
	case batch.Accepted, batch.Duplicate:
		r.acked, r.next = max(r.acked, reply.Next-1), reply.Next
	case batch.OutOfOrder:
		r.next = reply.Next
		if r.sent[r.next-1] != nil {
			return nil, nil
		}
		to := r.next
		for to < uint64(len(r.sent)) && r.sent[to] == nil {
			to++
		}
		return &batch.Loss{Stream: st, From: r.next, To: to, Hash: r.hashes[to-1], Gap: usage.Gap{Reason: usage.Forgotten}}, nil
	case batch.Conflict:
		p.part(r)
	default:
		return nil, fmt.Errorf("verdict %v", reply.Verdict)
	}
	return nil, nil
}

// part moves what is not acknowledged to a new stream in the place of r.
func (p *fakeSpool) part(r *row) {
	var all []window
	for _, sent := range r.sent[r.acked:] {
		var b parcel
		if sent != nil && json.Unmarshal(sent, &b) == nil {
			all = append(all, b.Windows...)
		}
	}
	i := slices.Index(p.rows, r)
	n := p.open()
	n.waiting = append(all, r.waiting...)
	p.rows[i] = n
	p.rows = p.rows[:len(p.rows)-1]
}

func (p *fakeSpool) Reject(st batch.Stream, number uint64, _ string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.find(st)
	var b parcel
	if err := json.Unmarshal(r.sent[number-1], &b); err != nil {
		return err
	}
	p.refused = append(p.refused, b.Windows...)
	r.sent[number-1] = nil
	r.next = number + 1
	return nil
}

func (p *fakeSpool) SplitBacklog(now time.Time) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.rows[len(p.rows)-1]
	if len(p.rows) == 4 || len(live.waiting) == 0 || now.Sub(live.waiting[0].At) < 10*time.Minute {
		return false, nil
	}
	p.open()
	p.asides++
	return true, nil
}

// waiting counts the windows that no server has acknowledged.
func (p *fakeSpool) waiting() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rows {
		n += len(r.waiting) + len(r.sent) - int(r.acked)
	}
	return n
}

// forget drops kept batches up to number of the live stream.
func (p *fakeSpool) forget(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range number {
		p.rows[len(p.rows)-1].sent[i] = nil
	}
}

// fakeServer takes parcels as a server does.
type fakeServer struct {
	mu     sync.Mutex
	marks  map[batch.Stream]batch.Mark
	hashes map[batch.Stream][]batch.Hash
	booked map[int]int           // windows, how often
	late   map[int]time.Duration // after the window's time
	offers []time.Time
	lost   []batch.Loss
	flying map[batch.Stream]int
	crowd  int // most streams in flight at once
	// before decides what becomes of an offer instead of its being taken; after
	// what is answered when it was.
	before func(ctx context.Context, p *parcel) (batch.Reply, error)
	after  func(p *parcel, r batch.Reply) (batch.Reply, error)
	onLost func(l batch.Loss) error
	reads  wire.Format
	asked  int // for reads
	t      testing.TB
}

func newServer(t testing.TB) *fakeServer {
	return &fakeServer{
		marks: map[batch.Stream]batch.Mark{}, hashes: map[batch.Stream][]batch.Hash{}, booked: map[int]int{},
		late: map[int]time.Duration{}, flying: map[batch.Stream]int{}, t: t,
	}
}

func (v *fakeServer) Reads(context.Context) (wire.Format, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked++
	return v.reads, nil
}

// become replaces the server by one that reads f.
func (v *fakeServer) become(f wire.Format) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reads = f
}

func (v *fakeServer) mark(st batch.Stream) batch.Mark {
	if m, ok := v.marks[st]; ok {
		return m
	}
	return batch.Mark{Next: 1}
}

// lacks says that a parcel was not taken yet.
func (v *fakeServer) lacks(p *parcel) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.Number >= v.mark(p.Stream).Next
}

func (v *fakeServer) Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error) {
	var p parcel
	if err := json.Unmarshal(sent, &p); err != nil {
		return batch.Reply{}, err
	}
	if c.Boot != "boot" {
		v.t.Errorf("the clock of an offer is %+v", c)
	}
	v.mu.Lock()
	v.offers = append(v.offers, time.Now())
	if v.flying[p.Stream]++; v.flying[p.Stream] > 1 {
		v.t.Errorf("%d batches of a stream are in flight", v.flying[p.Stream])
	}
	crowd := 0
	for _, n := range v.flying {
		crowd += n
	}
	v.crowd = max(v.crowd, crowd)
	before := v.before
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		v.flying[p.Stream]--
		v.mu.Unlock()
	}()
	if before != nil {
		if r, err := before(ctx, &p); err != nil || r.Verdict != 0 {
			return r, err
		}
	}
	r := v.take(&p, batch.HashOf(sent))
	if v.after != nil {
		return v.after(&p, r)
	}
	return r, nil
}

func (v *fakeServer) take(p *parcel, hash batch.Hash) batch.Reply {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.mark(p.Stream)
	var known *batch.Hash
	if p.Number < m.Next && p.Number <= uint64(len(v.hashes[p.Stream])) {
		known = &v.hashes[p.Stream][p.Number-1]
	}
	verdict := m.Judge(p.Number, p.Previous, hash, known)
	if verdict == batch.Accepted {
		m = batch.Mark{Next: p.Number + 1, Last: hash}
		v.marks[p.Stream] = m
		v.hashes[p.Stream] = append(v.hashes[p.Stream], hash)
		for _, w := range p.Windows {
			v.booked[w.ID]++
			v.late[w.ID] = time.Since(w.At)
		}
	}
	return batch.Reply{Verdict: verdict, Next: m.Next}
}

func (v *fakeServer) Lost(_ context.Context, l batch.Loss) (batch.Reply, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.onLost != nil {
		if err := v.onLost(l); err != nil {
			return batch.Reply{}, err
		}
	}
	v.lost = append(v.lost, l)
	for n := l.From; n < l.To; n++ {
		v.hashes[l.Stream] = append(v.hashes[l.Stream], batch.Hash{})
	}
	v.hashes[l.Stream] = append(v.hashes[l.Stream], l.Hash)
	v.marks[l.Stream] = batch.Mark{Next: l.To + 1, Last: l.Hash}
	return batch.Reply{Verdict: batch.Accepted, Next: l.To + 1}, nil
}

// once checks that each window of the spool was booked exactly once.
func (v *fakeServer) once(p *fakeSpool) {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	missing, twice := 0, 0
	for id := 1; id <= p.windows; id++ {
		switch n := v.booked[id]; {
		case n == 0:
			missing++
		case n > 1:
			twice++
		}
	}
	if missing > 0 || twice > 0 {
		v.t.Errorf("of %d windows %d are missing, %d booked twice", p.windows, missing, twice)
	}
}

// set changes the server's behavior.
func (v *fakeServer) set(before func(context.Context, *parcel) (batch.Reply, error)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.before = before
}

func down(context.Context, *parcel) (batch.Reply, error) {
	return batch.Reply{}, fmt.Errorf("connection refused: %w", fault.ErrUnavailable)
}

func clock() (batch.Clock, error) { return batch.Clock{Boot: "boot"}, nil }

// A bench is a sender that runs between a fake spool and a fake server, in
// virtual time.
type bench struct {
	*testing.T
	spool   *fakeSpool
	server  *fakeServer
	shipper *sender.Sender
	log     *logged
	stop    context.CancelFunc
	ended   chan error
}

type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines returns the messages logged so far.
func (l *logged) lines() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		var e struct{ Msg string }
		if json.Unmarshal([]byte(line), &e) == nil {
			all = append(all, e.Msg)
		}
	}
	return all
}

// on runs f in virtual time, with a sender that is not running yet.
func on(t *testing.T, change func(*sender.Config), f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := sender.Default()
		if change != nil {
			change(&cfg)
		}
		b := &bench{T: t, spool: newSpool(), server: newServer(t), log: &logged{}, ended: make(chan error, 1)}
		b.shipper = sender.New(cfg, b.spool, b.server, clock, slog.New(slog.NewJSONHandler(b.log, nil)))
		f(b)
		if b.stop != nil {
			b.end()
		}
	})
}

func (b *bench) run() {
	ctx, stop := context.WithCancel(b.Context())
	b.stop = stop
	go func() { b.ended <- b.shipper.Run(ctx) }()
}

// end stops the sender, within a second.
func (b *bench) end() {
	b.Helper()
	start := time.Now()
	b.stop()
	b.stop = nil
	if err := <-b.ended; err != nil {
		b.Errorf("Run: %v", err)
	}
	if took := time.Since(start); took > time.Second {
		b.Errorf("stopping took %v", took)
	}
}

// wait lets a window come every 10 s for d.
func (b *bench) wait(d time.Duration) {
	for range d / (10 * time.Second) {
		b.spool.add(1)
		time.Sleep(10 * time.Second)
	}
	synctest.Wait()
}

// logs checks what was logged.
func (b *bench) logs(want ...string) {
	b.Helper()
	if got := b.log.lines(); !slices.Equal(got, want) {
		b.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
