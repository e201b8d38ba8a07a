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
	_ "mete.dev/mete/internal/testkit/wirewarm"
)

// A window is a window of the fake spool.
type window struct {
	ID int
	At time.Time
}

// A parcel is a batch of the fake spool, encoded as JSON.
type parcel struct {
	Stream   batch.Stream
	Number   uint64
	Previous batch.Hash
	Windows  []window
}

// A fakeStream is a stream of the fake spool.
type fakeStream struct {
	id      batch.Stream
	sent    [][]byte // batch n at n-1; nil once deleted
	hashes  []batch.Hash
	next    uint64 // number of the next offer
	acked   uint64
	pending []window
}

// fakeSpool implements sender.Spool in memory.
type fakeSpool struct {
	mu         sync.Mutex
	changed    chan struct{}
	streams    []*fakeStream // the live stream is the last
	opened     byte
	windows    int
	maxWindows int // per batch
	rejected   []window
	splits     int
	asked      int         // calls of NextOffer
	fail       error       // returned by NextOffer
	format     wire.Format // of each batch; zero means the first format
}

func newSpool() *fakeSpool {
	p := &fakeSpool{changed: make(chan struct{}, 1), maxWindows: 360}
	p.open()
	return p
}

func (p *fakeSpool) open() *fakeStream {
	p.opened++
	r := &fakeStream{id: batch.Stream{p.opened}, next: 1}
	p.streams = append(p.streams, r)
	return r
}

// add appends n windows.
func (p *fakeSpool) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.streams[len(p.streams)-1]
	for range n {
		p.windows++
		live.pending = append(live.pending, window{p.windows, time.Now()})
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// backlog appends n windows, in batches of most, and starts a new live stream.
func (p *fakeSpool) backlog(n, maxWindows int) {
	p.add(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.maxWindows = maxWindows
	p.open()
}

func (p *fakeSpool) Changes() <-chan struct{} { return p.changed }

func (p *fakeSpool) Streams() (all []spool.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams = slices.DeleteFunc(p.streams, func(r *fakeStream) bool {
		return r != p.streams[len(p.streams)-1] && len(r.pending) == 0 && r.acked == uint64(len(r.sent))
	})
	for i, r := range p.streams {
		all = append(all, spool.Status{Stream: r.id, Live: i == len(p.streams)-1})
	}
	return all
}

func (p *fakeSpool) find(st batch.Stream) *fakeStream {
	for _, r := range p.streams {
		if r.id == st {
			return r
		}
	}
	return nil
}

func (p *fakeSpool) NextOffer(st batch.Stream) (spool.Offer, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	r := p.find(st)
	if r == nil || p.fail != nil {
		return spool.Offer{}, false, p.fail
	}
	for r.next <= uint64(len(r.sent)) && r.sent[r.next-1] == nil {
		r.next++
	}
	if n := min(len(r.pending), p.maxWindows); r.next > uint64(len(r.sent)) && n > 0 {
		b := parcel{Stream: st, Number: r.next, Windows: r.pending[:n]}
		if r.next > 1 {
			b.Previous = r.hashes[r.next-2]
		}
		bytes, _ := json.Marshal(b)
		r.sent, r.hashes, r.pending = append(r.sent, bytes), append(r.hashes, batch.HashOf(bytes)), r.pending[n:]
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
		p.moveToNewStream(r)
	default:
		return nil, fmt.Errorf("verdict %v", reply.Verdict)
	}
	return nil, nil
}

// moveToNewStream replaces r by a new stream with the unacknowledged windows of r.
func (p *fakeSpool) moveToNewStream(r *fakeStream) {
	var all []window
	for _, sent := range r.sent[r.acked:] {
		var b parcel
		if sent != nil && json.Unmarshal(sent, &b) == nil {
			all = append(all, b.Windows...)
		}
	}
	i := slices.Index(p.streams, r)
	n := p.open()
	n.pending = append(all, r.pending...)
	p.streams[i] = n
	p.streams = p.streams[:len(p.streams)-1]
}

func (p *fakeSpool) Reject(st batch.Stream, number uint64, _ string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.find(st)
	var b parcel
	if err := json.Unmarshal(r.sent[number-1], &b); err != nil {
		return err
	}
	p.rejected = append(p.rejected, b.Windows...)
	r.sent[number-1] = nil
	r.next = number + 1
	return nil
}

func (p *fakeSpool) SplitBacklog(now time.Time) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.streams[len(p.streams)-1]
	if len(p.streams) == 4 || len(live.pending) == 0 || now.Sub(live.pending[0].At) < 10*time.Minute {
		return false, nil
	}
	p.open()
	p.splits++
	return true, nil
}

// pending counts the unacknowledged windows and batches.
func (p *fakeSpool) pending() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.streams {
		n += len(r.pending) + len(r.sent) - int(r.acked)
	}
	return n
}

