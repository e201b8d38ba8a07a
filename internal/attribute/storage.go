package attribute

import (
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// storage is the disk space of a workload in the open window.
type storage struct {
	bytes int64 // as measured last
	known bool
	// booked is what an earlier run of the meter booked to a workload that ended, in byte-seconds, if ended is set.
	booked int64
	ended  bool
}

// setStorage takes over the disk space that the group takes. The latest one counts for all of the window, as it is
// measured more rarely than windows close.
func (a *account) setStorage(g *usage.Group) {
	if bytes, ok := g.Storage.Get(); ok || a.apart != nil {
		to := &a.makeApart().storage
		to.bytes, to.known = bytes, ok
	}
}

// put puts the disk space into the use of the open window.
func (s *storage) put(u *usage.Usage) {
	switch {
	case s.ended:
		u.Put(usage.Storage, s.booked, usage.Measured)
	case s.known && s.bytes < levelLimit && unit.Fits(s.bytes, int64(u.Covered)):
		var held unit.Integral
		u.Put(usage.Storage, held.Add(s.bytes, s.bytes, int64(u.Covered)), usage.Measured)
	}
}
