package receiver

import "sync/atomic"

// What a batch has at most that is light: a live window of some hundred
// workloads is, hours of a backlog are not.
const (
	lightBytes = 64 << 10 // as it is sent, and expanded
	lightRows  = 2000
)

// An admissionQueue is where batches wait. Those that are light do not wait behind those
// that are heavy, so that what machines do now is seen while a hundred others
// send what they did yesterday.
type admissionQueue struct {
	maxBodyBytes int64        // bytes of requests that are held at once
	bodyBytes    atomic.Int64 // that are
	decoders     chan struct{}
	pending      chan *submission
	maxRows      int64        // rows that wait to be booked
	rows         atomic.Int64 // that are in the queue or being booked
}

func newAdmissionQueue(room int64, decoders, limit int) *admissionQueue {
	return &admissionQueue{maxBodyBytes: room, decoders: make(chan struct{}, decoders), pending: make(chan *submission, 4096), maxRows: int64(limit)}
}

// isFull says that nothing more is taken. The last one may be larger than what room
// there was: what has been prepared is not to have been so for nothing.
func (n *admissionQueue) isFull() bool { return n.rows.Load() >= n.maxRows }

// poll is one that waits, or nil.
func (n *admissionQueue) poll() *submission {
	select {
	case o := <-n.pending:
		return o
	default:
		return nil
	}
}

// queueFor is the queue of what has so many bytes.
func (rc *Receiver) queueFor(bytes int64) *admissionQueue {
	if bytes <= lightBytes {
		return rc.light
	}
	return rc.heavy
}
