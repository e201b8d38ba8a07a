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

func (h *handler) usage(ctx context.Context, a request) (*response, error) {
	fields, err := v1.ParseFields(a.params)
	if err != nil {
		return nil, err
	}
	sort, err := v1.ParseSort(a.params)
	if err != nil {
		return nil, err
	}
	q, err := v1.ParseQuery(a.params, h.now().UTC())
	if err != nil {
		return nil, err
	}
	if fields != nil {
		q.Resources = v1.Resources(append(slices.Clone(fields), sortFields(sort)...)...)
	}
	limit := q.Limit
	if q.Limit = 0; limit > 0 { // what is above it is told as a sum
		q.Top = v1.NewTop(q.By, sort, limit)
	}
	got, err := h.queryUsage(ctx, a, q, limit == 0)
	if err != nil {
		return nil, err
	}
	if sort != "" {
		v1.SortGroups(got, sort)
	}
	if limit > 0 {
		v1.LimitGroups(got, limit)
	}
	return &response{json: func() []byte { return v1.JSONFields(got, fields) }, csv: func() []byte { return v1.CSVFields(got, fields) }}, nil
}

// sortFields is a figure to sort by, if any.
func sortFields(by string) []string {
	if by == "" {
		return nil
	}
	return []string{by}
}

// queryUsage asks the ledger. bounded says that there may be only so many groups as one
// answer can have: one more than the most shows that there are too many.
func (h *handler) queryUsage(ctx context.Context, a request, q query.Query, bounded bool) (*query.Answer, error) {
	if q.Scope = a.scope; bounded {
		q.Limit = v1.MaxGroups + 1
	}
	got, err := h.ledger.Usage(ctx, q)
	if err != nil {
		return nil, err
	}
	if bounded && max(len(got.Groups), len(got.NestedGroups)) > v1.MaxGroups {
		return nil, fault.WithHint(fmt.Errorf("more than %d groups by %s: %w", v1.MaxGroups, dimensionNames(q.By), fault.ErrInvalid),
			"ask for the largest with limit, group by less, or narrow the question with from, to and where")
	}
	if got.AveragedOver > 0 {
		return got, nil
	}
	nodes, err := h.ledger.Nodes(ctx, a.scope)
	if err != nil {
		return nil, err
	}
	v1.SetAveragedOver(got, nodes)
	return got, nil
}

func dimensionNames(by []query.Dimension) string {
	var s []string
	for _, d := range by {
		s = append(s, string(d))
	}
	return strings.Join(s, ",")
}

func (h *handler) jobs(ctx context.Context, a request) (*response, error) {
	fields, err := v1.ParseFields(a.params)
	if err != nil {
		return nil, err
	}
	q, err := v1.ParseFilter(a.params, h.now().UTC())
	if err != nil {
		return nil, err
	}
	q.By, q.Limit, q.Resources = v1.JobsBy, 0, v1.Resources(fields...)
	got, err := h.queryUsage(ctx, a, q, a.page.IsAll())
	if err != nil {
		return nil, err
	}
	v1.KeepJobs(got)
	page, next := v1.Paginate(a.page, got.Groups, v1.JobKey)
	got.Groups, got.NestedGroups, got.OtherGroups = page, nil, 0
	return &response{
		json: func() []byte { return v1.AddNextCursor(v1.JobsJSON(got, fields), next) },
		csv:  func() []byte { return v1.CSVFields(got, fields) }, next: next,
	}, nil
}

func (h *handler) energy(ctx context.Context, a request) (*response, error) {
	q, err := v1.ParseFilter(a.params, h.now().UTC())
	if err != nil {
		return nil, err
	}
	q.By, q.Limit = v1.EnergyBy, 0
	q.Resources = usage.SetOf(usage.Energies[:]...) | usage.SetOf(usage.EnergyError)
	got, err := h.queryUsage(ctx, a, q, false)
	if err != nil {
		return nil, err
	}
	e := v1.NewEnergy(got)
	keys := e.Keys()
	all := make([]int, len(keys))
	for i := range all {
		all[i] = i
	}
	show, next := v1.Paginate(a.page, all, func(i *int) string { return keys[*i] })
	return &response{json: func() []byte { return e.JSON(show, next) }, csv: func() []byte { return e.CSV(show) }, next: next}, nil
}
