package main

import (
	"cmp"
	"fmt"
	"strings"

	"mete.dev/mete/internal/model/metric"
)

const seriesText = "The series in the server's database, for `mete query`, `/api/v1`, rules and remote write. The server appends those of workloads " +
	"and the levels and capacity of nodes with each window, and those of the state of nodes every 15 s. With these it appends the figures of its `/metrics` above, " +
	"except `mete_conservation_violations_total`, which is by node here. `node` is the node's name, without one its id. `mete_workload_info` has the names of a workload as " +
	"further labels: `kind`, `name`, `job`, `user`, `project`, `namespace`, `pod`, `container`, `uid` (of the pod) and `parent`. The workload `" + metric.ShortLived + "` stands for all workloads of a node " +
	"without series of their own: those that lived for less than a window, and those above the limit; `" + metric.ShortLivedJobs + "` is the same for the standalone jobs of a machine.\n\n" +
	"`uid` is that of the API server, so the series join those of kube-state-metrics, as the CPU time of pods by what owns them:\n\n" +
	"```\n" + `sum by (uid) (rate(mete_workload_cpu_seconds_total[5m])
    * on (cluster, node, workload) group_left (uid) mete_workload_info{uid!=""})
  * on (uid) group_left (namespace, pod, created_by_kind, created_by_name, priority_class)
    max by (uid, namespace, pod, created_by_kind, created_by_name, priority_class) (kube_pod_info)` + "\n```"

// writeSeries writes the section about the series in the server's database, from their definitions.
func writeSeries(b *strings.Builder) {
	fmt.Fprintf(b, "\n## mete server: the series in its database\n\n%s\n\n| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n", seriesText)
	for _, m := range metric.Metrics() {
		unit := strings.ReplaceAll(cmp.Or(m.Unit, "count"), "_", "-")
		fmt.Fprintf(b, "| `%s` | %s | %s | `%s` | %s |\n", m.Name, m.Type, unit, strings.Join(seriesLabels(m.Name), "` `"), m.Help)
	}
}

// seriesLabels returns the sets of labels of the series with a name.
func seriesLabels(name string) (sets []string) {
	const node = metric.Cluster + "," + metric.Node
	switch name {
	case metric.Info:
		return []string{node + "," + metric.Workload + ",..."}
	case metric.ClusterCap:
		return []string{metric.Cluster}
	case metric.ServerExpiry:
		for _, v := range []string{metric.ServerCertificate, metric.AuthorityCertificate} {
			sets = append(sets, fmt.Sprintf("%s=%q", metric.Certificate, v))
		}
		return sets
	}
	for _, f := range metric.Families() {
		if f.Name != name {
			continue
		}
		labels := node + "," + metric.Workload
		if f.Label != "" {
			labels += fmt.Sprintf(",%s=%q", f.Label, f.LabelValue)
		}
		sets = append(sets, labels)
	}
	for _, l := range metric.Levels {
		if l.Name == name && l.Label != "" {
			sets = append(sets, fmt.Sprintf("%s,%s=%q", node, l.Label, l.Value))
		}
	}
	if len(sets) == 0 {
		return []string{node}
	}
	return sets
}
