package schema

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Nanos is t as it is stored, FromNanos the way back. 0 is no time.
func Nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func FromNanos(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// JoinInts lists numbers as SQL does.
func JoinInts(ids []int64) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, id)
	}
	return b.String()
}

// Clean makes a text that both databases hold: valid UTF-8 without zero bytes.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// FormatMinute is a minute as people write it.
func FormatMinute(minute int64) string {
	return time.Unix(minute*60, 0).UTC().Format("2006-01-02T15:04Z")
}

// ClampNanos is nano for the end of a range, which may be in a year that nano does
// not reach.
func ClampNanos(t time.Time) int64 {
	const last = math.MaxInt64 / int64(time.Second)
	return min(max(t.Unix(), 0), last-1)*int64(time.Second) + int64(t.Nanosecond())
}

// KeepShares is how long the shares of hosts and guests wait for each other.
const KeepShares = 48 * time.Hour
