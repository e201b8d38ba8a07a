package sender

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// Streams and SplitBacklog make a stub a spool with a live stream and no backlog.
func (s *stub) Streams() []spool.Status {
	return []spool.Status{{Stream: batch.Stream{9}, Live: true}}
}

func (*stub) SplitBacklog(time.Time) (bool, error) { return false, nil }

// newLoop returns the loop of a sender whose delays are up to 2 ns after one failure, 4 ns after two,
// and so on, and its log.
func newLoop() (*loop, *bytes.Buffer) {
	cfg := Default()
	cfg.MinBackoff, cfg.MaxBackoff = 1, time.Hour
	cfg.Reenroll = func(context.Context) error { return nil }
	var log bytes.Buffer
	s := &stub{}
	l := &loop{Sender: New(cfg, s, s, nil, slog.New(slog.NewTextHandler(&log, nil))), streams: map[batch.Stream]*streamState{}}
	l.done, l.enrolled = make(chan result), make(chan error)
	return l, &log
}

// add adds a stream.
func (l *loop) add(n byte, a streamState) *streamState {
	a.stream = batch.Stream{n}
	l.streams[a.stream] = &a
	return &a
}

// bound is the longest delay after some failures.
func bound(failures int) time.Duration { return 1 << failures }

// TestHandleResult checks what the result of an offer changes in the state of its stream.
func TestHandleResult(t *testing.T) { synctest.Test(t, testHandleResult) }

func testHandleResult(t *testing.T) {
	failed := fmt.Errorf("x: %w", fault.ErrUnavailable)
	for _, c := range []struct {
		name             string
		before           streamState
		cloned           bool
		clones           int
		outcome          outcome
		failures, stalls int
		delay            time.Duration // the longest until the next attempt
		idle             bool
		server           State // as the stream saw it
		state            State // of all
		clonesAfter      int
		successor        int
	}{
		{name: "idle", before: streamState{failures: 3, stalls: 1}, outcome: outcome{step: stepIdle}, failures: 3, stalls: 1, idle: true},
		{name: "idle, and woken", before: streamState{woken: true}, outcome: outcome{step: stepIdle}},
		{name: "taken", before: streamState{failures: 3, stalls: 2}, clones: 4, outcome: outcome{step: stepAdvanced}, server: Connected, state: Connected},
		{name: "taken, beside a clone", before: streamState{failures: 3, stalls: 2, server: Denied}, cloned: true, clones: 4, outcome: outcome{step: stepAdvanced}, server: Denied, clonesAfter: 4},
		{name: "rewound", before: streamState{failures: 1}, outcome: outcome{step: stepRewound}, failures: 1, stalls: 1, server: Connected, state: Connected},
		{name: "rewound twice", before: streamState{stalls: 1}, outcome: outcome{step: stepRewound}, stalls: 2, server: Connected, state: Connected},
		{name: "rewound three times", before: streamState{stalls: 2}, outcome: outcome{step: stepRewound}, failures: 1, stalls: 3, delay: bound(1), server: Connected, state: Connected},
		{name: "rewound six times", before: streamState{stalls: 5}, outcome: outcome{step: stepRewound}, failures: 4, stalls: 6, delay: bound(4), server: Connected, state: Connected},
		{name: "rewound after failures", before: streamState{stalls: 2, failures: 5}, outcome: outcome{step: stepRewound}, failures: 5, stalls: 3, delay: bound(5), server: Connected, state: Connected},
		{name: "refused", outcome: outcome{step: stepRejected}, failures: 1, stalls: 1, server: Connected, state: Connected},
		{name: "abandoned", before: streamState{failures: 1}, outcome: outcome{step: stepAbandoned}, failures: 2, stalls: 1, server: Connected, state: Connected, successor: 2},
		{name: "failed", before: streamState{failures: 1, stalls: 2}, outcome: outcome{step: stepFailed, err: failed}, failures: 2, stalls: 2, delay: bound(2), server: Unreachable, state: Unreachable},
		{name: "failed here", before: streamState{failures: 1}, outcome: outcome{step: stepFailed, err: failed, local: true}, failures: 2, delay: bound(2)},
		{name: "clone", outcome: outcome{step: stepCloned}, server: Denied, state: Denied, clonesAfter: 1},
		{name: "clone again", cloned: true, clones: 2, outcome: outcome{step: stepCloned}, clonesAfter: 2},
	} {
		l, _ := newLoop()
		c.before.inFlight, c.before.draining = true, true
		a, other := l.add(1, c.before), l.add(2, streamState{idle: true})
		l.cloned, l.clones, l.inFlight, l.draining = c.cloned, c.clones, 5, true
		now := time.Now()
		l.handleResult(result{a, c.outcome})
		if a.failures != c.failures || a.stalls != c.stalls || a.idle != c.idle || a.server != c.server || l.clones != c.clonesAfter || l.Status().State != c.state {
			t.Errorf("%s: %+v, %d clones, %v; want %+v", c.name, *a, l.clones, l.Status().State, c)
		}
		if d := a.nextAttempt.Sub(now); c.delay == 0 && !a.nextAttempt.IsZero() || c.delay > 0 && (d < 1 || d > c.delay) {
			t.Errorf("%s: the next attempt is in %d ns, want up to %d", c.name, d, c.delay)
		}
		if replied := c.server == Connected; a.lastReply.Equal(now) != replied {
			t.Errorf("%s: the last reply is of %v", c.name, a.lastReply)
		}
		if a.inFlight || l.inFlight != 4 || a.draining || l.draining {
			t.Errorf("%s: %d are in flight, draining %t", c.name, l.inFlight, l.draining)
		}
		if abandoned := c.successor > 0; other.idle == abandoned || l.successorFailures != c.successor || abandoned && (l.successorAttempt.Sub(now) < 1 || l.successorAttempt.Sub(now) > bound(c.successor)) {
			t.Errorf("%s: another stream is idle %t, the next stream has %d failures until %v", c.name, other.idle, l.successorFailures, l.successorAttempt)
		}
	}
	l, _ := newLoop()
	a := l.add(1, streamState{inFlight: true})
	l.draining = true
	if l.handleResult(result{a, outcome{step: stepAdvanced}}); !l.draining {
		t.Error("the result of the live stream ends the batch of the backlog")
	}
}

