package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

func (h *handler) usage(ctx context.Context, p *usageParams) (*response, error) {
	q := query.Query{From: p.start, To: p.end, By: p.by, Where: p.filters, OmitOwn: p.omitOwn, Idle: p.idle, Nested: p.nested}
	if p.keys != nil {
		q.Resources = v1.Resources(append(slices.Clone(p.keys), sortFields(p.sort)...)...)
	}
	q.Unused = v1.HasUnused(p.keys, p.sort)
	if p.limit > 0 { // the others are a sum
		q.Top = v1.NewTop(q.By, p.sort, p.limit)
	}
	if p.every > 0 {
		return h.usagePeriods(ctx, p, q)
	}
	got, err := h.queryUsage(ctx, p.scope, q, p.limit == 0)
	if err != nil {
		return nil, err
	}
	if p.sort != "" {
		v1.SortGroups(got, p.sort)
	}
	if p.limit > 0 {
		v1.LimitGroups(got, p.limit)
	}
	return &response{body: v1.UsageOf(got, p.keys)}, nil
}

// usagePeriods is usage by hours or days. The whole range says which groups the periods have.
func (h *handler) usagePeriods(ctx context.Context, p *usageParams, q query.Query) (*response, error) {
	nodes, err := h.ledger.Nodes(ctx, p.scope)
	if err != nil {
		return nil, err
	}
	if q.Scope = p.scope; p.limit == 0 {
		q.Limit = v1.MaxGroups + 1
	}
	var whole *query.Answer
	var list []query.Answer
	rows := 0
	err = h.ledger.EachPeriod(ctx, q, p.every, func(a *query.Answer) error {
		v1.SetAveragedOver(a, nodes)
		if whole != nil {
			v1.KeepGroups(a, whole)
			list = append(list, *a)
		} else {
			whole = a
			if p.sort != "" {
				v1.SortGroups(a, p.sort)
			}
			if p.limit > 0 {
				v1.LimitGroups(a, p.limit)
			}
		}
		if rows += max(len(a.Groups), len(a.NestedGroups)); rows > v1.MaxGroups {
			return fault.WithHint(fmt.Errorf("more than %d groups by %s in all periods and the range: %w", v1.MaxGroups, dimensionNames(q.By), fault.ErrInvalid),
				"set limit to get only the largest groups, use fewer dimensions, or narrow the query with from, to and where")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	u := v1.UsageOf(whole, p.keys)
	u.PeriodsOf(p.every, list, p.keys)
	return &response{body: u}, nil
}

// sortFields returns the figure to sort by, if there is one.
func sortFields(by string) []string {
	if by == "" {
		return nil
	}
	return []string{by}
}

// queryUsage queries the ledger. bounded refuses more groups than one answer may have.
func (h *handler) queryUsage(ctx context.Context, scope query.Scope, q query.Query, bounded bool) (*query.Answer, error) {
	if q.Scope = scope; bounded {
		q.Limit = v1.MaxGroups + 1
	}
	got, err := h.ledger.Usage(ctx, q)
	if err != nil {
		return nil, err
	}
	if bounded && max(len(got.Groups), len(got.NestedGroups)) > v1.MaxGroups {
		return nil, fault.WithHint(fmt.Errorf("more than %d groups by %s: %w", v1.MaxGroups, dimensionNames(q.By), fault.ErrInvalid),
			"set limit to get only the largest groups, use fewer dimensions, or narrow the query with from, to and where")
	}
	if got.AveragedOver > 0 {
		return got, nil
	}
	nodes, err := h.ledger.Nodes(ctx, scope)
	if err != nil {
		return nil, err
	}
	v1.SetAveragedOver(got, nodes)
	return got, nil
}

func (h *handler) connections(ctx context.Context, p *connectionsParams) (*response, error) {
	got, err := h.ledger.Connections(ctx, query.Query{From: p.start, To: p.end, By: p.by, Where: p.filters, Scope: p.scope, Limit: cmp.Or(p.limit, v1.MaxGroups)})
	if err != nil {
		return nil, err
	}
	return &response{body: v1.ConnectionsOf(got)}, nil
}

func dimensionNames(by []query.Dimension) string {
	var s []string
	for _, d := range by {
		s = append(s, string(d))
	}
	return strings.Join(s, ",")
}

func (h *handler) jobs(ctx context.Context, p *jobsParams) (*response, error) {
	q := query.Query{From: p.start, To: p.end, By: v1.JobsBy(), Where: p.filters, Resources: v1.Resources(p.keys...), Unused: v1.HasUnused(p.keys, "")}
	got, err := h.queryUsage(ctx, p.scope, q, p.page.IsAll())
	if err != nil {
		return nil, err
	}
	v1.KeepJobs(got)
	page, next := v1.Paginate(p.page, got.Groups, v1.JobKey)
	got.Groups, got.NestedGroups, got.OtherGroups = page, nil, 0
	return &response{v1.JobsOf(v1.UsageOf(got, p.keys), next), next}, nil
}

func (h *handler) energy(ctx context.Context, p *useParams) (*response, error) {
	q := query.Query{From: p.start, To: p.end, By: v1.EnergyBy(), Where: p.filters, Resources: usage.SetOf(usage.Energies[:]...) | usage.SetOf(usage.EnergyError)}
	got, err := h.queryUsage(ctx, p.scope, q, false)
	if err != nil {
		return nil, err
	}
	e := v1.EnergyOf(got)
	e.Nodes, e.Next = v1.Paginate(p.page, e.Nodes, (*v1.NodeEnergy).Key)
	return &response{e, e.Next}, nil
}
