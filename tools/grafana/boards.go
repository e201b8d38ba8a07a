package main

import (
	"fmt"
	"strings"
)

// boards returns all dashboards: two for users of machines, two for operators.
func boards() []board { return []board{cluster(), application(), fleetBoard(), client()} }

// Variables shared by several dashboards.
var (
	ofCluster   = variable{"cluster", "Cluster", "label_values(mete_node_cpus, cluster)"}
	ofNode      = variable{"node", "Node", `label_values(mete_node_cpus{cluster=~"$cluster"}, node)`}
	ofNamespace = variable{"namespace", "Namespace", `label_values(mete_workload_info{cluster=~"$cluster", namespace!=""}, namespace)`}
	ofJob       = variable{"job", "Job", `label_values(mete_workload_info{cluster=~"$cluster", namespace=~"$namespace", job!=""}, job)`}
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
	space := in + `, namespace!=""`
	by := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true,
			queries: []query{{sumBy("namespace", whole("mete_workload_info", space), rateOf(name, in)), "{{namespace}}"}}}
	}
	part := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true, queries: []query{{"sum by (part) (" + whole(name, in) + ")", "{{part}}"}}}
	}
	return board{"mete-cluster", "mete: cluster", "The use of a cluster, by namespace and by part.", []variable{ofCluster}, []panel{
		{title: "Nodes", kind: stat, unit: plain, width: 4, height: 4, queries: []query{{"count(" + whole("mete_node_cpus", in) + ")", "nodes"}}, about: "Machines that send windows."},
		{title: "CPU in use", kind: stat, unit: cores, width: 5, height: 4, queries: []query{{"sum(" + whole("mete_node_cpu_cores", in+busy) + ")", "cores"}}, about: "By workloads and by the system. Measured."},
		{title: "CPU in use, of all", kind: stat, unit: percent, width: 5, height: 4, queries: []query{{"sum(" + whole("mete_node_cpu_cores", in+busy) + ") / sum(" + whole("mete_node_cpu_cores", in) + ")", "share"}}, about: "Measured."},
		{title: "Memory held", kind: stat, unit: octets, width: 5, height: 4, queries: []query{{"sum(" + whole("mete_node_memory_held_bytes", in+busy) + ")", "bytes"}}, about: "Page cache included. Measured."},
		{title: "Power", kind: stat, unit: watts, width: 5, height: 4, queries: []query{{"sum(" + whole("mete_node_power_watts", in) + ")", "watts"}}, about: "By meters if there are any, else by a model: mete's own pages show which."},
		part("CPU by part", "mete_node_cpu_cores", cores, "The parts sum to all CPUs. Measured."),
		part("Power by part", "mete_node_power_watts", watts, "The active power of workloads and the system; idle is the power that machines draw without load."),
		by("CPU by namespace", "mete_workload_cpu_seconds_total", cores, "Measured."),
		by("Memory by namespace", "mete_workload_memory_byte_seconds_total", octets, "On average, page cache included. Measured."),
		by("Power by namespace", "mete_workload_energy_joules_total", watts, "Active power, without idle power. Apportioned or modelled."),
		by("Received by namespace", "mete_workload_network_rx_bytes_total", rate, "Bytes per second."),
	}}
}

// application shows one job, or a few.
func application() board {
	const in = `cluster=~"$cluster"`
	which := in + `, namespace=~"$namespace", job=~"$job", job!=""`
	by := func(label, title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: label != "node",
			queries: []query{{sumBy(label, "mete_workload_info{"+which+"}", rateOf(name, in)), "{{" + label + "}}"}}}
	}
	energy := func(text string) string {
		return "sum by (cluster, node, workload) (increase(" + text + "{" + in + "}[$__range]))"
	}
	one := func(title, unit, expr, about string) panel {
		return panel{title: title, about: about, kind: stat, unit: unit, width: 6, height: 4, queries: []query{{expr, title}}}
	}
	return board{"mete-application", "mete: application", "The use of jobs.", []variable{ofCluster, ofNamespace, ofJob}, []panel{
		one("Workloads", plain, "count(count by (cluster, node, workload) (mete_workload_info{"+which+"}))", "Containers, services and other workloads."),
		one("CPU", cores, "sum("+sumBy("job", "mete_workload_info{"+which+"}", rateOf("mete_workload_cpu_seconds_total", in))+")", "Measured."),
		one("Power", watts, "sum("+sumBy("job", "mete_workload_info{"+which+"}", rateOf("mete_workload_energy_joules_total", in))+")", "Active power. Apportioned or modelled."),
		one("Energy over the range", joules, "sum("+sumBy("job", "mete_workload_info{"+which+"}", energy("mete_workload_energy_joules_total"))+")", "Approximate, from samples: mete usage has it to the microjoule."),
		by("job", "CPU by job", "mete_workload_cpu_seconds_total", cores, "Measured."),
		by("job", "Memory by job", "mete_workload_memory_byte_seconds_total", octets, "On average, page cache included. Measured."),
		by("job", "Power by job", "mete_workload_energy_joules_total", watts, "Active power. Apportioned or modelled."),
		by("node", "CPU by node", "mete_workload_cpu_seconds_total", cores, "Where it runs. Measured."),
		by("job", "Received by job", "mete_workload_network_rx_bytes_total", rate, "Bytes per second."),
		by("job", "Sent by job", "mete_workload_network_tx_bytes_total", rate, "Bytes per second."),
	}}
}

