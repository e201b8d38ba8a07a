package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/testkit/testbed"
)

// A member is a container of a pod, by their names.
type member struct{ pod, name string }

// A reading is what another program says of a container at a time.
type reading struct {
	at     time.Time
	cpu    float64 // seconds, since the container began or since the program first read it
	memory float64 // its working set in bytes
}

// A peer is another program that measures pods, with what it said of those in the namespace shop.
type peer struct {
	name     string
	readings map[member][]reading
	pods     map[string]float64 // CPU seconds of the pod as a whole, where it says that
	rx, tx   map[string]float64 // bytes of the pod, where it says that
}

func newPeer(name string) *peer {
	return &peer{name, map[member][]reading{}, map[string]float64{}, map[string]float64{}, map[string]float64{}}
}

// add adds a reading if it is a new one.
func (p *peer) add(c member, r reading) {
	if old := p.readings[c]; len(old) == 0 || r.at.After(old[len(old)-1].at) {
		p.readings[c] = append(old, r)
	}
}

// last returns the last reading of a container.
func (p *peer) last(c member) (r reading) {
	if all := p.readings[c]; len(all) > 0 {
		r = all[len(all)-1]
	}
	return r
}

// byteSeconds is the integral of memory between the first and the last reading, as a user can draw it.
func (p *peer) byteSeconds(c member) (sum float64) {
	all := p.readings[c]
	for i := 1; i < len(all); i++ {
		sum += (all[i].memory + all[i-1].memory) / 2 * all[i].at.Sub(all[i-1].at).Seconds()
	}
	return sum
}

// readKubelet reads /stats/summary of a node.
func (p *peer) readKubelet(t *testing.T, c *testbed.Cluster, node string) {
	t.Helper()
	type cpu struct {
		Time  time.Time
		Total *int64 `json:"usageCoreNanoSeconds"`
	}
	var a struct {
		Pods []struct {
			PodRef     struct{ Name, Namespace string }
			CPU        cpu
			Containers []struct {
				Name   string
				CPU    cpu
				Memory struct{ WorkingSetBytes float64 }
			}
			Network struct{ RxBytes, TxBytes *float64 }
		}
	}
	if err := json.Unmarshal([]byte(c.Kubectl(t, "", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/stats/summary")), &a); err != nil {
		t.Fatal(err)
	}
	for _, pod := range a.Pods {
		if pod.PodRef.Namespace != "shop" {
			continue
		}
		if pod.CPU.Total != nil {
			p.pods[pod.PodRef.Name] = float64(*pod.CPU.Total) / 1e9
		}
		if rx, tx := pod.Network.RxBytes, pod.Network.TxBytes; rx != nil && tx != nil {
			p.rx[pod.PodRef.Name], p.tx[pod.PodRef.Name] = *rx, *tx
		}
		for _, k := range pod.Containers {
			if k.CPU.Total != nil {
				p.add(member{pod.PodRef.Name, k.Name}, reading{k.CPU.Time, float64(*k.CPU.Total) / 1e9, k.Memory.WorkingSetBytes})
			}
		}
	}
}

// readCAdvisor reads the metrics of a cAdvisor. The network of a pod is that of its sandbox.
func (p *peer) readCAdvisor(t *testing.T, url string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // nothing was written
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	// sum adds up the samples of each container, which are by CPU or by interface.
	sum := func(family string) map[member]reading {
		sums := map[member]reading{}
		for _, m := range families[family].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[strings.TrimPrefix(l.GetName(), "container_label_io_kubernetes_")] = l.GetValue()
			}
			if labels["pod_namespace"] != "shop" {
				continue
			}
			c := member{labels["pod_name"], labels["container_name"]}
			r := sums[c]
			r.at = time.UnixMilli(m.GetTimestampMs())
			r.cpu += m.GetCounter().GetValue()
			r.memory += m.GetGauge().GetValue()
			sums[c] = r
		}
		return sums
	}
	memory := sum("container_memory_working_set_bytes")
	for c, r := range sum("container_cpu_usage_seconds_total") {
		r.memory = memory[c].memory
		if c.name != "" {
			p.add(c, r)
		}
	}
	for c, r := range sum("container_network_receive_bytes_total") {
		p.rx[c.pod] = r.cpu
	}
	for c, r := range sum("container_network_transmit_bytes_total") {
		p.tx[c.pod] = r.cpu
	}
}

// readMetrics reads metrics-server. It says rates: a user has to multiply them by their windows, and to add them up.
func (p *peer) readMetrics(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	var a struct {
		Items []struct {
			Metadata   struct{ Name string }
			Timestamp  time.Time
			Window     string
			Containers []struct {
				Name  string
				Usage struct{ CPU, Memory string }
			}
		}
	}
	if err := json.Unmarshal([]byte(c.Kubectl(t, "", "get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods")), &a); err != nil {
		t.Fatal(err)
	}
	for _, pod := range a.Items {
		window, err := time.ParseDuration(pod.Window)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range pod.Containers {
			c := member{pod.Metadata.Name, k.Name}
			p.add(c, reading{pod.Timestamp, p.last(c).cpu + quantity(t, k.Usage.CPU)*window.Seconds(), quantity(t, k.Usage.Memory)})
		}
	}
}

// quantity returns the value of a quantity of Kubernetes, as metrics-server writes it.
func quantity(t *testing.T, s string) float64 {
	t.Helper()
	factor := 1.0
	for _, unit := range []struct {
		name string
		is   float64
	}{{"n", 1e-9}, {"u", 1e-6}, {"m", 1e-3}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}} {
		if number, ok := strings.CutSuffix(s, unit.name); ok {
			s, factor = number, unit.is
			break
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f * factor
}

// A cost is what a program has used.
type cost struct {
	cpu float64 // seconds
	rss int64   // bytes
}

// costOf returns the sum of some processes.
func costOf(t *testing.T, pids ...int) (sum cost) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		p, err := procfmt.ProcStat(b)
		if err != nil {
			t.Fatal(err)
		}
		sum.cpu += float64(p.User+p.System) / 1e9
		sum.rss += p.RSSPages * int64(os.Getpagesize())
	}
	return sum
}

// markdown returns a table.
func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "\n| %s |", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("\n" + strings.Repeat("|---", len(row)) + "|")
		}
	}
	return b.String()
}
