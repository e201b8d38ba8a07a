package book

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// LeasePods takes or extends the lease of a cluster's pods until a time. A holder that was started again takes its own
// lease at once, any other one after its end. The answer has number 0 if another holder has it, and names that one.
func (k *Booker) LeasePods(ctx context.Context, l pod.Lease, now, until time.Time) (pod.Lease, error) {
	l.Holder = schema.Clean(l.Holder)
	err := k.db.Write(ctx, func(t *db.Tx) error {
		var holder string
		var number, end int64
		err := t.QueryRow("SELECT holder, number, until_ns FROM pod_lease WHERE cluster = $1", l.Cluster).Scan(&holder, &number, &end)
		switch {
		case err != nil && !errors.Is(err, sql.ErrNoRows):
			return err
		case l.Number != 0 && l.Number == number: // it is extended
		case holder != l.Holder && end > now.UnixNano():
			l.Holder, l.Number = holder, 0
			return nil
		default:
			l.Number = number + 1
		}
		var seen int64
		err = t.QueryRow(`INSERT INTO pod_lease (cluster, holder, number, until_ns, since_ns) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (cluster) DO UPDATE SET holder = excluded.holder, number = excluded.number, until_ns = excluded.until_ns,
				since_ns = CASE WHEN pod_lease.since_ns = 0 OR pod_lease.since_ns > excluded.since_ns THEN excluded.since_ns ELSE pod_lease.since_ns END RETURNING seen_ns`,
			l.Cluster, l.Holder, l.Number, until.UnixNano(), now.UnixNano()).Scan(&seen)
		l.Seen = schema.FromNanos(seen)
		return err
	})
	return l, db.Wrap(err, "lease of the pods of %s", l.Cluster)
}

// checkLease returns an error that wraps fault.ErrConflict if a lease is not the latest of its cluster: its holder may
// have been stopped for longer than it lasts.
func checkLease(t *db.Tx, l pod.Lease) error {
	var holder string
	var number int64
	err := t.QueryRow("SELECT holder, number FROM pod_lease WHERE cluster = $1", l.Cluster).Scan(&holder, &number)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if number != l.Number {
		return fmt.Errorf("the pods of %s are named by server %q since: %w", l.Cluster, holder, fault.ErrConflict)
	}
	return nil
}
