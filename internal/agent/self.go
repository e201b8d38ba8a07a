package agent

import (
	"log/slog"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// selfAccess gives jobs what they need to query their own use.
type selfAccess struct {
	issue func(workload.ID) token.SelfAccess // may be nil
	dir   string                             // of the socket, readable by every user
	log   *slog.Logger
}

// grant returns the access for a workload, or nil.
func (s selfAccess) grant(id workload.ID) *socket.SelfAccess {
	if s.issue == nil {
		return nil
	}
	self := s.issue(id)
	if self.Token == "" {
		return nil
	}
	out := &socket.SelfAccess{URL: self.URL, Token: self.Token}
	if self.CA == "" {
		return out
	}
	file, err := enroll.WriteCA(s.dir, self.CA)
	if err != nil {
		s.log.Warn("jobs cannot query their own use: the certificate of the server's authority cannot be written", "err", err)
		return nil
	}
	out.CA = file
	return out
}
