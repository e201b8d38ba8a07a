package db

import (
	"cmp"
	"maps"
	"slices"

	"mete.dev/mete/internal/model/workload"
)

// A workloadKey identifies a workload by the surrogate id of its node and the short id that rows
// carry.
type workloadKey struct {
	node  int64
	short workload.ShortID
}

// A Workload is a workload's surrogate id, which is that of its first version, and whether its name is known.
type Workload struct {
	ID    int64
	Named bool
	later *[]version // versions after the first one, in the order of time; nil if there are none
}

// A version is the surrogate id of a workload's rows from a minute on.
type version struct{ from, id int64 }

// At returns the surrogate id of the workload's rows of a minute: that of its version then.
func (w Workload) At(minute int64) int64 {
	later := w.versions()
	n, _ := slices.BinarySearchFunc(later, minute+1, func(v version, m int64) int { return cmp.Compare(v.from, m) })
	if n == 0 {
		return w.ID
	}
	return later[n-1].id
}

// CountSince returns how many versions begin with a minute or later, the first one not among them.
func (w Workload) CountSince(minute int64) int {
	later := w.versions()
	n, _ := slices.BinarySearchFunc(later, minute, func(v version, m int64) int { return cmp.Compare(v.from, m) })
	return len(later) - n
}

// Latest returns the surrogate id of the workload's latest version.
func (w Workload) Latest() int64 {
	if later := w.versions(); len(later) > 0 {
		return later[len(later)-1].id
	}
	return w.ID
}

// HasVersions reports whether the workload has more than one version.
func (w Workload) HasVersions() bool { return w.later != nil }

// Begins returns the minutes with which the versions begin, in order, besides the first one.
func (w Workload) Begins() (from []int64) {
	for _, v := range w.versions() {
		from = append(from, v.from)
	}
	return from
}

func (w Workload) versions() []version {
	if w.later == nil {
		return nil
	}
	return *w.later
}

// Workload returns a workload, creating it if it is new; its name may arrive later.
func (t *Tx) Workload(node int64, short workload.ShortID) (Workload, error) {
	w, ok, err := t.KnownWorkload(node, short)
	if ok || err != nil {
		return w, err
	}
	err = t.QueryRow("INSERT INTO workload (node, short, rev) VALUES ($1, $2, $3) RETURNING id", node, int64(short), t.Rev).Scan(&w.ID)
	t.found[workloadKey{node, short}] = w
	return w, err
}

// KnownWorkload returns a workload; ok is false if there is none.
func (t *Tx) KnownWorkload(node int64, short workload.ShortID) (w Workload, ok bool, err error) {
	k := workloadKey{node, short}
	// Named may be stale if another process named it since; the name is then requested once more.
	for _, cached := range []map[workloadKey]Workload{t.found, t.DB.workloads} {
		if w, ok := cached[k]; ok {
			return w, true, nil
		}
	}
	err = t.Each(func(scan func(...any) error) error {
		var v version
		var length int64
		if err := scan(&v.id, &v.from, &length); err != nil {
			return err
		}
		w.Named = length > 0
		if v.from == 0 {
			w.ID = v.id
		} else {
			w.add(v)
		}
		return nil
	}, "SELECT id, from_minute, length(wid) FROM workload WHERE node = $1 AND short = $2 ORDER BY from_minute", node, int64(short))
	if err != nil || w.ID == 0 {
		return Workload{}, false, err
	}
	t.found[k] = w
	return w, true, nil
}

// add adds a version. The versions of other copies of w stay as they are.
func (w *Workload) add(v version) {
	later := append(slices.Clone(w.versions()), v)
	slices.SortFunc(later, func(a, b version) int { return cmp.Compare(a.from, b.from) })
	w.later = &later
}

// Version returns the surrogate id of the workload's version that begins with a minute, 0 being the first one. It
// creates the workload and the version if they are new, without a name.
func (t *Tx) Version(node int64, short workload.ShortID, from int64) (id int64, err error) {
	w, err := t.Workload(node, short)
	if from == 0 || err != nil {
		return w.ID, err
	}
	for _, v := range w.versions() {
		if v.from == from {
			return v.id, nil
		}
	}
	err = t.QueryRow("INSERT INTO workload (node, short, from_minute, version_of, rev) VALUES ($1, $2, $3, $4, $5) RETURNING id",
		node, int64(short), from, w.ID, t.Rev).Scan(&id)
	if err != nil {
		return id, err
	}
	w.add(version{from, id})
	return id, t.setVersions(node, short, w)
}

// ForgetVersion notes that the version of a workload that begins with a minute was deleted.
func (t *Tx) ForgetVersion(node int64, short workload.ShortID, from int64) error {
	w, _, err := t.KnownWorkload(node, short)
	if err != nil {
		return err
	}
	later := slices.DeleteFunc(slices.Clone(w.versions()), func(v version) bool { return v.from == from })
	if w.later = &later; len(later) == 0 {
		w.later = nil
	}
	return t.setVersions(node, short, w)
}

// setVersions caches the versions of a workload, and makes other processes forget those that they cached. The entry of
// earlier transactions is dropped at once: a rollback to a savepoint drops those of this one.
func (t *Tx) setVersions(node int64, short workload.ShortID, w Workload) error {
	k := workloadKey{node, short}
	delete(t.DB.workloads, k)
	t.found[k] = w
	return t.QueryRow("UPDATE counter SET versions = versions + 1 WHERE id = 1 RETURNING versions").Scan(&t.versions)
}

// NameWorkload caches that a workload has a name.
func (t *Tx) NameWorkload(node int64, short workload.ShortID, w Workload) {
	w.Named = true
	t.found[workloadKey{node, short}] = w
}

// maxCached is how many workloads are cached, about 50 bytes each.
const maxCached = 1_000_000

// publish caches what the transaction found for later ones.
func (t *Tx) publish() {
	if len(t.DB.workloads)+len(t.found) > t.DB.maxCached {
		clear(t.DB.workloads)
	}
	maps.Copy(t.DB.workloads, t.found)
	maps.Copy(t.DB.tables, t.tables)
	t.DB.versions = t.versions
}
