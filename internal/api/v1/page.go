package v1

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// The formats of an answer.
const (
	FormatJSON = "json"
	FormatCSV  = "csv"
)

// ParseFormat reads the requested format: "" where it is not given.
func ParseFormat(given map[string][]string) (string, error) {
	return ParseEnum(given, ParamFormat, []string{FormatJSON, FormatCSV})
}

// A PageRequest is the requested part of a list. Its zero value is all of it.
type PageRequest struct {
	limit     int
	after     string // key of the element before
	hasCursor bool
}

// ParsePageRequest reads the requested part of a list: its largest number of elements,
// and the cursor of the page before.
func ParsePageRequest(given map[string][]string) (p PageRequest, err error) {
	if p.limit, err = ParseLimit(given); err != nil {
		return p, err
	}
	s, err := singleValue(given, ParamCursor, "")
	if err != nil || given[ParamCursor] == nil {
		return p, err
	}
	key, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(key) == 0 {
		return p, invalid("give it as it came in next_cursor, or leave it out", "parameter %s=%q", ParamCursor, s)
	}
	p.after, p.hasCursor = string(key), true
	return p, nil
}

// HasCursor reports whether the part begins at a cursor.
func (p PageRequest) HasCursor() bool { return p.hasCursor }

// After returns the key of the last element of the page before, "" if there is none.
func (p PageRequest) After() string { return p.after }

// AtMost returns a request of the same part with at most n elements.
func (p PageRequest) AtMost(n int) PageRequest {
	if p.limit == 0 || n < p.limit {
		p.limit = n
	}
	return p
}

// IsAll reports whether all of the list is requested.
func (p PageRequest) IsAll() bool { return p.limit == 0 && !p.hasCursor }

// Paginate returns the requested part of a list, and the cursor of the next page, "" on
// the last one. A part is in the order of keys, which are unique: an element that comes
// or goes between two pages moves no other one. A whole list keeps its order.
func Paginate[T any](p PageRequest, list []T, key func(*T) string) (page []T, next string) {
	if p.IsAll() {
		return list, ""
	}
	type keyed struct {
		key string
		at  int
	}
	all := make([]keyed, 0, len(list))
	for i := range list {
		if k := key(&list[i]); !p.hasCursor || k > p.after {
			all = append(all, keyed{k, i})
		}
	}
	slices.SortFunc(all, func(a, b keyed) int { return strings.Compare(a.key, b.key) })
	if p.limit > 0 && len(all) > p.limit {
		all = all[:p.limit]
		next = base64.RawURLEncoding.EncodeToString([]byte(all[p.limit-1].key))
	}
	page = make([]T, 0, len(all))
	for _, k := range all {
		page = append(page, list[k.at])
	}
	return page, next
}

// SortKey joins texts to a key that sorts by the first, then by the second, and so on.
func SortKey(texts ...string) string { return strings.Join(texts, "\x00") }

// DescendingKey returns a key by which later instants, in ns since 1970, come first.
func DescendingKey(ns int64) string {
	s := strconv.FormatUint(^(uint64(ns) ^ 1<<63), 16)
	return strings.Repeat("0", 16-len(s)) + s
}
