package energy

// An IdleShare sums one workload's part of a machine's idle energy, by CPU time used. Errors of
// ticks add up, as an error of a meter or curve is the same in all ticks. The zero value is ready to
// use.
type IdleShare struct {
	Energy int64 // uJ
	Error  int64 // uJ, either way
}

// Add adds the part of a tick's idle energy in uJ, which has an error, of a workload that used CPU
// time of all that was used, in ns.
func (s *IdleShare) Add(idle, off, used, all int64) {
	all = max(all, used)
	s.Energy = AddSaturated(s.Energy, MulDiv(idle, used, all))
	s.Error = AddSaturated(s.Error, MulDiv(off, used, all))
}
