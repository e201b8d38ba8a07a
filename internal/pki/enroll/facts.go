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

// Named returns the facts of a machine that has this name in place of its host name; "" keeps it.
func (f Facts) Named(name string) Facts {
	if name == "" {
		return f
	}
	if f.Machine == f.Name { // it has no machine id
		f.Machine = name
	}
	f.Name = name
	return f
}
