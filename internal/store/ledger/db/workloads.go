package db

import (
	"maps"

	"mete.dev/mete/internal/model/workload"
)

// A workloadKey finds a workload: by the surrogate id of its node, and by the
// short id that rows carry.
type workloadKey struct {
	node  int64
	short workload.ShortID
}

// A Workload is a workload's surrogate id, and whether it has a name.
type Workload struct {
	ID    int64
	Named bool
}

// Workload finds a workload, and makes room for it where it is new: what it is
// called may come later.
func (t *Tx) Workload(node int64, short workload.ShortID) (Workload, error) {
	k := workloadKey{node, short}
	if w, ok := t.found[k]; ok {
		return w, nil
	}
	// Another program may have named it since: then it is asked for once more.
	if w, ok := t.DB.workloads[k]; ok {
		return w, nil
	}
	var w Workload
	var length int64
	// The update changes nothing; it makes RETURNING answer also where the row
	// is there.
	err := t.QueryRow(`INSERT INTO workload (node, short, rev) VALUES ($1, $2, $3)
		ON CONFLICT (node, short) DO UPDATE SET short = excluded.short RETURNING id, length(wid)`, node, int64(short), t.Rev).
		Scan(&w.ID, &length)
	w.Named = length > 0
	t.found[k] = w
	return w, err
}

// NameWorkload notes that a workload has a name now.
func (t *Tx) NameWorkload(node int64, short workload.ShortID, id int64) {
	t.found[workloadKey{node, short}] = Workload{id, true}
}

// maxCached is how many workloads are kept in memory, about 40 bytes each.
const maxCached = 1 << 20

// share gives what the transaction has found to those that follow.
func (t *Tx) share() {
	if len(t.DB.workloads)+len(t.found) > maxCached {
		clear(t.DB.workloads)
	}
	maps.Copy(t.DB.workloads, t.found)
	maps.Copy(t.DB.tables, t.tables)
}
