package net

import "mete.dev/mete/internal/host/procfmt"

// interfaces sums the interfaces of a namespace. The sum never decreases: it keeps the
// counts of interfaces that were removed or restarted.
type interfaces struct {
	by    map[string]*iface
	gone  Count
	sum   Count
	round uint32
	// counts reports whether to include an interface.
	counts func(name string) bool
}

type iface struct {
	Count
	taken bool
	round uint32
}

// add adds the counters of net/dev and reports whether anything changed. An interface that
// was missing before counts from 0: it was created in the namespace, or for it, far more
// often than it brings earlier traffic.
func (f *interfaces) add(b []byte) (moved bool, err error) {
	if f.by == nil {
		f.by = map[string]*iface{}
	}
	f.round++
	sum := Count{}
	err = procfmt.NetDev(b, func(name string, rxBytes, rxPackets, txBytes, txPackets int64) {
		i := f.by[name]
		if i == nil {
			i = &iface{taken: f.counts(name)}
			f.by[name] = i
		}
		i.round = f.round
		if !i.taken {
			return
		}
		now := Count{rxBytes, txBytes, rxPackets, txPackets}
		if now.isBelowAny(i.Count) {
			f.gone = f.gone.plus(i.Count)
		}
		i.Count = now
		sum = sum.plus(now)
	})
	if err != nil {
		// Lines after the bad one were not read, so no interface counts as removed.
		return false, err
	}
	for name, i := range f.by {
		if i.round == f.round {
			continue
		}
		if i.taken {
			f.gone = f.gone.plus(i.Count)
		}
		delete(f.by, name)
	}
	sum = sum.plus(f.gone)
	moved, f.sum = sum != f.sum, sum
	return moved, nil
}

// notLoopback includes all interfaces but lo.
func notLoopback(name string) bool { return name != "lo" }
