package ca

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
)

// Tokens manages the tokens of an authority for local operators.
type Tokens struct{ a *Authority }

// Tokens returns the authority's tokens.
func (a *Authority) Tokens() *Tokens { return &Tokens{a} }

// actor is recorded for actions of local operators.
const actor = "local"

// Create creates a token with want's Role, Cluster, Node, Uses (0 is one, or unlimited for a viewer
// or writer) and Expires. It returns the text, which is not stored.
func (t *Tokens) Create(ctx context.Context, want registry.Token) (text string, made registry.Token, err error) {
	now := time.Now().UTC()
	made = registry.Token{Role: want.Role, Cluster: want.Cluster, Node: want.Node, Uses: want.Uses, Created: now, Expires: want.Expires}
	if made.Node != "" {
		if err := t.bind(ctx, &made); err != nil {
			return "", made, err
		}
	}
	switch made.Role {
	case registry.Agent, registry.Upstream, registry.Job:
		if made.Cluster == "" {
			made.Cluster = t.a.cfg.Cluster
		}
		if made.Uses == 0 {
			made.Uses = 1
		}
	case registry.Viewer:
		if made.Uses > 0 {
			return "", made, fmt.Errorf("uses of a viewer's token are not counted: %w", fault.ErrInvalid)
		}
		made.Uses = -1
	case registry.Writer:
		if made.Cluster == "" {
			made.Cluster = t.a.cfg.Cluster
		}
		if made.Uses > 0 {
			return "", made, fmt.Errorf("uses of a writer's token are not counted: %w", fault.ErrInvalid)
		}
		made.Uses = -1
	default:
		return "", made, fault.WithHint(fmt.Errorf("role %q: %w", made.Role, fault.ErrInvalid), "use agent, job, upstream, viewer or writer")
	}
	if made.Cluster != "" {
		if err := checkCluster(made.Cluster); err != nil {
			return "", made, err
		}
	}
	if made.Uses < -1 {
		return "", made, fault.WithHint(fmt.Errorf("uses %d: %w", made.Uses, fault.ErrInvalid), "use -1 for any number")
	}
	if !made.Expires.IsZero() && !made.Expires.After(now) {
		return "", made, fmt.Errorf("expiry %s is in the past: %w", made.Expires.UTC().Format(time.RFC3339), fault.ErrInvalid)
	}
	tok, err := t.put(ctx, &made)
	if err != nil {
		return "", made, err
	}
	t.a.registryCache.invalidate()
	detail := fmt.Sprintf("role %s, cluster %q, uses %d, expires %s", made.Role, made.Cluster, made.Uses, formatExpiry(made.Expires))
	if made.Node != "" {
		detail += ", for node " + made.Node
	}
	return tok.Reveal(), made, t.a.audit(ctx, actor, "token.create", made.ID, detail)
}

// bind checks a token that is bound to a node or downstream server, and gives it its cluster.
func (t *Tokens) bind(ctx context.Context, made *registry.Token) error {
	read, hint := t.a.reg.Node, "mete nodes -o json shows the ids of nodes"
	switch {
	case made.Uses < 0 || made.Uses > 1 || made.Role != registry.Agent && made.Role != registry.Upstream:
		return fault.WithHint(fmt.Errorf("role %s, uses %d for node %s: %w", made.Role, made.Uses, made.Node, fault.ErrInvalid), "one machine or server enrolls once with a token for a node; its role is agent or upstream")
	case made.Role == registry.Upstream:
		read, hint = t.a.reg.Source, "mete sources -o json shows the ids of servers"
	}
	n, err := read(ctx, made.Node)
	if errors.Is(err, fault.ErrNotFound) {
		return fault.WithHint(err, hint)
	}
	if err != nil {
		return err
	}
	if made.Cluster != "" && made.Cluster != n.Cluster {
		return fmt.Errorf("cluster %q: node %s is in cluster %q: %w", made.Cluster, n.ID, n.Cluster, fault.ErrInvalid)
	}
	made.Cluster = n.Cluster
	return t.a.CheckAllowed(ctx, n.ID)
}

// put assigns the token an id and a secret and stores it.
func (t *Tokens) put(ctx context.Context, made *registry.Token) (token.Token, error) {
	for try := 0; ; try++ {
		var id [5]byte
		var secret [20]byte
		_, _ = rand.Read(id[:]) // never fails
		_, _ = rand.Read(secret[:])
		tok := token.New(id, secret, t.a.CA())
		made.ID, made.Hash = tok.ID(), tok.Hash()
		err := t.a.reg.PutToken(ctx, *made)
		if err == nil || !errors.Is(err, fault.ErrConflict) || try == 3 {
			return tok, err
		}
	}
}

// List returns all tokens.
func (t *Tokens) List(ctx context.Context) ([]registry.Token, error) { return t.a.reg.Tokens(ctx) }

// Revoke revokes a token, in this process at once. Nodes that enrolled with it stay.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	if err := t.a.reg.RevokeToken(ctx, id, time.Now().UTC()); err != nil {
		return err
	}
	t.a.registryCache.invalidate()
	return t.a.audit(ctx, actor, "token.revoke", id, "")
}

// RevokeNode revokes a node's certificates, in this process at once, and those of all its clones: a
// thief of its identity may have created them.
func (a *Authority) RevokeNode(ctx context.Context, id string) error {
	if err := a.reg.RevokeNode(ctx, id, time.Now().UTC()); err != nil {
		return err
	}
	a.registryCache.invalidate()
	return a.audit(ctx, actor, "node.revoke", id, "with its clones")
}

func (a *Authority) audit(ctx context.Context, actor, action, object, detail string) error {
	return a.reg.Audit(ctx, registry.Audit{At: time.Now().UTC(), Actor: actor, Action: action, Object: object, Detail: detail})
}

func formatExpiry(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}
