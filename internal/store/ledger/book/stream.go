package book

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/x/failpoint"
)

// A streamState is how far a stream has been booked, and for which node.
type streamState struct {
	node int64 // 0 if nothing has been booked
	mark batch.Mark
}

func findStream(t *db.Tx, id batch.Stream) (s streamState, err error) {
	return scanStream(t.QueryRow("SELECT node, next, last FROM stream WHERE id = $1", id[:]).Scan)
}

func scanStream(scan func(...any) error) (s streamState, err error) {
	s.mark.Next = 1
	var next int64
	var last []byte
	err = scan(&s.node, &next, &last)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s, nil
	case err != nil:
		return s, err
	case len(last) != len(s.mark.Last):
		return s, fmt.Errorf("the stored hash of the stream has %d bytes", len(last))
	}
	s.mark.Next = uint64(next)
	copy(s.mark.Last[:], last)
	return s, nil
}

func moveStream(t *db.Tx, id batch.Stream, node int64, to batch.Mark, boot string, now int64) error {
	_, err := t.Exec(`INSERT INTO stream (id, node, next, last, boot, opened_ns, seen_ns) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (id) DO UPDATE SET next = excluded.next, last = excluded.last, boot = excluded.boot, seen_ns = excluded.seen_ns`,
		id[:], node, int64(to.Next), to.Last[:], schema.Clean(boot), now, now)
	return err
}

// knownHash returns the hash of a booked batch, or nil if it is no longer kept.
func knownHash(t *db.Tx, id batch.Stream, number uint64) (*batch.Hash, error) {
	var b []byte
	err := t.QueryRow("SELECT hash FROM batch WHERE stream = $1 AND number = $2", id[:], int64(number)).Scan(&b)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	var h batch.Hash
	if err == nil && copy(h[:], b) != len(h) {
		err = fmt.Errorf("the stored hash of batch %d has %d bytes", number, len(b))
	}
	return &h, err
}

// maxConflictBytes limits the stored bytes of conflicting batches of all nodes. Each counts
// conflictOverhead more, which limits their number.
const (
	maxConflictBytes = 64 << 20
	conflictOverhead = 4 << 10
)

// keepConflict stores the bytes of a batch that contradicts a booked one, once, and audits it. It
// deletes the oldest beyond the limit.
func (b *booking) keepConflict(e *batch.Entry, n *bookedNode) error {
	sent := e.Sent
	if sent == nil {
		sent = []byte{}
	}
	sent = sent[:min(len(sent), maxConflictBytes-conflictOverhead)]
	fresh, err := b.Exec(`INSERT INTO aside (node, stream, number, hash, sent, at_ns) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (stream, number, hash) DO NOTHING`,
		n.id, e.Stream[:], int64(e.Number), e.Hash[:], sent, b.now)
	if err != nil || fresh == 0 {
		return err
	}
	_, err = b.Exec(`DELETE FROM aside WHERE id IN (
		SELECT id FROM (SELECT id, sum(length(sent) + $2) OVER (ORDER BY id DESC) AS total FROM aside) AS newest WHERE total > $1)`,
		int64(maxConflictBytes), int64(conflictOverhead))
	if err != nil {
		return err
	}
	if ok, err := b.takeBytes(n, rowBytes); !ok || err != nil {
		return err
	}
	return b.Audit(registry.Audit{
		At: schema.FromNanos(b.now), Actor: e.Node, Action: "batch.conflict", Object: e.Stream.String(),
		Detail: fmt.Sprintf("batch %d, %x, differs from the booked one or does not follow it", e.Number, e.Hash[:8]),
	})
}

// Through returns the end of the latest window booked for the node, or zero. A node that is not
// enrolled is fault.ErrNotFound.
func (b *Booker) Through(ctx context.Context, node string) (time.Time, error) {
	var ns int64
	err := b.db.Reader.QueryRowContext(ctx, "SELECT through_ns FROM node WHERE node_id = $1", schema.Clean(node)).Scan(&ns)
	return schema.FromNanos(ns), db.Wrap(b.db.NotFound(err), "node %q", node)
}

