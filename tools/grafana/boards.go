package main

import (
	"fmt"
	"strings"
)

// boards returns all dashboards: two for users of machines, two for operators.
func boards() []board { return []board{cluster(), application(), fleetBoard(), machine()} }

// Variables shared by several dashboards.
var (
	ofCluster = variable{name: "cluster", title: "Cluster", query: "label_values(mete_node_cpus, cluster)"}
	ofNode    = variable{name: "node", title: "Node", query: `label_values(mete_node_cpus{cluster=~"$cluster"}, node)`}
	ofJob     = variable{name: "job", title: "Job", query: `label_values(mete_workload_info{cluster=~"$cluster", job!=""}, job)`}
	// Few servers know namespaces or projects, so jobs come first.
	by = variable{name: "by", title: "By", options: []string{"job", "name", "kind", "user", "project", "namespace"}}
)

// Links to the dashboards of what a series is about.
var (
	toNode = link{"Open this node", "mete-node", []string{"cluster", "node"}}
	toJob  = link{"Open this job", "mete-application", []string{"job"}}
)

// window is the range of rates: at least four measurement windows.
const window = "[$__rate_interval]"

// sumBy sums the workload series each by a label of their info series.
func sumBy(label, info, each string) string {
	more := label
	if label == "node" {
		more = "" // both sides have the label
	}
	return fmt.Sprintf("sum by (%s) ((%s) * on (cluster, node, workload) group_left (%s) max by (cluster, node, workload, %s) (%s))", label, each, more, label, info)
}

// rateOf is the rate of a counter of workloads, summed over all domains of energy.
func rateOf(name, which string) string {
	text := fmt.Sprintf("rate(%s{%s}%s)", name, which, window)
	if strings.Contains(name, "energy_joules") {
		return "sum by (cluster, node, workload) (" + text + ")"
	}
	return text
}

// top limits a query by a label to the labels with the largest amounts in the whole range of the
// dashboard, so that a chart has the same few lines at all times.
func top(n int, label, info, expr, counter, which string) string {
	amount := fmt.Sprintf("increase(%s{%s}[$__range] @ end())", counter, which)
	if strings.Contains(counter, "energy_joules") {
		amount = "sum by (cluster, node, workload) (" + amount + ")"
	}
	return fmt.Sprintf("%s and on (%s) topk(%d, %s)", expr, label, n, sumBy(label, "last_over_time("+info+"[$__range] @ end())", amount))
}

// whole is a series of nodes without nested nodes, whose figures are included in those of
// their hosts.
func whole(name, which string) string {
	return name + "{" + which + "} unless on (cluster, node) mete_node_nested"
}

// busy selects all parts but idle.
const busy = `, part!="idle"`

// cluster shows the use of a cluster.
func cluster() board {
	const in = `cluster=~"$cluster"`
	const named = in + `, $by!="", kind!~"idle|system"`
	each := func(title, name, unit, about string) panel {
		expr := sumBy("$by", whole("mete_workload_info", named), rateOf(name, in))
		return panel{title: title, about: about + " The ten largest of the range.", kind: graph, unit: unit, width: 12, height: 9, stack: true,
			queries: []query{{top(10, "$by", "mete_workload_info{"+named+"}", expr, name, in), "{{$by}}"}}}
	}
	part := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true, queries: []query{{"sum by (part) (" + whole(name, in) + ")", "{{part}}"}}}
	}
	return board{"mete-cluster", "mete: cluster", "The use of a cluster, by part, and by job or another property of workloads.", []variable{ofCluster, by}, []panel{
		{title: "Nodes", kind: stat, unit: plain, width: 4, height: 4, queries: []query{{"count(" + whole("mete_node_cpus", in) + ")", "nodes"}}, about: "Machines that send windows."},
		{title: "CPU in use", kind: stat, unit: cores, width: 5, height: 4, queries: []query{{"sum(" + whole("mete_node_cpu_cores", in+busy) + ")", "cores"}}, about: "By workloads and by the system. Measured."},
		{title: "CPU in use, of all", kind: stat, unit: percent, width: 5, height: 4, limits: [2]float64{0.8, 0.95}, queries: []query{{"sum(" + whole("mete_node_cpu_cores", in+busy) + ") / sum(" + whole("mete_node_cpu_cores", in) + ")", "share"}}, about: "Measured."},
		{title: "Memory held", kind: stat, unit: octets, width: 5, height: 4, queries: []query{{"sum(" + whole("mete_node_memory_held_bytes", in+busy) + ")", "bytes"}}, about: "Page cache included. Measured."},
		{title: "Power", kind: stat, unit: watts, width: 5, height: 4, queries: []query{{"sum(" + whole("mete_node_power_watts", in) + ")", "watts"}}, about: "By meters if there are any, else by a model: mete's own pages show which."},
		part("CPU by part", "mete_node_cpu_cores", cores, "The parts sum to all CPUs. Measured."),
		part("Power by part", "mete_node_power_watts", watts, "The active power of workloads and the system; idle is the power that machines draw without load."),
		each("CPU by $by", "mete_workload_cpu_seconds_total", cores, "Measured."),
		each("Memory by $by", "mete_workload_memory_byte_seconds_total", octets, "On average, page cache included. Measured."),
		each("Power by $by", "mete_workload_energy_joules_total", watts, "Active power, without idle power. Apportioned or modelled."),
		each("Received by $by", "mete_workload_network_rx_bytes_total", rate, "Bytes per second."),
	}}
}

