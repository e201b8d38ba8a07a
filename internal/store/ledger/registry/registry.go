// Package registry stores nodes, downstream servers, tokens, audit lines and values of the server
// itself.
package registry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A Registry stores nodes, downstream servers, tokens and audit lines.
type Registry struct{ db *db.DB }

func New(database *db.DB) *Registry { return &Registry{database} }

// PutNode enrolls a node or updates it; the node that it is a clone of stays, and so does a later
// end of its certificates. If another node of the cluster has the name, this one is stored as
// NAME~ID. A new clone of a revoked node is fault.ErrDenied.
func (r *Registry) PutNode(ctx context.Context, n registry.Node) error {
	return db.Wrap(r.db.Write(ctx, func(t *db.Tx) error {
		if n.Root != "" {
			// It may have been revoked since its certificate was checked.
			revoked, err := t.Ints("SELECT 1 FROM node WHERE node_id = $1 AND revoked_ns <> 0", schema.Clean(n.Root))
			if err != nil {
				return err
			}
			if len(revoked) > 0 {
				return registry.RevokedError(n.Root)
			}
		}
		name, err := uniqueName(t, &n)
		if err != nil {
			return err
		}
		// A new cluster changes the groups of the node's days.
		_, err = t.Exec(`INSERT INTO stale_day (minute) SELECT DISTINCT minute FROM group_day
			WHERE cluster = (SELECT cluster FROM node WHERE node_id = $1 AND cluster <> $2) ON CONFLICT (minute) DO UPDATE SET next = 0`, schema.Clean(n.ID), schema.Clean(n.Cluster))
		if err != nil {
			return err
		}
		_, err = t.Exec(`INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, root, certified_ns, key_hash, token)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
			ON CONFLICT (node_id) DO UPDATE SET cluster = excluded.cluster, name = excluded.name, machine_id = excluded.machine_id,
			boot = excluded.boot, enrolled_ns = excluded.enrolled_ns, rev = excluded.rev, key_hash = excluded.key_hash, token = excluded.token,
			certified_ns = CASE WHEN node.certified_ns > excluded.certified_ns THEN node.certified_ns ELSE excluded.certified_ns END`,
			schema.Clean(n.ID), schema.Clean(n.Cluster), name, schema.Clean(n.MachineID), schema.Clean(n.Boot), schema.Nanos(n.At), t.Rev, schema.Clean(n.Root),
			schema.Nanos(n.Certified), schema.Clean(n.KeyHash), schema.Clean(n.Token))
		return err
	}), "node %q", n.ID)
}

const nodeFields = "node_id, cluster, name, machine_id, boot, enrolled_ns, root, certified_ns, key_hash, token"

func scanNode(scan func(...any) error) (n registry.Node, err error) {
	var at, certified int64
	err = scan(&n.ID, &n.Cluster, &n.Name, &n.MachineID, &n.Boot, &at, &n.Root, &certified, &n.KeyHash, &n.Token)
	n.At, n.Certified = schema.FromNanos(at), schema.FromNanos(certified)
	return n, err
}

// Certify records that a node has a certificate until a time. It ignores an unknown
// node: the ledger may have been restored from a backup.
func (r *Registry) Certify(ctx context.Context, id string, until time.Time) error {
	return db.Wrap(r.db.Write(ctx, func(t *db.Tx) error {
		_, err := t.Exec("UPDATE node SET certified_ns = $2 WHERE node_id = $1 AND certified_ns < $2", schema.Clean(id), schema.Nanos(until))
		return err
	}), "node %q", id)
}

// Node returns a node by its id.
func (r *Registry) Node(ctx context.Context, id string) (registry.Node, error) {
	n, err := scanNode(r.db.Reader.QueryRowContext(ctx, "SELECT "+nodeFields+" FROM node WHERE node_id = $1", schema.Clean(id)).Scan)
	return n, db.Wrap(r.db.NotFound(err), "node %q", id)
}

