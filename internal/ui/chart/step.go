package chart

import (
	"time"
)

// MaxPoints is how many points a range may have: the most that Prometheus gives.
const MaxPoints = 11_000

// defaultPoints is about how many points a range has where nobody says.
const defaultPoints = 240

// StepFor is the time between two points of a range of a length where nobody says:
// a round one, and not below that of the windows of agents.
func StepFor(length time.Duration) time.Duration {
	for _, s := range timeSteps {
		if s >= 10*time.Second && length/s <= defaultPoints {
			return s
		}
	}
	return (length/defaultPoints/day + 1) * day
}