// application shows one job, or a few.
func application() board {
	const in = `cluster=~"$cluster"`
	const which = in + `, job=~"$job", job!=""`
	each := func(label, title, name, unit, about string) panel {
		expr := sumBy(label, "mete_workload_info{"+which+"}", rateOf(name, in))
		out := panel{title: title, about: about + " The twelve largest of the range.", kind: graph, unit: unit, width: 12, height: 9, stack: label != "node", links: []link{toJob},
			queries: []query{{top(12, label, "mete_workload_info{"+which+"}", expr, name, in), "{{" + label + "}}"}}}
		if label == "node" {
			out.links = []link{{toNode.title, toNode.board, []string{"node"}}}
		}
		return out
	}
	energy := func(text string) string {
		return "sum by (cluster, node, workload) (increase(" + text + "{" + in + "}[$__range]))"
	}
	one := func(title, unit, expr, about string) panel {
		return panel{title: title, about: about, kind: stat, unit: unit, width: 6, height: 4, queries: []query{{expr, title}}}
	}
	return board{"mete-application", "mete: application", "The use of jobs.", []variable{ofCluster, ofJob}, []panel{
		one("Workloads", plain, "count(count by (cluster, node, workload) (mete_workload_info{"+which+"}))", "Containers, services and other workloads."),
		one("CPU", cores, "sum("+sumBy("job", "mete_workload_info{"+which+"}", rateOf("mete_workload_cpu_seconds_total", in))+")", "Measured."),
		one("Power", watts, "sum("+sumBy("job", "mete_workload_info{"+which+"}", rateOf("mete_workload_energy_joules_total", in))+")", "Active power. Apportioned or modelled."),
		one("Energy over the range", joules, "sum("+sumBy("job", "mete_workload_info{"+which+"}", energy("mete_workload_energy_joules_total"))+")", "Approximate, from samples: mete usage has it to the microjoule."),
		each("job", "CPU by job", "mete_workload_cpu_seconds_total", cores, "Measured."),
		each("job", "Memory by job", "mete_workload_memory_byte_seconds_total", octets, "On average, page cache included. Measured."),
		each("job", "Power by job", "mete_workload_energy_joules_total", watts, "Active power. Apportioned or modelled."),
		each("node", "CPU by node", "mete_workload_cpu_seconds_total", cores, "Where it runs. Measured."),
		each("job", "Received by job", "mete_workload_network_rx_bytes_total", rate, "Bytes per second."),
		each("job", "Sent by job", "mete_workload_network_tx_bytes_total", rate, "Bytes per second."),
	}}
}

// fleetBoard shows all machines, and whether they are measured.
func fleetBoard() board {
	const in = `cluster=~"$cluster"`
	line := func(title, unit, expr, legend, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, queries: []query{{expr, legend}}}
	}
	one := func(title, unit, expr, about string, limits ...float64) panel {
		p := panel{title: title, about: about, kind: stat, unit: unit, width: 4, height: 4, queries: []query{{expr, title}}}
		copy(p.limits[:], limits)
		return p
	}
	silent := panel{title: "Silent nodes", about: "Nodes without new windows. Empty is good.", kind: table, unit: plain, width: 12, height: 9, quiet: true, links: []link{toNode},
		queries: []query{{"mete_node_up{" + in + "} == 0", ""}}}
	alerts := panel{title: "Firing alerts", about: "Without the heartbeat MeteDeadMan, which always fires. Empty is good.", kind: table, unit: plain, width: 12, height: 9, quiet: true,
		queries: []query{{`ALERTS{alertstate="firing", severity!="none"}`, ""}}}
	return board{"mete-fleet", "mete: fleet", "All machines, and how well they are measured.", []variable{ofCluster}, []panel{
		one("Nodes up", plain, "sum(mete_node_up{"+in+"})", "Nodes with new windows."),
		one("Nodes silent", plain, "count(mete_node_up{"+in+"}) - sum(mete_node_up{"+in+"})", "Nodes without new windows.", 1, 10),
		one("Furthest behind", seconds, "max(mete_node_behind_seconds{"+in+"})", "Age of the latest booked window of the slowest node.", 60, 300),
		one("Time in gaps", seconds, "sum(mete_node_gap_seconds_total{"+in+"})", "Incomplete time within the retention."),
		one("Conservation violations", plain, "sum(mete_conservation_violations_total{"+in+"})", "Since the server started. Always a defect.", 0, 1),
		one("Series", plain, "mete_server_metrics_series", "In memory. Visible with access to all clusters."),
		silent, alerts,
		{title: "Busiest nodes", about: "Share of all CPUs. Measured.", kind: gauges, unit: percent, width: 12, height: 9, limits: [2]float64{0.8, 0.95}, links: []link{toNode},
			queries: []query{{`topk(12, sum by (cluster, node) (mete_node_cpu_cores{` + in + `, part!="idle"}) / sum by (cluster, node) (mete_node_cpu_cores{` + in + `}))`, "{{node}}"}}},
		line("Power by cluster", watts, "sum by (cluster) ("+whole("mete_node_power_watts", in)+")", "{{cluster}}", "By meters if there are any, else by a model."),
		line("Behind, by cluster", seconds, "max by (cluster) (mete_node_behind_seconds{"+in+"})", "{{cluster}}", "Age of the latest booked window of the slowest node."),
		{title: "Rows ingested", about: "Of this server, per second. Visible with access to all clusters.", kind: graph, unit: plain, width: 12, height: 9,
			queries: []query{{"rate(mete_server_rows_total" + window + ")", "rows per second"}}},
	}}
}

