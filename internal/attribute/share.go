package attribute

import "mete.dev/mete/internal/model/usage"

// Share returns what the workload at a slot was booked in the latest tick.
func (b *Books) Share(slot usage.Slot) (u usage.Usage, ok bool) {
	if int(slot) >= len(b.accounts) || b.accounts[slot] == nil {
		return u, false
	}
	return b.accounts[slot].share, true
}
