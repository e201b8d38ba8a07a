package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/usage"
)

// TestReferenceOfMetrics compares docs/metrics.md with the metrics in the golden files of the
// programs and with the list of resources.
func TestReferenceOfMetrics(t *testing.T) {
	const reference = "../../docs/metrics.md"
	want := metricsPage(t)
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, string(have)); diff != "" {
		t.Errorf("docs/metrics.md is stale; go generate ./cmd/mete rewrites it (-want +have):\n%s", diff)
	}
}

const metricsPreface = `# Metrics and resources

<!-- Made from the programs themselves by: go generate ./cmd/mete -->

Both programs export metrics about themselves in Prometheus's text format. They count these metrics themselves, so
each figure is *measured*. The agent also exports the use of workloads and of the machine up to its latest window.
The ledger has this use exact to the minute and without extrapolation: query it with %s or over %s.

Units are base units. A counter grows while the program runs and starts from 0, unless its text says otherwise.
`

const meteText = "At the same address, updated with each window, by default every 10 s. `node` is the machine's id, or its name if the agent has no server; " +
	"`workload` is the workload's id, as in the ledger, and `mete_workload_info` has its name. `idle` and `system` are workloads like any other, so that the " +
	"workloads of a domain sum to the machine. A workload's counters are its own, without its children's, and grow from the beginning of its life; those of the machine " +
	"from the agent's start. Those of workloads other than `idle` and `system` are omitted unless `--status-workloads` is given: every user of the machine can read the default address."

const keplerText = "With that flag, in addition to the others: the names of Kepler's metrics, version 0.10 and later, with the values that mete books. [Energy](guide/energy.md) lists " +
	"the metrics and their differences from Kepler's. Those of containers, virtual machines and pods are omitted under the same condition as mete's own."

// metricsPage writes the page.
func metricsPage(t *testing.T) string {
	var b strings.Builder
	fmt.Fprintf(&b, metricsPreface, "`mete usage`", "`/v1/usage`")
	for _, p := range []struct{ title, text, golden string }{
		{"mete server, mete up", "At `/metrics` of the server's address, for clients with read permission. A reader of one cluster receives only the metrics of the cluster's nodes (`mete_server_nodes`, `mete_server_meter_inside_ratio`, `mete_server_meter_measured_ratio`).", "../../internal/server/testdata/metrics.txt"},
		{"mete-agent", "At `/metrics` of `--status`, by default 127.0.0.1:9798; `/healthz` at the same address answers 503 while the agent cannot store windows.", "../../internal/app/agent/testdata/metrics.txt"},
		{"mete-agent: the machine and its workloads", meteText, "../../internal/prom/exposition/testdata/mete.txt"},
		{"mete-agent --compat kepler", keplerText, "../../internal/prom/exposition/testdata/kepler.txt"},
	} {
		text, err := os.ReadFile(p.golden)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n", p.title, p.text)
		for _, f := range families(string(text)) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.name, f.kind, unitOf(f.name), strings.Join(f.labels, " "), f.help)
		}
	}
	writeSeries(&b)
	b.WriteString(`
## Resources

What is measured of every workload: the columns of rows, reports and the ledger. Of counters and integrals
the ledger keeps sums, of peaks the highest; an integral is a level held over time, so that divided by the time
it is the average. Each figure carries its quality: *measured*, *apportioned* (a measured total divided by a
rule), *modelled*, or *absent*, which is not zero.

| resource | kind | unit | meaning |
|---|---|---|---|
`)
	for r := usage.Resource(1); r < usage.Limit; r++ {
		d := r.Detail()
		unit := strings.ReplaceAll(d.Unit.Base(), "_", "-")
		switch {
		case unit == "" && d.Kind == usage.Integral:
			unit = "count-seconds"
		case unit == "":
			unit = "count"
		}
		kind := map[usage.Kind]string{usage.Counter: "counter", usage.Integral: "integral", usage.Peak: "peak"}[d.Kind]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, kind, unit, d.Help)
	}
	return b.String()
}

// A family is a metric with all its samples.
type family struct {
	name, kind, help string
	labels           []string
}

// families reads Prometheus's text format, in order.
func families(text string) (all []family) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			all = append(all, family{name: name, help: help})
			continue
		}
		f := &all[len(all)-1]
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			_, f.kind, _ = strings.Cut(rest, " ")
			continue
		}
		if _, rest, ok := strings.Cut(line, "{"); ok {
			label, _, _ := strings.Cut(rest, "}")
			if isMachineMetric(f.name) { // samples have many values: names suffice
				label = labelForm.ReplaceAllString(label, "$1")
			}
			if label = "`" + label + "`"; !slices.Contains(f.labels, label) {
				f.labels = append(f.labels, label)
			}
		}
	}
	return all
}

// labelForm matches a label and its value.
var labelForm = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)

// isMachineMetric reports whether a metric is about the machine or its workloads.
func isMachineMetric(name string) bool {
	return strings.HasPrefix(name, "mete_workload_") || strings.HasPrefix(name, "mete_node_") || strings.HasPrefix(name, "kepler_") || name == "mete_agent_meter_up"
}

// unitOf reads a metric's unit from its name.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	for _, u := range []string{"byte_seconds", "seconds", "bytes", "joules", "watts", "ratio"} {
		if strings.HasSuffix(name, "_"+u) {
			return strings.ReplaceAll(u, "_", "-")
		}
	}
	return "count"
}
