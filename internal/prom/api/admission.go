package api

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/promql"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/x/fairqueue"
)

// An admission is the turn of one request in the queues, first as a small query. It belongs
// to the goroutine of its request.
type admission struct {
	api         *API
	reader      string
	httpRequest map[string]string // for the query log
	limit       int               // the request's limit of series; 0 is none
	large       bool
	remoteRead  bool
	queue       *fairqueue.Queue
	waited      time.Duration
	series      int          // series read since acquire
	bytes       int64        // estimated memory of these series
	labels      int64        // bytes of the labels of these series
	values      int64        // bytes of label names or values read
	read        atomic.Int64 // estimated memory of all series, names and values read
	// For a remote read: samples in memory, and the error that ended it.
	samples int
	err     error
}

type admissionKey struct{}

func admissionOf(ctx context.Context) *admission {
	a, _ := ctx.Value(admissionKey{}).(*admission)
	return a
}

// acquire waits for a turn in the queue of a's size.
func (a *admission) acquire(ctx context.Context) error {
	among, name := a.api.small, "query"
	if a.large {
		among, name = a.api.large, "large query"
	}
	began := time.Now()
	defer func() { a.waited += time.Since(began) }()
	waiting, cancel := context.WithTimeout(ctx, a.api.limits.queueTimeout)
	defer cancel()
	err := among.Acquire(waiting, a.reader)
	switch {
	case err == nil:
		a.queue, a.series, a.bytes, a.labels = among, 0, 0, 0
		return nil
	case errors.Is(err, fairqueue.ErrQueueFull):
		return timeoutError{fmt.Sprintf("%d queries of this reader are already waiting: ask again later, or send fewer at once", a.api.limits.maxWaiting)}
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return promql.ErrQueryCanceled("waiting for a turn")
	}
	return timeoutError{fmt.Sprintf("no turn for a %s within %v (at most %d run at once): ask again later, or for less (a larger step, a shorter range, fewer series)", name, a.api.limits.queueTimeout, among.Slots())}
}

// release ends the turn.
func (a *admission) release() {
	if a.queue != nil {
		a.queue.Release(a.reader)
		a.queue = nil
	}
}

// upgrade gives up the turn and waits for one as a large query.
func (a *admission) upgrade(ctx context.Context) error {
	if a.large {
		return nil
	}
	a.release()
	a.large = true
	a.api.memory.upgrade(a)
	return a.acquire(ctx)
}

// countSeries counts a series that was read over span, and the bytes of its labels. It returns
// errLarge when the request exceeds the limits of small queries.
func (a *admission) countSeries(span time.Duration, labels int64) error {
	a.series++
	a.labels += labels
	bytes := seriesBytes + labels + int64(span.Hours()*hourBytes)
	a.bytes += bytes
	a.read.Add(bytes)
	if !a.large {
		if a.series > a.api.limits.small.series || a.bytes > a.api.limits.small.bytes {
			return errLarge
		}
		return nil
	}
	what, most := "", a.api.limits.large
	switch {
	case a.series > most.series:
		what = fmt.Sprintf("more than %d series in one query", most.series)
	case a.labels > most.labels:
		what = fmt.Sprintf("more than %s of labels in one query", unit.Bytes(float64(most.labels)))
	default:
		return nil
	}
	a.err = limitError(what, "use a narrower selector or a shorter range", a.api.limits.Memory)
	return a.err
}

// countValues counts label names or values that were read.
func (a *admission) countValues(list []string) error {
	var n int64
	for _, v := range list {
		n += int64(len(v)) + valueBytes
	}
	a.values += n
	a.read.Add(n)
	if most := a.api.limits.answerBytes; a.values > most {
		return limitError(fmt.Sprintf("names or values of more than %s", unit.Bytes(float64(most))), "use match[], a shorter range or limit", a.api.limits.Memory)
	}
	return nil
}

// checkAnswered rejects an answer that lists series with too many bytes of labels.
func (a *admission) checkAnswered() error {
	if most := a.api.limits.answerBytes; a.labels > most {
		return limitError(fmt.Sprintf("the labels of %d series have %s; at most %s are sent", a.series, unit.Bytes(float64(a.labels)), unit.Bytes(float64(most))),
			"use a narrower selector, a shorter range or limit", a.api.limits.Memory)
	}
	return nil
}

var errLarge = errors.New("not a small query")

// timeoutError is the error of a query that waited or ran too long. It wraps
// promql.ErrQueryTimeout.
type timeoutError struct{ text string }

func (e timeoutError) Error() string { return e.text }
func (e timeoutError) Unwrap() error { return promql.ErrQueryTimeout(e.text) }

// limitError returns the error of a query that exceeds a limit: what it exceeds and what to
// do instead.
func limitError(what, instead string, memory int64) error {
	return fmt.Errorf("%s; queries have %s of memory (mete server --query-memory): %s", what, unit.Bytes(float64(memory)), instead)
}
