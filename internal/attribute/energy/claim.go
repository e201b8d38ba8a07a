package energy

import (
	"mete.dev/mete/internal/model/power"
)

// A Claim is a workload's claim to idle energy over some time. Amounts are not negative.
type Claim struct {
	Present  int64 // time that it existed, ns
	Reserved int64 // reserved CPU time, ns
	Used     int64 // used CPU time, ns
}

// DivideIdle divides the idle energy of one machine among claims by policy p. It returns what is
// left with the machine: everything under None or if all claims are zero, else nothing. out is as
// long as claims; its sum plus the rest is exactly idle.
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
