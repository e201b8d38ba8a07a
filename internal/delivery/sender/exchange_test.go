package sender

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// TestBackoff checks the delays after some failures: each from the shortest to a bound that doubles,
// but not beyond the longest.
func TestBackoff(t *testing.T) {
	for _, c := range []struct {
		shortest, longest time.Duration
		failures          int
		want              []time.Duration
	}{
		{1, 100, 0, []time.Duration{1}},
		{1, 100, 1, []time.Duration{1, 2}},
		{1, 100, 2, []time.Duration{1, 2, 3, 4}},
		{2, 100, 1, []time.Duration{2, 3, 4}},
		{1, 3, 2, []time.Duration{1, 2, 3}},
		{1, 4, 2, []time.Duration{1, 2, 3, 4}},
		{3, 3, 5, []time.Duration{3}},
		{1, 3, 1000, []time.Duration{1, 2, 3}},
		{1 << 62, 1<<62 + 2, 1, []time.Duration{1 << 62, 1<<62 + 1, 1<<62 + 2}}, // its double overflows
		{1 << 62, 1<<62 + 1, 2, []time.Duration{1 << 62, 1<<62 + 1}},
	} {
		cfg := Config{MinBackoff: c.shortest, MaxBackoff: c.longest}
		var got []time.Duration
		for range 500 {
			if d := cfg.backoff(c.failures, nil); !slices.Contains(got, d) {
				got = append(got, d)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%d failures, from %d to %d: %v, want %v", c.failures, c.shortest, c.longest, got, c.want)
		}
		err := &fault.RetryError{Err: fault.ErrUnavailable, After: 1000}
		if d := cfg.backoff(c.failures, err) - 1000; !slices.Contains(c.want, d) {
			t.Errorf("%d failures, from %d to %d, the last one says to wait 1000: %d", c.failures, c.shortest, c.longest, d+1000)
		}
	}
	for failures, bound := range map[int]time.Duration{31: 1 << 31, 32: 1 << 40} {
		cfg, longest := Config{MinBackoff: 1, MaxBackoff: 1 << 40}, time.Duration(0)
		for range 200 {
			longest = max(longest, cfg.backoff(failures, nil))
		}
		if longest > bound || longest < bound/2 {
			t.Errorf("%d failures: up to %d, want about %d", failures, longest, bound)
		}
	}
}

// TestValidate checks each setting with the least value that works, and the next lower one.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		ok     bool
	}{
		{func(*Config) {}, true},
		{func(c *Config) { c.MinBackoff = 1 }, true}, {func(c *Config) { c.MinBackoff = 0 }, false},
		{func(c *Config) { c.MaxBackoff = c.MinBackoff }, true}, {func(c *Config) { c.MaxBackoff = c.MinBackoff - 1 }, false},
		{func(c *Config) { c.DrainRate = 0x1p-1000 }, true}, {func(c *Config) { c.DrainRate = 0 }, false},
		{func(c *Config) { c.Timeout = 1 }, true}, {func(c *Config) { c.Timeout = 0 }, false},
	} {
		cfg := Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if d := Default(); d.MinBackoff != time.Second || d.MaxBackoff != time.Minute || d.DrainRate != 2 || d.Timeout != 30*time.Second {
		t.Errorf("default %+v", d)
	}
	defer func() {
		if recover() == nil {
			t.Error("New accepts a configuration that Validate refuses")
		}
	}()
	New(Config{}, nil, nil, nil, nil)
}

// A stub is a spool and a server that answer as they are set.
type stub struct {
	Spool
	offerErr, rejectErr, applyErr error
	lost                          *batch.Loss
	format                        wire.Format
	applied                       []batch.Reply
	rejected                      []uint64

	Server
	reply    batch.Reply
	err      error // of an offer
	reads    wire.Format
	readsErr error
	asked    int
	lostErr  error
	lostSays batch.Reply
}

func (s *stub) NextOffer(batch.Stream) (spool.Offer, bool, error) {
	return spool.Offer{Number: 5, Bytes: []byte("five"), Format: s.format}, s.offerErr == nil, s.offerErr
}

func (s *stub) ApplyReply(_ batch.Stream, r batch.Reply) (*batch.Loss, error) {
	s.applied = append(s.applied, r)
	return s.lost, s.applyErr
}

func (s *stub) Reject(_ batch.Stream, number uint64, _ string) error {
	s.rejected = append(s.rejected, number)
	return s.rejectErr
}

func (s *stub) Offer(ctx context.Context, _ batch.Clock, _ []byte) (batch.Reply, error) {
	if _, ok := ctx.Deadline(); !ok {
		return batch.Reply{}, errors.New("the request has no time limit")
	}
	return s.reply, s.err
}

func (s *stub) Lost(context.Context, batch.Loss) (batch.Reply, error) { return s.lostSays, s.lostErr }

func (s *stub) Reads(context.Context) (wire.Format, error) {
	s.asked++
	return s.reads, s.readsErr
}

func (s *stub) sender(clockErr error) *Sender {
	return New(Default(), s, s, func() (batch.Clock, error) { return batch.Clock{}, clockErr }, slog.New(slog.DiscardHandler))
}

