package book

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

const (
	// placeJitter is the change of a boot's place that is not worth a write.
	placeJitter = int64(time.Millisecond)
	// placeAge is the age at which the time of the latest batch of a boot is written again.
	placeAge = 24 * time.Hour
)

// BootPlaces returns, for those of a node's boots of which something is booked, what was added to
// boottimes to get wall times, in ns.
func (b *Booker) BootPlaces(ctx context.Context, node string, boots []string) (map[string]int64, error) {
	places := map[string]int64{}
	for _, boot := range boots {
		var offset int64
		err := b.db.Reader.QueryRowContext(ctx, "SELECT p.offset_ns FROM placed_boot p JOIN node n ON n.id = p.node WHERE n.node_id = $1 AND n.source = 0 AND p.boot = $2",
			schema.Clean(node), schema.Clean(boot)).Scan(&offset)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return nil, db.Wrap(b.db.Fault(err), "boot %q of node %q", boot, node)
		default:
			places[boot] = offset
		}
	}
	return places, nil
}

// errPlaced refuses an entry whose windows were placed in wall time before another batch of
// the same boot was booked elsewhere.
var errPlaced = &fault.RetryError{
	Err:   fmt.Errorf("another batch of the same boot was booked meanwhile: %w", fault.ErrUnavailable),
	After: time.Second,
}

// addBoots books what an entry measured of its boots, and where it places them. After an error that
// wraps errPlaced, errOverlap or errQuota nothing has changed, apart from the audit.
func (b *booking) addBoots(e *batch.Entry, n *bookedNode, s streamState) error {
	places, fresh, err := b.checkPlaces(e, n)
	if err != nil {
		return err
	}
	if err := b.addMeasured(e, n, s, fresh); err != nil {
		return err
	}
	for range fresh {
		n.takeRange()
	}
	return b.storePlaces(n, places)
}

// checkPlaces returns which places of an entry's boots are to be stored. The place of an earlier
// boot does not change any more; the error wraps errPlaced if another batch has placed it meanwhile.
// fresh is how many of them are new.
func (b *booking) checkPlaces(e *batch.Entry, n *bookedNode) (changed []batch.BootPlace, fresh int64, err error) {
	for _, p := range e.Boots {
		var offset, taken int64
		err := b.QueryRow("SELECT offset_ns, taken_ns FROM placed_boot WHERE node = $1 AND boot = $2", n.id, schema.Clean(p.Boot)).Scan(&offset, &taken)
		if errors.Is(err, sql.ErrNoRows) {
			changed = append(changed, p)
			fresh++
			continue
		}
		if err != nil {
			return nil, fresh, err
		}
		moved := max(offset-p.Offset, p.Offset-offset) > placeJitter
		switch {
		case p.New && moved:
			return nil, fresh, errPlaced
		case p.Boot != e.Boot:
			p.Offset, moved = offset, false
		}
		if moved || b.now-taken >= int64(placeAge) {
			changed = append(changed, p)
		}
	}
	return changed, fresh, nil
}

// storePlaces stores where boots of a node are placed.
func (b *booking) storePlaces(n *bookedNode, places []batch.BootPlace) error {
	for _, p := range places {
		_, err := b.Exec(`INSERT INTO placed_boot (node, boot, offset_ns, taken_ns) VALUES ($1, $2, $3, $4)
			ON CONFLICT (node, boot) DO UPDATE SET offset_ns = excluded.offset_ns, taken_ns = excluded.taken_ns`, n.id, schema.Clean(p.Boot), p.Offset, b.now)
		if err != nil {
			return err
		}
	}
	return nil
}
