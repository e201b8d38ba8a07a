package usage

import "time"

// A GroupUsage is a Usage without the resources that no [Reading] and no energy meter shows: what is
// specified, and those of [Apart]. There are two for each group that an agent measures, so the size counts.
type GroupUsage struct {
	Present Set
	Quality Qualities
	Covered time.Duration
	Amount  [ReadingLimit]int64
}

// Get returns the amount of r, and whether it is there at all.
func (u *GroupUsage) Get(r Resource) (int64, bool) { return u.Amount[r], u.Present.Has(r) }

// Put is [Usage.Put].
func (u *GroupUsage) Put(r Resource, amount int64, q Quality) { u.fields().put(r, amount, q) }

// Add is [Usage.Add].
func (u *GroupUsage) Add(v *GroupUsage) { u.AddOnly(v, All) }

// AddOnly is Add for some resources of v, and the time that it covers.
func (u *GroupUsage) AddOnly(v *GroupUsage, of Set) { u.fields().add(v.fields(), of) }

// Usage returns u as a Usage.
func (u *GroupUsage) Usage() Usage {
	all := Usage{Present: u.Present, Quality: u.Quality, Covered: u.Covered}
	copy(all.Amount[:], u.Amount[:])
	return all
}

// OfGroup returns u without the resources that a GroupUsage lacks.
func (u *Usage) OfGroup() GroupUsage {
	of := GroupUsage{Present: u.Present & Metered &^ Apart, Covered: u.Covered}
	of.Quality = u.Quality.Only(of.Present)
	copy(of.Amount[:], u.Amount[:])
	return of
}

func (u *GroupUsage) fields() fields { return fields{&u.Present, &u.Quality, &u.Covered, u.Amount[:]} }
