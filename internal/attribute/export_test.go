package attribute

// DisableDormancy has the accounts looked at every account in every tick.
func (acc *Accounts) DisableDormancy() { acc.noDormancy = true }

// DormantAccounts counts the accounts that slept in the latest tick.
func (acc *Accounts) DormantAccounts() (n int) {
	for _, a := range acc.current {
		if a.dormant && a.round == acc.round {
			n++
		}
	}
	return n
}