// TestHandleFailure checks which failures change the state of the server and what is logged, by how long
// ago another stream got a reply.
func TestHandleFailure(t *testing.T) { synctest.Test(t, testHandleFailure) }

func testHandleFailure(t *testing.T) {
	const stuck, gone, here = "stuck", "unreachable", "cannot offer"
	for _, c := range []struct {
		name  string
		err   error
		local bool
		other State
		ago   time.Duration
		state State
		logs  []string // at the first, second, third and fourth failure
	}{
		{name: "no answer", err: fault.ErrUnavailable, state: Unreachable, logs: []string{gone, "", "", ""}},
		{name: "denied", err: fault.ErrDenied, state: Denied, logs: []string{"denies", "", "", ""}},
		{name: "older", err: errOutdated, state: Outdated, logs: []string{"older", "", "", ""}},
		{name: "of this machine", err: fault.ErrUnavailable, local: true, logs: []string{here, "", "", ""}},
		{name: "another gets replies", err: fault.ErrUnavailable, other: Connected, ago: 2*time.Minute - 1, logs: []string{"", "", stuck, ""}},
		{name: "another got one long ago", err: fault.ErrUnavailable, other: Connected, ago: 2 * time.Minute, state: Unreachable, logs: []string{gone, "", "", ""}},
		{name: "another fails too", err: fault.ErrUnavailable, other: Unreachable, state: Unreachable, logs: []string{gone, "", "", ""}},
	} {
		l, log := newLoop()
		now := time.Now()
		a := l.add(1, streamState{})
		l.add(2, streamState{server: c.other, lastReply: now.Add(-c.ago)})
		for n, want := range c.logs {
			log.Reset()
			l.handleFailure(result{a, outcome{step: stepFailed, err: c.err, local: c.local}}, now)
			if text := log.String(); (text == "") != (want == "") || !strings.Contains(text, want) || strings.Count(text, "\n") > 1 {
				t.Errorf("%s: failure %d is logged as %q, want %q", c.name, n+1, text, want)
			}
		}
		if l.Status().State != c.state || a.failures != 4 {
			t.Errorf("%s: %v after %d failures, want %v", c.name, l.Status().State, a.failures, c.state)
		}
	}
}

// TestReachedAgain checks that the backoff of streams ends that did not reach the server themselves.
func TestReachedAgain(t *testing.T) { synctest.Test(t, testReachedAgain) }

func testReachedAgain(t *testing.T) {
	l, log := newLoop()
	later := time.Now().Add(time.Hour)
	failed, reached := l.add(1, streamState{server: Unreachable, nextAttempt: later}), l.add(2, streamState{server: Connected, nextAttempt: later})
	for _, c := range []struct {
		state State
		log   string
	}{{Connected, "server reached\""}, {Connected, ""}, {Unreachable, "unreachable"}, {Connected, "reached again"}} {
		log.Reset()
		if l.setServerState(c.state, nil, time.Now()); (log.String() == "") != (c.log == "") || !strings.Contains(log.String(), c.log) {
			t.Errorf("%v is logged as %q, want %q", c.state, log, c.log)
		}
		if c.state == Connected && (!failed.nextAttempt.IsZero() || !reached.nextAttempt.Equal(later)) {
			t.Errorf("%v: the next attempts are at %v and %v", c.state, failed.nextAttempt, reached.nextAttempt)
		}
	}
}

