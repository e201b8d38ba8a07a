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

// HostShare returns what the host gives this virtual machine; false where this
// machine is not one, or nobody looks for a share. Any goroutine may call it.
func (s *Source) HostShare() (HostShare, bool) {
	if s.hostMeter == nil {
		return HostShare{}, false
	}
	return s.hostMeter.status(s.hostMeter.now()), true
}

// status is what [Source.HostShare] tells at a moment, ns of CLOCK_BOOTTIME.
func (hm *hostMeter) status(now int64) HostShare {
	hm.mu.Lock()
	defer hm.mu.Unlock()
	st := HostShare{Seen: hm.seen, Guest: hm.uuid}
	for i := range hm.channels {
		c := &hm.channels[i]
		if c.refused && st.Refused == "" {
			st.Refused = c.name + ": " + c.err
		}
		if st.From != "" || !c.isFresh(now) {
			continue
		}
		st.From, st.Age = c.name, time.Duration(now-c.changedAt)
		if c.share != nil {
			st.Epoch, st.N, st.Guest = c.share.Epoch, c.share.N, c.share.Guest
		}
	}
	if st.From == "" {
		st.Err = hm.problem()
	}
	return st
}
