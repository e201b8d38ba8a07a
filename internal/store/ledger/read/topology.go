package read

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/store/ledger/db"
)

// TopologyEpochs returns the epochs of the topologies that are stored, by cluster. It is cheap: a topology is only to be read
// again after its epoch has changed.
func (rd *Reader) TopologyEpochs(ctx context.Context) (map[string]int64, error) {
	epochs := map[string]int64{}
	err := rd.db.Lookup(ctx, func(scan func(...any) error) error {
		var cluster string
		var epoch int64
		err := scan(&cluster, &epoch)
		epochs[cluster] = epoch
		return err
	}, "SELECT cluster, epoch FROM topology")
	if err != nil {
		return nil, db.Wrap(err, "epochs of topologies")
	}
	return epochs, nil
}

// Topology returns where the addresses of a cluster are, as they were stored last, and the epoch of that. A cluster without a
// topology is fault.ErrNotFound.
func (rd *Reader) Topology(ctx context.Context, cluster string) (t pod.Topology, epoch int64, err error) {
	var content string
	err = rd.db.LookupRow(ctx, []any{&epoch, &content}, "SELECT epoch, content FROM topology WHERE cluster = $1", cluster)
	if errors.Is(err, sql.ErrNoRows) {
		err = fault.ErrNotFound
	}
	if err == nil {
		err = json.Unmarshal([]byte(content), &t)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("ledger: topology of %s: %w", cluster, err)
	}
	return t, epoch, nil
}