// TestExchange checks the outcome of an offer of batch 5: the calls of the spool, and whose error it is.
func TestExchange(t *testing.T) {
	disk, net := errors.New("disk"), fmt.Errorf("net: %w", fault.ErrUnavailable)
	newer := wire.Format{Layout: 1, Resource: wire.BaseFormat().Resource + 1}
	taken := batch.Reply{Verdict: batch.Accepted, Next: 6}
	for _, c := range []struct {
		name     string
		stub     stub
		clock    error
		step     step
		err      error
		local    bool
		applied  int
		rejected int
		asked    int
	}{
		{name: "taken", stub: stub{reply: taken}, step: stepAdvanced, applied: 1},
		{name: "the stream is closed", stub: stub{offerErr: fmt.Errorf("x: %w", fault.ErrNotFound)}, step: stepIdle},
		{name: "the spool fails", stub: stub{offerErr: disk}, step: stepFailed, err: disk, local: true},
		{name: "the clock fails", stub: stub{reply: taken}, clock: disk, step: stepFailed, err: disk, local: true},
		{name: "the server fails", stub: stub{err: net}, step: stepFailed, err: net},
		{name: "the reply cannot be applied", stub: stub{reply: taken, applyErr: disk}, step: stepFailed, err: disk, local: true, applied: 1},
		{name: "refused", stub: stub{err: fault.ErrInvalid}, step: stepRejected, rejected: 1},
		{name: "refused, and not set aside", stub: stub{err: fault.ErrInvalid, rejectErr: disk}, step: stepFailed, err: disk, local: true, rejected: 1},
		{name: "impossible", stub: stub{reply: batch.Reply{Verdict: batch.Accepted, Next: 7}}, step: stepFailed, err: fault.ErrUnavailable},
		{name: "of a newer format", stub: stub{reply: taken, format: newer, reads: newer}, step: stepAdvanced, applied: 1, asked: 1},
		{name: "too new", stub: stub{reply: taken, format: newer, reads: wire.BaseFormat()}, step: stepFailed, err: errOutdated, asked: 1},
		{name: "it does not say what it reads", stub: stub{reply: taken, format: newer, readsErr: net}, step: stepFailed, err: net, asked: 1},
		{name: "refused although it reads it", stub: stub{err: fault.ErrInvalid, format: newer, reads: newer}, step: stepRejected, rejected: 1, asked: 2},
		{name: "behind", stub: stub{reply: batch.Reply{Verdict: batch.OutOfOrder, Next: 4}}, step: stepRewound, applied: 1},
		{name: "conflict", stub: stub{reply: batch.Reply{Verdict: batch.Conflict}}, step: stepAbandoned, applied: 1},
		{name: "clone", stub: stub{reply: batch.Reply{Verdict: batch.Clone}}, step: stepFailed, err: errClone},
		{name: "a loss", stub: stub{reply: batch.Reply{Verdict: batch.OutOfOrder, Next: 2}, lost: &batch.Loss{From: 2, To: 4}, lostSays: batch.Reply{Verdict: batch.Accepted, Next: 5}}, step: stepRewound, applied: 2},
	} {
		s := &c.stub
		snd := s.sender(c.clock)
		o := snd.exchange(t.Context(), batch.Stream{})
		if o.step != c.step || !errors.Is(o.err, c.err) || (o.err == nil) != (c.err == nil) || o.local != c.local {
			t.Errorf("%s: step %d, error %v, local %t; want %d, %v, %t", c.name, o.step, o.err, o.local, c.step, c.err, c.local)
		}
		if len(s.applied) != c.applied || len(s.rejected) != c.rejected || s.asked != c.asked {
			t.Errorf("%s: applied %v, rejected %v, asked %d times for the format", c.name, s.applied, s.rejected, s.asked)
		}
		if c.step == stepAdvanced && o.bytes != 4 {
			t.Errorf("%s: %d bytes", c.name, o.bytes)
		}
	}
	// The sender requests the format of a server once, and again after a failed offer.
	s := &stub{reply: taken, format: newer, reads: newer}
	snd := s.sender(nil)
	for _, c := range []struct {
		err   error
		asked int
	}{{nil, 1}, {nil, 1}, {net, 1}, {nil, 2}, {nil, 2}} {
		s.err = c.err
		snd.exchange(t.Context(), batch.Stream{})
		if s.asked != c.asked {
			t.Errorf("after an offer with error %v: asked %d times for the format, want %d", c.err, s.asked, c.asked)
		}
	}
}

// TestCheckReply checks which replies to an offer of batch 5 are possible.
func TestCheckReply(t *testing.T) {
	for _, c := range []struct {
		verdict batch.Verdict
		want    string // the possible next numbers of 0 to 7
	}{
		{batch.Accepted, "6"}, {batch.Duplicate, "67"}, {batch.OutOfOrder, "1234"}, {batch.Conflict, "01234567"}, {batch.Clone, "01234567"}, {0, ""}, {77, ""},
	} {
		var got strings.Builder
		for next := range uint64(8) {
			err := checkReply(5, batch.Reply{Verdict: c.verdict, Next: next})
			if err == nil {
				fmt.Fprint(&got, next)
			} else if !errors.Is(err, fault.ErrUnavailable) {
				t.Errorf("%v, next %d: %v", c.verdict, next, err)
			}
		}
		if got.String() != c.want {
			t.Errorf("%v: next may be %q, want %q", c.verdict, got.String(), c.want)
		}
	}
}

