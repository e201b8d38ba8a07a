package qemu

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// A monitor speaks QEMU's QMP, docs/interop/qmp-spec of QEMU.
type monitor struct {
	c net.Conn
	d *json.Decoder
}

func newMonitor(c net.Conn) (*monitor, error) {
	q := &monitor{c: c, d: json.NewDecoder(c)}
	return q, q.do("qmp_capabilities")
}

// do executes a command without arguments, and skips the greeting and events.
func (m *monitor) do(command string) error {
	if err := m.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(m.c, "{\"execute\":%q}\n", command); err != nil {
		return err
	}
	for {
		var a struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		switch err := m.d.Decode(&a); {
		case err != nil:
			return fmt.Errorf("qmp %s: %w", command, err)
		case a.Error != nil:
			return fmt.Errorf("qmp %s: %s", command, a.Error.Desc)
		case a.Return != nil:
			return nil
		}
	}
}

// Pause stops the guest's CPUs, and its clocks with them.
func (m *Machine) Pause() error { return m.monitor.do("stop") }

// Resume continues after Pause.
func (m *Machine) Resume() error { return m.monitor.do("cont") }
