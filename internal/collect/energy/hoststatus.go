package energy

import "time"

// A HostShare is what the host gives this virtual machine, as it came last.
type HostShare struct {
	Seen    bool          `json:"seen"`            // there was a share at any time
	From    string        `json:"from,omitempty"`  // "vsock", or the directory; "" where nothing comes
	Guest   string        `json:"guest,omitempty"` // this machine's UUID, as the host has it; "" is not known
	Epoch   string        `json:"epoch,omitempty"` // "" where there is a counter alone
	N       int64         `json:"n,omitempty"`
	Age     time.Duration `json:"age_ns,omitempty"`  // since the latest share came
	Err     string        `json:"error,omitempty"`   // why nothing comes; "" where it does
	Refused string        `json:"refused,omitempty"` // why what came is not taken; "" where nothing is refused
}

// Host returns what the host gives this virtual machine; false where this
// machine is not one, or nobody looks for a share. Any goroutine may call it.
func (s *Source) Host() (HostShare, bool) {
	if s.shares == nil {
		return HostShare{}, false
	}
	return s.shares.status(s.shares.now()), true
}

// status is what [Source.Host] tells at a moment, ns of CLOCK_BOOTTIME.
func (s *shares) status(now int64) HostShare {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := HostShare{Seen: s.seen, Guest: s.uuid}
	for i := range s.ways {
		w := &s.ways[i]
		if w.bad && st.Refused == "" {
			st.Refused = w.name + ": " + w.err
		}
		if st.From != "" || !w.fresh(now) {
			continue
		}
		st.From, st.Age = w.name, time.Duration(now-w.moved)
		if w.share != nil {
			st.Epoch, st.N, st.Guest = w.share.Epoch, w.share.N, w.share.Guest
		}
	}
	if st.From == "" {
		st.Err = s.why()
	}
	return st
}
