package enroll

import "mete.dev/mete/internal/host/hostfs"

// FactsOf reads what a machine says of itself.
func FactsOf(h *hostfs.FS) (f Facts, err error) {
	if f.Boot, err = h.BootID(); err != nil {
		return f, err
	}
	if f.Name, err = h.Hostname(); err != nil {
		return f, err
	}
	if f.Machine, err = h.MachineID(); err != nil {
		f.Machine = f.Name // a machine without an id is known by its name
	}
	return f, nil
}
