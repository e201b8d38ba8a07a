package api

import (
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
)

// The types of parameters. Package v1 reads them, as texts: here they say
// what is right.
type (
	instant    string
	dimension  string
	figure     string
	policy     string
	nesting    string
	format     string
	nodeState  string
	alertState string
	integer    string
	flag       string
)

func (instant) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{"2026-03-01T12:00:00Z", "-24h", "now"},
		Description: "an instant of RFC 3339, a day, seconds since 1970, now, today, yesterday, or how long ago: -90m, -24h, -7d"}
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
	for _, f := range v1.Figures() {
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

func (integer) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger} }

func (flag) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words([]string{"0", "1"})}
}

// pageLimit is a number from 1 to the most that an answer may have.
type pageLimit string

func (pageLimit) Schema(huma.Registry) *huma.Schema {
	least, most := 1.0, float64(v1.MaxGroups)
	return &huma.Schema{Type: huma.TypeInteger, Minimum: &least, Maximum: &most, Description: "at most so many: from 1 to " + strconv.Itoa(v1.MaxGroups)}
}

// The groups of parameters that several questions have.
type (
	Conditional struct {
		IfNoneMatch string `header:"If-None-Match" doc:"an ETag: where the answer still has it, it is 304 without a body"`
	}
	Range struct {
		From instant `query:"from" doc:"start of the range, which is included; 24 hours before its end where it is not given"`
		To   instant `query:"to" doc:"end of the range, which is not included; now where it is not given"`
	}
	Where struct {
		Where []string `query:"where,explode" nullable:"false" doc:"DIMENSION=VALUE: only what has this value. Several of one dimension are alternatives; nothing after the sign is what has none" example:"[\"job=build\"]"`
	}
	Paged struct {
		Limit  pageLimit `query:"limit" doc:"at most so many on a page; all where it is not given"`
		Cursor string    `query:"cursor" doc:"next_cursor of the page before"`
	}
	Form struct {
		Format format `query:"format" doc:"the form of the answer; Accept: text/csv asks for CSV too"`
	}
	ClusterFilter struct {
		Cluster string `query:"cluster" doc:"only what is of this cluster"`
	}
	StateFilter struct {
		State nodeState `query:"state" doc:"only what is in this state"`
	}
	NodeFilter struct {
		Node string `query:"node" doc:"only of the node with this id or name"`
	}
	Fields struct {
		Fields []figure `query:"fields" nullable:"false" doc:"these figures alone"`
	}
)

// The questions' parameters.
type (
	usageParams struct {
		By []dimension `query:"by" nullable:"false" doc:"the dimensions of the groups, at most 8: job where it is not given. label:KEY is the label KEY"`
		Range
		Where
		OmitOwn flag      `query:"omit-own" doc:"1 leaves out what mete itself used"`
		Limit   pageLimit `query:"limit" doc:"only so many groups, those with the most; what the others used is told as one sum. What is idle and what the system used come in addition: by node or cluster those of the machines shown, and one each, whose machine has no name, of all others"`
		Idle    policy    `query:"idle" doc:"by what the energy of idle machines is divided among the workloads on them"`
		Nested  nesting   `query:"nested" doc:"what becomes of nodes that are guests of others, whose figures theirs are within: none leaves them out"`
		Fields
		Sort figure `query:"sort" doc:"the figure of which the groups have the less the later they come; CPU time where it is not given"`
		Form
		Conditional
	}
	jobsParams struct {
		Range
		Where
		Fields
		Paged
		Form
		Conditional
	}
	energyParams struct {
		Range
		Where
		Paged
		Form
		Conditional
	}
	rangeParams struct {
		Range
		Conditional
	}
	ratesParams   struct{ Conditional }
	summaryParams struct {
		NodeFilter
		Nodes flag    `query:"nodes" doc:"1 tells of each node too"`
		Top   integer `query:"top" minimum:"0" maximum:"100" doc:"tells of so many of the busiest workloads too"`
		Conditional
	}
	nodesParams struct {
		ClusterFilter
		StateFilter
		Paged
		Form
		Conditional
	}
	listParams struct {
		Paged
		Form
		Conditional
	}
	workloadsParams struct {
		Range
		Where
		Paged
		Form
		Conditional
	}
	streamsParams struct {
		ClusterFilter
		NodeFilter
		Paged
		Form
		Conditional
	}
	gapsParams struct {
		Range
		NodeFilter
		Paged
		Form
		Conditional
	}
	vmsParams struct {
		Range
		Paged
		Form
		Conditional
	}
	alertsParams struct {
		ClusterFilter
		State alertState `query:"state" doc:"only what is in this state"`
		Paged
		Form
		Conditional
	}
)

