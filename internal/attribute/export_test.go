package attribute

// Wake has the books look at every account in every tick.
func (b *Books) Wake() { b.awake = true }

// Asleep counts the accounts that slept in the latest tick.
func (b *Books) Asleep() (n int) {
	for _, a := range b.order {
		if a.asleep && a.round == b.round {
			n++
		}
	}
	return n
}
