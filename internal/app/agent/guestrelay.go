package agent

import (
	"fmt"
	"strings"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/prom/exposition"
	"mete.dev/mete/internal/x/settings"
)

// guestRelaySettings adds the settings of energy passed to virtual machines, and from the host.
func (c *Config) guestRelaySettings(s *settings.Set) {
	s.Text(&c.Agent.Handover.Dir, "vm-shares", "DIR", "directory in which each virtual machine of this machine has a folder with the energy that it is given; the default is used where it is there, '' is none")
	s.Switch(&c.Agent.Handover.VSock, "vm-vsock", "tell virtual machines that have a CID by vsock what energy they are given")
	s.ListFunc("vm-vsock-socket", "UUID=PATH", "unix socket at which the hypervisor of a virtual machine hands over its connections by vsock, several with commas", c.parseGuestSockets)
	s.Text(&c.Machine.Energy.Shares, "host-shares", "DIR", "directory in which the host puts the energy that it gives this virtual machine; '' is none")
	s.Switch(&c.Machine.Energy.VSock, "host-vsock", "ask the host of this virtual machine by vsock").WithEnv("METE_HOST_VSOCK")
}

// parseGuestSockets parses the setting vm-vsock-socket.
func (c *Config) parseGuestSockets(texts []string) error {
	var sockets []publish.Socket
	for _, text := range texts {
		for part := range strings.SplitSeq(text, ",") {
			guest, path, ok := strings.Cut(part, "=")
			if !ok {
				return fmt.Errorf("%q is not UUID=PATH", part)
			}
			sockets = append(sockets, publish.Socket{Guest: guest, Path: path})
		}
	}
	c.Agent.Handover.Sockets = sockets
	return nil
}

// writeGuestRelayMetrics writes the state of the exchange of energy with virtual machines and with
// the host.
func writeGuestRelayMetrics(t *exposition.Text, s agent.GuestRelayStatus) {
	var published, acks, streams []exposition.Sample
	for _, g := range byUUID(s.Guests) {
		published = append(published, exposition.Sample{Labels: []string{"guest", g.Guest}, Value: float64(g.Published)})
		streams = append(streams, exposition.Sample{Labels: []string{"guest", g.Guest}, Value: float64(g.Streams)})
		for _, r := range []struct {
			name  string
			count int64
		}{{"equal", g.Equal}, {"differing", g.Differing}, {"unknown", g.Unknown}} {
			acks = append(acks, exposition.Sample{Labels: []string{"guest", g.Guest, "result", r.name}, Value: float64(r.count)})
		}
	}
	t.Counters("mete_agent_shares_published_total", "Shares of energy given to a virtual machine, one per tick.", published...)
	t.Counters("mete_agent_share_acks_total", "Acknowledged shares of a virtual machine, compared with the published ones.", acks...)
	t.Gauges("mete_agent_share_streams", "vsock connections of a virtual machine.", streams...)
	var n, age, up []exposition.Sample
	if h := s.Host; h != nil {
		labels := []string{"guest", h.Guest}
		fresh := 0.
		if h.From != "" {
			fresh = 1
			age = append(age, exposition.Sample{Labels: labels, Value: h.Age.Seconds()})
			if h.Epoch != "" {
				n = append(n, exposition.Sample{Labels: labels, Value: float64(h.N)})
			}
		}
		up = append(up, exposition.Sample{Labels: labels, Value: fresh})
	}
	t.Gauges("mete_agent_host_share_up", "1 while this virtual machine receives shares of energy from its host.", up...)
	t.Gauges("mete_agent_host_share_n", "Number of the latest share from the host.", n...)
	t.Gauges("mete_agent_host_share_age_seconds", "Age of the latest share from the host.", age...)
}

// byUUID returns one entry per UUID: a restarted guest, or guests without a UUID, appear more than
// once.
func byUUID(list []publish.Status) (out []publish.Status) {
	for _, g := range list {
		if n := len(out); n > 0 && out[n-1].Guest == g.Guest {
			o := &out[n-1]
			o.Published, o.Streams = o.Published+g.Published, o.Streams+g.Streams
			o.Equal, o.Differing, o.Unknown = o.Equal+g.Equal, o.Differing+g.Differing, o.Unknown+g.Unknown
			continue
		}
		out = append(out, g)
	}
	return out
}
