package api

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Counts are what became of queries since the start, of questions for series and labels
// too.
type Counts struct {
	Answered int64
	Invalid  int64         // that were no queries, or took more to look at than they may
	Refused  int64         // that took more than there is for one, or could not be computed
	TimedOut int64         // that had no turn, or were not done in time
	Large    int64         // that waited for a turn as a large one
	Waited   time.Duration // by all of them
	Took     time.Duration // in their turns
	Waiting  int64         // now
}

type counts struct{ answered, invalid, refused, late, large, waited, took atomic.Int64 }

// Counts returns the counts.
func (a *API) Counts() Counts {
	c := &a.counts
	return Counts{
		Answered: c.answered.Load(), Invalid: c.invalid.Load(), Refused: c.refused.Load(), TimedOut: c.late.Load(), Large: c.large.Load(),
		Waited: time.Duration(c.waited.Load()), Took: time.Duration(c.took.Load()), Waiting: a.small.Waiting() + a.large.Waiting(),
	}
}

// count counts an answer by its status code.
func (c *counts) count(code int, t *admission, took time.Duration) {
	switch {
	case code < 300:
		c.answered.Add(1)
	case code == http.StatusBadRequest:
		c.invalid.Add(1)
	case code == http.StatusServiceUnavailable:
		c.late.Add(1)
	default:
		c.refused.Add(1)
	}
	if t.large {
		c.large.Add(1)
	}
	c.waited.Add(int64(t.waited))
	c.took.Add(int64(took - t.waited))
}

// statusWriter is a writer of an answer that notes its status code.
type statusWriter struct {
	http.ResponseWriter
	code      int
	admission *admission
}

func (n *statusWriter) WriteHeader(code int) {
	if code == http.StatusInternalServerError {
		code = n.admission.status()
	}
	n.code = code
	n.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (n *statusWriter) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// Flush implements http.Flusher, which is asked of whom streams are sent to.
func (n *statusWriter) Flush() {
	_ = http.NewResponseController(n.ResponseWriter).Flush() // who cannot has it all at the end
}
