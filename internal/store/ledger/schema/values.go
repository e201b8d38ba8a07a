package schema

import (
	"math"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// EncodeUsage returns u as a row of UsageLayout.
func EncodeUsage(u *usage.Usage, rev int64) []int64 {
	values := make([]int64, len(UsageLayout.Columns))
	encodeInto(values, u, rev, ColRest)
	return values
}

// EncodeNodeMinute returns n as a row of NodeLayout.
func EncodeNodeMinute(n *batch.NodeMinute, rev int64) []int64 {
	values := make([]int64, len(NodeLayout.Columns))
	values[ColRest], values[ColRest+1], values[ColRest+2] = int64(n.CPUs), n.Violations, n.Lost
	copy(values[colWhole:], n.Whole[:])
	copy(values[ColSkew:], n.Skew[:])
	encodeInto(values, &n.Total, rev, colTotal)
	values[ColCovered] = millis(n.Covered)
	return values
}

func encodeInto(values []int64, u *usage.Usage, rev int64, first int) {
	present := u.Present & usage.All
	values[ColRev] = rev
	values[ColPresent] = int64(present)
	uncertainty := u.Quality.Uncertainty(present)
	values[ColUncertainty], values[ColUncertaintyHigh] = uncertainty[0], uncertainty[1]
	values[ColCovered] = millis(u.Covered)
	present.Each(func(r usage.Resource) { values[first+int(r)-1] = u.Amount[r] })
}

// millis rounds each part on its own, so that the order of additions does not matter.
func millis(d time.Duration) int64 { return int64(d.Round(time.Millisecond) / time.Millisecond) }

// EndMinute is the first minute, in the year 6053, that cannot be stored.
const EndMinute = 1 << 31

func FitsMinute(u *usage.Usage) bool {
	ok := true
	(u.Present & usage.All).Each(func(r usage.Resource) { ok = ok && FitsAmount(u.Amount[r]) })
	return ok
}

// FitsAmount reports whether a row of minutes can hold v.
func FitsAmount(v int64) bool { return v>>MinuteBits == 0 }

// DecodeUsage returns the usage in a row whose resource columns begin at first.
func DecodeUsage(values []int64, first int) (u usage.Usage) {
	u.Present = usage.Set(values[ColPresent])
	u.Quality = usage.Uncertainty{values[ColUncertainty], values[ColUncertaintyHigh]}.Qualities(u.Present)
	u.Covered = decodeMillis(values[ColCovered])
	u.Present.Each(func(r usage.Resource) { u.Amount[r] = values[first+int(r)-1] })
	return u
}

// DecodeNodeMinute reverses EncodeNodeMinute.
func DecodeNodeMinute(minute int64, values []int64) (n batch.NodeMinute) {
	n.Minute, n.CPUs, n.Violations, n.Lost = minute, int(values[ColRest]), values[ColRest+1], values[ColRest+2]
	copy(n.Whole[:], values[colWhole:])
	copy(n.Skew[:], values[ColSkew:])
	n.Total = DecodeUsage(values, colTotal)
	n.Covered, n.Total.Covered = n.Total.Covered, 0
	return n
}

// decodeMillis reverses millis.
func decodeMillis(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64 // 292 years
	}
	return time.Duration(ms) * time.Millisecond
}

// Flags in the bits of column rough that belong to no resource: the row of a finer table holds an
// hour or a day instead of its own span. Such a span is stored in its first minute, so that
// minutes, hours and days have the same sums.
const (
	HoldsHour = 1 << 0
	HoldsDay  = 1 << 1
)

// MaxMinuteAmount is the largest amount in a row of minutes.
const MaxMinuteAmount = 1<<MinuteBits - 1
