package db

import (
	"database/sql"
	"errors"
	"maps"

	"mete.dev/mete/internal/model/workload"
)

// A workloadKey identifies a workload by the surrogate id of its node and the short id that rows
// carry.
type workloadKey struct {
	node  int64
	short workload.ShortID
}

// A Workload is a workload's surrogate id, and whether its name is known.
type Workload struct {
	ID    int64
	Named bool
}

// Workload returns a workload, creating it if it is new; its name may arrive later.
func (t *Tx) Workload(node int64, short workload.ShortID) (Workload, error) {
	k := workloadKey{node, short}
	if w, ok := t.found[k]; ok {
		return w, nil
	}
	// Named may be stale if another process named it since; the name is then requested once more.
	if w, ok := t.DB.workloads[k]; ok {
		return w, nil
	}
	var w Workload
	var length int64
	// The update changes nothing; it makes RETURNING return existing rows too.
	err := t.QueryRow(`INSERT INTO workload (node, short, rev) VALUES ($1, $2, $3)
		ON CONFLICT (node, short) DO UPDATE SET short = excluded.short RETURNING id, length(wid)`, node, int64(short), t.Rev).
		Scan(&w.ID, &length)
	w.Named = length > 0
	t.found[k] = w
	return w, err
}

// KnownWorkload returns a workload; ok is false if there is none.
func (t *Tx) KnownWorkload(node int64, short workload.ShortID) (w Workload, ok bool, err error) {
	k := workloadKey{node, short}
	for _, cached := range []map[workloadKey]Workload{t.found, t.DB.workloads} {
		if w, ok := cached[k]; ok {
			return w, true, nil
		}
	}
	var length int64
	err = t.QueryRow("SELECT id, length(wid) FROM workload WHERE node = $1 AND short = $2", node, int64(short)).Scan(&w.ID, &length)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return w, false, nil
	case err != nil:
		return w, false, err
	}
	w.Named = length > 0
	t.found[k] = w
	return w, true, nil
}

// NameWorkload caches that a workload has a name.
func (t *Tx) NameWorkload(node int64, short workload.ShortID, id int64) {
	t.found[workloadKey{node, short}] = Workload{id, true}
}

// maxCached is how many workloads are cached, about 40 bytes each.
const maxCached = 1_000_000

// publish caches what the transaction found for later ones.
func (t *Tx) publish() {
	if len(t.DB.workloads)+len(t.found) > t.DB.maxCached {
		clear(t.DB.workloads)
	}
	maps.Copy(t.DB.workloads, t.found)
	maps.Copy(t.DB.tables, t.tables)
}
