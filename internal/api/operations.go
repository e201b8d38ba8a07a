package api

import "mete.dev/mete/internal/api/v1"

// The parameters of each endpoint, as groups in the order of the API description. The method
// check returns the first mistake: of the form, else of the page.
type (
	usageParams struct {
		Caller
		Grouping
		Range
		Where
		Own
		Largest
		Division
		Fields
		Order
		Periods
		Form
		Conditional
	}
	connectionsParams struct {
		Caller
		Grouping
		Range
		Where
		Edges
		Form
		Conditional
	}
	jobsParams struct {
		Caller
		Range
		Where
		Fields
		Paged
		Form
		Conditional
	}
	useParams struct {
		Caller
		Range
		Where
		Paged
		Form
		Conditional
	}
	runsParams struct {
		Caller
		Range
		Where
		RunFilter
		Paged
		Form
		Conditional
	}
	rangeParams struct {
		Caller
		Range
		Conditional
	}
	ratesParams struct {
		Caller
		Paged
		Conditional
	}
	selfParams struct {
		Caller
		Form
		Conditional
	}
	summaryParams struct {
		Caller
		NodeFilter
		Detail
		Conditional
	}
	listParams struct {
		Caller
		Paged
		Form
		Conditional
	}
	nodesParams struct {
		Caller
		ClusterFilter
		StateFilter
		Paged
		Form
		Conditional
	}
	streamsParams struct {
		Caller
		ClusterFilter
		NodeFilter
		Paged
		Form
		Conditional
	}
	nodeRangeParams struct { // of gaps and of uptime
		Caller
		Range
		NodeFilter
		Paged
		Form
		Conditional
	}
	vmsParams struct {
		Caller
		Range
		Paged
		Form
		Conditional
	}
	alertsParams struct {
		Caller
		ClusterFilter
		AlertFilter
		Paged
		Form
		Conditional
	}
	silencesParams struct {
		Caller
		SilenceFilter
		Paged
		Form
		Conditional
	}
)

func (p *usageParams) check() error {
	return first(p.Form.err, p.Fields.err, p.Order.err, p.Range.err, p.Where.err, p.Largest.err, p.Grouping.err, p.Own.err, p.Division.err, p.Periods.err, v1.CheckPeriods(p.start, p.end, p.every))
}
func (p *connectionsParams) check() error {
	return first(p.Form.err, p.Range.err, p.Where.err, p.Edges.err, p.Grouping.err)
}
func (p *jobsParams) check() error {
	return first(p.Form.err, p.Paged.err, p.Fields.err, p.Range.err, p.Where.err)
}
func (p *useParams) check() error {
	return first(p.Form.err, p.Paged.err, p.Range.err, p.Where.err)
}
func (p *runsParams) check() error {
	return first(p.Form.err, p.Paged.err, p.Range.err, p.Where.err, p.RunFilter.err)
}
func (p *rangeParams) check() error   { return p.Range.err }
func (p *ratesParams) check() error   { return p.Paged.err }
func (p *selfParams) check() error    { return p.Form.err }
func (p *summaryParams) check() error { return first(p.NodeFilter.err, p.Detail.err) }
func (p *listParams) check() error    { return first(p.Form.err, p.Paged.err) }
func (p *nodesParams) check() error {
	return first(p.Form.err, p.Paged.err, p.ClusterFilter.err, p.StateFilter.err)
}
func (p *streamsParams) check() error {
	return first(p.Form.err, p.Paged.err, p.NodeFilter.err, p.ClusterFilter.err)
}
func (p *nodeRangeParams) check() error {
	return first(p.Form.err, p.Paged.err, p.Range.err, p.NodeFilter.err)
}
func (p *vmsParams) check() error { return first(p.Form.err, p.Paged.err, p.Range.err) }
func (p *alertsParams) check() error {
	return first(p.Form.err, p.Paged.err, p.ClusterFilter.err, p.AlertFilter.err)
}
func (p *silencesParams) check() error {
	return first(p.Form.err, p.Paged.err, p.SilenceFilter.err)
}

