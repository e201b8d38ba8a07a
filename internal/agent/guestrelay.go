package agent

import (
	"context"
	"log/slog"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/guest/relay"
	"mete.dev/mete/internal/guest/share"
)

// A GuestRelay passes energy on: to the virtual machines of this machine what each of
// them was given, and to the host of this one what was booked of its share.
type GuestRelay struct {
	machine *machine.Machine
	host    *relay.Relay
	acked   share.Ack // latest
	log     *slog.Logger

	seen    bool   // there was a share from the host
	refused string // why the host's share is not taken; "" where it is
}

// NewGuestRelay returns the relay of a machine. It starts nothing.
func NewGuestRelay(cfg relay.Config, m *machine.Machine, log *slog.Logger) (*GuestRelay, error) {
	h, err := relay.New(cfg, log)
	if err != nil {
		return nil, err
	}
	return &GuestRelay{machine: m, host: h, log: log}, nil
}

// Run serves virtual machines until ctx ends.
func (g *GuestRelay) Run(ctx context.Context) error { return g.host.Run(ctx) }

// Tick passes on what the latest tick booked, from the loop that owns the machine.
// It waits for nobody.
func (g *GuestRelay) Tick() {
	books := g.machine.Accounts()
	g.host.Publish(books.Guests())
	s, ok := g.machine.Power().Meters.HostShare()
	if !ok {
		return
	}
	g.logChanges(&s)
	if m := books.Meters(); m != nil {
		b, ok := m.BookedShare()
		if a := (share.Ack{Epoch: b.Epoch, N: b.N, Energy: b.Energy()}); ok && a != g.acked {
			g.acked = a
			g.machine.Power().Meters.Ack(a)
		}
	}
}

// logChanges logs when the first share came, and when what comes begins and ceases to be
// refused. Where shares end, the meter's own events say so.
func (g *GuestRelay) logChanges(s *energy.HostShare) {
	if s.Seen && !g.seen {
		g.seen = true
		g.log.Info("the host gives this machine its energy", "from", s.From, "guest", s.Guest)
	}
	switch {
	case s.Refused != "" && g.refused == "":
		g.log.Warn("what the host gives this machine is refused", "err", s.Refused,
			"hint", "the host has to share the folder of this virtual machine, by an agent of the same version")
	case s.Refused == "" && g.refused != "":
		g.log.Info("what the host gives this machine is taken again")
	}
	g.refused = s.Refused
}

// A GuestRelayStatus is how passing energy on goes.
type GuestRelayStatus struct {
	// Guests are the virtual machines of this machine.
	Guests []relay.Status `json:"guests,omitempty"`
	// Host is what the host of this machine gives it; nil where there was nothing.
	Host *energy.HostShare `json:"host,omitempty"`
}

// Status says how it goes. Any goroutine may call it.
func (g *GuestRelay) Status() GuestRelayStatus {
	s := GuestRelayStatus{Guests: g.host.Status()}
	if got, ok := g.machine.Power().Meters.HostShare(); ok && (got.Seen || got.Refused != "") {
		s.Host = &got
	}
	return s
}
