package agent

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/prom/exposition"
)

// kepler is the value of -compat that adds Kepler's names.
const kepler = "kepler"

// A machineMetrics hands what each window says to who asks for metrics. One goroutine calls
// take; any number call text.
type machineMetrics struct {
	host string
	// open says that workloads are shown to everyone who reaches the address, and
	// kepler that Kepler's names are there too.
	open, kepler bool
	tally        exposition.Accumulator
	view         atomic.Pointer[exposition.View]
}

// newMachineMetrics shows the machine of this host name.
func (c *Config) newMachineMetrics(host string) *machineMetrics {
	return &machineMetrics{host: host, open: c.StatusWorkloads, kepler: c.Compat == kepler}
}

// addWindow takes a window that was just closed, and what is known of meters. name says
// what a workload is called; nil is what it is called in the window.
func (s *machineMetrics) addWindow(w *usage.Window, name func(*workload.Workload) string, m *energy.Meters) {
	s.tally.Name = name
	s.view.Store(s.tally.Add(s.host, w, m))
}

// text is the machine's metrics for who asked at an address for a host. Workloads
// are among them where only this machine can ask, and elsewhere if that was said.
func (s *machineMetrics) text(at net.Addr, host string) string {
	v := s.view.Load()
	if v == nil {
		return "" // no window was closed yet
	}
	var t exposition.Text
	workloads := s.open || isLocal(at.String()) && isLocal(host)
	v.Mete(&t, workloads)
	if s.kepler {
		v.Kepler(&t, workloads)
	}
	return t.String()
}

// isLocal reports whether an address, or the host that a request is for, is this
// machine alone. A page that points a name of its own at the loopback address asks
// for a host that is not.
func isLocal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// validateMetrics reports what is wrong with the flags of metrics, and says what they
// leave out.
func (c *Config) validateMetrics(log *slog.Logger) error {
	if c.Compat != "" && c.Compat != kepler {
		return fault.WithHint(fmt.Errorf("-compat %q: %w", c.Compat, fault.ErrInvalid), "the only one is kepler")
	}
	if c.Status == "" && (c.Compat != "" || c.StatusWorkloads) {
		return fault.WithHint(fmt.Errorf("-compat and -status-workloads: there are no metrics with -status '': %w", fault.ErrInvalid), "give an address with -status")
	}
	if c.Status != "" && !c.StatusWorkloads && !isLocal(c.Status) {
		log.Info("metrics of workloads are left out, as others reach this address", "status", c.Status, "hint", "-status-workloads shows them to everyone who does")
	}
	return nil
}
