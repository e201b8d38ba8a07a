package attribute

import (
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/usage"
)

// addClass adds network traffic of a class to the open window.
func (a *account) addClass(r usage.Resource, bytes int64) {
	to := a.makeApart()
	if to.classes == nil {
		to.classes = new(usage.ClassBytes)
	}
	to.classes.Add(r, bytes)
	a.dirty.set |= 1 << r
}

// use returns the use of the open window, with its disk space and traffic by class.
func (a *account) use() usage.Usage {
	u := a.window.Usage()
	if a.apart == nil {
		return u
	}
	a.apart.storage.put(&u)
	if a.apart.classes != nil {
		for r, v := range a.apart.classes.All() {
			u.Put(r, v, usage.Measured)
		}
	}
	return u
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
