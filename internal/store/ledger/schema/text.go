package schema

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Nanos returns t in ns since 1970 as stored, and FromNanos reverses it. 0 is the zero time.
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

// JoinInts formats numbers as an SQL list.
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

// Clean returns a text that both databases can store: valid UTF-8 without zero bytes.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// FormatMinute formats a minute for people.
func FormatMinute(minute int64) string {
	return time.UnixMilli(minute * 60_000).UTC().Format("2006-01-02T15:04Z")
}

// ClampNanos is Nanos for the end of a range, which may be in a year beyond its limit.
func ClampNanos(t time.Time) int64 {
	const last = math.MaxInt64 / int64(time.Second)
	return min(max(t.Unix(), 0), last-1)*int64(time.Second) + int64(t.Nanosecond())
}

// KeepShares is how long shares of hosts and guests are kept for comparison.
const KeepShares = 48 * time.Hour
