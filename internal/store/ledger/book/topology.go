package book

import (
	"context"
	"encoding/json"
	"time"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/store/ledger/db"
)

// BookTopology stores where the addresses of a cluster are, in place of what was stored before. Each call gives it a new epoch:
// one more than the last, or now in Unix milliseconds if that is later, so that what a ledger books after it was restored from
// a backup is newer than all that it booked before. A lease that is not the latest of its cluster is fault.ErrConflict.
func (k *Booker) BookTopology(ctx context.Context, l pod.Lease, t pod.Topology, now time.Time) error {
	content, err := json.Marshal(t)
	if err == nil {
		err = k.db.Write(ctx, func(tx *db.Tx) error {
			if err := checkLease(tx, l); err != nil {
				return err
			}
			_, err := tx.Exec(`INSERT INTO topology (cluster, epoch, content) VALUES ($1, $2, $3) ON CONFLICT (cluster) DO UPDATE
				SET epoch = `+tx.DB.Dialect.Greatest+`(topology.epoch + 1, excluded.epoch), content = excluded.content`, l.Cluster, now.UnixMilli(), string(content))
			return err
		})
	}
	return db.Wrap(err, "booking the topology of %s", l.Cluster)
}
