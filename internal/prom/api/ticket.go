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

// A ticket is the turn of one request, first among the small ones. A request is one
// goroutine's, and so is its ticket.
type ticket struct {
	a      *API
	who    string
	asked  map[string]string // how, for the log of queries
	limit  int               // of what is answered, as who asks set it; 0 is none
	large  bool
	reads  bool // it is a remote read
	held   *fairqueue.Queue
	waited time.Duration
	series int   // that were read as what it is
	bytes  int64 // that they take
	// Of a remote read: samples that are held, and why it was ended.
	samples int
	over    error
}

type ticketKey struct{}

func ticketOf(ctx context.Context) *ticket {
	t, _ := ctx.Value(ticketKey{}).(*ticket)
	return t
}

// enter waits for a turn among those of t's size.
func (t *ticket) enter(ctx context.Context) error {
	among, name := t.a.small, "query"
	if t.large {
		among, name = t.a.large, "large query"
	}
	began := time.Now()
	defer func() { t.waited += time.Since(began) }()
	waiting, cancel := context.WithTimeout(ctx, t.a.limits.wait)
	defer cancel()
	err := among.Enter(waiting, t.who)
	switch {
	case err == nil:
		t.held, t.series, t.bytes = among, 0, 0
		return nil
	case errors.Is(err, fairqueue.ErrCrowd):
		return late{fmt.Sprintf("%d queries of this reader wait already: ask again later, or fewer at once", t.a.limits.waiting)}
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return promql.ErrQueryCanceled("the wait for its turn")
	}
	return late{fmt.Sprintf("no turn for a %s within %v, at most %d at once: ask again later, or for less (a larger step, a shorter range, fewer series)", name, t.a.limits.wait, among.Slots())}
}

// leave ends the turn.
func (t *ticket) leave() {
	if t.held != nil {
		t.held.Leave(t.who)
		t.held = nil
	}
}

// grow waits for a turn as a large one.
func (t *ticket) grow(ctx context.Context) error {
	if t.large {
		return nil
	}
	t.leave()
	t.large = true
	return t.enter(ctx)
}

// count counts a series that was read, over a time.
func (t *ticket) count(span time.Duration) error {
	t.series++
	if t.large {
		if most := t.a.limits.large.series; t.series > most {
			t.over = tooMuch(fmt.Sprintf("more than %d series: at most so many are read at once", most), "name fewer with a narrower selector, or a shorter range", t.a.limits.Memory)
			return t.over
		}
		return nil
	}
	t.bytes += perSeries + int64(span.Hours()*perHour)
	if t.series > t.a.limits.small.series || t.bytes > t.a.limits.small.bytes {
		return errLarge
	}
	return nil
}

var errLarge = errors.New("not a small query")

// late is the error of a query that was too long in coming: a timeout to those who
// look what it wraps.
type late struct{ text string }

func (l late) Error() string { return l.text }
func (l late) Unwrap() error { return promql.ErrQueryTimeout(l.text) }

// tooMuch is the error of a query that takes more than there is for it.
func tooMuch(what, instead string, memory int64) error {
	return fmt.Errorf("%s, as queries have %s of memory (mete server --query-memory): %s", what, unit.Bytes(float64(memory)), instead)
}