// TestReenroll checks when a machine enrolls again: at once after the first reply that it is a clone,
// after a delay that grows with further ones and with failures.
func TestReenroll(t *testing.T) { synctest.Test(t, testReenroll) }

func testReenroll(t *testing.T) {
	delays := func(clones int, call func(l *loop)) (all []time.Duration) {
		for range 300 {
			l, _ := newLoop()
			l.clones = clones
			call(l)
			if d := time.Until(l.enrollDue); !slices.Contains(all, d) {
				all = append(all, d)
			}
		}
		slices.Sort(all)
		return all
	}
	cloned := func(l *loop) { l.handleClone(time.Now()) }
	failed := func(l *loop) { l.handleEnrolled(errors.New("x")) }
	for _, c := range []struct {
		name   string
		clones int // before
		call   func(*loop)
		want   []time.Duration
	}{
		{"the first clone", 0, cloned, []time.Duration{0}},
		{"the second clone", 1, cloned, []time.Duration{1, 2}},
		{"the third clone", 2, cloned, []time.Duration{1, 2, 3, 4}},
		{"a failure", 1, failed, []time.Duration{1, 2}},
		{"another failure", 2, failed, []time.Duration{1, 2, 3, 4}},
	} {
		if got := delays(c.clones, c.call); !slices.Equal(got, c.want) {
			t.Errorf("%s: enrolls after %v, want %v", c.name, got, c.want)
		}
	}
	for clones, logged := range map[int]bool{1: true, 2: false} {
		l, log := newLoop()
		l.cloned, l.enrolling, l.clones = true, true, clones
		if failed(l); !l.cloned || l.enrolling || l.clones != clones+1 || strings.Contains(log.String(), "cannot enroll") != logged {
			t.Errorf("a failure after %d: cloned %t, enrolling %t, %d, log %q", clones, l.cloned, l.enrolling, l.clones, log)
		}
		log.Reset()
		l.enrolling = true
		if l.handleEnrolled(nil); l.cloned || l.enrolling || l.clones != clones+1 || strings.Contains(log.String(), "cannot enroll") {
			t.Errorf("enrolled after %d: cloned %t, enrolling %t, %d, log %q", clones, l.cloned, l.enrolling, l.clones, log)
		}
	}

	now := time.Now()
	for _, c := range []struct {
		name      string
		inFlight  int
		enrolling bool
		due       time.Duration
		wait      time.Duration
		starts    bool
	}{
		{"at once", 0, false, 0, time.Minute, true}, {"a batch is in flight", 1, false, 0, time.Minute, false},
		{"while it enrolls", 0, true, 0, time.Minute, false}, {"later", 0, false, 5 * time.Second, 5 * time.Second, false},
	} {
		l, _ := newLoop()
		l.cloned, l.inFlight, l.enrolling, l.enrollDue = true, c.inFlight, c.enrolling, now.Add(c.due)
		ctx, cancel := context.WithCancel(t.Context())
		if wait := l.dispatch(ctx); wait != c.wait || l.enrolling != (c.starts || c.enrolling) {
			t.Errorf("%s: waits for %v, enrolling %t", c.name, wait, l.enrolling)
		}
		if c.starts {
			if err := <-l.enrolled; err != nil {
				t.Error(err)
			}
		}
		cancel()
		l.exchanges.Wait()
	}
}

// TestSyncStreams checks that the loop follows the streams that the spool opens and closes, and that the
// successor of an abandoned one has its backoff, and no other stream.
func TestSyncStreams(t *testing.T) {
	l, _ := newLoop()
	at := time.Unix(1e9, 0)
	kept, closed, busy := l.add(1, streamState{failures: 7}), l.add(2, streamState{}), l.add(3, streamState{inFlight: true})
	l.successorFailures, l.successorAttempt = 4, at
	l.syncStreams([]spool.Status{{Stream: batch.Stream{1}}, {Stream: batch.Stream{5}}, {Stream: batch.Stream{6}, Live: true}})
	if len(l.streams) != 4 || l.streams[closed.stream] != nil || l.streams[busy.stream] != busy || l.streams[kept.stream] != kept || kept.failures != 7 {
		t.Errorf("streams %v", l.streams)
	}
	next, live := l.streams[batch.Stream{5}], l.streams[batch.Stream{6}]
	if next.failures != 4 || !next.nextAttempt.Equal(at) || next.live {
		t.Errorf("the successor is %+v", *next)
	}
	if live.failures != 0 || !live.nextAttempt.IsZero() || !live.live {
		t.Errorf("the next one is %+v", *live)
	}
	for n, want := range []int{0, 0, 1, 2} {
		l.syncStreams(make([]spool.Status, n))
		if got := l.Status().Backlog; got != want {
			t.Errorf("of %d streams %d are a backlog, want %d", n, got, want)
		}
	}
}