// NodesByMachine returns the nodes enrolled from a machine that are not revoked, newest first.
func (r *Registry) NodesByMachine(ctx context.Context, machineID string) (nodes []registry.Node, err error) {
	err = db.Each(ctx, r.db.Reader, func(scan func(...any) error) error {
		n, err := scanNode(scan)
		nodes = append(nodes, n)
		return err
	}, "SELECT "+nodeFields+" FROM node WHERE machine_id = $1 AND revoked_ns = 0 AND source = 0 ORDER BY enrolled_ns DESC, id DESC", schema.Clean(machineID))
	return nodes, db.Wrap(r.db.Fault(err), "nodes of machine %q", machineID)
}

// RevokeNode revokes a node together with its clones, one clone alone, or a downstream server. The
// data that they sent stays. A node reported by a downstream server has no rights here: fault.ErrNotFound.
func (r *Registry) RevokeNode(ctx context.Context, id string, now time.Time) error {
	err := r.revoke(ctx, "node", "source = 0 AND (node_id = $1 OR root = $1)", id, now)
	if errors.Is(err, fault.ErrNotFound) {
		err = r.revoke(ctx, "source", "source_id = $1", id, now)
	}
	return err
}

// RevokeToken revokes a token.
func (r *Registry) RevokeToken(ctx context.Context, id string, now time.Time) error {
	return r.revoke(ctx, "token", "id = $1", id, now)
}

// revoke records the time of the first revocation.
func (r *Registry) revoke(ctx context.Context, table, where, id string, now time.Time) error {
	return db.Wrap(r.db.Write(ctx, func(t *db.Tx) error {
		set, args := "revoked_ns = CASE WHEN revoked_ns = 0 THEN $2 ELSE revoked_ns END", []any{schema.Clean(id), schema.Nanos(now)}
		if table == "node" { // servers above get it
			set, args = set+", rev = $3", append(args, t.Rev)
		}
		n, err := t.Exec("UPDATE "+table+" SET "+set+" WHERE "+where, args...)
		if err == nil && n == 0 {
			err = fault.ErrNotFound
		}
		return err
	}), "%s %q", table, id)
}

// RevokedNodes returns the ids of revoked nodes and servers.
func (r *Registry) RevokedNodes(ctx context.Context) (ids []string, err error) {
	err = db.Each(ctx, r.db.Reader, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, "SELECT node_id FROM node WHERE revoked_ns <> 0 AND source = 0 UNION SELECT source_id FROM source WHERE revoked_ns <> 0 ORDER BY 1")
	return ids, db.Wrap(r.db.Fault(err), "revoked nodes")
}

// PutToken stores a new token. An existing id is fault.ErrConflict.
func (r *Registry) PutToken(ctx context.Context, k registry.Token) error {
	return db.Wrap(r.db.Write(ctx, func(t *db.Tx) error {
		n, err := t.Exec(`INSERT INTO token (id, hash, role, cluster, uses, created_ns, expires_ns, revoked_ns, node)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING`,
			schema.Clean(k.ID), k.Hash[:], schema.Clean(string(k.Role)), schema.Clean(k.Cluster), int64(k.Uses), schema.Nanos(k.Created), schema.Nanos(k.Expires), schema.Nanos(k.Revoked), schema.Clean(k.Node))
		if err == nil && n == 0 {
			err = fault.ErrConflict
		}
		return err
	}), "token %q", k.ID)
}

const tokenFields = "id, hash, role, cluster, uses, created_ns, expires_ns, revoked_ns, node"

func scanToken(scan func(...any) error) (k registry.Token, err error) {
	var hash []byte
	var created, expires, revoked int64
	err = scan(&k.ID, &hash, &k.Role, &k.Cluster, &k.Uses, &created, &expires, &revoked, &k.Node)
	copy(k.Hash[:], hash)
	k.Created, k.Expires, k.Revoked = schema.FromNanos(created), schema.FromNanos(expires), schema.FromNanos(revoked)
	return k, err
}

