package agent

import (
	"log/slog"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// selfAccess gives jobs what they need to ask for their own use.
type selfAccess struct {
	issue func(workload.ID) token.SelfAccess // nil gives nobody anything
	dir   string                             // of the socket, in which every user may read
	log   *slog.Logger
}

// grant is what a workload is given; nil is nothing.
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
		s.log.Warn("jobs cannot ask for their own use: the certificate of the server's authority is not kept for them", "err", err)
		return nil
	}
	out.CA = file
	return out
}
