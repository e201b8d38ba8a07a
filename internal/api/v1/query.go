package v1

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
)

// The names of parameters.
const (
	ParamBy      = "by"
	ParamFrom    = "from"
	ParamTo      = "to"
	ParamWhere   = "where"
	ParamOmitOwn = "omit-own"
	ParamLimit   = "limit"
	ParamNode    = "node"
	ParamIdle    = "idle"
	ParamNested  = "nested"
	ParamFields  = "fields"
	ParamSort    = "sort"
	ParamNodes   = "nodes"
	ParamTop     = "top"
	ParamCursor  = "cursor"
	ParamFormat  = "format"
	ParamState   = "state"
	ParamCluster = "cluster"
	ParamRun     = "run"
	ParamFailed  = "failed"
	ParamEvery   = "every"
)

// noPolicy is the name of the idle policy that does not divide idle energy.
var noPolicy = power.None.String()

// Limits of a query: the number of its dimensions and of its filters.
const (
	maxBy    = 8
	maxWhere = 1000
)

// day is the length of the default range of a query.
const day = 24 * time.Hour

// CheckParameters returns an error if a parameter is not among those allowed. Ignoring a
// mistyped parameter would answer a different query without a warning.
func CheckParameters(given map[string][]string, allowed ...string) error {
	for _, p := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(allowed, p) {
			hint := "this request has no parameters"
			if len(allowed) > 0 {
				hint = "parameters: " + strings.Join(allowed, ", ")
			}
			return invalid(hint, "parameter %q is not known", p)
		}
	}
	return nil
}

// ParseQuery reads a query of usage from URL parameters. The caller sets the scope. The
// default range is the last 24 hours, the default dimension is job.
func ParseQuery(given map[string][]string, now time.Time) (query.Query, error) {
	if err := CheckParameters(given, ParamBy, ParamFrom, ParamTo, ParamWhere, ParamOmitOwn, ParamLimit, ParamIdle, ParamNested, ParamFields, ParamSort, ParamEvery, ParamFormat); err != nil {
		return query.Query{}, err
	}
	q, err := ParseFilter(given, now)
	if err != nil {
		return query.Query{}, err
	}
	if q.By, err = ParseBy(given[ParamBy]); err != nil {
		return query.Query{}, err
	}
	if q.OmitOwn, err = ParseOmitOwn(given); err != nil {
		return query.Query{}, err
	}
	if q.Idle, err = ParseIdle(given); err != nil {
		return q, err
	}
	q.Nested, err = ParseNested(given)
	return q, err
}

// ParseOmitOwn reads whether to leave out the use of mete itself.
func ParseOmitOwn(given map[string][]string) (bool, error) {
	switch s, err := singleValue(given, ParamOmitOwn, "0"); {
	case err != nil:
		return false, err
	case s == "1" || s == "true":
		return true, nil
	case s != "0" && s != "false":
		return false, invalid("1 leaves out the use of mete itself, 0 does not", "parameter %s=%q", ParamOmitOwn, s)
	}
	return false, nil
}

// NestedModes returns the values of the parameter nested, other than none.
func NestedModes() []string { return []string{query.NestedOnly, query.NestedAlso} }

// ParseNested reads the treatment of nodes that are guests: "" leaves them out.
func ParseNested(given map[string][]string) (string, error) {
	s, err := singleValue(given, ParamNested, noPolicy)
	switch {
	case err != nil || s == noPolicy:
		return "", err
	case !slices.Contains(NestedModes(), s):
		return "", invalid("only returns guest machines alone, also returns them beside all other machines, none leaves them out", "parameter %s=%q", ParamNested, s)
	}
	return s, nil
}

// IdlePolicies returns the names of the policies that divide idle energy.
func IdlePolicies() []string {
	return []string{noPolicy, power.Equal.String(), power.Used.String()}
}

// ParseIdle reads the policy that divides idle energy: "" does not divide it.
func ParseIdle(given map[string][]string) (string, error) {
	s, err := singleValue(given, ParamIdle, noPolicy)
	switch {
	case err != nil || s == noPolicy:
		return "", err
	case s == power.Reserved.String():
		return "", invalid("idle energy is not divided by reservations; use used or equal", "parameter %s=%q", ParamIdle, s)
	case !slices.Contains(IdlePolicies(), s):
		return "", invalid("it is one of "+strings.Join(IdlePolicies(), ", "), "parameter %s=%q", ParamIdle, s)
	}
	return s, nil
}

// ParseFilter reads range, filters and limit of a query, and no other parameters.
func ParseFilter(given map[string][]string, now time.Time) (q query.Query, err error) {
	if q.From, q.To, err = ParseRange(given, now); err != nil {
		return q, err
	}
	if q.Where, err = ParseWhere(given[ParamWhere]); err != nil {
		return q, err
	}
	q.Limit, err = ParseLimit(given)
	return q, err
}

