package api

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
)

// The types of parameters say what is valid. Their values are texts, which the groups
// below parse.
type (
	instant      string
	dimension    string
	figure       string
	policy       string
	nesting      string
	format       string
	nodeState    string
	alertState   string
	silenceState string
	period       string
	runID        string
	integer      string
	flag         string
)

func (instant) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{"2026-03-01T12:00:00Z", "-24h", "now"},
		Description: "an instant of RFC 3339, a day, seconds since 1970, now, today, yesterday, or how long ago: 90m, 24h or 7d, also as -24h or now-24h"}
}

func (dimension) Schema(huma.Registry) *huma.Schema {
	var all []string
	for _, d := range v1.Dimensions() {
		if !strings.HasPrefix(d, string(query.ByLabel)) {
			all = append(all, d)
		}
	}
	return &huma.Schema{Type: huma.TypeString, Pattern: "^(" + strings.Join(all, "|") + "|" + string(query.ByLabel) + ".+)(,.+)*$", Examples: []any{"job"}}
}

func (figure) Schema(huma.Registry) *huma.Schema {
	var all []any
	for _, f := range v1.ListFigures() {
		all = append(all, f.Key)
	}
	return &huma.Schema{Type: huma.TypeString, Enum: all}
}

func (policy) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(v1.IdlePolicies())}
}

func (nesting) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(append([]string{"none"}, v1.NestedModes()...))}
}

func (format) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words([]string{v1.FormatJSON, v1.FormatCSV})}
}

func (nodeState) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(v1.NodeStates())}
}

func (alertState) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(v1.AlertStates())}
}

func (silenceState) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(v1.SilenceStates())}
}

func (period) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(v1.Periods())}
}

func (runID) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: "^[a-z2-7]{1,26}$", Examples: []any{"k7fq2"}}
}

func (integer) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger} }

func (flag) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words([]string{"0", "1"})}
}

// pageLimit is a number from 1 to the largest number of elements.
type pageLimit string

func (pageLimit) Schema(huma.Registry) *huma.Schema {
	least, most := 1.0, float64(v1.MaxGroups)
	return &huma.Schema{Type: huma.TypeInteger, Minimum: &least, Maximum: &most, Description: "largest number of elements: from 1 to " + strconv.Itoa(v1.MaxGroups)}
}

