package v1

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

// ParseFields reads the keys of the requested figures, with commas or several times; nil
// is all.
func ParseFields(given map[string][]string) (keys []string, err error) {
	for _, v := range given[ParamFields] {
		for s := range strings.SplitSeq(v, ",") {
			if figureOf(s) == nil {
				return nil, unknownFigure(ParamFields, s)
			}
			keys = append(keys, s)
		}
	}
	return keys, nil
}

// ParseSort reads the key of the figure by which groups are sorted: "" is CPU time.
func ParseSort(given map[string][]string) (string, error) {
	s, err := singleValue(given, ParamSort, "")
	if err == nil && s != "" && figureOf(s) == nil {
		return "", unknownFigure(ParamSort, s)
	}
	return s, err
}

// ParseNumber reads a number from 0 to most; the default is 0.
func ParseNumber(given map[string][]string, name string, most int) (int, error) {
	s, err := singleValue(given, name, "0")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > most {
		return 0, invalid("from 0 to "+strconv.Itoa(most), "parameter %s=%q", name, s)
	}
	return n, nil
}

// Resources returns the resources that figures, by their keys, are computed from; 0, which
// is all, without any.
func Resources(keys ...string) (set usage.Set) {
	for _, k := range keys {
		f := figureOf(k)
		switch {
		case f == nil:
			return 0
		case f.kind == resourceAmount || f.kind == levelAverage:
			set |= usage.SetOf(f.res)
		case f.isUnused():
			set |= usage.SetOf(f.res, query.Reservable[f.reservable()].Reserved)
		case f.kind == unclassifiedAmount:
			set |= usage.SetOf(f.res) | f.classes()
		default:
			set |= usage.SetOf(usage.Energies[:]...)
		}
	}
	return set
}

// HasUnused reports whether what was reserved and not used is among figures, by their keys, nil for all, or is what
// groups are sorted by.
func HasUnused(keys []string, sort string) bool {
	return slices.ContainsFunc(figuresOf(keys), figure.isUnused) || sort != "" && figureOf(sort).isUnused()
}

func figureOf(key string) *figure {
	i := slices.IndexFunc(allFigures, func(f figure) bool { return f.key == key })
	if i < 0 {
		return nil
	}
	return &allFigures[i]
}

func unknownFigure(name, key string) error {
	var keys []string
	for i := range allFigures {
		keys = append(keys, allFigures[i].key)
	}
	return invalid("figures are "+strings.Join(keys, ", "), "parameter %s=%q", name, key)
}

// figuresOf returns the figures with these keys; all figures if keys is nil.
func figuresOf(keys []string) []figure {
	if keys == nil {
		return allFigures
	}
	return slices.DeleteFunc(slices.Clone(allFigures), func(f figure) bool { return !slices.Contains(keys, f.key) })
}

// SortGroups sorts groups by a figure, the largest first. Where it is absent they are last.
func SortGroups(a *query.Answer, key string) {
	f := figureOf(key)
	if f == nil {
		return
	}
	type place struct {
		query.Rank
		*query.Group
	}
	// Groups are large: they are moved once.
	places := make([]place, len(a.Groups))
	for i := range a.Groups {
		g := &a.Groups[i]
		places[i] = place{f.rank(g.Keys, &g.Usage, a.AveragedOver), g}
	}
	slices.SortFunc(places, func(x, y place) int { return x.Compare(&y.Rank) })
	sorted := make([]query.Group, len(places))
	for i := range places {
		sorted[i] = *places[i].Group
	}
	a.Groups = sorted
}

// rank is the rank of a group by the figure.
func (f *figure) rank(keys []string, u *query.Total, over time.Duration) query.Rank {
	v, q := f.amount(u, over)
	return query.Rank{Amount: v, Absent: q == usage.Absent, Keys: keys}
}

// NewTop selects the groups that remain after [SortGroups] by a figure, "" is CPU time, and
// [LimitGroups] to n. All others become Other.
func NewTop(by []query.Dimension, key string, n int) *query.Top {
	rank := func(keys []string, u *query.Total, _ time.Duration) query.Rank {
		return query.Rank{Amount: u.Sum[usage.CPU], Keys: keys}
	}
	if f := figureOf(key); f != nil {
		rank = f.rank
	}
	return &query.Top{Limit: n, Rank: rank, AlwaysKept: func(keys []string) bool { return ResidualKind(by, keys) != "" }}
}
