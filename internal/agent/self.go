package agent

import (
	"log/slog"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// selves gives jobs what they need to ask for their own use.
type selves struct {
	give func(workload.ID) token.Self // nil gives nobody anything
	dir  string                       // of the socket, in which every user may read
	log  *slog.Logger
}

// of is what a workload is given; nil is nothing.
func (s selves) of(id workload.ID) *socket.Self {
	if s.give == nil {
		return nil
	}
	self := s.give(id)
	if self.Token == "" {
		return nil
	}
	out := &socket.Self{URL: self.URL, Token: self.Token}
	if self.CA == "" {
		return out
	}
	file, err := enroll.KeepCA(s.dir, self.CA)
	if err != nil {
		s.log.Warn("jobs cannot ask for their own use: the certificate of the server's authority is not kept for them", "err", err)
		return nil
	}
	out.CA = file
	return out
}
