package v1

import (
	"strconv"
	"strings"
	"time"
)

// TimeForms lists the forms of an instant that [ParseTime] reads.
const TimeForms = "how long ago, as 90m, 24h or 7d (also -24h and now-24h), now, today, yesterday, 2026-03-01, 2026-03-01T12:00:00Z, or seconds since 1970"

// The earliest and the latest instant of a query: Unix time is not negative, and RFC 3339
// has four digits for the year.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
)

// ParseTime reads an instant as people write it: the formats are in the hint of the error,
// which wraps fault.ErrInvalid. One without a zone is in the zone of now.
func ParseTime(s string, now time.Time) (time.Time, error) {
	t, ok := parseTime(strings.TrimSpace(s), now)
	switch {
	case !ok:
		return time.Time{}, invalid("write a time as "+TimeForms, "time %q", s)
	case t.Before(earliest) || t.After(latest):
		return time.Time{}, invalid("from 1970 to the end of 9998", "time %q is out of range", s)
	}
	return t, nil
}

func parseTime(s string, now time.Time) (time.Time, bool) {
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch s {
	case "today":
		return midnight, true
	case "yesterday":
		return midnight.AddDate(0, 0, -1), true
	}
	if d, ok := parseAgo(s); ok {
		return now.Add(-d), true
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", time.DateOnly, time.DateTime, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, true
		}
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && v >= 0 && v < 1e12 {
		whole, part, _ := strings.Cut(s, ".")
		sec, err := strconv.ParseInt(whole, 10, 64)
		if err != nil || len(part) > 9 || strings.Trim(part, "0123456789") != "" {
			return time.Time{}, false
		}
		ns, err := strconv.ParseInt(part+strings.Repeat("0", 9-len(part)), 10, 64)
		return time.Unix(sec, ns).In(now.Location()), err == nil
	}
	return time.Time{}, false
}

// parseAgo reads how long before now an instant is: now, now-1h, -1h or 1h.
func parseAgo(s string) (time.Duration, bool) {
	s, isNow := strings.CutPrefix(s, "now")
	if isNow && s == "" {
		return 0, true
	}
	s, isNegative := strings.CutPrefix(s, "-")
	if !isNegative && (isNow || s == "0") {
		return 0, false
	}
	return parseLength(s)
}

// parseLength reads a length of time without a sign: weeks and days, then a duration as Go writes it.
func parseLength(s string) (time.Duration, bool) {
	if strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-") {
		return 0, false
	}
	var d time.Duration
	for _, u := range []struct {
		name   string
		length time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		if n, rest, ok := strings.Cut(s, u.name); ok {
			v, err := strconv.ParseUint(n, 10, 16)
			if err != nil || v > uint64(100*365*day/u.length) {
				return 0, false
			}
			d += time.Duration(v) * u.length
			s = rest
		}
	}
	if s == "" {
		return d, d > 0
	}
	rest, err := time.ParseDuration(s)
	return d + rest, err == nil && rest >= 0 && d+rest >= 0
}

// ParseLength reads a length of time above zero: "90m", "24h", "7d", "1w2d". The
// error wraps fault.ErrInvalid.
func ParseLength(s string) (time.Duration, error) {
	d, ok := parseLength(strings.TrimSpace(s))
	if !ok || d <= 0 {
		return 0, invalid("write 90m, 24h or 7d", "length of time %q", s)
	}
	return d, nil
}

// FormatLength writes a length of time as ParseLength reads it.
func FormatLength(d time.Duration) string {
	text := ""
	if n := d / day; n > 0 {
		text = strconv.FormatInt(int64(n), 10) + "d"
		if d %= day; d == 0 {
			return text
		}
	}
	return text + d.String()
}