// fleetBoard shows all machines, and whether they are measured.
func fleetBoard() board {
	const in = `cluster=~"$cluster"`
	line := func(title, unit, expr, legend, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, queries: []query{{expr, legend}}}
	}
	one := func(title, unit, expr, about string) panel {
		return panel{title: title, about: about, kind: stat, unit: unit, width: 4, height: 4, queries: []query{{expr, title}}}
	}
	silent := panel{title: "Silent nodes", about: "Nodes without new windows. Empty is good.", kind: table, unit: plain, width: 12, height: 9, quiet: true,
		queries: []query{{"mete_node_up{" + in + "} == 0", ""}}}
	alerts := panel{title: "Firing alerts", about: "MeteDeadMan always fires.", kind: table, unit: plain, width: 12, height: 9, quiet: true,
		queries: []query{{`ALERTS{alertstate="firing"}`, ""}}}
	return board{"mete-fleet", "mete: fleet", "All machines, and how well they are measured.", []variable{ofCluster}, []panel{
		one("Nodes up", plain, "sum(mete_node_up{"+in+"})", "Nodes with new windows."),
		one("Nodes silent", plain, "count(mete_node_up{"+in+"}) - sum(mete_node_up{"+in+"})", "Nodes without new windows."),
		one("Furthest behind", seconds, "max(mete_node_behind_seconds{"+in+"})", "Age of the latest booked window of the slowest node."),
		one("Time in gaps", seconds, "sum(mete_node_gap_seconds_total{"+in+"})", "Incomplete time within the retention."),
		one("Conservation violations", plain, "sum(mete_conservation_violations_total{"+in+"})", "Since the server started. Always a defect."),
		one("Series", plain, "mete_server_metrics_series", "In memory. Visible with access to all clusters."),
		silent, alerts,
		{title: "Busiest nodes", about: "Share of all CPUs. Measured.", kind: gauges, unit: percent, width: 12, height: 9,
			queries: []query{{`topk(12, sum by (cluster, node) (mete_node_cpu_cores{` + in + `, part!="idle"}) / sum by (cluster, node) (mete_node_cpu_cores{` + in + `}))`, "{{node}}"}}},
		line("Power by cluster", watts, "sum by (cluster) ("+whole("mete_node_power_watts", in)+")", "{{cluster}}", "By meters if there are any, else by a model."),
		line("Behind, by cluster", seconds, "max by (cluster) (mete_node_behind_seconds{"+in+"})", "{{cluster}}", "Age of the latest booked window of the slowest node."),
		{title: "Rows taken", about: "Of this server, per second. Visible with access to all clusters.", kind: graph, unit: plain, width: 12, height: 9,
			queries: []query{{"rate(mete_server_rows_total" + window + ")", "rows per second"}}},
	}}
}

// client shows one machine and its agent.
func client() board {
	const in = `cluster=~"$cluster", node=~"$node"`
	part := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true, queries: []query{{"sum by (part) (" + name + "{" + in + "})", "{{part}}"}}}
	}
	flow := func(title, name string, quiet bool) panel {
		return panel{title: title, about: "Of the machine, bytes per second.", kind: graph, unit: rate, width: 12, height: 9, quiet: quiet, queries: []query{{"sum by (direction) (" + name + "{" + in + "})", "{{direction}}"}}}
	}
	one := func(title, unit, expr, about string, quiet bool) panel {
		return panel{title: title, about: about, kind: stat, unit: unit, width: 6, height: 4, quiet: quiet, queries: []query{{expr, title}}}
	}
	return board{"mete-client", "mete: node", "One machine, its workloads, and its agent.", []variable{ofCluster, ofNode}, []panel{
		one("CPUs", plain, "sum(mete_node_cpus{"+in+"})", "Online.", false),
		one("Behind", seconds, "max(mete_node_behind_seconds{"+in+"})", "Age of the latest booked window.", false),
		one("Spool in use", percent, "max(mete_agent_spool_waiting_bytes{"+in+"} / mete_agent_spool_limit_bytes{"+in+"})", "Data of the agent that the server has not booked. Empty if the agent does not report it.", true),
		one("Certificate expires in", seconds, "min(mete_node_certificate_expiry_timestamp_seconds{"+in+"}) - time()", "It is renewed at ten days. Empty if the server and the agent are one process.", true),
		part("CPU by part", "mete_node_cpu_cores", cores, "The parts sum to the machine. Measured."),
		part("Memory by part", "mete_node_memory_held_bytes", octets, "The parts sum to the machine. Measured."),
		{title: "Busiest workloads", about: "CPU. Measured.", kind: graph, unit: cores, width: 12, height: 9,
			queries: []query{{"topk(8, " + sumBy("name", "mete_workload_info{"+in+`, kind!~"idle|system"}`, rateOf("mete_workload_cpu_seconds_total", in)) + ")", "{{name}}"}}},
		{title: "Power by part", about: "The line is the error in either direction.", kind: graph, unit: watts, width: 12, height: 9,
			queries: []query{{"sum by (part) (mete_node_power_watts{" + in + "})", "{{part}}"}, {"sum(mete_node_power_error_watts{" + in + "})", "error"}}},
		flow("Network", "mete_node_network_bytes_per_second", false),
		flow("Disk", "mete_node_disk_bytes_per_second", true),
		{title: "Gaps", about: "New seconds of incomplete time.", kind: graph, unit: seconds, width: 12, height: 9, queries: []query{{"increase(mete_node_gap_seconds_total{" + in + "}" + window + ")", "{{node}}"}}},
		{title: "Missed births and deaths", about: "By the agent, since the server started.", kind: graph, unit: plain, width: 12, height: 9, queries: []query{{"mete_node_missed_lives_total{" + in + "}", "{{node}}"}}},
	}}
}