// machine shows one machine and its agent.
func machine() board {
	const in = `cluster=~"$cluster", node=~"$node"`
	part := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true, queries: []query{{"sum by (part) (" + name + "{" + in + "})", "{{part}}"}}}
	}
	flow := func(title, name string, quiet bool) panel {
		return panel{title: title, about: "Of the machine, bytes per second.", kind: graph, unit: rate, width: 12, height: 9, quiet: quiet, queries: []query{{"sum by (direction) (" + name + "{" + in + "})", "{{direction}}"}}}
	}
	one := func(title, unit, expr, about string, quiet bool, limits ...float64) panel {
		p := panel{title: title, about: about, kind: stat, unit: unit, width: 6, height: 4, quiet: quiet, queries: []query{{expr, title}}}
		copy(p.limits[:], limits)
		return p
	}
	expiry := one("Certificate expires in", seconds, "min(mete_node_certificate_expiry_timestamp_seconds{"+in+"}) - time()", "It is renewed at ten days. Empty if the server and the agent are one process.", true, 3*24*3600, 9*24*3600)
	expiry.below = true
	const workloads = in + `, kind!~"idle|system"`
	busiest := sumBy("name", "mete_workload_info{"+workloads+"}", rateOf("mete_workload_cpu_seconds_total", in))
	return board{"mete-node", "mete: node", "One machine, its workloads, and its agent.", []variable{ofCluster, ofNode}, []panel{
		one("CPUs", plain, "sum(mete_node_cpus{"+in+"})", "Online.", false),
		one("Behind", seconds, "max(mete_node_behind_seconds{"+in+"})", "Age of the latest booked window.", false, 60, 300),
		one("Spool in use", percent, "max(mete_agent_spool_waiting_bytes{"+in+"} / mete_agent_spool_limit_bytes{"+in+"})", "Data of the agent that the server has not booked. Empty if the agent does not report it.", true, 0.5, 0.8),
		expiry,
		part("CPU by part", "mete_node_cpu_cores", cores, "The parts sum to the machine. Measured."),
		part("Memory by part", "mete_node_memory_held_bytes", octets, "The parts sum to the machine. Measured."),
		{title: "Busiest workloads", about: "CPU: the eight with the most in the range. Measured.", kind: graph, unit: cores, width: 12, height: 9,
			queries: []query{{top(8, "name", "mete_workload_info{"+workloads+"}", busiest, "mete_workload_cpu_seconds_total", in), "{{name}}"}}},
		{title: "Power by part", about: "The line is the error in either direction.", kind: graph, unit: watts, width: 12, height: 9,
			queries: []query{{"sum by (part) (mete_node_power_watts{" + in + "})", "{{part}}"}, {"sum(mete_node_power_error_watts{" + in + "})", "error"}}},
		flow("Network", "mete_node_network_bytes_per_second", false),
		flow("Disk", "mete_node_disk_bytes_per_second", true),
		{title: "Gaps", about: "New seconds of incomplete time.", kind: graph, unit: seconds, width: 12, height: 9, queries: []query{{"increase(mete_node_gap_seconds_total{" + in + "}" + window + ")", "{{node}}"}}},
		{title: "Missed births and deaths", about: "By the agent, since the server started.", kind: graph, unit: plain, width: 12, height: 9, queries: []query{{"mete_node_missed_lives_total{" + in + "}", "{{node}}"}}},
	}}
}
