package agent

import (
	"context"
	"log/slog"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/guest/publish"
)

// A GuestRelay passes energy on: to the virtual machines of this machine what each was given, and
// to this machine's host what was booked of its share.
type GuestRelay struct {
	machine *sources.Machine
	guests  *publish.Publisher
	acked   energyshare.Ack // latest
	log     *slog.Logger

	seen    bool   // the host has given a share
	refused string // why the host's share is refused, or ""
}

// NewGuestRelay returns the relay of a machine. It starts nothing.
func NewGuestRelay(cfg publish.Config, m *sources.Machine, log *slog.Logger) (*GuestRelay, error) {
	h, err := publish.New(cfg, log)
	if err != nil {
		return nil, err
	}
	return &GuestRelay{machine: m, guests: h, log: log}, nil
}

// Run serves virtual machines until ctx ends.
func (g *GuestRelay) Run(ctx context.Context) error { return g.guests.Run(ctx) }

// Tick passes on what the latest tick booked. It runs on the goroutine that owns the machine and
// does not block.
func (g *GuestRelay) Tick() {
	acc := g.machine.Accounts()
	g.guests.Publish(acc.Guests())
	s, ok := g.machine.Power().Meters.HostShare()
	if !ok {
		return
	}
	g.logChanges(&s)
	if m := acc.Meters(); m != nil {
		b, ok := m.BookedShare()
		if a := (energyshare.Ack{Epoch: b.Epoch, N: b.N, Energy: b.Energy()}); ok && a != g.acked {
			g.acked = a
			g.machine.Power().Meters.Ack(a)
		}
	}
}

// logChanges logs the first share, and when shares begin and cease to be refused. The meter's
// events report when shares stop.
func (g *GuestRelay) logChanges(s *energy.HostShare) {
	if s.Seen && !g.seen {
		g.seen = true
		g.log.Info("the host gives this machine its energy", "from", s.From, "guest", s.Guest)
	}
	switch {
	case s.Refused != "" && g.refused == "":
		g.log.Warn("the share from the host is refused", "err", s.Refused,
			"hint", "the host has to share the folder of this virtual machine, by an agent of the same version")
	case s.Refused == "" && g.refused != "":
		g.log.Info("the share from the host is accepted again")
	}
	g.refused = s.Refused
}

// A GuestRelayStatus is the state of passing energy on.
type GuestRelayStatus struct {
	// Guests are the virtual machines of this machine.
	Guests []publish.Status `json:"guests,omitempty"`
	// Host is the share from this machine's host; nil if there was none.
	Host *energy.HostShare `json:"host,omitempty"`
}

// Status returns the state. It is safe for concurrent use.
func (g *GuestRelay) Status() GuestRelayStatus {
	s := GuestRelayStatus{Guests: g.guests.Status()}
	if got, ok := g.machine.Power().Meters.HostShare(); ok && (got.Seen || got.Refused != "") {
		s.Host = &got
	}
	return s
}
