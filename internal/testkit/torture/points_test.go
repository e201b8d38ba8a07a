package torture

import (
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// hits returns the number of deaths at each failpoint.
func (r *rig) hits() map[string]int {
	all := map[string]int{}
	for _, c := range r.children() {
		for p, n := range c.hits() {
			all[p] += n
		}
	}
	return all
}

// Events of groups while no agent runs.
const (
	birth = "group created while no agent runs"
	death = "group removed while no agent runs"
)

// unseen counts the groups that were created, or removed, while no agent ran.
func (r *rig) unseen() (births, deaths int) {
	within := func(from, to time.Time) bool {
		return slices.ContainsFunc(r.down, func(d span) bool { return !from.Before(d.from) && !to.After(d.to) })
	}
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	for _, b := range r.fleet.births {
		if within(b, b) {
			births++
		}
	}
	for _, l := range r.fleet.lives {
		if !l.from.IsZero() && within(l.from, l.to) {
			deaths++
		}
	}
	return births, deaths
}

// missed returns the failpoints and events that have happened less than three times.
func (r *rig) missed() (what []string) {
	n := r.hits()
	n[birth], n[death] = r.unseen()
	wanted := append([]string{birth, death}, r.v.points...)
	if r.v.again {
		for _, what := range []string{restored, putBack} {
			n[what] = r.faults[what]
			wanted = append(wanted, what)
		}
	}
	if r.v.clock {
		for _, s := range steps {
			n[s.name] = r.faults[s.name]
			wanted = append(wanted, s.name)
		}
	}
	for _, w := range wanted {
		if n[w] < 3 {
			what = append(what, w)
		}
	}
	return what
}

// lacks reports whether a program has a failpoint in missed.
func (r *rig) lacks(c *child) bool {
	return slices.ContainsFunc(r.missed(), func(p string) bool { return c.points[p] > 0 })
}

// total returns the number of faults.
func (r *rig) total() (n int) {
	for _, k := range r.faults {
		n += k
	}
	return n
}

// scarce returns what check does not have enough of yet. It estimates the lengths of gaps,
// which check reads from the ledger.
func (r *rig) scarce() (what []string) {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	watched := func(from, to time.Time) bool {
		return !from.IsZero() && !slices.ContainsFunc(r.down, func(d span) bool {
			return to.After(d.from.Add(-1500*time.Millisecond)) && from.Before(d.to.Add(500*time.Millisecond))
		})
	}
	ended, disk := 0, 0
	for _, l := range r.fleet.lives {
		if watched(l.from, l.to) {
			ended++
		}
	}
	for _, o := range r.fleet.ops {
		if watched(o.from, o.to) {
			disk++
		}
	}
	for name, few := range map[string]bool{
		"faults":                             r.total() < r.v.faults,
		"groups that held memory":            !r.v.clock && len(r.fleet.holds) < 10,
		"groups removed while an agent ran":  !r.v.clock && r.v.reader != "files" && ended < 60,
		"use of the disk while an agent ran": !r.v.clock && r.v.reader != "files" && r.fleet.disk != "" && disk < 60,
	} {
		if few && (!r.v.again || name == "faults") {
			what = append(what, name)
		}
	}
	slices.Sort(what)
	return what
}

// Records that check demands of a ledger: corrections of a clock, nodes and overlapped gaps.
const leastShifts, leastNodes, leastOverlapped = 3, 2, 2

// unbooked returns the records of faults that the ledger still lacks and check demands. On a busy machine an agent may
// be killed before it has enrolled, or a clock may be set back before a window has shown its offset.
func (r *rig) unbooked() (what []string) {
	wanted := map[string]int{} // the least number of rows
	if r.v.clock {
		wanted["shift"] = leastShifts
	}
	if r.v.again {
		wanted["node"], wanted["gap WHERE reason = '"+usage.Overlapped.String()+"'"] = leastNodes, leastOverlapped
	}
	db := r.open(r.readOnly())
	defer func() { _ = db.Close() }() // only read
	for rows, least := range wanted {
		n := 0
		// A ledger that cannot be read now is being restored.
		if err := db.QueryRow("SELECT count(*) FROM " + rows).Scan(&n); err != nil || n < least {
			what = append(what, fmt.Sprintf("%d rows of %s", n, rows))
		}
	}
	slices.Sort(what)
	return what
}

// enough checks that enough faults occurred.
func (r *rig) enough() {
	if n := r.total(); n < r.v.faults {
		r.t.Errorf("%d faults, want %d", n, r.v.faults)
	}
	for _, what := range r.missed() {
		r.t.Errorf("%s: less than 3 times", what)
	}
}