// ParseLimit reads the largest number of elements of an answer: 0 where it is not given.
func ParseLimit(given map[string][]string) (int, error) {
	s, err := singleValue(given, ParamLimit, "")
	if err != nil || given[ParamLimit] == nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > MaxGroups {
		return 0, invalid("from 1 to "+strconv.Itoa(MaxGroups), "parameter %s=%q", ParamLimit, s)
	}
	return n, nil
}

// ParseRange reads the range of a query; the default is the last 24 hours. A time relative to
// now counts from the end of the current minute, because a ledger keeps minutes.
func ParseRange(given map[string][]string, now time.Time) (from, to time.Time, err error) {
	parse := func(name, without string) (time.Time, error) {
		s, err := singleValue(given, name, without)
		if err != nil {
			return time.Time{}, err
		}
		if _, ago := parseAgo(strings.TrimSpace(s)); ago {
			return ParseTime(s, now.Add(time.Minute-1).Truncate(time.Minute))
		}
		return ParseTime(s, now)
	}
	if to, err = parse(ParamTo, "now"); err != nil {
		return from, to, err
	}
	if from = to.Add(-day); from.Before(earliest) {
		from = earliest
	}
	if given[ParamFrom] != nil {
		if from, err = parse(ParamFrom, ""); err != nil {
			return from, to, err
		}
	}
	if !from.Before(to) {
		return from, to, invalid("from must be earlier than to", "range from %s to %s is empty",
			from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	return from, to, nil
}

// singleValue returns the value of a parameter that may be given at most once.
func singleValue(given map[string][]string, name, without string) (string, error) {
	switch v := given[name]; len(v) {
	case 0:
		return without, nil
	case 1:
		return v[0], nil
	}
	return "", invalid("give it once", "parameter %q is given twice", name)
}

// ParseBy reads dimensions: each value may name several, with commas. The default is job.
func ParseBy(values []string) (by []query.Dimension, err error) {
	for _, v := range values {
		for s := range strings.SplitSeq(v, ",") {
			d, err := parseDimension(s)
			if err != nil {
				return nil, err
			}
			if slices.Contains(by, d) {
				return nil, invalid("name each dimension once", "dimension %q is named twice", s)
			}
			by = append(by, d)
		}
	}
	if len(by) > maxBy {
		return nil, invalid("at most "+strconv.Itoa(maxBy), "%d dimensions", len(by))
	}
	if by == nil {
		by = []query.Dimension{query.ByJob}
	}
	return by, nil
}

// ParseWhere reads filters of the form DIMENSION=VALUE. Several values of one dimension
// are alternatives; an empty value selects workloads without a value.
func ParseWhere(values []string) (map[query.Dimension][]string, error) {
	if len(values) > maxWhere {
		return nil, invalid("at most "+strconv.Itoa(maxWhere), "%d filters", len(values))
	}
	var where map[query.Dimension][]string
	for _, s := range values {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, invalid("write it as job=NAME or label:KEY=VALUE", "filter %q has no =", s)
		}
		d, err := parseDimension(name)
		if err != nil {
			return nil, err
		}
		if where == nil {
			where = map[query.Dimension][]string{}
		}
		if !slices.Contains(where[d], value) {
			where[d] = append(where[d], value)
		}
	}
	return where, nil
}

// FormatQuery writes a query as [ParseQuery] reads it.
func FormatQuery(q query.Query) map[string][]string {
	p := map[string][]string{ParamFrom: {formatTime(q.From)}, ParamTo: {formatTime(q.To)}}
	var by []string
	for _, d := range q.By {
		by = append(by, string(d))
	}
	if by != nil {
		p[ParamBy] = []string{strings.Join(by, ",")}
	}
	for _, d := range slices.Sorted(maps.Keys(q.Where)) {
		for _, v := range q.Where[d] {
			p[ParamWhere] = append(p[ParamWhere], string(d)+"="+v)
		}
	}
	if q.OmitOwn {
		p[ParamOmitOwn] = []string{"1"}
	}
	if q.Idle != "" && q.Idle != noPolicy {
		p[ParamIdle] = []string{q.Idle}
	}
	if q.Nested != "" {
		p[ParamNested] = []string{q.Nested}
	}
	if q.Limit > 0 {
		p[ParamLimit] = []string{strconv.Itoa(q.Limit)}
	}
	return p
}

// formatTime writes an instant as JSON has it, "" for none.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// ParseString reads a parameter that may be given once, "" where it is not given.
func ParseString(given map[string][]string, name string) (string, error) {
	return singleValue(given, name, "")
}

// ParseEnum reads a parameter that is one of words, "" where it is not given.
func ParseEnum(given map[string][]string, name string, words []string) (string, error) {
	s, err := singleValue(given, name, "")
	if err == nil && given[name] != nil && !slices.Contains(words, s) {
		err = invalid("it is one of "+strings.Join(words, ", "), "parameter %s=%q", name, s)
	}
	return s, err
}

// NodeStates returns the words for the states of nodes.
func NodeStates() []string { return []string{"live", "behind", "silent", "revoked"} }

// AlertStates returns the words for the states of alerts.
func AlertStates() []string { return []string{"pending", "firing"} }
