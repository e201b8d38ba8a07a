// Package external handles meters outside the machines: a power strip, a management controller over
// the network, a smart plug. A server reads them, and books the energy that they show above the
// energy that the machines measure themselves.
//
// [Minutes] turns samples into the energy of each minute, or gives the reason why it cannot.
// [GroupConnected] finds the meters that must be evaluated together, and [Node.IsComplete] reports
// whether a machine's rows of a minute are complete. [GroupMinute.Divide] divides the meters'
// energy among the machines, and [Adjust] books each part to the machine's rows.
//
// Energy is in microjoules, power in microwatts, an instant in nanoseconds since
// 1970 UTC, and a minute is counted from 1970.
package external

import (
	"slices"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

const (
	second = int64(time.Second)
	minute = int64(time.Minute)
)

// A Meter is one meter outside the machines.
type Meter struct {
	Name string
	// Kind is Power where samples are present levels, in uW, and Energy where they
	// are cumulative, in uJ.
	Kind power.Kind
	// Wrap is where an Energy meter starts again: it counts modulo Wrap uJ. 0 is
	// never.
	Wrap int64
	// ErrorPPM is by how much it may be off, of what it shows.
	ErrorPPM int64
	// MaxPower is more than it can possibly show, in uW.
	MaxPower int64
	// Stale is for how long two samples may be apart, and for how long an Energy
	// meter may show the same before that is taken to be so.
	Stale time.Duration
	// Wait is for how long after a minute a machine that sends nothing is waited for.
	Wait time.Duration
	// Nodes are the names or ids of the machines that it feeds, and nothing else
	// than these.
	Nodes []string
}

// A Sample is what a meter showed.
type Sample struct {
	At    int64 // ns since 1970
	Value int64 // uW or uJ, by the meter's Kind
}

// MinuteStart is the instant at which a minute begins.
func MinuteStart(m int64) int64 { return m * minute }

// sumOf sums amounts that are not negative.
func sumOf(amounts []int64) (sum int64) {
	for _, a := range amounts {
		sum = energy.AddSaturated(sum, a)
	}
	return sum
}

// GroupConnected puts meters into sets, by their places in the list: those that feed the
// same machine are in one set, and so are those that a chain of such machines
// connects. id is what a meter's word for a machine stands for.
func GroupConnected(meters []Meter, id func(node string) string) (sets [][]int) {
	of := map[string]int{} // set of a machine
	for i := range meters {
		set := []int{i}
		for _, n := range meters[i].Nodes {
			if j, ok := of[id(n)]; ok && sets[j] != nil {
				set = append(set, sets[j]...)
				sets[j] = nil
			}
		}
		sets = append(sets, set)
		for _, m := range set {
			for _, n := range meters[m].Nodes {
				of[id(n)] = len(sets) - 1
			}
		}
	}
	sets = slices.DeleteFunc(sets, func(s []int) bool { return s == nil })
	for _, s := range sets {
		slices.Sort(s)
	}
	return sets
}
