package main

import (
	"fmt"
	"strings"
)

// boards are all dashboards: two for who runs things on machines, two for who runs
// the machines.
func boards() []board { return []board{cluster(), application(), fleetBoard(), client()} }

// Choices that several dashboards have.
var (
	ofCluster   = choice{"cluster", "Cluster", "label_values(mete_node_cpus, cluster)"}
	ofNode      = choice{"node", "Node", `label_values(mete_node_cpus{cluster=~"$cluster"}, node)`}
	ofNamespace = choice{"namespace", "Namespace", `label_values(mete_workload_info{cluster=~"$cluster", namespace!=""}, namespace)`}
	ofJob       = choice{"job", "Job", `label_values(mete_workload_info{cluster=~"$cluster", namespace=~"$namespace", job!=""}, job)`}
)

// window is the range of rates: four windows of measuring at least.
const window = "[$__rate_interval]"

// of sums what workloads do by a label of their info, which is given.
func of(label, info, each string) string {
	more := label
	if label == "node" {
		more = "" // both sides have it
	}
	return fmt.Sprintf("sum by (%s) ((%s) * on (cluster, node, workload) group_left (%s) max by (cluster, node, workload, %s) (%s))", label, each, more, label, info)
}

// rateOf is the rate of a counter of workloads, all domains of energy together.
func rateOf(name, which string) string {
	text := fmt.Sprintf("rate(%s{%s}%s)", name, which, window)
	if strings.Contains(name, "energy_joules") {
		return "sum by (cluster, node, workload) (" + text + ")"
	}
	return text
}

// whole is a series of nodes without those that are in others, and so in their
// figures already.
func whole(name, which string) string {
	return name + "{" + which + "} unless on (cluster, node) mete_node_nested"
}

// busy chooses all parts but what is idle.
const busy = `, part!="idle"`

// cluster is what a cluster is used for.
func cluster() board {
	const in = `cluster=~"$cluster"`
	space := in + `, namespace!=""`
	by := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true,
			queries: []ask{{of("namespace", whole("mete_workload_info", space), rateOf(name, in)), "{{namespace}}"}}}
	}
	part := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true, queries: []ask{{"sum by (part) (" + whole(name, in) + ")", "{{part}}"}}}
	}
	return board{"mete-cluster", "mete: cluster", "What a cluster is used for, by namespace and by part.", []choice{ofCluster}, []panel{
		{title: "Nodes", kind: stat, unit: plain, width: 4, height: 4, queries: []ask{{"count(" + whole("mete_node_cpus", in) + ")", "nodes"}}, about: "Machines whose windows arrive."},
		{title: "CPU in use", kind: stat, unit: cores, width: 5, height: 4, queries: []ask{{"sum(" + whole("mete_node_cpu_cores", in+busy) + ")", "cores"}}, about: "By workloads and by the system. Measured."},
		{title: "CPU in use, of all", kind: stat, unit: percent, width: 5, height: 4, queries: []ask{{"sum(" + whole("mete_node_cpu_cores", in+busy) + ") / sum(" + whole("mete_node_cpu_cores", in) + ")", "share"}}, about: "Measured."},
		{title: "Memory held", kind: stat, unit: octets, width: 5, height: 4, queries: []ask{{"sum(" + whole("mete_node_memory_held_bytes", in+busy) + ")", "bytes"}}, about: "Page cache included. Measured."},
		{title: "Power", kind: stat, unit: watts, width: 5, height: 4, queries: []ask{{"sum(" + whole("mete_node_power_watts", in) + ")", "watts"}}, about: "By meters where there are any, else by a model: mete's own pages say which."},
		part("CPU by part", "mete_node_cpu_cores", cores, "The parts sum to all CPUs. Measured."),
		part("Power by part", "mete_node_power_watts", watts, "What workloads and the system draw by their activity; idle is what machines draw anyway."),
		by("CPU by namespace", "mete_workload_cpu_seconds_total", cores, "Measured."),
		by("Memory by namespace", "mete_workload_memory_byte_seconds_total", octets, "On average, page cache included. Measured."),
		by("Power by namespace", "mete_workload_energy_joules_total", watts, "Of their activity, without the part of what machines draw anyway. Apportioned or modelled."),
		by("Received by namespace", "mete_workload_network_rx_bytes_total", rate, "Bytes a second."),
	}}
}