// UseToken takes one use of a token for a key, by its hash, and returns the token after that. A key
// that took a use takes no second one; "" is not remembered. A token that does not exist or has
// another hash is fault.ErrNotFound; one without the role, or used up, expired or revoked, is
// fault.ErrDenied.
func (r *Registry) UseToken(ctx context.Context, id string, hash [32]byte, role registry.Role, key string, now time.Time) (k registry.Token, err error) {
	// free says that it takes no use.
	const query = "SELECT " + tokenFields + `, uses < 0 OR EXISTS (SELECT 1 FROM token_use u WHERE u.token = token.id AND u.key_hash = $3)
		FROM token WHERE id = $1 AND hash = $2`
	args := []any{schema.Clean(id), hash[:], schema.Clean(key)}
	check := func(scan func(...any) error) (k registry.Token, free bool, err error) {
		k, err = scanToken(func(into ...any) error { return scan(append(into, &free)...) })
		return k, free, checkToken(k, free, r.db.NotFound(err), role, now)
	}
	k, free, err := check(r.db.Reader.QueryRowContext(ctx, query, args...).Scan)
	if err == nil && !free {
		err = r.db.Write(ctx, func(t *db.Tx) error {
			// Another request may have used it meanwhile.
			var err error
			if k, free, err = check(t.QueryRow(query, args...).Scan); err != nil || free {
				return err
			}
			if key != "" {
				if _, err := t.Exec("INSERT INTO token_use (token, key_hash, used_ns) VALUES ($1, $2, $3)", k.ID, schema.Clean(key), schema.Nanos(now)); err != nil {
					return err
				}
			}
			k.Uses--
			_, err = t.Exec("UPDATE token SET uses = $2 WHERE id = $1", k.ID, int64(k.Uses))
			return err
		})
	}
	if err != nil {
		return registry.Token{}, db.Wrap(err, "token %q", id)
	}
	return k, nil
}

// checkToken returns why a token, which was read with err, may not be used. free says that this takes no
// use of it.
func checkToken(k registry.Token, free bool, err error, role registry.Role, now time.Time) error {
	switch {
	case err != nil:
		return err
	case !k.Revoked.IsZero():
		return fmt.Errorf("it was revoked: %w", fault.ErrDenied)
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		return fmt.Errorf("it expired at %s: %w", k.Expires.Format(time.RFC3339), fault.ErrDenied)
	case k.Role != role:
		return fmt.Errorf("it is for role %s, not %s: %w", k.Role, role, fault.ErrDenied)
	case k.Uses == 0 && !free:
		return fmt.Errorf("it is used up: %w", fault.ErrDenied)
	}
	return nil
}

// Tokens returns all tokens, newest first.
func (r *Registry) Tokens(ctx context.Context) (tokens []registry.Token, err error) {
	err = db.Each(ctx, r.db.Reader, func(scan func(...any) error) error {
		k, err := scanToken(scan)
		tokens = append(tokens, k)
		return err
	}, "SELECT "+tokenFields+" FROM token ORDER BY created_ns DESC, id")
	return tokens, db.Wrap(r.db.Fault(err), "tokens")
}

// Audit stores an audit line.
func (r *Registry) Audit(ctx context.Context, a registry.Audit) error {
	return db.Wrap(r.db.Write(ctx, func(t *db.Tx) error { return t.Audit(a) }), "audit of %s", a.Action)
}

// Audits returns the latest audit lines that q selects, newest first.
func (r *Registry) Audits(ctx context.Context, q registry.AuditQuery) (lines []registry.Audit, err error) {
	from, to := int64(0), int64(math.MaxInt64)
	if !q.From.IsZero() {
		from = schema.Nanos(q.From)
	}
	if !q.To.IsZero() {
		to = schema.Nanos(q.To)
	}
	err = db.Each(ctx, r.db.Reader, func(scan func(...any) error) error {
		var a registry.Audit
		var at int64
		err := scan(&at, &a.Actor, &a.Action, &a.Object, &a.Detail)
		a.At = schema.FromNanos(at)
		lines = append(lines, a)
		return err
	}, `SELECT at_ns, actor, action, object, detail FROM audit WHERE at_ns >= $1 AND at_ns < $2
		AND ($3 = '' OR action = $3 OR substr(action, 1, $4) = $5) AND ($6 = '' OR actor = $6 OR object = $6) ORDER BY id DESC LIMIT $7`,
		from, to, q.Action, len(q.Action)+1, q.Action+".", q.About, q.Limit)
	return lines, db.Wrap(r.db.Fault(err), "audit")
}

