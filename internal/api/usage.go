package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

func (h *handler) usage(ctx context.Context, a asked) (*found, error) {
	fields, err := v1.ParseFields(a.given)
	if err != nil {
		return nil, err
	}
	sort, err := v1.ParseSort(a.given)
	if err != nil {
		return nil, err
	}
	q, err := v1.ParseQuery(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	if fields != nil {
		q.Resources = v1.Resources(append(slices.Clone(fields), sorted(sort)...)...)
	}
	limit := q.Limit
	if q.Limit = 0; limit > 0 { // what is above it is told as a sum
		q.Top = v1.Top(q.By, sort, limit)
	}
	got, err := h.used(ctx, a, q, limit == 0)
	if err != nil {
		return nil, err
	}
	if sort != "" {
		v1.Sort(got, sort)
	}
	if limit > 0 {
		v1.Limit(got, limit)
	}
	return &found{json: func() []byte { return v1.JSONOf(got, fields) }, csv: func() []byte { return v1.CSVOf(got, fields) }}, nil
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
		q.Limit = v1.MaxGroups + 1
	}
	got, err := h.ledger.Usage(ctx, q)
	if err != nil {
		return nil, err
	}
	if bounded && max(len(got.Groups), len(got.NestedGroups)) > v1.MaxGroups {
		return nil, fault.WithHint(fmt.Errorf("more than %d groups by %s: %w", v1.MaxGroups, names(q.By), fault.ErrInvalid),
			"ask for the largest with limit, group by less, or narrow the question with from, to and where")
	}
	if got.Over > 0 {
		return got, nil
	}
	nodes, err := h.ledger.Nodes(ctx, a.scope)
	if err != nil {
		return nil, err
	}
	v1.Narrow(got, nodes)
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
	fields, err := v1.ParseFields(a.given)
	if err != nil {
		return nil, err
	}
	q, err := v1.ParseFilter(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	q.By, q.Limit, q.Resources = v1.JobsBy, 0, v1.Resources(fields...)
	got, err := h.used(ctx, a, q, a.part.Whole())
	if err != nil {
		return nil, err
	}
	v1.Jobs(got)
	page, next := v1.Of(a.part, got.Groups, v1.JobKey)
	got.Groups, got.NestedGroups, got.RestGroups = page, nil, 0
	return &found{
		json: func() []byte { return v1.Paged(v1.JobsJSON(got, fields), next) },
		csv:  func() []byte { return v1.CSVOf(got, fields) }, next: next,
	}, nil
}

func (h *handler) energy(ctx context.Context, a asked) (*found, error) {
	q, err := v1.ParseFilter(a.given, h.now().UTC())
	if err != nil {
		return nil, err
	}
	q.By, q.Limit = v1.EnergyBy, 0
	q.Resources = usage.SetOf(usage.Energies[:]...) | usage.SetOf(usage.EnergyError)
	got, err := h.used(ctx, a, q, false)
	if err != nil {
		return nil, err
	}
	e := v1.EnergyOf(got)
	keys := e.Keys()
	all := make([]int, len(keys))
	for i := range all {
		all[i] = i
	}
	show, next := v1.Of(a.part, all, func(i *int) string { return keys[*i] })
	return &found{json: func() []byte { return e.JSON(show, next) }, csv: func() []byte { return e.CSV(show) }, next: next}, nil
}
