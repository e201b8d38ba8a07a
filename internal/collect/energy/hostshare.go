package energy

import "time"

// A HostShare is the latest share from the host.
type HostShare struct {
	Seen    bool          `json:"seen"`            // a share was received at some time
	From    string        `json:"from,omitempty"`  // "vsock", or the directory; "" if nothing arrives
	Guest   string        `json:"guest,omitempty"` // this machine's UUID as the host knows it; "" if unknown
	Epoch   string        `json:"epoch,omitempty"` // "" with a plain counter
	N       int64         `json:"n,omitempty"`
	Age     time.Duration `json:"age_ns,omitempty"`  // since the latest share arrived
	Err     string        `json:"error,omitempty"`   // why nothing arrives; "" if shares arrive
	Refused string        `json:"refused,omitempty"` // why the latest share is refused; "" if it is not
}

// HostShare returns the latest share from the host; false if this machine is not virtual or
// receives no shares. Any goroutine may call it.
func (s *Source) HostShare() (HostShare, bool) {
	if s.hostMeter == nil {
		return HostShare{}, false
	}
	return s.hostMeter.status(s.hostMeter.now()), true
}

// status returns [Source.HostShare] at the time now, ns of CLOCK_BOOTTIME.
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
