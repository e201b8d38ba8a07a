package attribute

import (
	"slices"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
)

// addConnections adds connections that a reading shows to the open window.
func (a *account) addConnections(s *connection.Sketch) {
	to := a.makeApart()
	to.connections = connection.Merged(to.connections, s)
}

// limitConnections returns the connections of a window of which u is the use, after limitClasses: those of a class have no more
// than its traffic, those without a class no more than the traffic without one. Where they have more, their
// bytes are lowered in their ratio, and so are packets. Errors are not lowered, so an amount may be too low by no
// more than before. It is nil if the traffic is not known, or nothing is left.
func limitConnections(s *connection.Sketch, u *usage.Usage) *connection.Sketch {
	if s == nil {
		return nil
	}
	// Rows of later windows may share s.
	s = &connection.Sketch{Entries: slices.Clone(s.Entries), Missed: s.Missed}
	var whole int64 // bytes
	for i, d := range usage.Directions {
		total, _ := u.Get(d.Whole)
		whole += total
		unclassified := total
		for r := range (u.Present & d.Classes).All() {
			unclassified -= u.Amount[r]
		}
		for class := range usage.NetworkClassLimit {
			most := unclassified
			if class != usage.Unclassified {
				most = u.Amount[class.Rx()+usage.Resource(i)]
			}
			limitAmounts(s.Entries, most, func(e *connection.Entry) *int64 {
				if e.Class != uint8(class) {
					return nil
				}
				return [...]*int64{&e.RxBytes, &e.TxBytes}[i]
			})
		}
		packets, _ := u.Get([...]usage.Resource{usage.NetworkRxPackets, usage.NetworkTxPackets}[i])
		limitAmounts(s.Entries, packets, func(e *connection.Entry) *int64 { return [...]*int64{&e.RxPackets, &e.TxPackets}[i] })
	}
	rest := whole - s.Sum().Bytes() // no edge may have had more beyond its own
	s.Missed = min(s.Missed, rest)
	for i := range s.Entries {
		s.Entries[i].Error = min(s.Entries[i].Error, rest)
	}
	s.Entries = slices.DeleteFunc(s.Entries, func(e connection.Entry) bool { return e.Bytes() == 0 })
	if len(s.Entries) == 0 && s.Missed == 0 {
		return nil
	}
	return s
}

// limitAmounts lowers amounts of entries to a sum of at most most. of returns the amount of an entry, nil if it has none.
func limitAmounts(entries []connection.Entry, most int64, of func(*connection.Entry) *int64) {
	var amounts [connection.Top]*int64
	var weights, parts [connection.Top]int64
	sum, n := int64(0), 0
	for i := range entries {
		if amount := of(&entries[i]); amount != nil {
			amounts[n], weights[n] = amount, *amount
			sum += *amount
			n++
		}
	}
	if sum <= most {
		return
	}
	energy.Divide(most, weights[:n], parts[:n])
	for i, amount := range amounts[:n] {
		*amount = parts[i]
	}
}
