package sources

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// guests finds the groups of a snapshot that are virtual machines.
type guests struct {
	vms    *vm.Table
	groups *cgroup.Table
	log    *slog.Logger
}

// lookEvery is the interval between scans of all processes for virtual machines.
const lookEvery = 10 * time.Second

// openGuests opens the source of virtual machines.
func (m *Machine) openGuests(log *slog.Logger) error {
	t, err := vm.Open(m.host, vm.Config{Every: max(1, int(lookEvery/m.tick))}, log)
	if errors.Is(err, fault.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	m.guests = &guests{t, m.table, log}
	m.sources = append(m.sources, m.guests)
	return nil
}

// Read sets the Guest of groups. An error costs the guests only: the rest of the snapshot
// is valid.
func (g *guests) Read(s *usage.Snapshot) error {
	if err := g.vms.Read(s, g.groups.Owner); err != nil {
		g.log.Debug("virtual machines", "err", err)
	}
	return nil
}

// Guests returns the virtual machines found by the latest scan. Call it between ticks.
func (m *Machine) Guests() []*vm.VM {
	if m.guests == nil {
		return nil
	}
	return m.guests.vms.All()
}

// GuestTimes reads the CPU time of a virtual machine. Call it between ticks.
func (m *Machine) GuestTimes(v *vm.VM) (vm.Times, error) { return m.guests.vms.Times(v) }

// GuestExits reads how often a virtual machine left guest mode: see vm.QueryExits.
func (m *Machine) GuestExits(ctx context.Context, v *vm.VM) (vm.Exits, error) {
	return vm.QueryExits(ctx, m.host, v)
}