func (d *description) registerUsage() {
	register(d, endpoint{path: "/v1/usage", id: "usage", tag: "use", schema: "usage", csv: true, summary: "Usage by groups",
		text: "Sums over a range, which is extended to whole minutes. The groups, idle and system included, and the rest sum to the capacity of the machines."}, d.handler.usage)
	register(d, endpoint{path: "/v1/connections", id: "connections", tag: "use", schema: "connections", csv: true, summary: "Peers of workloads, with their traffic",
		text: "Over a range, which is extended to whole hours. An edge is all connections of the workloads of a group with one peer to one port. Agents record the largest edges of each workload and hour, if that is switched on: an edge may have had up to error_bytes more than its amounts, and the rest is the traffic that is in no edge, so that edges and rest sum to the total. In CSV the rest is the last row, without a peer."}, d.handler.connections)
	register(d, endpoint{path: "/v1/jobs", id: "jobs", tag: "use", schema: "jobs", csv: true, summary: "Usage by jobs",
		text: "Sorted by cluster and name, in pages. A job is identified by cluster, job, namespace, user and project."}, d.handler.jobs)
	register(d, endpoint{path: "/v1/runs", id: "runs", tag: "use", schema: "runs", csv: true, summary: "Runs of jobs",
		text: "The runs that used something in the range, the latest start first; those without a reported start last, the latest booked first. A run is one execution of a job: a workload of kind job or slurm-job, or a Job of Kubernetes (kind kube-job) with its pods on all nodes. Its figures are of all its life, whatever the range, and include the workloads below it, such as the steps of a Slurm job."}, d.handler.runs)
	register(d, endpoint{path: "/v1/energy", id: "energy", tag: "use", schema: "energy", csv: true, summary: "Energy by nodes",
		text: "Energy of workloads, system and idle, by node and domain. The sum is of all nodes, on whatever page they are."}, d.handler.energy)
	register(d, endpoint{path: "/v1/rates", id: "rates", tag: "use", schema: "rates", pages: true, summary: "Present rates of all workloads",
		text: "From the latest window of each node, of some seconds. More than 10000 workloads come only in pages, by node."}, d.handler.rates)
	register(d, endpoint{path: "/v1/summary", id: "summary", tag: "use", schema: "summary", notFound: true, summary: "Present use of nodes, in short",
		text: "Its cost does not depend on the number of workloads."}, d.handler.summary)
}

func (d *description) registerInventory() {
	register(d, endpoint{path: "/v1/clusters", id: "clusters", tag: "who", schema: "clusters", csv: true, summary: "Clusters"}, d.handler.clusters)
	register(d, endpoint{path: "/v1/nodes", id: "nodes", tag: "who", schema: "nodes", csv: true, summary: "Nodes"}, d.handler.nodes)
	register(d, endpoint{path: "/v1/uptime", id: "uptime", tag: "who", schema: "uptimes", csv: true, notFound: true, summary: "For how long nodes were up",
		text: "Of a range, for how long the kernel of each machine ran, for how long it was down, and for how long that is not known."}, d.handler.uptimes)
	register(d, endpoint{path: "/v1/workloads", id: "workloads", tag: "who", schema: "workloads", csv: true, summary: "Workloads that used something",
		text: "In the range, sorted by cluster, node and name."}, d.handler.workloads)
	register(d, endpoint{path: "/v1/dimensions", id: "dimensions", tag: "who", schema: "dimensions", csv: true, summary: "Dimensions, and how many workloads have a value",
		text: "Of the dimensions that a workload may lack, besides labels: of one that no workload has, all usage is in one group without a value."}, d.handler.dimensions)
	register(d, endpoint{path: "/v1/vms", id: "vms", tag: "who", schema: "vms", csv: true, summary: "Virtual machines that hosts gave energy",
		text: "And how the reports of hosts and guests compare."}, d.handler.vms)
	register(d, endpoint{path: "/v1/sources", id: "sources", tag: "who", schema: "sources", csv: true, summary: "Servers below"}, d.handler.sources)
}

func (d *description) registerHealth() {
	register(d, endpoint{path: "/v1/health", id: "health", tag: "trust", schema: "health", summary: "Health of the measurements, in short"}, d.handler.health)
	register(d, endpoint{path: "/v1/gaps", id: "gaps", tag: "trust", schema: "gaps", csv: true, notFound: true, summary: "Gaps",
		text: "Times for which data is missing or incomplete, and corrections of clocks, the latest first. More than 10000 are refused."}, d.handler.gaps)
	register(d, endpoint{path: "/v1/streams", id: "streams", tag: "trust", schema: "streams", csv: true, notFound: true, summary: "Streams of nodes",
		text: "How far each stream of batches is booked. More than 10000 come only in pages, by id."}, d.handler.streams)
	register(d, endpoint{path: "/v1/alerts", id: "alerts", tag: "trust", schema: "alerts", csv: true, summary: "Alerts that are pending or fire"}, d.handler.alerts)
	register(d, endpoint{path: "/v1/silences", id: "silences", tag: "trust", schema: "silences", csv: true, summary: "Silences",
		text: "Receivers are not notified of the alerts that a silence matches. Those that ended stay in the list for 30 days. A viewer of one cluster sees the silences that match only alerts of that cluster. The command mete silence makes them."}, d.handler.silences)
}
