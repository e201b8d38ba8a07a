package attribute

import "mete.dev/mete/internal/meter"

// Share returns what the workload at a slot was booked in the latest tick.
func (b *Books) Share(slot meter.Slot) (u meter.Usage, ok bool) {
	if int(slot) >= len(b.accounts) || b.accounts[slot] == nil {
		return u, false
	}
	return b.accounts[slot].share, true
}
