package agent

import (
	"flag"
	"fmt"
	"strings"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/guest/relay"
	"mete.dev/mete/internal/prom/exposition"
)

// guestRelayFlags adds the flags for energy passed to virtual machines, and from the host.
func (c *Config) guestRelayFlags(f *flag.FlagSet) {
	f.StringVar(&c.Agent.Handover.Dir, "vm-shares", c.Agent.Handover.Dir, "`directory` in which each virtual machine of this machine has a folder with the energy that it is given; the default is used where it is there, '' is none")
	f.BoolVar(&c.Agent.Handover.VSock, "vm-vsock", c.Agent.Handover.VSock, "tell virtual machines that have a CID by vsock what energy they are given")
	f.Func("vm-vsock-socket", "`UUID=PATH` of a unix socket at which the hypervisor of a virtual machine hands over its connections by vsock, several with commas", c.parseGuestSocket)
	f.StringVar(&c.Machine.Energy.Shares, "host-shares", c.Machine.Energy.Shares, "`directory` in which the host puts the energy that it gives this virtual machine; '' is none")
	f.BoolVar(&c.Machine.Energy.VSock, "host-vsock", c.Machine.Energy.VSock, "ask the host of this virtual machine by vsock (METE_HOST_VSOCK)")
}

// parseGuestSocket parses the flag of that name.
func (c *Config) parseGuestSocket(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		guest, path, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%q is not UUID=PATH", part)
		}
		c.Agent.Handover.Sockets = append(c.Agent.Handover.Sockets, relay.Socket{Guest: guest, Path: path})
	}
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
func byUUID(list []relay.Status) (out []relay.Status) {
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