// Meta returns a value that the server stored under key, or fault.ErrNotFound.
func (r *Registry) Meta(ctx context.Context, key string) (value string, err error) {
	return r.db.Meta(ctx, key)
}

// SetMeta stores a value of the server under key.
func (r *Registry) SetMeta(ctx context.Context, key, value string) error {
	return db.Wrap(r.db.Write(ctx, func(t *db.Tx) error { return t.SetMeta(key, value) }), "meta %q", key)
}

// Secret returns a random secret of this ledger, which it creates on first use.
func (r *Registry) Secret(ctx context.Context, key string) (secret string, err error) {
	err = r.db.Write(ctx, func(t *db.Tx) error {
		_, err := t.Exec("INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING", key, rand.Text()+rand.Text())
		if err != nil {
			return err
		}
		return t.QueryRow("SELECT value FROM meta WHERE key = $1", key).Scan(&secret)
	})
	return secret, db.Wrap(err, "secret %q", key)
}

// PutSource enrolls a downstream server or updates it.
func (r *Registry) PutSource(ctx context.Context, n registry.Node) error {
	return db.Wrap(r.db.Write(ctx, func(t *db.Tx) error {
		_, err := t.Exec(`INSERT INTO source (source_id, cluster, name, machine_id, boot, enrolled_ns, key_hash, token) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (source_id) DO UPDATE SET cluster = excluded.cluster, name = excluded.name, machine_id = excluded.machine_id,
			boot = excluded.boot, enrolled_ns = excluded.enrolled_ns, key_hash = excluded.key_hash, token = excluded.token`,
			schema.Clean(n.ID), schema.Clean(n.Cluster), schema.Clean(n.Name), schema.Clean(n.MachineID), schema.Clean(n.Boot), schema.Nanos(n.At), schema.Clean(n.KeyHash), schema.Clean(n.Token))
		return err
	}), "source %q", n.ID)
}

const sourceFields = "source_id, cluster, name, machine_id, boot, enrolled_ns, '', 0, key_hash, token"

// Source returns a downstream server by its id.
func (r *Registry) Source(ctx context.Context, id string) (registry.Node, error) {
	n, err := scanNode(r.db.Reader.QueryRowContext(ctx, "SELECT "+sourceFields+" FROM source WHERE source_id = $1", schema.Clean(id)).Scan)
	return n, db.Wrap(r.db.NotFound(err), "source %q", id)
}

// Enrolled returns the id of the node or downstream server that enrolled last with a token, by its
// id, and a key; "" is none.
func (r *Registry) Enrolled(ctx context.Context, tokenID, keyHash string) (id string, err error) {
	err = r.db.Reader.QueryRowContext(ctx, `SELECT node_id, enrolled_ns FROM node WHERE key_hash = $1 AND token = $2 AND source = 0
		UNION ALL SELECT source_id, enrolled_ns FROM source WHERE key_hash = $1 AND token = $2 ORDER BY 2 DESC LIMIT 1`, schema.Clean(keyHash), schema.Clean(tokenID)).Scan(&id, new(int64))
	if err = r.db.NotFound(err); errors.Is(err, fault.ErrNotFound) {
		return "", nil
	}
	return id, db.Wrap(err, "enrollment by token %q", tokenID)
}

// Sources returns the servers that enrolled with a ledger's id and are not revoked, newest first.
func (r *Registry) Sources(ctx context.Context, machineID string) (found []registry.Node, err error) {
	err = db.Each(ctx, r.db.Reader, func(scan func(...any) error) error {
		n, err := scanNode(scan)
		found = append(found, n)
		return err
	}, "SELECT "+sourceFields+" FROM source WHERE machine_id = $1 AND revoked_ns = 0 ORDER BY enrolled_ns DESC, id DESC", schema.Clean(machineID))
	return found, db.Wrap(r.db.Fault(err), "sources of %q", machineID)
}
