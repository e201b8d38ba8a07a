package ca

// Forget drops what the authority holds in memory, as a restart of the server does.
func (a *Authority) Forget() {
	a.assign.Lock()
	defer a.assign.Unlock()
	a.recent = nil
	a.expiries.Clear()
}
