package receiver

import (
	"sync/atomic"

	"mete.dev/mete/internal/x/httpx"
)

// Limits of a light batch: a live window of some hundred workloads is one, hours of a backlog
// are not.
const (
	lightBytes = 64 << 10 // compressed, and expanded
	lightRows  = 2000
)

// An admissionQueue holds batches that wait to be booked. Light and heavy batches have one each,
// so that the live windows of some machines do not wait for the backlogs of a hundred others.
type admissionQueue struct {
	bodies   *httpx.Bodies // of requests that are held, of all clusters and of each
	decoders chan struct{}
	pending  chan *submission
	maxRows  int64        // rows from which on the queue is full
	rows     atomic.Int64 // that wait or are being booked
}

// newAdmissionQueue returns a queue that holds bodyBytes of requests, of which largest is the longest. One cluster has
// three quarters of it: its nodes, if they send slowly, must not stop those of the others.
func newAdmissionQueue(bodyBytes, largest int64, decoders, maxRows int) *admissionQueue {
	each := min(bodyBytes, max(largest, bodyBytes-bodyBytes/4))
	return &admissionQueue{bodies: httpx.NewBodies(bodyBytes, each), decoders: make(chan struct{}, decoders), pending: make(chan *submission, 4096), maxRows: int64(maxRows)}
}

// isFull reports whether the queue takes no more rows. The latest submission may exceed the
// limit, so that the work of preparing it is not wasted.
func (q *admissionQueue) isFull() bool { return q.rows.Load() >= q.maxRows }

// poll returns a submission that waits, or nil.
func (q *admissionQueue) poll() *submission {
	select {
	case s := <-q.pending:
		return s
	default:
		return nil
	}
}

// queueFor returns the queue for a request of the given size.
func (rc *Receiver) queueFor(bytes uint64) *admissionQueue {
	if bytes <= lightBytes {
		return rc.light
	}
	return rc.heavy
}