func (d *description) registerUsage() {
	register[usageParams](d, endpoint{path: "/v1/usage", id: "usage", tag: "use", schema: "usage", csv: true, summary: "What was used, in groups",
		text: "Sums over a range, which are cut to whole minutes outward. The groups, with the rest and what is idle and the system's, sum to what the machines had."}, d.handler.usage)
	register[jobsParams](d, endpoint{path: "/v1/jobs", id: "jobs", tag: "use", schema: "jobs", csv: true, summary: "What each job used",
		text: "By cluster and name, in pages. Each job stands by cluster, job, namespace, user and project."}, d.handler.jobs)
	register[energyParams](d, endpoint{path: "/v1/energy", id: "energy", tag: "use", schema: "energy", csv: true, summary: "Where energy went",
		text: "By node and domain: to workloads, to the system, and to nobody while machines were idle. The sum is of all nodes, whatever page is asked for."}, d.handler.energy)
	register[ratesParams](d, endpoint{path: "/v1/rates", id: "rates", tag: "use", schema: "rates", summary: "What every workload uses at present",
		text: "By the latest window of its node, of some seconds."}, d.handler.rates)
	register[summaryParams](d, endpoint{path: "/v1/summary", id: "summary", tag: "use", schema: "summary", notFound: true, summary: "What machines do at present, in short",
		text: "It costs little however many workloads there are."}, d.handler.summary)
}

func (d *description) registerInventory() {
	register[listParams](d, endpoint{path: "/v1/clusters", id: "clusters", tag: "who", schema: "clusters", csv: true, summary: "Clusters"}, d.handler.clusters)
	register[nodesParams](d, endpoint{path: "/v1/nodes", id: "nodes", tag: "who", schema: "nodes", csv: true, summary: "Machines"}, d.handler.nodes)
	register[workloadsParams](d, endpoint{path: "/v1/workloads", id: "workloads", tag: "who", schema: "workloads", csv: true, summary: "Workloads that used something",
		text: "In the range, by cluster, node and name."}, d.handler.workloads)
	register[vmsParams](d, endpoint{path: "/v1/vms", id: "vms", tag: "who", schema: "vms", csv: true, summary: "Virtual machines that hosts gave energy",
		text: "And how that compares with what the guests say of themselves."}, d.handler.vms)
	register[nodesParams](d, endpoint{path: "/v1/sources", id: "sources", tag: "who", schema: "sources", csv: true, summary: "Servers below, which tell of their machines"}, d.handler.sources)
}

func (d *description) registerHealth() {
	register[rangeParams](d, endpoint{path: "/v1/health", id: "health", tag: "trust", schema: "health", summary: "How well is measured, in short"}, d.handler.health)
	register[gapsParams](d, endpoint{path: "/v1/gaps", id: "gaps", tag: "trust", schema: "gaps", csv: true, notFound: true, summary: "Time of which not all is known",
		text: "And corrections of clocks, the latest first: at most 10000."}, d.handler.gaps)
	register[streamsParams](d, endpoint{path: "/v1/streams", id: "streams", tag: "trust", schema: "streams", csv: true, notFound: true, summary: "Marks of nodes",
		text: "How far each stream of batches of each node is booked."}, d.handler.streams)
	register[alertsParams](d, endpoint{path: "/v1/alerts", id: "alerts", tag: "trust", schema: "alerts", csv: true, summary: "Alerts that fire, or soon will"}, d.handler.alerts)
}
