package book

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// extendSpan makes the span of a node cover another one.
const extendSpan = ` ON CONFLICT (node) DO UPDATE SET
	from_ns = CASE WHEN excluded.from_ns < unsampled.from_ns THEN excluded.from_ns ELSE unsampled.from_ns END,
	to_ns = CASE WHEN excluded.to_ns > unsampled.to_ns THEN excluded.to_ns ELSE unsampled.to_ns END`

// markUnsampled extends the span of which a node may lack samples.
func markUnsampled(t *db.Tx, node int64, s batch.Span) error {
	_, err := t.Exec("INSERT INTO unsampled (node, from_ns, to_ns) VALUES ($1, $2, $3)"+extendSpan, node, schema.Nanos(s.From), schema.Nanos(s.To))
	return err
}

// MarkUnsampled extends the span of which a node may lack samples. A node that is
// not enrolled is left out.
func (k *Booker) MarkUnsampled(ctx context.Context, node string, s batch.Span) error {
	return db.Wrap(k.db.Write(ctx, func(t *db.Tx) error {
		n, err := k.newBooking(t, time.Now()).findNode(node)
		if err != nil || n.id == 0 {
			return err
		}
		return markUnsampled(t, n.id, s)
	}), "unsampled time of node %q", node)
}

// MarkAllUnsampled extends the spans of all nodes that are booked beyond the start of
// s, each up to where it is booked or to the end of s.
func (k *Booker) MarkAllUnsampled(ctx context.Context, s batch.Span) error {
	return db.Wrap(k.db.Write(ctx, func(t *db.Tx) error {
		_, err := t.Exec(`INSERT INTO unsampled (node, from_ns, to_ns)
			SELECT id, CAST($1 AS bigint), CASE WHEN through_ns < $2 THEN through_ns ELSE $2 END FROM node WHERE through_ns > $1 AND source = 0`+extendSpan,
			schema.Nanos(s.From), schema.Nanos(s.To))
		return err
	}), "unsampled time")
}

// ClearUnsampled removes the span of a node, unless it was extended since.
func (k *Booker) ClearUnsampled(ctx context.Context, node string, s batch.Span) error {
	return db.Wrap(k.db.Write(ctx, func(t *db.Tx) error {
		_, err := t.Exec("DELETE FROM unsampled WHERE node = (SELECT id FROM node WHERE node_id = $1) AND from_ns = $2 AND to_ns = $3",
			schema.Clean(node), schema.Nanos(s.From), schema.Nanos(s.To))
		return err
	}), "unsampled time of node %q", node)
}

// Unsampled returns, by node, the span of which samples may be missing.
func (k *Booker) Unsampled(ctx context.Context) (map[string]batch.Span, error) {
	all := map[string]batch.Span{}
	err := db.Each(ctx, k.db.Reader, func(scan func(...any) error) error {
		var node string
		var from, to int64
		if err := scan(&node, &from, &to); err != nil {
			return err
		}
		all[node] = batch.Span{From: schema.FromNanos(from), To: schema.FromNanos(to)}
		return nil
	}, "SELECT n.node_id, u.from_ns, u.to_ns FROM unsampled u JOIN node n ON n.id = u.node")
	if err != nil {
		return nil, db.Wrap(k.db.Fault(err), "unsampled time")
	}
	return all, nil
}