// TestFlushEnds checks how many batches of a stream Flush offers: until nothing is left, the stream is
// abandoned, or three in a row made no progress.
func TestFlushEnds(t *testing.T) {
	taken, behind, conflict := batch.Reply{Verdict: batch.Accepted, Next: 6}, batch.Reply{Verdict: batch.OutOfOrder, Next: 4}, batch.Reply{Verdict: batch.Conflict}
	for _, c := range []struct {
		name    string
		replies []batch.Reply // then the spool has nothing to offer
		refused error         // of each offer
		want    int           // offers
		err     error
	}{
		{"nothing", nil, nil, 0, nil},
		{"some", []batch.Reply{taken, taken, taken, taken, taken}, nil, 5, nil},
		{"always behind", []batch.Reply{behind, behind, behind, behind, behind}, nil, 3, nil},
		{"behind at times", []batch.Reply{behind, behind, taken, behind, behind, behind, taken}, nil, 6, nil},
		{"abandoned", []batch.Reply{taken, conflict, taken}, nil, 2, nil},
		{"refused", []batch.Reply{taken, taken, taken, taken}, fault.ErrInvalid, 3, nil},
		{"no answer", []batch.Reply{taken, taken}, fault.ErrUnavailable, 1, fault.ErrUnavailable},
		{"clone", []batch.Reply{taken, {Verdict: batch.Clone}, taken}, nil, 2, errClone},
	} {
		s := &stub{err: c.refused}
		offers, looked := 0, 0
		f := &flushed{stub: s, next: func() bool {
			looked++
			if offers == len(c.replies) {
				return false
			}
			s.reply = c.replies[offers]
			offers++
			return true
		}}
		cfg := Default()
		cfg.Reenroll = func(context.Context) error { return nil }
		snd := New(cfg, f, s, func() (batch.Clock, error) { return batch.Clock{}, nil }, slog.New(slog.DiscardHandler))
		if err := snd.Flush(t.Context()); offers != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %d offers, %v; want %d, %v", c.name, offers, err, c.want, c.err)
		}
		if looked > offers+1 {
			t.Errorf("%s: %d calls of NextOffer for %d offers", c.name, looked, offers)
		}
	}
}

// flushed is a stub that has a next batch while next says so.
type flushed struct {
	*stub
	next func() bool
}

func (f *flushed) NextOffer(id batch.Stream) (spool.Offer, bool, error) {
	if !f.next() {
		return spool.Offer{}, false, nil
	}
	return f.stub.NextOffer(id)
}

func (f *flushed) Streams() []spool.Status                 { return f.stub.Streams() }
func (f *flushed) SplitBacklog(at time.Time) (bool, error) { return f.stub.SplitBacklog(at) }
func (f *flushed) ApplyReply(id batch.Stream, r batch.Reply) (*batch.Loss, error) {
	return f.stub.ApplyReply(id, r)
}
func (f *flushed) Reject(id batch.Stream, number uint64, detail string) error {
	return f.stub.Reject(id, number, detail)
}
func (f *flushed) Changes() <-chan struct{} { return nil }

// TestOtherReason checks that a further reason for which a server takes no windows is logged once.
func TestOtherReason(t *testing.T) { synctest.Test(t, testOtherReason) }

func testOtherReason(t *testing.T) {
	l, log := newLoop()
	a := l.add(1, streamState{})
	busy, rival, port := fault.ErrUnavailable, fault.WithHint(fault.ErrUnavailable, "stop one of the two agents"), fault.WithHint(fault.ErrUnavailable, "check the port")
	for i, c := range []struct {
		err  error
		want string
	}{
		{busy, "unreachable"}, {busy, ""}, {rival, "another reason.*stop one"}, {busy, ""}, {rival, ""}, {port, "another reason.*check"}, {rival, ""},
		{nil, "reached"}, {nil, ""}, {rival, "unreachable.*stop one"}, {rival, ""}, {busy, ""},
	} {
		log.Reset()
		if c.err == nil {
			l.setServerState(Connected, nil, time.Now())
		} else {
			l.handleFailure(result{a, outcome{step: stepFailed, err: c.err}}, time.Now())
		}
		if text := log.String(); (text == "") != (c.want == "") || !regexp.MustCompile(c.want).MatchString(text) || strings.Count(text, "\n") > 1 {
			t.Errorf("step %d: %v is logged as %q, want %q", i, c.err, text, c.want)
		}
	}
}