// application is one job, or a few.
func application() board {
	const in = `cluster=~"$cluster"`
	which := in + `, namespace=~"$namespace", job=~"$job", job!=""`
	by := func(label, title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: label != "node",
			queries: []ask{{of(label, "mete_workload_info{"+which+"}", rateOf(name, in)), "{{" + label + "}}"}}}
	}
	energy := func(text string) string {
		return "sum by (cluster, node, workload) (increase(" + text + "{" + in + "}[$__range]))"
	}
	one := func(title, unit, expr, about string) panel {
		return panel{title: title, about: about, kind: stat, unit: unit, width: 6, height: 4, queries: []ask{{expr, title}}}
	}
	return board{"mete-application", "mete: application", "What jobs use.", []choice{ofCluster, ofNamespace, ofJob}, []panel{
		one("Workloads", plain, "count(count by (cluster, node, workload) (mete_workload_info{"+which+"}))", "Containers, services and so on that are there."),
		one("CPU", cores, "sum("+of("job", "mete_workload_info{"+which+"}", rateOf("mete_workload_cpu_seconds_total", in))+")", "Measured."),
		one("Power", watts, "sum("+of("job", "mete_workload_info{"+which+"}", rateOf("mete_workload_energy_joules_total", in))+")", "Of their activity. Apportioned or modelled."),
		one("Energy over the range", joules, "sum("+of("job", "mete_workload_info{"+which+"}", energy("mete_workload_energy_joules_total"))+")", "As far as samples show it: mete usage has it to the microjoule."),
		by("job", "CPU by job", "mete_workload_cpu_seconds_total", cores, "Measured."),
		by("job", "Memory by job", "mete_workload_memory_byte_seconds_total", octets, "On average, page cache included. Measured."),
		by("job", "Power by job", "mete_workload_energy_joules_total", watts, "Of their activity. Apportioned or modelled."),
		by("node", "CPU by node", "mete_workload_cpu_seconds_total", cores, "Where it runs. Measured."),
		by("job", "Received by job", "mete_workload_network_rx_bytes_total", rate, "Bytes a second."),
		by("job", "Sent by job", "mete_workload_network_tx_bytes_total", rate, "Bytes a second."),
	}}
}

// fleetBoard is all machines, and whether they are measured.
func fleetBoard() board {
	const in = `cluster=~"$cluster"`
	line := func(title, unit, expr, legend, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, queries: []ask{{expr, legend}}}
	}
	one := func(title, unit, expr, about string) panel {
		return panel{title: title, about: about, kind: stat, unit: unit, width: 4, height: 4, queries: []ask{{expr, title}}}
	}
	silent := panel{title: "Silent nodes", about: "Nothing is heard of them. Empty is good.", kind: table, unit: plain, width: 12, height: 9, quiet: true,
		queries: []ask{{"mete_node_up{" + in + "} == 0", ""}}}
	alerts := panel{title: "Alerts that fire", about: "MeteDeadMan always does.", kind: table, unit: plain, width: 12, height: 9, quiet: true,
		queries: []ask{{`ALERTS{alertstate="firing"}`, ""}}}
	return board{"mete-fleet", "mete: fleet", "All machines, and how well they are measured.", []choice{ofCluster}, []panel{
		one("Nodes heard of", plain, "sum(mete_node_up{"+in+"})", "Their windows arrive."),
		one("Nodes silent", plain, "count(mete_node_up{"+in+"}) - sum(mete_node_up{"+in+"})", "Nothing is heard of them."),
		one("Furthest behind", seconds, "max(mete_node_behind_seconds{"+in+"})", "Age of the latest window that is booked, of the slowest node."),
		one("Time in gaps", seconds, "sum(mete_node_gap_seconds_total{"+in+"})", "Of all that is kept: time of which not all is known."),
		one("Books that do not add up", plain, "sum(mete_conservation_violations_total{"+in+"})", "Since the server started. Always a defect."),
		one("Series", plain, "mete_server_metrics_series", "In memory. Seen by who may see all clusters."),
		silent, alerts,
		{title: "Busiest nodes", about: "CPU in use, of all. Measured.", kind: gauges, unit: percent, width: 12, height: 9,
			queries: []ask{{`topk(12, sum by (cluster, node) (mete_node_cpu_cores{` + in + `, part!="idle"}) / sum by (cluster, node) (mete_node_cpu_cores{` + in + `}))`, "{{node}}"}}},
		line("Power by cluster", watts, "sum by (cluster) ("+whole("mete_node_power_watts", in)+")", "{{cluster}}", "By meters where there are any, else by a model."),
		line("Behind, by cluster", seconds, "max by (cluster) (mete_node_behind_seconds{"+in+"})", "{{cluster}}", "Age of the latest window that is booked, of the slowest node."),
		{title: "Rows taken", about: "By this server, a second. Seen by who may see all clusters.", kind: graph, unit: plain, width: 12, height: 9,
			queries: []ask{{"rate(mete_server_rows_total" + window + ")", "rows a second"}}},
	}}
}