// forget deletes the batches of the live stream up to number.
func (p *fakeSpool) forget(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range number {
		p.streams[len(p.streams)-1].sent[i] = nil
	}
}

// fakeServer implements sender.Server for parcels.
type fakeServer struct {
	mu          sync.Mutex
	marks       map[batch.Stream]batch.Mark
	hashes      map[batch.Stream][]batch.Hash
	booked      map[int]int           // number of bookings by window
	delay       map[int]time.Duration // from the window's time to its booking
	offers      []time.Time
	lost        []batch.Loss
	inFlight    map[batch.Stream]int
	maxInFlight int // most batches in flight at once
	// before, if it returns a reply or an error, replaces the handling of an offer;
	// after replaces the reply.
	before func(ctx context.Context, p *parcel) (batch.Reply, error)
	after  func(p *parcel, r batch.Reply) (batch.Reply, error)
	onLost func(l batch.Loss) error
	reads  wire.Format
	asked  int // calls of Reads
	t      testing.TB
}

func newServer(t testing.TB) *fakeServer {
	return &fakeServer{
		marks: map[batch.Stream]batch.Mark{}, hashes: map[batch.Stream][]batch.Hash{}, booked: map[int]int{},
		delay: map[int]time.Duration{}, inFlight: map[batch.Stream]int{}, t: t,
	}
}

func (s *fakeServer) Reads(context.Context) (wire.Format, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.reads, nil
}

// setFormat makes f the format that the server reads.
func (s *fakeServer) setFormat(f wire.Format) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = f
}

func (s *fakeServer) mark(st batch.Stream) batch.Mark {
	if m, ok := s.marks[st]; ok {
		return m
	}
	return batch.Mark{Next: 1}
}

// needs reports whether the server has not accepted the parcel yet.
func (s *fakeServer) needs(p *parcel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.Number >= s.mark(p.Stream).Next
}

func (s *fakeServer) Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error) {
	var p parcel
	if err := json.Unmarshal(sent, &p); err != nil {
		return batch.Reply{}, err
	}
	if c.Boot != "boot" {
		s.t.Errorf("clock of an offer: %+v", c)
	}
	s.mu.Lock()
	s.offers = append(s.offers, time.Now())
	if s.inFlight[p.Stream]++; s.inFlight[p.Stream] > 1 {
		s.t.Errorf("%d batches of a stream are in flight", s.inFlight[p.Stream])
	}
	maxInFlight := 0
	for _, n := range s.inFlight {
		maxInFlight += n
	}
	s.maxInFlight = max(s.maxInFlight, maxInFlight)
	before := s.before
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.inFlight[p.Stream]--
		s.mu.Unlock()
	}()
	if before != nil {
		if r, err := before(ctx, &p); err != nil || r.Verdict != 0 {
			return r, err
		}
	}
	r := s.take(&p, batch.HashOf(sent))
	if s.after != nil {
		return s.after(&p, r)
	}
	return r, nil
}

