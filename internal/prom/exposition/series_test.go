package exposition_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/prom/exposition"
)

// A metric of the agent with the name of a server's series has the same type and, except for
// the cluster, the same labels, so that a query works with both. Only the info metric may
// have more labels.
func TestSeriesNames(t *testing.T) {
	kept := map[string]metric.Metric{}
	for _, m := range metric.Metrics() {
		kept[m.Name] = m
	}
	labels := map[string][]string{metric.Info: {metric.Node, metric.Workload}}
	for _, f := range metric.Families() {
		labels[f.Name] = []string{metric.Node, metric.Workload}
		if f.Label != "" {
			labels[f.Name] = append(labels[f.Name], f.Label)
		}
	}
	for _, l := range metric.Levels {
		labels[l.Name] = []string{metric.Node}
		if l.Label != "" {
			labels[l.Name] = append(labels[l.Name], l.Label)
		}
	}
	var tally exposition.Accumulator
	v := tally.Add("HOST", new(machine).first(), meters())
	got := text(func(p *exposition.Text) { v.Mete(p, true) })
	types := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(got, -1) {
		types[m[1]] = m[2]
	}
	both := map[string]bool{}
	sample, label := regexp.MustCompile(`(?m)^([a-z_]+)\{(.*)\} \S+$`), regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
	for _, m := range sample.FindAllStringSubmatch(got, -1) {
		name := m[1]
		if strings.HasPrefix(name, "mete_workload_") && kept[name].Name == "" {
			t.Errorf("%s: not in metric.Metrics", name)
		}
		if kept[name].Name == "" {
			continue
		}
		both[name] = true
		if types[name] != kept[name].Type {
			t.Errorf("%s: type %s, of the server %s", name, types[name], kept[name].Type)
		}
		var has []string
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			has = append(has, l[1])
			if l[1] == metric.Node && l[0] != `node="HOST"` {
				t.Errorf("%s: %s is not the server's name of the node", name, l[0])
			}
		}
		missing := slices.DeleteFunc(slices.Clone(labels[name]), func(l string) bool { return slices.Contains(has, l) })
		if len(missing) > 0 || name != metric.Info && len(has) != len(labels[name]) {
			t.Errorf("%s: labels %v, of the server %v", name, has, labels[name])
		}
	}
	if len(both) < 6 {
		t.Errorf("only %v in common", both)
	}
}
