package attribute

// DisableDormancy makes every tick process every account.
func (acc *Accounts) DisableDormancy() { acc.noDormancy = true }

// DormantAccounts counts the dormant accounts of the latest tick.
func (acc *Accounts) DormantAccounts() (n int) {
	for _, a := range acc.current {
		if a.dormant && a.round == acc.round {
			n++
		}
	}
	return n
}

// First returns the time of the first snapshot of this boot.
func (acc *Accounts) First() int64 { return acc.first }