func (s *fakeServer) take(p *parcel, hash batch.Hash) batch.Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.mark(p.Stream)
	var known *batch.Hash
	if p.Number < m.Next && p.Number <= uint64(len(s.hashes[p.Stream])) {
		known = &s.hashes[p.Stream][p.Number-1]
	}
	verdict := m.Judge(p.Number, p.Previous, hash, known)
	if verdict == batch.Accepted {
		m = batch.Mark{Next: p.Number + 1, Last: hash}
		s.marks[p.Stream] = m
		s.hashes[p.Stream] = append(s.hashes[p.Stream], hash)
		for _, w := range p.Windows {
			s.booked[w.ID]++
			s.delay[w.ID] = time.Since(w.At)
		}
	}
	return batch.Reply{Verdict: verdict, Next: m.Next}
}

func (s *fakeServer) Lost(_ context.Context, l batch.Loss) (batch.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onLost != nil {
		if err := s.onLost(l); err != nil {
			return batch.Reply{}, err
		}
	}
	s.lost = append(s.lost, l)
	for n := l.From; n < l.To; n++ {
		s.hashes[l.Stream] = append(s.hashes[l.Stream], batch.Hash{})
	}
	s.hashes[l.Stream] = append(s.hashes[l.Stream], l.Hash)
	s.marks[l.Stream] = batch.Mark{Next: l.To + 1, Last: l.Hash}
	return batch.Reply{Verdict: batch.Accepted, Next: l.To + 1}, nil
}

// checkBookedOnce checks that each window of the spool was booked exactly once.
func (s *fakeServer) checkBookedOnce(p *fakeSpool) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	missing, twice := 0, 0
	for id := 1; id <= p.windows; id++ {
		switch n := s.booked[id]; {
		case n == 0:
			missing++
		case n > 1:
			twice++
		}
	}
	if missing > 0 || twice > 0 {
		s.t.Errorf("of %d windows %d are missing, %d booked twice", p.windows, missing, twice)
	}
}

// set sets before.
func (s *fakeServer) set(before func(context.Context, *parcel) (batch.Reply, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func down(context.Context, *parcel) (batch.Reply, error) {
	return batch.Reply{}, fmt.Errorf("connection refused: %w", fault.ErrUnavailable)
}

func clock() (batch.Clock, error) { return batch.Clock{Boot: "boot"}, nil }

// A bench runs a sender with a fake spool and a fake server in virtual time.
type bench struct {
	*testing.T
	spool  *fakeSpool
	server *fakeServer
	sender *sender.Sender
	log    *logBuffer
	stop   context.CancelFunc
	ended  chan error
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines returns the messages that were logged.
func (l *logBuffer) lines() (all []string) {
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

// withBench runs f in virtual time, with a sender that is not started.
func withBench(t *testing.T, change func(*sender.Config), f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := sender.Default()
		if change != nil {
			change(&cfg)
		}
		b := &bench{T: t, spool: newSpool(), server: newServer(t), log: &logBuffer{}, ended: make(chan error, 1)}
		b.sender = sender.New(cfg, b.spool, b.server, clock, slog.New(slog.NewJSONHandler(b.log, nil)))
		f(b)
		if b.stop != nil {
			b.end()
		}
	})
}

func (b *bench) run() {
	ctx, stop := context.WithCancel(b.Context())
	b.stop = stop
	go func() { b.ended <- b.sender.Run(ctx) }()
}

// end stops the sender and checks that it stops within a second.
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

// wait adds a window every 10 s for d.
func (b *bench) wait(d time.Duration) {
	for range d / (10 * time.Second) {
		b.spool.add(1)
		time.Sleep(10 * time.Second)
	}
	synctest.Wait()
}

// logs checks the messages that were logged.
func (b *bench) logs(want ...string) {
	b.Helper()
	if got := b.log.lines(); !slices.Equal(got, want) {
		b.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
