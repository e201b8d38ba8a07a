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

// EnrollBy handles a claim with a certificate.
func (a *Authority) EnrollBy(ctx context.Context, c token.Claim, peer token.Principal) (token.Grant, error) {
	return a.enroll(ctx, c, &peer, false, netip.Addr{})
}

// Renew handles the renewal of a certificate.
func (a *Authority) Renew(ctx context.Context, c token.Claim, peer token.Principal) (token.Grant, error) {
	return a.renewCertificate(ctx, c, peer)
}

// SpoilKey makes the authority unable to sign.
func (a *Authority) SpoilKey() { a.ca.key = newKey() }

// Forget drops what the authority holds in memory, as a restart of the server does.
func (a *Authority) Forget() {
	a.assign.Lock()
	defer a.assign.Unlock()
	a.recent = nil
	a.expiries.Clear()
	a.registryCache.invalidate()
}
