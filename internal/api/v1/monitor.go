package v1

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
)

type clusterJSON struct {
	Cluster string         `json:"cluster" doc:"name; empty is that of nodes without one"`
	Nodes   int            `json:"nodes"`
	Nested  int            `json:"nested_nodes" doc:"how many of them are guests of others"`
	States  map[string]int `json:"states" doc:"nodes in each state"`
	CPUs    int            `json:"cpus" doc:"of the nodes that are no guests"`
	Through *time.Time     `json:"booked_through" doc:"up to when the furthest of its nodes is booked; null before the first batch"`
}

type streamJSON struct {
	Stream  string     `json:"stream" doc:"id: 32 hexadecimal digits"`
	Node    string     `json:"node" doc:"id of the node that sends it"`
	Name    string     `json:"name" doc:"name of the node"`
	Cluster string     `json:"cluster"`
	Next    string     `json:"next" doc:"number of the batch that the server wants next: all before it are booked"`
	Boot    string     `json:"boot" doc:"id of the boot in which the latest batch was measured"`
	Opened  *time.Time `json:"opened_at" doc:"when its first batch was booked"`
	Seen    *time.Time `json:"seen_at" doc:"when its latest batch was booked"`
}

type alertJSON struct {
	Rule        string            `json:"rule"`
	State       string            `json:"state" doc:"pending or firing" enum:"pending,firing"`
	Cluster     string            `json:"cluster" doc:"that it is about; empty is none in particular"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations" doc:"for people: what it means, and what to do"`
	Since       *time.Time        `json:"since" doc:"from when on the condition held"`
	Value       string            `json:"value" doc:"of the condition, as Prometheus writes numbers"`
}

// GroupByCluster puts nodes together by their clusters, by name.
func GroupByCluster(nodes []query.Node) []query.Cluster {
	found := map[string]*query.Cluster{}
	for i := range nodes {
		n := &nodes[i]
		c := found[n.Cluster]
		if c == nil {
			c = &query.Cluster{Name: n.Cluster, States: map[string]int{}}
			found[n.Cluster] = c
		}
		c.Nodes++
		c.States[n.State]++
		if n.Nested != nil {
			c.Nested++
		} else {
			c.CPUs += n.CPUs
		}
		if n.Through.After(c.Through) {
			c.Through = n.Through
		}
	}
	var out []query.Cluster
	for _, name := range slices.Sorted(maps.Keys(found)) {
		out = append(out, *found[name])
	}
	return out
}

// ClustersJSON writes clusters under the key clusters.
func ClustersJSON(list []query.Cluster) []byte {
	return marshalList("clusters", mapSlice(list, func(c query.Cluster) clusterJSON {
		return clusterJSON{c.Name, c.Nodes, c.Nested, c.States, c.CPUs, timeOrNil(c.Through)}
	}))
}

// ClustersCSV writes clusters with the keys of the JSON form; how many nodes are
// in each state is told as state=number.
func ClustersCSV(list []query.Cluster) []byte {
	rows := [][]string{{"cluster", "nodes", "nested_nodes", "states", "cpus", "booked_through"}}
	for _, c := range list {
		states := map[string]string{}
		for k, n := range c.States {
			states[k] = strconv.Itoa(n)
		}
		rows = append(rows, []string{c.Name, strconv.Itoa(c.Nodes), strconv.Itoa(c.Nested), formatLabels(states), strconv.Itoa(c.CPUs), formatTime(c.Through)})
	}
	return writeCSV(rows)
}

// StreamsJSON writes streams under the key streams.
func StreamsJSON(list []query.Stream) []byte {
	return marshalList("streams", mapSlice(list, func(s query.Stream) streamJSON {
		return streamJSON{s.ID, s.Node, s.Name, s.Cluster, strconv.FormatUint(s.Next, 10), s.Boot, timeOrNil(s.Opened), timeOrNil(s.Seen)}
	}))
}

// StreamsCSV writes streams with the keys of the JSON form.
func StreamsCSV(list []query.Stream) []byte {
	rows := [][]string{{"stream", "node", "name", "cluster", "next", "boot", "opened_at", "seen_at"}}
	for _, s := range list {
		rows = append(rows, []string{s.ID, s.Node, s.Name, s.Cluster, strconv.FormatUint(s.Next, 10), s.Boot, formatTime(s.Opened), formatTime(s.Seen)})
	}
	return writeCSV(rows)
}

// SortAlerts puts alerts in the order in which they are told: those that fire
// first, then by rule, cluster and labels.
func SortAlerts(list []query.Alert) {
	slices.SortFunc(list, func(a, b query.Alert) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(formatLabels(a.Labels), formatLabels(b.Labels)))
	})
}

// AlertsJSON writes alerts under the key alerts.
func AlertsJSON(list []query.Alert) []byte {
	return marshalList("alerts", mapSlice(list, func(a query.Alert) alertJSON {
		return alertJSON{a.Rule, a.State, a.Cluster, orEmpty(a.Labels), orEmpty(a.Annotations), timeOrNil(a.Since), strconv.FormatFloat(a.Value, 'g', -1, 64)}
	}))
}

// orEmpty is a map as JSON has it: an object also where it has nothing.
func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// AlertsCSV writes alerts with the keys of the JSON form.
func AlertsCSV(list []query.Alert) []byte {
	rows := [][]string{{"rule", "state", "cluster", "labels", "annotations", "since", "value"}}
	for _, a := range list {
		rows = append(rows, []string{a.Rule, a.State, a.Cluster, formatLabels(a.Labels), formatLabels(a.Annotations), formatTime(a.Since), strconv.FormatFloat(a.Value, 'g', -1, 64)})
	}
	return writeCSV(rows)
}

// LabelsText writes labels in one order, for what has to be told apart by them.
func LabelsText(m map[string]string) string { return formatLabels(m) }
