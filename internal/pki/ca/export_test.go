package ca

import (
	"context"
	"net/netip"

	"mete.dev/mete/internal/pki/token"
)

// Enroll handles a claim with a token.
func (a *Authority) Enroll(ctx context.Context, c token.Claim) (token.Grant, error) {
	return a.enroll(ctx, c, nil, false, netip.Addr{})
}

// Forget drops what the authority holds in memory, as a restart of the server does.
func (a *Authority) Forget() {
	a.assign.Lock()
	defer a.assign.Unlock()
	a.recent = nil
	a.expiries.Clear()
	a.registryCache.invalidate()
}