// A checked keeps the first mistake in a group of parameters. Resolve does not return it,
// since huma would write it in its own form.
type checked struct{ err error }

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// The groups of parameters. The fields with tags describe the parameters of a group; huma
// calls Resolve, which parses them into the other fields.
type (
	// A Caller is the client of a request, with the time of the request.
	Caller struct {
		scope query.Scope
		self  SelfCaller // the calling job or pod, if the path is for these
		now   time.Time  // in UTC
	}
	Conditional struct {
		IfNoneMatch string `header:"If-None-Match" doc:"an ETag: if the answer still has it, the status is 304, without a body"`
	}
	Range struct {
		From       instant `query:"from" doc:"start of the range, inclusive (default: 24 hours before its end)"`
		To         instant `query:"to" doc:"end of the range, exclusive (default: now)"`
		start, end time.Time
		checked
	}
	Where struct {
		Where   []string `query:"where,explode" nullable:"false" doc:"DIMENSION=VALUE: only workloads with this value. Several values of one dimension are alternatives; an empty value selects workloads without one" example:"[\"job=build\"]"`
		filters map[query.Dimension][]string
		checked
	}
	Paged struct {
		Limit  pageLimit `query:"limit" doc:"largest number of elements on a page (default: all)"`
		Cursor string    `query:"cursor" doc:"next_cursor of the previous page"`
		page   v1.PageRequest
		limit  int
		checked
	}
	Form struct {
		Format format `query:"format" doc:"format of the answer; Accept: text/csv selects CSV too"`
		csv    bool
		checked
	}
	ClusterFilter struct {
		Cluster string `query:"cluster" doc:"only elements of this cluster"`
		cluster *string
		checked
	}
	StateFilter struct {
		State nodeState `query:"state" doc:"only elements in this state"`
		state string
		checked
	}
	AlertFilter struct {
		State alertState `query:"state" doc:"only elements in this state"`
		state string
		checked
	}
	SilenceFilter struct {
		State silenceState `query:"state" doc:"only elements in this state"`
		state string
		checked
	}
	NodeFilter struct {
		Node string `query:"node" doc:"only elements of the node with this id or name"`
		node string
		checked
	}
	RunFilter struct {
		Failed flag  `query:"failed" doc:"1 selects runs whose exit code is known and not 0"`
		Run    runID `query:"run" doc:"only runs whose id begins with this"`
		failed bool
		run    string
		checked
	}
	Grouping struct {
		By []dimension `query:"by" nullable:"false" doc:"the dimensions of the groups, at most 8 (default: job). label:KEY is the label KEY"`
		by []query.Dimension
		checked
	}
	Own struct {
		OmitOwn flag `query:"omit-own" doc:"1 leaves out the use of mete itself"`
		omitOwn bool
		checked
	}
	Largest struct {
		Limit pageLimit `query:"limit" doc:"only the largest groups; the others are summed up as rest. The groups idle and system do not count: by node or cluster, those of the nodes shown stay, and those of all others are one group each, whose node has no name"`
		limit int
		checked
	}
	Edges struct {
		Limit pageLimit `query:"limit" doc:"only the largest edges; the others are in the rest (default: 10000)"`
		limit int
		checked
	}
	Division struct {
		Idle   policy  `query:"idle" doc:"policy by which the energy of idle machines is divided among their workloads"`
		Nested nesting `query:"nested" doc:"treatment of nodes that are guests of others, whose figures include theirs: none leaves them out"`
		idle   string
		nested string
		checked
	}
	Fields struct {
		Fields []figure `query:"fields" nullable:"false" doc:"only these figures"`
		keys   []string
		checked
	}
	Order struct {
		Sort figure `query:"sort" doc:"the figure by which groups are sorted, in descending order (default: CPU time)"`
		sort string
		checked
	}
	Periods struct {
		Every period `query:"every" doc:"also the same groups in each UTC hour or day of the range, at most 1000 of them, and at most 10000 groups in all: limit selects the largest of the range"`
		every query.Period
		checked
	}
	Detail struct {
		Nodes flag    `query:"nodes" doc:"1 includes each node"`
		Top   integer `query:"top" minimum:"0" maximum:"100" doc:"number of the busiest workloads to include"`
		nodes bool
		top   int
		checked
	}
)

// Resolve implements [huma.Resolver].
func (g *Caller) Resolve(c huma.Context) []error {
	*g = callOf(c).Caller
	return nil
}

func (g *Caller) caller() *Caller { return g }

// Resolve implements [huma.Resolver].
func (g *Range) Resolve(c huma.Context) []error {
	call := callOf(c)
	g.start, g.end, g.err = v1.ParseRange(call.given, call.now)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Where) Resolve(c huma.Context) []error {
	g.filters, g.err = v1.ParseWhere(callOf(c).given[v1.ParamWhere])
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Paged) Resolve(c huma.Context) []error {
	given := callOf(c).given
	if g.limit, g.err = v1.ParseLimit(given); g.err == nil {
		g.page, g.err = v1.ParsePageRequest(given)
	}
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Form) Resolve(c huma.Context) []error {
	form, err := v1.ParseFormat(callOf(c).given)
	g.csv, g.err = form == v1.FormatCSV || form == "" && wantsCSV(c.Header("Accept")), err
	return nil
}

func (g *Form) wantsCSV() bool { return g.csv }

