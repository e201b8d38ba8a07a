package net

import "mete.dev/mete/internal/host/procfmt"

// interfaces adds up the interfaces of a namespace, so that the sum never goes
// back: what an interface had counted when it went away, or began anew, stays.
type interfaces struct {
	by    map[string]*iface
	gone  Count
	sum   Count
	round uint32
	// counts says which interfaces to take.
	counts func(name string) bool
}

type iface struct {
	Count
	taken bool
	round uint32
}

// add takes in what net/dev shows now, and reports whether anything moved. An
// interface that was not there before counts from 0: it was made in the
// namespace or, far more often than it brings a past, for it.
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
		// What is below the bad line was not seen; nothing is taken for gone.
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

// notLoopback takes all interfaces but lo.
func notLoopback(name string) bool { return name != "lo" }