// TestReportLoss checks the outcome of each reply to a report that batches 5 to 7 are lost.
func TestReportLoss(t *testing.T) {
	disk := errors.New("disk")
	for _, c := range []struct {
		name    string
		reply   batch.Reply
		err     error
		apply   error // of the spool
		enroll  bool
		step    step
		want    error
		local   bool
		applied batch.Verdict // 0 is none
	}{
		{name: "taken", reply: batch.Reply{Verdict: batch.Accepted, Next: 8}, step: stepRewound, applied: batch.Accepted},
		{name: "taken, and more", reply: batch.Reply{Verdict: batch.Accepted, Next: 9}, step: stepRewound, applied: batch.Accepted},
		{name: "taken, and too few", reply: batch.Reply{Verdict: batch.Accepted, Next: 7}, step: stepFailed, want: fault.ErrUnavailable},
		{name: "known", reply: batch.Reply{Verdict: batch.Duplicate, Next: 8}, step: stepRewound, applied: batch.Duplicate},
		{name: "known, and too few", reply: batch.Reply{Verdict: batch.Duplicate, Next: 7}, step: stepFailed, want: fault.ErrUnavailable},
		{name: "behind", reply: batch.Reply{Verdict: batch.OutOfOrder, Next: 4}, step: stepRewound, applied: batch.OutOfOrder},
		{name: "far behind", reply: batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, step: stepRewound, applied: batch.OutOfOrder},
		{name: "not behind", reply: batch.Reply{Verdict: batch.OutOfOrder, Next: 5}, step: stepFailed, want: fault.ErrUnavailable},
		{name: "behind all", reply: batch.Reply{Verdict: batch.OutOfOrder}, step: stepFailed, want: fault.ErrUnavailable},
		{name: "conflict", reply: batch.Reply{Verdict: batch.Conflict}, step: stepAbandoned, applied: batch.Conflict},
		{name: "clone", reply: batch.Reply{Verdict: batch.Clone}, step: stepFailed, want: errClone},
		{name: "clone that can enroll", reply: batch.Reply{Verdict: batch.Clone}, enroll: true, step: stepCloned},
		{name: "no verdict", reply: batch.Reply{Next: 8}, step: stepFailed, want: fault.ErrUnavailable},
		{name: "refused", err: fault.ErrInvalid, step: stepAbandoned, applied: batch.Conflict},
		{name: "no answer", err: fault.ErrUnavailable, step: stepFailed, want: fault.ErrUnavailable},
		{name: "the spool fails", reply: batch.Reply{Verdict: batch.Accepted, Next: 8}, apply: disk, step: stepFailed, want: disk, local: true, applied: batch.Accepted},
	} {
		s := &stub{lostSays: c.reply, lostErr: c.err, applyErr: c.apply}
		snd := s.sender(nil)
		if c.enroll {
			snd.cfg.Reenroll = func(context.Context) error { return nil }
		}
		o := snd.reportLoss(t.Context(), batch.Stream{}, batch.Loss{From: 5, To: 7})
		if o.step != c.step || !errors.Is(o.err, c.want) || (o.err == nil) != (c.want == nil) || o.local != c.local || (o.reason != "") != (c.step == stepAbandoned) {
			t.Errorf("%s: %+v", c.name, o)
		}
		if len(s.applied) > 0 != (c.applied != 0) || c.applied != 0 && s.applied[0].Verdict != c.applied {
			t.Errorf("%s: applied %v, want %v", c.name, s.applied, c.applied)
		}
	}
}

// TestOutcomes checks what each outcome counts as, and how many names are kept for the next window.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		step step
		want Status
	}{
		{stepIdle, Status{}}, {stepAdvanced, Status{Batches: 1, Bytes: 9}}, {stepRewound, Status{}}, {stepAbandoned, Status{Conflicts: 1}},
		{stepRejected, Status{Refused: 1}}, {stepCloned, Status{}}, {stepFailed, Status{Retries: 1}},
	} {
		s := (&stub{}).sender(nil)
		s.record(outcome{step: c.step, bytes: 9})
		got := s.Status()
		if (got.LastSuccess.IsZero()) != (c.step != stepAdvanced) {
			t.Errorf("step %d: last success %v", c.step, got.LastSuccess)
		}
		if got.LastSuccess, got.Since = c.want.LastSuccess, c.want.Since; got != c.want {
			t.Errorf("step %d: %+v, want %+v", c.step, got, c.want)
		}
	}
	s := (&stub{}).sender(nil)
	names := make([]workload.ShortID, 70_000)
	for i := range names {
		names[i] = workload.ShortID(i)
	}
	s.record(outcome{wanted: names})
	if n := len(s.Wanted()); n != 65_536 {
		t.Errorf("%d names of 70,000 are wanted, want 65,536", n)
	}
}
