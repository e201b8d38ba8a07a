package unit

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// suffixes of sizes: powers of ten (SI) and of two (IEC 80000-13).
var suffixes = map[string]float64{
	"": 1, "B": 1,
	"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}

// ParseBytes parses a size: "4096", "1.5Gi", "500M", "64 KiB". K, M, G, T, P are powers of 1000,
// Ki, Mi, Gi, Ti, Pi of 1024, in either case, with or without a B. The error wraps
// fault.ErrInvalid.
func ParseBytes(s string) (int64, error) {
	end := strings.LastIndexAny(s, "0123456789.") + 1
	suffix := strings.TrimSpace(s[end:])
	if suffix != "" {
		suffix = strings.ToUpper(suffix[:1]) + strings.ToLower(suffix[1:])
		if len(suffix) > 1 {
			suffix = strings.TrimSuffix(suffix, "b")
		}
	}
	factor, ok := suffixes[suffix]
	number := s[:end]
	ok = ok && strings.Trim(number, "0123456789.") == ""
	if v, err := strconv.ParseInt(number, 10, 64); ok && err == nil && factor == 1 {
		return v, nil
	}
	v, err := strconv.ParseFloat(number, 64)
	v = math.Round(v * factor)
	if !ok || err != nil || v >= 1<<63 {
		return 0, fmt.Errorf("size %q: %w", s, fault.ErrInvalid)
	}
	return int64(v), nil
}
