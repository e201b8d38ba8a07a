package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
)

// PutNode enrols a node, or replaces what is known of it; whose clone it is stays.
// A new clone of a node that is revoked is fault.ErrDenied.
func (l *Ledger) PutNode(ctx context.Context, n registry.Node) error {
	return about(l.write(ctx, func(t *txn) error {
		if n.Root != "" {
			// It may have been revoked since its certificate was looked at.
			revoked, err := t.numbers("SELECT 1 FROM node WHERE node_id = $1 AND revoked_ns <> 0", clean(n.Root))
			if err != nil {
				return err
			}
			if len(revoked) > 0 {
				return registry.RevokedError(n.Root)
			}
		}
		// Its days are in another cluster's groups now.
		_, err := t.exec(`INSERT INTO stale_day (minute) SELECT DISTINCT minute FROM group_day
			WHERE cluster = (SELECT cluster FROM node WHERE node_id = $1 AND cluster <> $2) ON CONFLICT (minute) DO UPDATE SET next = 0`, clean(n.ID), clean(n.Cluster))
		if err != nil {
			return err
		}
		_, err = t.exec(`INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, root) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (node_id) DO UPDATE SET cluster = excluded.cluster, name = excluded.name, machine_id = excluded.machine_id,
			boot = excluded.boot, enrolled_ns = excluded.enrolled_ns, rev = excluded.rev`,
			clean(n.ID), clean(n.Cluster), clean(n.Name), clean(n.MachineID), clean(n.Boot), nano(n.At), t.rev, clean(n.Root))
		return err
	}), "node %q", n.ID)
}

const nodeFields = "node_id, cluster, name, machine_id, boot, enrolled_ns, root"

func scanNode(scan func(...any) error) (n registry.Node, err error) {
	var at int64
	err = scan(&n.ID, &n.Cluster, &n.Name, &n.MachineID, &n.Boot, &at, &n.Root)
	n.At = fromNano(at)
	return n, err
}

// Node finds a node by its id.
func (l *Ledger) Node(ctx context.Context, id string) (registry.Node, error) {
	n, err := scanNode(l.reader.QueryRowContext(ctx, "SELECT "+nodeFields+" FROM node WHERE node_id = $1", clean(id)).Scan)
	return n, about(l.found(err), "node %q", id)
}

// NodesByMachine finds the nodes that were enrolled from a machine and are not
// revoked, the newest first.
func (l *Ledger) NodesByMachine(ctx context.Context, machineID string) (nodes []registry.Node, err error) {
	err = each(ctx, l.reader, func(scan func(...any) error) error {
		n, err := scanNode(scan)
		nodes = append(nodes, n)
		return err
	}, "SELECT "+nodeFields+" FROM node WHERE machine_id = $1 AND revoked_ns = 0 AND source = 0 ORDER BY enrolled_ns DESC, id DESC", clean(machineID))
	return nodes, about(l.d.fault(err), "nodes of machine %q", machineID)
}

// RevokeNode takes a node's right to send and that of its clones, or a server's. What
// they sent stays. A clone alone is revoked alone. A node that a server below tells of has no such right: fault.ErrNotFound.
func (l *Ledger) RevokeNode(ctx context.Context, id string, now time.Time) error {
	err := l.revoke(ctx, "node", "source = 0 AND (node_id = $1 OR root = $1)", id, now)
	if errors.Is(err, fault.ErrNotFound) {
		err = l.revoke(ctx, "source", "source_id = $1", id, now)
	}
	return err
}

// RevokeToken makes a token worthless.
func (l *Ledger) RevokeToken(ctx context.Context, id string, now time.Time) error {
	return l.revoke(ctx, "token", "id = $1", id, now)
}

// revoke notes when something was revoked, once.
func (l *Ledger) revoke(ctx context.Context, table, where, id string, now time.Time) error {
	return about(l.write(ctx, func(t *txn) error {
		n, err := t.exec("UPDATE "+table+" SET revoked_ns = CASE WHEN revoked_ns = 0 THEN $2 ELSE revoked_ns END WHERE "+where, clean(id), nano(now))
		if err == nil && n == 0 {
			err = fault.ErrNotFound
		}
		return err
	}), "%s %q", table, id)
}

// RevokedNodes are the ids of the nodes that were revoked, and of the servers.
func (l *Ledger) RevokedNodes(ctx context.Context) (ids []string, err error) {
	err = each(ctx, l.reader, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, "SELECT node_id FROM node WHERE revoked_ns <> 0 AND source = 0 UNION SELECT source_id FROM source WHERE revoked_ns <> 0 ORDER BY 1")
	return ids, about(l.d.fault(err), "revoked nodes")
}

