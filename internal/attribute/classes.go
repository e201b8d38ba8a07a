package attribute

import (
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// addClasses adds network traffic by class to the open window.
func (a *account) addClasses(n *usage.ClassBytes) {
	for r, v := range n.All() {
		a.window.Put(r, v, usage.Measured)
		a.dirty.set |= 1 << r
	}
}

// limitClasses lowers the traffic by class of a window to the traffic as a whole, whose source is another one: the
// two are not read at one instant, and whole traffic is not booked where a group was not seen before. The classes
// keep their ratio then, and are apportioned.
func limitClasses(u *usage.Usage) {
	for _, d := range usage.Directions {
		if classes := d.Classes & u.Present; classes != 0 {
			limitClassesTo(u, d.Whole, classes)
		}
	}
}

// limitClassesTo lowers the classes, which are present, to a whole.
func limitClassesTo(u *usage.Usage, whole usage.Resource, classes usage.Set) {
	total, known := u.Get(whole)
	if !known {
		for r := range classes.All() {
			u.Amount[r] = 0
		}
		u.Present &^= classes
		u.Quality = u.Quality.Only(u.Present)
		return
	}
	var rs [usage.NetworkClassLimit]usage.Resource
	var weights, parts [usage.NetworkClassLimit]int64
	sum, n := int64(0), 0
	for r := range classes.All() {
		rs[n], weights[n] = r, u.Amount[r]
		sum += u.Amount[r]
		u.Quality.Worsen(r, u.Quality.Get(whole))
		n++
	}
	if sum <= total {
		return
	}
	energy.Divide(total, weights[:n], parts[:n])
	for i, r := range rs[:n] {
		u.Amount[r] = parts[i]
		u.Quality.Worsen(r, usage.Apportioned)
	}
}

// sum returns the amount of a resource.
func (t *total) sum(r usage.Resource) unit.Sum {
	if !usage.Classified.Has(r) {
		return t.amount[r]
	}
	if t.classes == nil {
		return unit.Sum{}
	}
	return t.classes[r-usage.NetworkRxNode]
}

// set sets the amount of a resource.
func (t *total) set(r usage.Resource, v unit.Sum) {
	if !usage.Classified.Has(r) {
		t.amount[r] = v
		return
	}
	if t.classes == nil {
		t.classes = new([len(usage.ClassBytes{})]unit.Sum)
	}
	t.classes[r-usage.NetworkRxNode] = v
}

// clone returns a copy that shares nothing with t.
func (t *total) clone() total {
	c := *t
	if t.classes != nil {
		c.classes = new(*t.classes)
	}
	return c
}
