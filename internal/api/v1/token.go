package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
)

// tokenJSON is a token without its secret. Text, the secret and all, is there
// once, in the answer to its making.
type tokenJSON struct {
	ID      string        `json:"id"`
	Role    registry.Role `json:"role"`
	Cluster string        `json:"cluster"`
	State   string        `json:"state,omitempty"`
	Uses    *int          `json:"uses_left"` // null is any number
	Created *time.Time    `json:"created_at"`
	Expires *time.Time    `json:"expires_at"` // null is never
	Revoked *time.Time    `json:"revoked_at"`
	Text    string        `json:"token,omitempty"`
}

func newTokenJSON(t registry.Token, text string, now time.Time) tokenJSON {
	f := tokenJSON{ID: t.ID, Role: t.Role, Cluster: t.Cluster, State: TokenState(t, now), Created: timeOrNil(t.Created), Expires: timeOrNil(t.Expires),
		Revoked: timeOrNil(t.Revoked), Text: text}
	if t.Uses >= 0 {
		f.Uses = &t.Uses
	}
	return f
}

func (f tokenJSON) token() registry.Token {
	t := registry.Token{ID: f.ID, Role: f.Role, Cluster: f.Cluster, Uses: -1, Created: timeOrZero(f.Created), Expires: timeOrZero(f.Expires), Revoked: timeOrZero(f.Revoked)}
	if f.Uses != nil {
		t.Uses = *f.Uses
	}
	return t
}

// TokenState says in a word whether a token still opens anything.
func TokenState(t registry.Token, now time.Time) string {
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

// TokenJSON writes one token; text is that which its bearer shows, "" where it
// is not known any more.
func TokenJSON(t registry.Token, text string, now time.Time) []byte {
	return append(marshal(newTokenJSON(t, text, now)), '\n')
}

// ParseToken reads what TokenJSON wrote.
func ParseToken(body []byte) (t registry.Token, text string, err error) {
	var f tokenJSON
	if err := json.Unmarshal(body, &f); err != nil {
		return t, "", fmt.Errorf("%w token: %w", fault.ErrInvalid, err)
	}
	return f.token(), f.Text, nil
}

// tokenRequestJSON is what a token shall be.
type tokenRequestJSON struct {
	Role    registry.Role `json:"role"`
	Cluster string        `json:"cluster,omitempty"`
	Uses    int           `json:"uses,omitempty"` // 0 is as the role has it, -1 any number
	Expires *time.Time    `json:"expires_at,omitempty"`
}

// TokenRequestJSON writes what a token shall be: role, cluster, uses and end.
func TokenRequestJSON(t registry.Token) []byte {
	return append(marshal(tokenRequestJSON{t.Role, t.Cluster, t.Uses, timeOrNil(t.Expires)}), '\n')
}

// ParseTokenRequest reads what TokenRequestJSON wrote, strictly. The error wraps
// fault.ErrInvalid.
func ParseTokenRequest(body []byte, now time.Time) (t registry.Token, err error) {
	var f tokenRequestJSON
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return t, fmt.Errorf("%w wish for a token: %w", fault.ErrInvalid, err)
	}
	roles := []registry.Role{registry.Agent, registry.Viewer, registry.Upstream, registry.Writer}
	switch {
	case d.More():
		return t, invalid("send one object", "wish for a token: more than one")
	case !slices.Contains(roles, f.Role):
		return t, invalid("it is one of agent, viewer, upstream, writer", "role %q", f.Role)
	case f.Uses < -1:
		return t, invalid("1 or more, or -1 for any number", "uses %d", f.Uses)
	case f.Role == registry.Viewer && f.Uses > 0:
		return t, invalid("what reads may read until it expires or is revoked", "uses %d of a viewer's token", f.Uses)
	case f.Role == registry.Writer && f.Uses > 0:
		return t, invalid("what writes may write until it expires or is revoked", "uses %d of a writer's token", f.Uses)
	case f.Expires != nil && !f.Expires.After(now):
		return t, invalid("choose a time to come", "expires_at %s is past", formatTime(*f.Expires))
	}
	return registry.Token{Role: f.Role, Cluster: f.Cluster, Uses: f.Uses, Expires: timeOrZero(f.Expires)}, nil
}

// TokensJSON writes tokens under the key tokens.
func TokensJSON(list []registry.Token, now time.Time) []byte {
	return marshalList("tokens", mapSlice(list, func(t registry.Token) tokenJSON { return newTokenJSON(t, "", now) }))
}

// ParseTokens reads what TokensJSON wrote.
func ParseTokens(body []byte) ([]registry.Token, error) {
	list, err := unmarshalList[tokenJSON]("tokens", body)
	return mapSlice(list, func(f tokenJSON) registry.Token { return f.token() }), err
}

// TokensCSV writes tokens with the keys of the JSON form.
func TokensCSV(list []registry.Token, now time.Time) []byte {
	rows := [][]string{{"id", "role", "cluster", "state", "uses_left", "created_at", "expires_at", "revoked_at"}}
	for _, t := range list {
		uses := ""
		if t.Uses >= 0 {
			uses = strconv.Itoa(t.Uses)
		}
		rows = append(rows, []string{t.ID, string(t.Role), t.Cluster, TokenState(t, now), uses, formatTime(t.Created), formatTime(t.Expires), formatTime(t.Revoked)})
	}
	return writeCSV(rows)
}
