package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/tally"
)

func (h *handler) usage(ctx context.Context, a asked) (*found, error) {
	fields, err := tally.ParseFields(a.given)
	if err != nil {
		return nil, err
	}
	sort, err := tally.ParseSort(a.given)
	if err != nil {
		return nil, err
	}
	q, err := tally.ParseQuery(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	if fields != nil {
		q.Resources = tally.Resources(append(slices.Clone(fields), sorted(sort)...)...)
	}
	limit := q.Limit
	if q.Limit = 0; limit > 0 { // what is above it is told as a sum
		q.Top = tally.Top(q.By, sort, limit)
	}
	got, err := h.used(ctx, a, q, limit == 0)
	if err != nil {
		return nil, err
	}
	if sort != "" {
		tally.Sort(got, sort)
	}
	if limit > 0 {
		tally.Limit(got, limit)
	}
	return &found{json: func() []byte { return tally.JSONOf(got, fields) }, csv: func() []byte { return tally.CSVOf(got, fields) }}, nil
}

// sorted is a figure to sort by, if any.
func sorted(by string) []string {
	if by == "" {
		return nil
	}
	return []string{by}
}

// used asks the ledger. bounded says that there may be only so many groups as one
// answer can have: one more than the most shows that there are too many.
func (h *handler) used(ctx context.Context, a asked, q query.Query, bounded bool) (*query.Answer, error) {
	if q.Scope = a.scope; bounded {
		q.Limit = tally.MaxGroups + 1
	}
	got, err := h.ledger.Usage(ctx, q)
	if err != nil {
		return nil, err
	}
	if bounded && max(len(got.Groups), len(got.NestedGroups)) > tally.MaxGroups {
		return nil, fault.WithHint(fmt.Errorf("more than %d groups by %s: %w", tally.MaxGroups, names(q.By), fault.ErrInvalid),
			"ask for the largest with limit, group by less, or narrow the question with from, to and where")
	}
	if got.Over > 0 {
		return got, nil
	}
	nodes, err := h.ledger.Nodes(ctx, a.scope)
	if err != nil {
		return nil, err
	}
	tally.Narrow(got, nodes)
	return got, nil
}

func names(by []query.Dimension) string {
	var s []string
	for _, d := range by {
		s = append(s, string(d))
	}
	return strings.Join(s, ",")
}

func (h *handler) jobs(ctx context.Context, a asked) (*found, error) {
	fields, err := tally.ParseFields(a.given)
	if err != nil {
		return nil, err
	}
	q, err := tally.ParseFilter(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	q.By, q.Limit, q.Resources = tally.JobsBy, 0, tally.Resources(fields...)
	got, err := h.used(ctx, a, q, a.part.Whole())
	if err != nil {
		return nil, err
	}
	tally.Jobs(got)
	page, next := tally.Of(a.part, got.Groups, tally.JobKey)
	got.Groups, got.NestedGroups, got.RestGroups = page, nil, 0
	return &found{
		json: func() []byte { return tally.Paged(tally.JobsJSON(got, fields), next) },
		csv:  func() []byte { return tally.CSVOf(got, fields) }, next: next,
	}, nil
}

func (h *handler) energy(ctx context.Context, a asked) (*found, error) {
	q, err := tally.ParseFilter(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	q.By, q.Limit = tally.EnergyBy, 0
	q.Resources = meter.SetOf(meter.Energies[:]...) | meter.SetOf(meter.EnergyError)
	got, err := h.used(ctx, a, q, false)
	if err != nil {
		return nil, err
	}
	e := tally.EnergyOf(got)
	keys := e.Keys()
	all := make([]int, len(keys))
	for i := range all {
		all[i] = i
	}
	show, next := tally.Of(a.part, all, func(i *int) string { return keys[*i] })
	return &found{json: func() []byte { return e.JSON(show, next) }, csv: func() []byte { return e.CSV(show) }, next: next}, nil
}
