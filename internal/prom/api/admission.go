package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/x/fairqueue"
)

// An admission is the turn of one request, first among the small ones. A request is one
// goroutine's, and so is its admission.
type admission struct {
	api         *API
	reader      string
	httpRequest map[string]string // how, for the log of queries
	limit       int               // of what is answered, as who asks set it; 0 is none
	large       bool
	remoteRead  bool // it is a remote read
	queue       *fairqueue.Queue
	waited      time.Duration
	series      int   // that were read as what it is
	bytes       int64 // that they take
	// Of a remote read: samples that are held, and why it was ended.
	samples int
	err     error
}

type admissionKey struct{}

func admissionOf(ctx context.Context) *admission {
	t, _ := ctx.Value(admissionKey{}).(*admission)
	return t
}

// acquire waits for a turn among those of t's size.
func (t *admission) acquire(ctx context.Context) error {
	among, name := t.api.small, "query"
	if t.large {
		among, name = t.api.large, "large query"
	}
	began := time.Now()
	defer func() { t.waited += time.Since(began) }()
	waiting, cancel := context.WithTimeout(ctx, t.api.limits.queueTimeout)
	defer cancel()
	err := among.Acquire(waiting, t.reader)
	switch {
	case err == nil:
		t.queue, t.series, t.bytes = among, 0, 0
		return nil
	case errors.Is(err, fairqueue.ErrQueueFull):
		return timeoutError{fmt.Sprintf("%d queries of this reader wait already: ask again later, or fewer at once", t.api.limits.maxWaiting)}
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return promql.ErrQueryCanceled("the wait for its turn")
	}
	return timeoutError{fmt.Sprintf("no turn for a %s within %v, at most %d at once: ask again later, or for less (a larger step, a shorter range, fewer series)", name, t.api.limits.queueTimeout, among.Slots())}
}

// release ends the turn.
func (t *admission) release() {
	if t.queue != nil {
		t.queue.Release(t.reader)
		t.queue = nil
	}
}

// upgrade waits for a turn as a large one.
func (t *admission) upgrade(ctx context.Context) error {
	if t.large {
		return nil
	}
	t.release()
	t.large = true
	return t.acquire(ctx)
}

// countSeries counts a series that was read, over a time.
func (t *admission) countSeries(span time.Duration) error {
	t.series++
	if t.large {
		if most := t.api.limits.large.series; t.series > most {
			t.err = limitError(fmt.Sprintf("more than %d series: at most so many are read at once", most), "name fewer with a narrower selector, or a shorter range", t.api.limits.Memory)
			return t.err
		}
		return nil
	}
	t.bytes += seriesBytes + int64(span.Hours()*hourBytes)
	if t.series > t.api.limits.small.series || t.bytes > t.api.limits.small.bytes {
		return errLarge
	}
	return nil
}

var errLarge = errors.New("not a small query")

// timeoutError is the error of a query that was too long in coming: a timeout to those who
// look what it wraps.
type timeoutError struct{ text string }

func (l timeoutError) Error() string { return l.text }
func (l timeoutError) Unwrap() error { return promql.ErrQueryTimeout(l.text) }

// limitError is the error of a query that takes more than there is for it.
func limitError(what, instead string, memory int64) error {
	return fmt.Errorf("%s, as queries have %s of memory (mete server --query-memory): %s", what, unit.Bytes(float64(memory)), instead)
}