// PutToken keeps a new token. One whose id exists is fault.ErrConflict.
func (l *Ledger) PutToken(ctx context.Context, k registry.Token) error {
	return about(l.write(ctx, func(t *txn) error {
		n, err := t.exec(`INSERT INTO token (id, hash, role, cluster, uses, created_ns, expires_ns, revoked_ns)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`,
			clean(k.ID), k.Hash[:], clean(string(k.Role)), clean(k.Cluster), int64(k.Uses), nano(k.Created), nano(k.Expires), nano(k.Revoked))
		if err == nil && n == 0 {
			err = fault.ErrConflict
		}
		return err
	}), "token %q", k.ID)
}

const tokenFields = "id, hash, role, cluster, uses, created_ns, expires_ns, revoked_ns"

func scanToken(scan func(...any) error) (k registry.Token, err error) {
	var hash []byte
	var created, expires, revoked int64
	err = scan(&k.ID, &hash, &k.Role, &k.Cluster, &k.Uses, &created, &expires, &revoked)
	copy(k.Hash[:], hash)
	k.Created, k.Expires, k.Revoked = fromNano(created), fromNano(expires), fromNano(revoked)
	return k, err
}

// UseToken takes one use of a token, and returns the token as it is then. One
// that does not exist, or has another hash, is fault.ErrNotFound; one that
// lacks the role, or is used up, expired or revoked, is fault.ErrDenied.
func (l *Ledger) UseToken(ctx context.Context, id string, hash [32]byte, role registry.Role, now time.Time) (k registry.Token, err error) {
	const query = "SELECT " + tokenFields + " FROM token WHERE id = $1 AND hash = $2"
	k, err = scanToken(l.reader.QueryRowContext(ctx, query, clean(id), hash[:]).Scan)
	err = usable(k, l.found(err), role, now)
	if err == nil && k.Uses > 0 {
		err = l.write(ctx, func(t *txn) error {
			// Others may have used it meanwhile.
			k, err = scanToken(t.queryRow(query, clean(id), hash[:]).scan)
			if err := usable(k, l.found(err), role, now); err != nil {
				return err
			}
			k.Uses--
			_, err = t.exec("UPDATE token SET uses = $2 WHERE id = $1", k.ID, int64(k.Uses))
			return err
		})
	}
	if err != nil {
		return registry.Token{}, about(err, "token %q", id)
	}
	return k, nil
}

// usable says why a token, which was read with err, may not be used.
func usable(k registry.Token, err error, role registry.Role, now time.Time) error {
	switch {
	case err != nil:
		return err
	case !k.Revoked.IsZero():
		return fmt.Errorf("it was revoked: %w", fault.ErrDenied)
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		return fmt.Errorf("it expired at %s: %w", k.Expires.Format(time.RFC3339), fault.ErrDenied)
	case k.Role != role:
		return fmt.Errorf("it is for role %s, not %s: %w", k.Role, role, fault.ErrDenied)
	case k.Uses == 0:
		return fmt.Errorf("it is used up: %w", fault.ErrDenied)
	}
	return nil
}

// Tokens are all tokens, the newest first.
func (l *Ledger) Tokens(ctx context.Context) (tokens []registry.Token, err error) {
	err = each(ctx, l.reader, func(scan func(...any) error) error {
		k, err := scanToken(scan)
		tokens = append(tokens, k)
		return err
	}, "SELECT "+tokenFields+" FROM token ORDER BY created_ns DESC, id")
	return tokens, about(l.d.fault(err), "tokens")
}

// Audit keeps a line of what was done.
func (l *Ledger) Audit(ctx context.Context, a registry.Audit) error {
	return about(l.write(ctx, func(t *txn) error { return t.audit(a) }), "audit of %s", a.Action)
}

func (t *txn) audit(a registry.Audit) error {
	_, err := t.exec("INSERT INTO audit (at_ns, actor, action, object, detail) VALUES ($1, $2, $3, $4, $5)",
		nano(a.At), clean(a.Actor), clean(a.Action), clean(a.Object), clean(a.Detail))
	return err
}

// Audits are the latest lines, the newest first.
func (l *Ledger) Audits(ctx context.Context, limit int) (lines []registry.Audit, err error) {
	err = each(ctx, l.reader, func(scan func(...any) error) error {
		var a registry.Audit
		var at int64
		err := scan(&at, &a.Actor, &a.Action, &a.Object, &a.Detail)
		a.At = fromNano(at)
		lines = append(lines, a)
		return err
	}, "SELECT at_ns, actor, action, object, detail FROM audit ORDER BY id DESC LIMIT $1", limit)
	return lines, about(l.d.fault(err), "audit")
}

// Meta is a value of the server's own, by its key; fault.ErrNotFound where
// there is none.
func (l *Ledger) Meta(ctx context.Context, key string) (value string, err error) {
	err = l.reader.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = $1", key).Scan(&value)
	return value, about(l.found(err), "meta %q", key)
}

// SetMeta keeps a value of the server's own.
func (l *Ledger) SetMeta(ctx context.Context, key, value string) error {
	return about(l.write(ctx, func(t *txn) error { return t.setMeta(key, value) }), "meta %q", key)
}
