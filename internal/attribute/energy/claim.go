package energy

import (
	"mete.dev/mete/internal/model/power"
)

// A Claim is what one workload can claim idle energy with, over the time of
// the energy. Amounts are not negative.
type Claim struct {
	Present  int64 // time that it was there, ns
	Reserved int64 // CPU time reserved for it, ns
	Used     int64 // CPU time that it used, ns
}

// DivideIdle gives the idle energy of one machine to claims, as p says. What it
// returns is left with the machine: all of it under None, and where nobody has a claim;
// else nothing. out is as long as claims; the parts and what is left sum to
// idle exactly.
func DivideIdle(p power.Policy, idle int64, claims []Claim, out []int64) (left int64) {
	for i := range claims {
		switch p {
		case power.Equal:
			out[i] = claims[i].Present
		case power.Reserved:
			out[i] = claims[i].Reserved
		case power.Used:
			out[i] = claims[i].Used
		default:
			out[i] = 0
		}
	}
	if !Divide(idle, out, out) {
		return idle
	}
	return 0
}
