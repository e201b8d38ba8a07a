package query

import (
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
)

// A Self is what one workload used in its life, or a pod with its containers, as far as booked.
type Self struct {
	Node, NodeName, Cluster string
	batch.Name              // only the id while nothing else is known
	// First and Last are the start of the first minute with use, or of what a pod reserves, and the end of the last one;
	// zero if nothing is booked yet.
	First, Last time.Time
	Through     time.Time // end of the latest booked window of its node; zero before the first batch
	// Gaps is the number of gaps of its node that overlap its life: some use may be missing.
	Gaps  int
	Parts []workload.ID // those on Node that are summed: one, or those of a pod; none until they are named
	Usage Total
	// Reserved is for how long it is known what a pod reserves; 0 until that is booked, and of all others.
	Reserved time.Duration
	Latest   *live.NodeRates // the latest window of its node with one row, what it used; nil if none is fresh
}