// Mark returns how far a stream of the node has been booked. A stream of another node is
// fault.ErrDenied.
func (b *Booker) Mark(ctx context.Context, node string, id batch.Stream) (batch.Mark, error) {
	var owner string
	s, err := scanStream(func(dest ...any) error {
		return b.db.LookupRow(ctx, append(dest, &owner), "SELECT s.node, s.next, s.last, n.node_id FROM stream s JOIN node n ON n.id = s.node WHERE s.id = $1", id[:])
	})
	switch {
	case err != nil:
		return batch.Mark{}, db.Wrap(err, "stream %s", id)
	case s.node != 0 && owner != node:
		return batch.Mark{}, db.Wrap(fmt.Errorf("it belongs to another node: %w", fault.ErrDenied), "stream %s", id)
	}
	return s.mark, nil
}

// Lost books a gap for batches of a stream that will never arrive, and moves the stream past them.
// The verdict is Accepted if they begin at the stream's next batch, Duplicate if the stream is
// already past them, else OutOfOrder; Next says where they must begin.
func (b *Booker) Lost(ctx context.Context, node string, lost batch.Loss, now time.Time) (r batch.Reply, err error) {
	if lost.From == 0 || lost.To < lost.From || lost.To >= math.MaxInt64 {
		return r, db.Wrap(fmt.Errorf("batches %d to %d: %w", lost.From, lost.To, fault.ErrInvalid), "lost batches of stream %s", lost.Stream)
	}
	var refused error
	err = b.db.Write(ctx, func(t *db.Tx) error {
		refused = nil
		run := b.newBooking(t, now)
		n, err := run.findNode(node)
		if err != nil {
			return err
		}
		if n.id == 0 {
			return n.deniedError(node)
		}
		s, err := findStream(t, lost.Stream)
		switch {
		case err != nil:
			return err
		case s.node != 0 && s.node != n.id:
			return fmt.Errorf("it belongs to another node: %w", fault.ErrDenied)
		case lost.To < s.mark.Next:
			r = batch.Reply{Verdict: batch.Duplicate, Next: s.mark.Next}
			return nil
		case lost.From != s.mark.Next:
			r = batch.Reply{Verdict: batch.OutOfOrder, Next: s.mark.Next}
			return nil
		}
		if refused = run.checkStream(n, s); refused != nil {
			if !errors.Is(refused, errQuota) {
				return refused
			}
			return run.flushQuotas() // with the audit line
		}
		if s.node == 0 {
			n.addUse(func(q *quotaUse) { q.streams++ })
		}
		r = batch.Reply{Verdict: batch.Accepted, Next: lost.To + 1}
		ok, err := run.takeBytes(n, 2*rowBytes+len(lost.Gap.Detail))
		if err == nil {
			err = run.flushQuotas()
		}
		if err != nil {
			return err
		}
		if !ok {
			lost.Gap.Detail = ""
		}
		if err := bookLost(t, n.id, lost, schema.Nanos(now)); err != nil || !ok {
			return err
		}
		return t.Audit(registry.Audit{
			At: now, Actor: node, Action: "batch.lost", Object: lost.Stream.String(),
			Detail: fmt.Sprintf("batches %d to %d: %s", lost.From, lost.To, lost.Gap.Reason),
		})
	})
	if err == nil {
		err = refused
	}
	failpoint.At("ledger.lost")
	return r, db.Wrap(err, "lost batches of stream %s", lost.Stream)
}

func bookLost(t *db.Tx, node int64, lost batch.Loss, now int64) error {
	if err := moveStream(t, lost.Stream, node, batch.Mark{Next: lost.To + 1, Last: lost.Hash}, "", now); err != nil {
		return err
	}
	return AddGap(t, node, lost.Gap, now)
}
