package chart

import (
	"time"
)

// MaxPoints is the maximum number of points of a range, which is Prometheus's limit.
const MaxPoints = 11_000

// defaultPoints is the approximate number of points of a range by default.
const defaultPoints = 240

// StepFor returns the default time between two points for a range of a given length: a
// round one, and at least that of the agents' windows.
func StepFor(length time.Duration) time.Duration {
	for _, s := range timeSteps {
		if s >= 10*time.Second && length/s <= defaultPoints {
			return s
		}
	}
	return (length/defaultPoints/day + 1) * day
}
