package receiver

import "sync/atomic"

// What a batch has at most that is light: a live window of some hundred
// workloads is, hours of a backlog are not.
const (
	lightBytes = 64 << 10 // as it is sent, and expanded
	lightRows  = 2000
)

// A lane is where batches wait. Those that are light do not wait behind those
// that are heavy, so that what machines do now is seen while a hundred others
// send what they did yesterday.
type lane struct {
	room     int64        // bytes of requests that are held at once
	bodies   atomic.Int64 // that are
	decoders chan struct{}
	queue    chan *offer
	limit    int64        // rows that wait to be booked
	rows     atomic.Int64 // that are in the queue or being booked
}

func newLane(room int64, decoders, limit int) *lane {
	return &lane{room: room, decoders: make(chan struct{}, decoders), queue: make(chan *offer, 4096), limit: int64(limit)}
}

// full says that nothing more is taken. The last one may be larger than what room
// there was: what has been prepared is not to have been so for nothing.
func (n *lane) full() bool { return n.rows.Load() >= n.limit }

// next is one that waits, or nil.
func (n *lane) next() *offer {
	select {
	case o := <-n.queue:
		return o
	default:
		return nil
	}
}

// sized is the lane of what has so many bytes.
func (in *Receiver) sized(bytes int64) *lane {
	if bytes <= lightBytes {
		return in.light
	}
	return in.heavy
}
