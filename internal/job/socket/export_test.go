package socket

import "time"

// Hurry makes a client wait less.
func (c *Client) Hurry(timeout, pause time.Duration) { c.Timeout, c.pause = timeout, pause }

// Open says how many jobs are open.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Add opens a job as if a user had registered it.
func (s *Server) Add(id string, uid uint32) error {
	_, err := s.add(id, uid)
	return err
}

const (
	MaxJobs   = maxJobs
	MaxOfUser = maxOfUser
)

// AddNamed opens a job with a name as if a user had registered it.
func (s *Server) AddNamed(id string, uid uint32, name string) {
	s.open[id], s.named[id] = uid, Named{ID: id, Name: name}
	s.jobsByUser[uid]++
}

// JobsFor returns what a peer is shown.
func (s *Server) JobsFor(p Peer) []Named { return s.jobsOf(p) }
