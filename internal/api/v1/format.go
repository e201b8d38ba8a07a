package v1

import (
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
)

// formatShift is a shift in whole seconds, for people.
func formatShift(d time.Duration) string {
	s := d.Round(time.Second).String()
	if d > 0 {
		s = "+" + s
	}
	return s
}

func formatLabels(m map[string]string) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, k+"="+m[k])
	}
	return strings.Join(s, ";")
}

// ResidualKind returns what a group is that no job caused, idle or system, and "" of all
// others.
func ResidualKind(by []query.Dimension, keys []string) string {
	for i, d := range by {
		if !IsMachineDimension(d) && (keys[i] == "idle" || keys[i] == "system") {
			return keys[i]
		}
	}
	return ""
}