// Resolve implements [huma.Resolver].
func (g *ClusterFilter) Resolve(c huma.Context) []error {
	given := callOf(c).given
	cluster, err := v1.ParseString(given, v1.ParamCluster)
	if g.err = err; given[v1.ParamCluster] != nil {
		g.cluster = &cluster
	}
	return nil
}

// inCluster reports whether what is of a cluster passes.
func (g *ClusterFilter) inCluster(cluster string) bool {
	return g.cluster == nil || *g.cluster == cluster
}

// within returns the part of a scope that passes.
func (g *ClusterFilter) within(s query.Scope) query.Scope {
	switch {
	case g.cluster == nil:
		return s
	case s.All || slices.Contains(s.Clusters, *g.cluster):
		return query.Scope{Clusters: []string{*g.cluster}, Projects: s.Projects}
	}
	return query.Scope{}
}

// Resolve implements [huma.Resolver].
func (g *StateFilter) Resolve(c huma.Context) []error {
	g.state, g.err = v1.ParseEnum(callOf(c).given, v1.ParamState, v1.NodeStates())
	return nil
}

// inState reports whether what is in a state passes.
func (g *StateFilter) inState(state string) bool { return g.state == "" || g.state == state }

// Resolve implements [huma.Resolver].
func (g *AlertFilter) Resolve(c huma.Context) []error {
	g.state, g.err = v1.ParseEnum(callOf(c).given, v1.ParamState, v1.AlertStates())
	return nil
}

// inState reports whether what is in a state passes.
func (g *AlertFilter) inState(state string) bool { return g.state == "" || g.state == state }

// Resolve implements [huma.Resolver].
func (g *SilenceFilter) Resolve(c huma.Context) []error {
	g.state, g.err = v1.ParseEnum(callOf(c).given, v1.ParamState, v1.SilenceStates())
	return nil
}

// inState reports whether what is in a state passes.
func (g *SilenceFilter) inState(state string) bool { return g.state == "" || g.state == state }

// Resolve implements [huma.Resolver].
func (g *NodeFilter) Resolve(c huma.Context) []error {
	g.node, g.err = v1.ParseString(callOf(c).given, v1.ParamNode)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *RunFilter) Resolve(c huma.Context) []error {
	given := callOf(c).given
	if g.failed, g.err = v1.ParseFlag(given, v1.ParamFailed); g.err == nil {
		g.run, g.err = v1.ParseRunID(given)
	}
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Grouping) Resolve(c huma.Context) []error {
	g.by, g.err = v1.ParseBy(callOf(c).given[v1.ParamBy])
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Own) Resolve(c huma.Context) []error {
	g.omitOwn, g.err = v1.ParseOmitOwn(callOf(c).given)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Largest) Resolve(c huma.Context) []error {
	g.limit, g.err = v1.ParseLimit(callOf(c).given)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Edges) Resolve(c huma.Context) []error {
	g.limit, g.err = v1.ParseLimit(callOf(c).given)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Division) Resolve(c huma.Context) []error {
	given := callOf(c).given
	if g.idle, g.err = v1.ParseIdle(given); g.err == nil {
		g.nested, g.err = v1.ParseNested(given)
	}
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Fields) Resolve(c huma.Context) []error {
	g.keys, g.err = v1.ParseFields(callOf(c).given)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Order) Resolve(c huma.Context) []error {
	g.sort, g.err = v1.ParseSort(callOf(c).given)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Periods) Resolve(c huma.Context) []error {
	g.every, g.err = v1.ParsePeriod(callOf(c).given)
	return nil
}

// Resolve implements [huma.Resolver].
func (g *Detail) Resolve(c huma.Context) []error {
	given := callOf(c).given
	nodes, err := v1.ParseNumber(given, v1.ParamNodes, 1)
	if g.nodes, g.err = nodes > 0, err; err == nil {
		g.top, g.err = v1.ParseNumber(given, v1.ParamTop, maxTop)
	}
	return nil
}
