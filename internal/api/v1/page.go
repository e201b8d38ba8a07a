package v1

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// The words for the formats of an answer.
const (
	FormatJSON = "json"
	FormatCSV  = "csv"
)

// ParseFormat reads in which format an answer is wanted: "" where that is not said.
func ParseFormat(given map[string][]string) (string, error) {
	return ParseEnum(given, ParamFormat, []string{FormatJSON, FormatCSV})
}

// A PageRequest says which part of a list is wanted. Its zero value is all of it.
type PageRequest struct {
	limit     int
	after     string // key of the element before
	hasCursor bool   // there is one
}

// ParsePageRequest reads which part of a list is wanted: at most so many, from where the
// page before ended.
func ParsePageRequest(given map[string][]string) (p PageRequest, err error) {
	if p.limit, err = parseLimit(given); err != nil {
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

// IsAll says whether all of the list is wanted.
func (p PageRequest) IsAll() bool { return p.limit == 0 && !p.hasCursor }

// Paginate returns the part of a list, and the cursor of the next page: "" where there
// is none. A part is of the list in the order of its keys, of which no two are the
// same; what comes or goes meanwhile moves nothing else to another page. A whole
// list stays in the order that it has.
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

// SortKey makes one key of several texts, by which things have the order of the first,
// then of the second.
func SortKey(texts ...string) string { return strings.Join(texts, "\x00") }

// DescendingKey is a text by which later moments, in ns since 1970, come first.
func DescendingKey(ns int64) string {
	s := strconv.FormatUint(^(uint64(ns) ^ 1<<63), 16)
	return strings.Repeat("0", 16-len(s)) + s
}
