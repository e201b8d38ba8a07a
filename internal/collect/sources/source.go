package sources

import (
	"context"
	"errors"
	"log/slog"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// traffic sets the network traffic of each workload of a snapshot.
type traffic struct {
	net        *net.Table
	groups     *cgroup.Table
	every      int // ticks between checks for processes that moved to another namespace
	tick       int
	unresolved string // why translated addresses have no class, as it was logged
	log        *slog.Logger
}

// socketSet is the resources that socket counters measure.
var socketSet = usage.SetOf(usage.NetworkRx, usage.NetworkTx, usage.NetworkRxPackets, usage.NetworkTxPackets)

func openTraffic(h *hostfs.FS, k *bpf.Kernel, cfg net.Config, groups *cgroup.Table, every int, log *slog.Logger) (*traffic, error) {
	t, err := net.Open(h, k, cfg)
	if err != nil {
		return nil, err
	}
	return &traffic{net: t, groups: groups, every: every, log: log}, nil
}

func (t *traffic) Read(s *usage.Snapshot) error {
	for _, g := range s.Groups {
		if g.New && g.Slot != usage.Root {
			t.net.Track(net.Target{Slot: g.Slot, Parent: g.Parent, Kind: g.Workload.Kind, Hierarchy: t.groups.Hierarchy(g.Slot), Path: g.Workload.Path,
				Group: t.groups.UnifiedID(g.Slot), Born: g.Born})
		}
	}
	if s.Closing {
		t.tick = 0 // requested ticks come in between
	}
	all := t.tick%t.every == 0
	if all {
		for _, g := range s.Groups {
			if g.Has.Has(usage.CPU) {
				t.net.SetCPUTime(g.Slot, g.Value[usage.CPU])
			}
		}
	}
	// An error concerns single namespaces: the rest is valid.
	if err := t.net.Read(context.Background(), all); err != nil {
		t.log.Debug("network", "err", err)
	}
	if all {
		t.logUnresolved()
	}
	t.tick++
	for _, g := range s.Groups {
		switch {
		case g.Slot == usage.Root:
		case g.Final: // in a second snapshot if the first was not booked; then it keeps its figures
			t.net.Forget(g.Slot).Put(g)
		default:
			g.Classes, g.Connections = nil, nil
			r := t.net.Reading(g.Slot)
			r.Put(g)
			if r.Source == net.Sockets {
				g.Counted |= socketSet
			}
		}
	}
	if c, ok := t.net.NodeTraffic(); ok {
		r := &s.Node.Total
		r.Put(usage.NetworkRx, c.RxBytes)
		r.Put(usage.NetworkTx, c.TxBytes)
		r.Put(usage.NetworkRxPackets, c.RxPackets)
		r.Put(usage.NetworkTxPackets, c.TxPackets)
	}
	return nil
}

// logUnresolved logs when addresses of services begin or cease to have the class of their real end.
func (t *traffic) logUnresolved() {
	why := t.net.UnresolvedReason()
	switch {
	case why == t.unresolved:
	case why == "":
		t.log.Info("network by class: translated addresses have the class of their real end")
	default:
		t.log.Info("network by class: translated addresses have no class", "err", why)
	}
	t.unresolved = why
}

// Booked says that the latest snapshot was booked.
func (t *traffic) Booked() { t.net.Booked() }

// rootTasks sets the CPU time of the root group to that of its tasks if the kernel has no
// counter for the root: cgroup v2 read by files.
type rootTasks struct {
	root  *proc.Members
	every int
	tick  int
}

func (t *rootTasks) Read(s *usage.Snapshot) error {
	if t.tick%t.every == 0 {
		if err := t.root.Refresh(); err != nil {
			return err
		}
	}
	t.tick++
	g := s.Groups[0]
	g.Put(usage.CPU, t.root.CPU())
	g.Own |= usage.SetOf(usage.CPU)
	if t.root.Unreadable > 0 { // in another PID namespace
		s.Node.Partial = true
	}
	return nil
}

// openRest opens the sources other than groups.
func (m *Machine) openRest(network net.Config, every int, log *slog.Logger) error {
	if !m.table.CountsRoot() {
		r, err := proc.OpenRoot(m.host, rootDescriptors)
		switch {
		case errors.Is(err, fault.ErrUnsupported):
		case err != nil:
			return err
		default:
			m.sources = append(m.sources, &rootTasks{root: r, every: every})
			m.closers = append(m.closers, r.Close)
		}
	}
	u, err := newUncounted(m.host, m.table, log)
	if err != nil {
		return err
	}
	m.sources, m.closers = append(m.sources, u), append(m.closers, u.Close)
	t, err := openTraffic(m.host, m.kernel, network, m.table, every, log)
	if err != nil {
		return err
	}
	m.network, m.sources = t.net, append(m.sources, t)
	m.closers = append(m.closers, t.net.Close)
	if why := t.net.UncountedReason(); why != "" {
		if m.kernel == nil && m.table.HasUnified() {
			why = "the bpf reader counts it"
		}
		m.notes = append(m.notes, "network of workloads in the machine's own namespace: absent ("+why+")")
	} else if why := t.net.UnclassifiedReason(); why != "" && !network.NoClasses {
		m.notes = append(m.notes, "network by class: absent ("+why+")")
	}
	if why := t.net.UnconnectedReason(); why != "" && network.Connections {
		m.notes = append(m.notes, "network by peer: absent ("+why+")")
	}
	return m.openGuests(log)
}

// rootDescriptors is how many descriptors to keep for tasks in the root group.
const rootDescriptors = 200
