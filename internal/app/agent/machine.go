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

// kepler is the value of --compat that adds Kepler's metric names.
const kepler = "kepler"

// machineMetrics serves the latest window as metrics. One goroutine calls addWindow; any number
// call text.
type machineMetrics struct {
	host string
	// open serves workloads to every process that reaches the address; kepler adds Kepler's metric
	// names.
	open, kepler bool
	accumulator  exposition.Accumulator
	view         atomic.Pointer[exposition.View]
}

// newMachineMetrics returns the metrics of the machine with this host name.
func (c *Config) newMachineMetrics(host string) *machineMetrics {
	return &machineMetrics{host: host, open: c.StatusWorkloads, kepler: c.Compat == kepler}
}

// addWindow takes a closed window and the state of the meters. name returns a workload's name; nil
// uses the one in the window.
func (m *machineMetrics) addWindow(w *usage.Window, name func(*workload.Workload) string, meters *energy.Meters) {
	m.accumulator.Name = name
	m.view.Store(m.accumulator.Add(m.host, w, meters))
}

// text returns the metrics. They include workloads, whose names are not for every user of the
// machine, only if the configuration says so.
func (m *machineMetrics) text() string {
	v := m.view.Load()
	if v == nil {
		return "" // no window yet
	}
	var t exposition.Text
	v.Mete(&t, m.open)
	if m.kepler {
		v.Kepler(&t, m.open)
	}
	return t.String()
}

// isLocal reports whether an address or Host header means only this machine. A web page that points
// its own name at the loopback address sends another Host.
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

// validateMetrics checks the flags for metrics, and logs what they leave out.
func (c *Config) validateMetrics(log *slog.Logger) error {
	if c.Compat != "" && c.Compat != kepler {
		return fault.WithHint(fmt.Errorf("--compat %q: %w", c.Compat, fault.ErrInvalid), "the only value is kepler")
	}
	if c.Status == "" && (c.Compat != "" || c.StatusWorkloads) {
		return fault.WithHint(fmt.Errorf("--compat and --status-workloads: no metrics with --status '': %w", fault.ErrInvalid), "give an address with --status")
	}
	if c.Status != "" && !c.StatusWorkloads && c.Compat != "" {
		log.Info("omitting workload metrics: other users reach this address", "status", c.Status, "hint", "--status-workloads shows them to everyone who does")
	}
	return nil
}
