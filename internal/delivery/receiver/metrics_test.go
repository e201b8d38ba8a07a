package receiver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// metrics is a time series database whose results are set by the test.
type metrics struct {
	unsampled bool
	err       error
	left      func() // is called meanwhile: the sender gives up
}

func (m *metrics) Append(_ context.Context, _ string, _ []batch.Name, ws []walltime.CutWindow) (s batch.Span, err error) {
	if m.left != nil {
		m.left()
	}
	if m.unsampled {
		s = batch.Span{From: time.Unix(0, ws[0].Began()).UTC(), To: time.Unix(0, ws[len(ws)-1].Ended()).UTC()}
	}
	return s, m.err
}

// slowMetrics takes samples when the test lets it.
type slowMetrics struct {
	calls int
	hold  chan struct{}
}

func (m *slowMetrics) Append(context.Context, string, []batch.Name, []walltime.CutWindow) (batch.Span, error) {
	m.calls++
	<-m.hold
	return batch.Span{}, nil
}

// A batch whose samples are not all taken is booked with the span of its windows.
func TestUnsampled(t *testing.T) { synctest.Test(t, testUnsampled) }

func testUnsampled(t *testing.T) {
	l, m := newLedger(), &metrics{}
	in, stop := run(t, quick(), l, m)
	defer stop()
	node := newMachine("boot", time.Hour, 1)
	for i, c := range []struct {
		unsampled bool
		err       error
	}{{false, nil}, {true, errors.New("the disk is full")}, {true, nil}, {false, nil}} {
		m.unsampled, m.err = c.unsampled, c.err
		w := node.window(10 * time.Second)
		offer(t, in, "n1", node.clock(), node.batch(t, w), batch.Accepted)
		var want batch.Span
		if c.unsampled {
			want = batch.Span{From: walltime.Start(&w, 0), To: walltime.End(&w, 0)}
		}
		all := l.taken()
		if got := all[len(all)-1].Unsampled; len(all) != i+1 || got != want {
			t.Errorf("%d of %d: booked with %v, want %v", i, len(all), got, want)
		}
	}
	if n := in.Stats().MetricsFailed; n != 1 {
		t.Errorf("%d batches failed, want 1", n)
	}
}

// TestMetricsDown checks that the first failure of the metrics is logged and the first success after it,
// and that a sender that gives up does not count as a failure.
func TestMetricsDown(t *testing.T) { synctest.Test(t, testMetricsDown) }

func testMetricsDown(t *testing.T) {
	var log syncbuf.Buffer
	m := &metrics{}
	in, stop := runLogged(t, quick(), newLedger(), m, &log)
	defer stop()
	node := newMachine("boot", time.Hour, 1)
	send := func(ctx context.Context, err error) {
		m.err = err
		_, _ = in.Offer(ctx, "n1", node.clock(), node.batch(t, node.window(10*time.Second)))
	}
	full := errors.New("the disk is full")
	for _, err := range []error{nil, full, full, nil, nil} {
		send(t.Context(), err)
	}
	if s := log.String(); strings.Count(s, "level=ERROR") != 1 || strings.Count(s, "take samples again") != 1 || in.Stats().MetricsFailed != 2 {
		t.Errorf("%d failures, log:\n%s", in.Stats().MetricsFailed, s)
	}
	gone, leave := context.WithCancel(t.Context())
	m.left = leave
	send(gone, full)
	if n := in.Stats().MetricsFailed; n != 2 {
		t.Errorf("%d failures after a sender gave up, want 2", n)
	}
}

// Only batches that the ledger books get samples: no forged, repeated or early one does.
func TestSamplesOfBooked(t *testing.T) { synctest.Test(t, testSamplesOfBooked) }

func testSamplesOfBooked(t *testing.T) {
	l, m := newLedger(), &sampled{}
	in, stop := run(t, quick(), l, m)
	defer stop()
	node := newMachine("boot", time.Hour, 1)
	samples := func(want int, of string) {
		t.Helper()
		if len(m.windows) != want {
			t.Errorf("%s: %d windows have samples, want %d", of, len(m.windows), want)
		}
	}
	window := func() usage.Window { return node.window(10 * time.Second) }
	sent := node.batch(t, window())
	offer(t, in, "n1", node.clock(), sent, batch.Accepted)
	samples(1, "a batch")
	offer(t, in, "n1", node.clock(), sent, batch.Duplicate)
	samples(1, "the same again")
	forged := *node
	forged.number, forged.last = 0, batch.Hash{}
	offer(t, in, "n1", node.clock(), forged.batch(t, window()), batch.Conflict)
	samples(1, "other content under its number")
	offer(t, in, "n1", node.clock(), forged.batch(t, window()), batch.Conflict)
	samples(1, "a successor of the other content")
	forged.number = 7
	offer(t, in, "n1", node.clock(), forged.batch(t, window()), batch.OutOfOrder)
	samples(1, "a later batch")

	// The second batch is prepared while the first one is being booked.
	l.hold = make(chan struct{})
	first, second := node.batch(t, window()), window()
	next := node.batch(t, second)
	results := make(chan error, 2)
	send := func(sent []byte) {
		_, err := in.Offer(t.Context(), "n1", node.clock(), sent)
		results <- err
	}
	go send(first)
	synctest.Wait()
	go send(next)
	synctest.Wait()
	close(l.hold)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	samples(2, "two at once")
	es := l.taken()
	want := batch.Span{From: walltime.Start(&second, 0), To: walltime.End(&second, 0)}
	if len(es) != 3 || es[2].Unsampled != want {
		t.Errorf("%d batches are booked, the last one lacks samples of %v, want %v", len(es), es[len(es)-1].Unsampled, want)
	}
}
