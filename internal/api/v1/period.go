package v1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
)

// MaxPeriods is the largest number of periods in one answer.
const MaxPeriods = 1000

// periods are the words for periods.
var periods = []struct {
	word   string
	length query.Period
}{{"1h", query.Hourly}, {"1d", query.Daily}}

// Periods returns the words for periods.
func Periods() (words []string) {
	for _, p := range periods {
		words = append(words, p.word)
	}
	return words
}

// ParsePeriod reads the period of usage over time: 0 where it is not given.
func ParsePeriod(given map[string][]string) (query.Period, error) {
	s, err := singleValue(given, ParamEvery, "")
	if err != nil || given[ParamEvery] == nil {
		return 0, err
	}
	for _, p := range periods {
		if p.word == s {
			return p.length, nil
		}
	}
	return 0, invalid("it is 1h for UTC hours, or 1d for UTC days, which is what a ledger keeps", "parameter %s=%q", ParamEvery, s)
}

// FormatPeriod writes a period as [ParsePeriod] reads it.
func FormatPeriod(every query.Period) string {
	for _, p := range periods {
		if p.length == every {
			return p.word
		}
	}
	return ""
}

// CheckPeriods refuses a range of too many periods.
func CheckPeriods(from, to time.Time, every query.Period) error {
	if every > 0 && to.Sub(from) > MaxPeriods*time.Duration(every) {
		return invalid("at most "+strconv.Itoa(MaxPeriods)+": choose a shorter range"+map[bool]string{true: ", or 1d"}[every == query.Hourly],
			"%d periods of %s", int64(to.Sub(from)/time.Duration(every)), FormatPeriod(every))
	}
	return nil
}

// KeepGroups keeps the groups of a period that its whole range has after [LimitGroups], in their order;
// the others become its Other, or the groups idle and system of the nodes that the range does not show.
func KeepGroups(a, whole *query.Answer) {
	order := make(map[string]int, len(whole.Groups))
	for i := range whole.Groups {
		order[strings.Join(whole.Groups[i].Keys, "\x00")] = i
	}
	place := func(g *query.Group) (int, bool) {
		i, ok := order[strings.Join(g.Keys, "\x00")]
		return i, ok
	}
	var away []query.Group
	a.Groups = slices.DeleteFunc(a.Groups, func(g query.Group) bool {
		switch _, kept := place(&g); {
		case kept:
			return false
		case ResidualKind(a.By, g.Keys) != "":
			away = append(away, g)
		default:
			a.Other.Add(&g.Usage)
			a.OtherGroups++
		}
		return true
	})
	a.Groups = append(a.Groups, mergeMachines(a.By, away)...)
	slices.SortStableFunc(a.Groups, func(x, y query.Group) int {
		i, _ := place(&x)
		k, _ := place(&y)
		return i - k
	})
	nested := map[string]bool{}
	for i := range whole.NestedGroups {
		nested[strings.Join(whole.NestedGroups[i].Keys, "\x00")] = true
	}
	before := len(a.NestedGroups)
	a.NestedGroups = slices.DeleteFunc(a.NestedGroups, func(g query.Group) bool { return !nested[strings.Join(g.Keys, "\x00")] })
	a.NestedOmitted = before - len(a.NestedGroups)
}

// A UsageQuery is a query of usage with what its answer shows.
type UsageQuery struct {
	query.Query
	Fields []string // keys of figures; nil is all
	Sort   string   // key of a figure; "" is CPU time
	Every  query.Period
}

// FormatUsageQuery writes a query as the server reads it.
func FormatUsageQuery(q UsageQuery) map[string][]string {
	p := FormatQuery(q.Query)
	if q.Fields != nil {
		p[ParamFields] = []string{strings.Join(q.Fields, ",")}
	}
	if q.Sort != "" {
		p[ParamSort] = []string{q.Sort}
	}
	if q.Every > 0 {
		p[ParamEvery] = []string{FormatPeriod(q.Every)}
	}
	return p
}

// PutResidualsLast moves the groups of an answer that no job caused to the end, system before idle, as
// tables show them.
func (u *Usage) PutResidualsLast() {
	rank := map[string]int{"system": 1, "idle": 2}
	slices.SortStableFunc(u.Groups, func(a, b Group) int { return rank[ResidualKind(u.By, a.Keys)] - rank[ResidualKind(u.By, b.Keys)] })
	for i := range u.Periods {
		u.Periods[i].PutResidualsLast()
	}
}

// PeriodsOf adds the periods of an answer to it.
func (u *Usage) PeriodsOf(every query.Period, list []query.Answer, keys []string) {
	u.Every, u.Periods = FormatPeriod(every), make([]Usage, 0, len(list))
	for i := range list {
		u.Periods = append(u.Periods, *UsageOf(&list[i], keys))
	}
}

// Name writes the start of a period: the day, or the hour, in UTC.
func (u *Usage) Name(every string) string {
	if every == "1d" {
		return u.From.UTC().Format(time.DateOnly)
	}
	return fmt.Sprint(u.From.UTC().Format("2006-01-02 15:04"), "Z")
}

// only removes all figures but these, where f is not nil.
func (f *Figures) only(figures []figure) {
	if f == nil {
		return
	}
	amounts := make([]Amount, len(figures))
	for i := range figures {
		amounts[i] = f.Get(figures[i].key)
	}
	f.figures, f.amounts = figures, amounts
}

// Only removes all figures but those of these keys; nil keeps all.
func (u *Usage) Only(keys []string) {
	if keys == nil {
		return
	}
	u.figures = figuresOf(keys)
	for _, groups := range [][]Group{u.Groups, u.NestedGroups} {
		for i := range groups {
			groups[i].only(u.figures)
		}
	}
	u.Rest.only(u.figures)
	u.Total.only(u.figures)
	u.Whole.only(u.figures)
	for i := range u.Periods {
		u.Periods[i].Only(keys)
	}
}
