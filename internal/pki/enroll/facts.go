package enroll

import "mete.dev/mete/internal/host/hostfs"

// FactsOf reads the facts of a machine.
func FactsOf(h *hostfs.FS) (f Facts, err error) {
	if f.Boot, err = h.BootID(); err != nil {
		return f, err
	}
	if f.Name, err = h.Hostname(); err != nil {
		return f, err
	}
	if f.Machine, err = h.MachineID(); err != nil {
		f.Machine = f.Name
	}
	return f, nil
}