// client is one machine and its agent.
func client() board {
	const in = `cluster=~"$cluster", node=~"$node"`
	part := func(title, name, unit, about string) panel {
		return panel{title: title, about: about, kind: graph, unit: unit, width: 12, height: 9, stack: true, queries: []ask{{"sum by (part) (" + name + "{" + in + "})", "{{part}}"}}}
	}
	flow := func(title, name string, quiet bool) panel {
		return panel{title: title, about: "Of the machine, bytes a second.", kind: graph, unit: rate, width: 12, height: 9, quiet: quiet, queries: []ask{{"sum by (direction) (" + name + "{" + in + "})", "{{direction}}"}}}
	}
	one := func(title, unit, expr, about string, quiet bool) panel {
		return panel{title: title, about: about, kind: stat, unit: unit, width: 6, height: 4, quiet: quiet, queries: []ask{{expr, title}}}
	}
	return board{"mete-client", "mete: node", "One machine, who uses it, and its agent.", []choice{ofCluster, ofNode}, []panel{
		one("CPUs", plain, "sum(mete_node_cpus{"+in+"})", "Online.", false),
		one("Behind", seconds, "max(mete_node_behind_seconds{"+in+"})", "Age of the latest window that is booked.", false),
		one("Spool in use", percent, "max(mete_agent_spool_waiting_bytes{"+in+"} / mete_agent_spool_limit_bytes{"+in+"})", "What the agent has that the server has not booked. Empty where it did not say.", true),
		one("Certificate ends in", seconds, "min(mete_node_certificate_expiry_timestamp_seconds{"+in+"}) - time()", "It is renewed at ten days. Empty where the server and the agent are one process.", true),
		part("CPU by part", "mete_node_cpu_cores", cores, "The parts sum to the machine. Measured."),
		part("Memory by part", "mete_node_memory_held_bytes", octets, "The parts sum to the machine. Measured."),
		{title: "Busiest workloads", about: "CPU. Measured.", kind: graph, unit: cores, width: 12, height: 9,
			queries: []ask{{"topk(8, " + of("name", "mete_workload_info{"+in+`, kind!~"idle|system"}`, rateOf("mete_workload_cpu_seconds_total", in)) + ")", "{{name}}"}}},
		{title: "Power by part", about: "The line is by how much it may be off, either way.", kind: graph, unit: watts, width: 12, height: 9,
			queries: []ask{{"sum by (part) (mete_node_power_watts{" + in + "})", "{{part}}"}, {"sum(mete_node_power_error_watts{" + in + "})", "may be off by"}}},
		flow("Network", "mete_node_network_bytes_per_second", false),
		flow("Disk", "mete_node_disk_bytes_per_second", true),
		{title: "Gaps", about: "Seconds of which not all is known, that were added.", kind: graph, unit: seconds, width: 12, height: 9, queries: []ask{{"increase(mete_node_gap_seconds_total{" + in + "}" + window + ")", "{{node}}"}}},
		{title: "Births and deaths not seen", about: "By the agent, since the server started.", kind: graph, unit: plain, width: 12, height: 9, queries: []ask{{"mete_node_missed_lives_total{" + in + "}", "{{node}}"}}},
	}}
}
