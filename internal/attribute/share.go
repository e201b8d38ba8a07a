package attribute

import "mete.dev/mete/internal/model/usage"

// Share returns what the workload at a slot was booked in the latest tick.
func (acc *Accounts) Share(slot usage.Slot) (u usage.Usage, ok bool) {
	if int(slot) >= len(acc.bySlot) || acc.bySlot[slot] == nil {
		return u, false
	}
	return acc.bySlot[slot].share.Usage(), true
}
