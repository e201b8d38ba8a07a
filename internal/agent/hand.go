package agent

import (
	"context"
	"log/slog"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/guest/relay"
	"mete.dev/mete/internal/guest/share"
)

// A Hand passes energy on: to the virtual machines of this machine what each of
// them was given, and to the host of this one what was booked of its share.
type Hand struct {
	machine *machine.Machine
	host    *relay.Host
	acked   share.Ack // latest
	log     *slog.Logger

	seen    bool   // there was a share from the host
	refused string // why the host's share is not taken; "" where it is
}

// NewHand returns the hand of a machine. It starts nothing.
func NewHand(cfg relay.Config, m *machine.Machine, log *slog.Logger) (*Hand, error) {
	h, err := relay.New(cfg, log)
	if err != nil {
		return nil, err
	}
	return &Hand{machine: m, host: h, log: log}, nil
}

// Run serves virtual machines until ctx ends.
func (h *Hand) Run(ctx context.Context) error { return h.host.Run(ctx) }

// Tick passes on what the latest tick booked, from the loop that owns the machine.
// It waits for nobody.
func (h *Hand) Tick() {
	books := h.machine.Books()
	h.host.Publish(books.Guests())
	s, ok := h.machine.Power().Meters.Host()
	if !ok {
		return
	}
	h.tell(&s)
	if m := books.Energy(); m != nil {
		b, ok := m.Booked()
		if a := (share.Ack{Epoch: b.Epoch, N: b.N, Energy: b.Energy()}); ok && a != h.acked {
			h.acked = a
			h.machine.Power().Meters.Ack(a)
		}
	}
}

// tell logs when the first share came, and when what comes begins and ceases to be
// refused. Where shares end, the meter's own events say so.
func (h *Hand) tell(s *energy.HostShare) {
	if s.Seen && !h.seen {
		h.seen = true
		h.log.Info("the host gives this machine its energy", "from", s.From, "guest", s.Guest)
	}
	switch {
	case s.Refused != "" && h.refused == "":
		h.log.Warn("what the host gives this machine is refused", "err", s.Refused,
			"hint", "the host has to share the folder of this virtual machine, by an agent of the same version")
	case s.Refused == "" && h.refused != "":
		h.log.Info("what the host gives this machine is taken again")
	}
	h.refused = s.Refused
}

// A HandStatus is how passing energy on goes.
type HandStatus struct {
	// Guests are the virtual machines of this machine.
	Guests []relay.Status `json:"guests,omitempty"`
	// Host is what the host of this machine gives it; nil where there was nothing.
	Host *energy.HostShare `json:"host,omitempty"`
}

// Status says how it goes. Any goroutine may call it.
func (h *Hand) Status() HandStatus {
	s := HandStatus{Guests: h.host.Status()}
	if got, ok := h.machine.Power().Meters.Host(); ok && (got.Seen || got.Refused != "") {
		s.Host = &got
	}
	return s
}
