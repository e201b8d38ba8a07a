package query

import (
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/live"
)

// A Self is what one workload used in all its life, as far as that is booked.
type Self struct {
	Node, NodeName, Cluster string
	batch.Name              // the id alone, as long as nothing else is known of it
	// First and Last are the start of the first minute with use and the end of the
	// last one; zero where nothing is booked yet.
	First, Last time.Time
	Through     time.Time // up to when its node is booked; zero before the first batch
	// Gaps is how many gaps of its node touch its life: something of it may be missing.
	Gaps   int
	Usage  Total
	Latest *live.NodeRates // of its node, with its row alone; nil where there is no window that is fresh
}
