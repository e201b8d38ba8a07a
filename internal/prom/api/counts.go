package api

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Counts count queued requests by result since the start, including those for series and
// labels.
type Counts struct {
	Answered int64
	Invalid  int64         // invalid or too complex
	Refused  int64         // exceeded a limit, or failed
	TimedOut int64         // got no turn, or took too long
	Large    int64         // waited for a turn as a large query
	Waited   time.Duration // total wait for turns
	Took     time.Duration // total time without the wait
	Waiting  int64         // requests waiting now
}

type counts struct{ answered, invalid, refused, timedOut, large, waited, took atomic.Int64 }

// Counts returns the counts.
func (a *API) Counts() Counts {
	c := &a.counts
	return Counts{
		Answered: c.answered.Load(), Invalid: c.invalid.Load(), Refused: c.refused.Load(), TimedOut: c.timedOut.Load(), Large: c.large.Load(),
		Waited: time.Duration(c.waited.Load()), Took: time.Duration(c.took.Load()), Waiting: a.small.Waiting() + a.large.Waiting(),
	}
}

// count counts a request by the status code of its answer.
func (c *counts) count(code int, t *admission, took time.Duration) {
	switch {
	case code < 300:
		c.answered.Add(1)
	case code == http.StatusBadRequest:
		c.invalid.Add(1)
	case code == http.StatusServiceUnavailable:
		c.timedOut.Add(1)
	default:
		c.refused.Add(1)
	}
	if t.large {
		c.large.Add(1)
	}
	c.waited.Add(int64(t.waited))
	c.took.Add(int64(took - t.waited))
}

// statusWriter is an http.ResponseWriter that records the status code and replaces 500 with
// that of the admission.
type statusWriter struct {
	http.ResponseWriter
	code      int
	admission *admission
	end       time.Time // of the answer
}

// A reader has writeProgress for each piece of an answer: the query has its turn until the answer is written, and readers
// that take none would have all turns.
const (
	writePiece    = 64 << 10
	writeProgress = 10 * time.Second
)

func (w *statusWriter) Write(b []byte) (n int, err error) {
	for {
		until := time.Now().Add(writeProgress)
		if w.end.Before(until) {
			until = w.end
		}
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(until) // only writers of tests do not support it
		piece := b[:min(len(b), writePiece)]
		m, err := w.ResponseWriter.Write(piece)
		n, b = n+m, b[len(piece):]
		if err != nil || len(b) == 0 {
			return n, err
		}
	}
}

func (w *statusWriter) WriteHeader(code int) {
	if code == http.StatusInternalServerError {
		code = w.admission.status()
	}
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap supports http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher, which streamed remote reads need.
func (w *statusWriter) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // without support, the data is sent at the end
}
