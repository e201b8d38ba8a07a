package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
)

// A Token is a token without its secret. Text, which is the secret too, is in the answer
// to its creation alone.
type Token struct {
	ID      string        `json:"id"`
	Role    registry.Role `json:"role"`
	Cluster string        `json:"cluster"`
	Node    string        `json:"node,omitempty" csv:"-"` // that a machine becomes again with it
	State   string        `json:"state,omitempty"`        // valid, revoked, expired, used up
	Uses    *int          `json:"uses_left"`              // nil is any number
	Created *time.Time    `json:"created_at"`
	Expires *time.Time    `json:"expires_at"` // nil is never
	Revoked *time.Time    `json:"revoked_at"`
	Text    string        `json:"token,omitempty" csv:"-"`
}

// ListKey implements [Element].
func (Token) ListKey() string { return "tokens" }

// TokenOf makes a Token as it is at a time.
func TokenOf(t *registry.Token, now time.Time) Token {
	out := Token{ID: t.ID, Role: t.Role, Cluster: t.Cluster, Node: t.Node, State: tokenState(t, now), Created: timeOrNil(t.Created), Expires: timeOrNil(t.Expires), Revoked: timeOrNil(t.Revoked)}
	if t.Uses >= 0 {
		out.Uses = &t.Uses
	}
	return out
}

// WriteJSON implements [Document].
func (t Token) WriteJSON(w io.Writer) error { return writeLine(w, t) }

// tokenState says in a word whether a token still admits anybody.
func tokenState(t *registry.Token, now time.Time) string {
	switch {
	case !t.Revoked.IsZero():
		return "revoked"
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		return "expired"
	case t.Uses == 0 && !t.Role.IsBearer():
		return "used up"
	}
	return "valid"
}

// A TokenRequest is the order to create a token.
type TokenRequest struct {
	Role    registry.Role `json:"role"`
	Cluster string        `json:"cluster,omitempty"`
	Node    string        `json:"node,omitempty"` // that an agent or a server below becomes again
	Uses    int           `json:"uses,omitempty"` // 0 is the role's default, -1 any number
	Expires *time.Time    `json:"expires_at,omitempty"`
}

// Check refuses an order that makes no sense at a time. The error wraps fault.ErrInvalid.
func (r *TokenRequest) Check(now time.Time) error {
	roles := []registry.Role{registry.Agent, registry.Job, registry.Viewer, registry.Upstream, registry.Writer}
	switch {
	case !slices.Contains(roles, r.Role):
		return invalid("it is one of agent, job, viewer, upstream, writer", "role %q", r.Role)
	case r.Uses < -1:
		return invalid("1 or more, or -1 for any number", "uses %d", r.Uses)
	case r.Node != "" && (r.Role != registry.Agent && r.Role != registry.Upstream || r.Uses > 1 || r.Uses < 0):
		return invalid("one machine or server enrolls once with it, by role agent or upstream", "role %q, uses %d of a token for node %q", r.Role, r.Uses, r.Node)
	case r.Role == registry.Viewer && r.Uses > 0:
		return invalid("what reads may read until it expires or is revoked", "uses %d of a viewer's token", r.Uses)
	case r.Role == registry.Writer && r.Uses > 0:
		return invalid("what writes may write until it expires or is revoked", "uses %d of a writer's token", r.Uses)
	case r.Expires != nil && !r.Expires.After(now):
		return invalid("choose a time to come", "expires_at %s is past", formatTime(*r.Expires))
	}
	return nil
}

// Token is the token that is ordered.
func (r *TokenRequest) Token() registry.Token {
	t := registry.Token{Role: r.Role, Cluster: r.Cluster, Node: r.Node, Uses: r.Uses}
	if r.Expires != nil {
		t.Expires = r.Expires.UTC()
	}
	return t
}

// ParseTokenRequest reads an order strictly. The error wraps fault.ErrInvalid.
func ParseTokenRequest(body []byte, now time.Time) (r TokenRequest, err error) {
	more, err := decodeOne(body, &r)
	switch {
	case err != nil:
		return r, fmt.Errorf("%w wish for a token: %w", fault.ErrInvalid, err)
	case more:
		return r, invalid("send one object", "wish for a token: more than one")
	}
	return r, r.Check(now)
}

// decodeOne reads one JSON object that may have no unknown keys, and reports whether
// more follows.
func decodeOne(body []byte, into any) (more bool, err error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err = d.Decode(into)
	return d.More(), err
}
