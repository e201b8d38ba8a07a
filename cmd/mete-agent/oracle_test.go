package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/netfault"
	"mete.dev/mete/internal/testkit/testbed"
)

// throughProxy returns the kubeconfig of a cluster with a proxy in front of its API server, and the proxy.
func throughProxy(t *testing.T, c *testbed.Cluster) (string, *netfault.Proxy) {
	t.Helper()
	b, err := os.ReadFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	server := regexp.MustCompile(`server: "https://(([^:"]+):\d+)"`)
	m := server.FindSubmatch(b)
	if m == nil {
		t.Fatalf("no server in\n%s", b)
	}
	proxy, err := netfault.Open(string(m[1]), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	b = server.ReplaceAll(b, fmt.Appendf(nil, `server: "https://%s", tls-server-name: "%s"`, proxy.Addr(), m[2]))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, proxy
}

// TestOracle compares what the ledger says of pods on two nodes with what they say of themselves, for each resource, while
// the server is killed and the API server cannot be reached; and what they reserve with the times in their status.
func TestOracle(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns", "bpf")
	c := testbed.Start(t, testbed.Real, testbed.Options{})
	kubeconfig, proxy := throughProxy(t, c)
	s := newSite(t)
	serve := func() { s.serve("--kube-cluster", "lab", "--kubeconfig", kubeconfig) }
	s.measureCluster(c, kubeconfig)

	// The pods of each node. The one that serves has the clients of the other node.
	const clients, sent, received, held = 2, 30_000_000, 20_000_000, 512 << 20
	type does struct {
		count       int
		cpu, memory int64 // requests, in thousandths of a CPU and MiB
		args        []string
	}
	kinds := map[string]does{
		"serve": {1, 20, 16, []string{"serve", "-clients", fmt.Sprint(clients)}},
		"cpu":   {2, 150, 16, []string{"burn", "-cpu", "6s", "-for", "80s"}},
		"brief": {3, 50, 24, []string{"burn", "-cpu", "1500ms", "-for", "20s"}}, // they end while the API server is away
		"hold":  {2, 30, 600, []string{"hold", "-bytes", fmt.Sprint(held), "-for", "80s"}},
		// Not through the page cache, whose pages other processes and the kernel may write, too: see docs/measured.md.
		"write": {2, 10, 32, []string{"write", "-bytes", "200000000", "-for", "60s", "-direct"}},
		"talk":  {clients, 10, 20, []string{"traffic", "-send", fmt.Sprint(sent), "-receive", fmt.Sprint(received), "-for", "60s"}},
	}
	nodes := []string{"node1", "node2"}
	create := func(kind, node string, more ...string) {
		t.Helper()
		k := kinds[kind]
		c.Kubectl(t, jobManifest(kind+"-"+node, fmt.Sprintf(`"completions": %d, "parallelism": %[1]d, "backoffLimit": 0,`, k.count),
			fmt.Sprintf(`"nodeSelector": {"kubernetes.io/hostname": %q},`, node),
			fmt.Sprintf(`"requests": {"cpu": "%dm", "memory": "%dMi"}`, k.cpu, k.memory), append(k.args, more...)...), "create", "-f", "-")
	}
	addresses := map[string]string{}
	for _, node := range nodes {
		create("serve", node)
	}
	for _, node := range nodes {
		testkit.Eventually(t, "an address", func() bool {
			addresses[node] = c.Kubectl(t, "", "-n", "shop", "get", "pods", "-l", "job-name=serve-"+node, "-o", "jsonpath={.items[*].status.podIP}")
			return addresses[node] != ""
		})
	}
	count := len(nodes)
	for kind, k := range kinds {
		for i, node := range nodes {
			switch kind {
			case "serve":
				continue
			case "talk":
				create(kind, node, "-to", addresses[nodes[1-i]]+":7000")
			default:
				create(kind, node)
			}
			count += k.count
		}
	}
	ended := func(kind string) {
		t.Helper()
		for _, node := range nodes {
			c.Kubectl(t, "", "-n", "shop", "wait", "--for=condition=complete", "job/"+kind+"-"+node, "--timeout=10m")
		}
	}
	testkit.Eventually(t, "all pods run", func() bool {
		phases := c.Kubectl(t, "", "-n", "shop", "get", "pods", "-o", "jsonpath={.items[*].status.phase}")
		return len(strings.Fields(phases)) == count && !strings.Contains(phases, "Pending")
	})
	proxy.Set(netfault.Conditions{Down: true})
	s.server.kill()
	ended("brief")
	serve() // while the API server is away
	away := time.Now()
	testkit.Eventually(t, "some time", func() bool { return time.Since(away) > 10*time.Second })
	proxy.Set(netfault.Conditions{})
	s.server.waitOutput("pods are named by this server")
	s.server.kill()
	serve()
	for kind := range kinds {
		ended(kind)
	}
	s.node.stop()
	pods := endedPods(t, c)
	if len(pods) != count {
		t.Errorf("%d pods have ended, want %d", len(pods), count)
	}

	// Reservations are booked when their minute is over.
	reserved := map[string]int64{} // CPU, in thousandths of a CPU times seconds
	for name, p := range pods {
		kind, _, _ := strings.Cut(p.job, "-")
		reserved[name] = kinds[kind].cpu * int64(p.finished.Sub(p.scheduled)/time.Second)
	}
	var groups map[string]podGroup
	end := time.Now().Truncate(time.Minute).Add(90 * time.Second)
	s.server.await("what pods reserve", func() bool {
		groups = map[string]podGroup{}
		equal := true
		for _, g := range s.askGroups("--by", "job,pod", "--where", "namespace=shop") {
			groups[g.Pod] = g
		}
		for name := range pods {
			equal = equal && math.Round(groups[name].CPUReserved*1e3) == float64(reserved[name])
		}
		return equal || time.Now().After(end)
	})

	containers := map[string]podGroup{}
	for _, g := range s.askGroups("--by", "job,pod", "--where", "namespace=shop", "--where", "container=main") {
		containers[g.Pod] = g
	}
	for name, p := range pods {
		g, main := groups[name], containers[name]
		kind, _, _ := strings.Cut(p.job, "-")
		if want := "shop/job/" + p.job; g.Job != want || main.Job != want {
			t.Errorf("%s has the jobs %q and %q, want %q", name, g.Job, main.Job, want)
			continue
		}
		seconds := int64(p.finished.Sub(p.scheduled) / time.Second)
		if cpu, memory := math.Round(g.CPUReserved*1e3), kinds[kind].memory<<20*seconds; cpu != float64(reserved[name]) || g.MemoryReserved != float64(memory) {
			t.Errorf("%s reserves %v thousandths of CPU seconds and %v byte-seconds, want %d and %d: %d s from %v to %v",
				name, cpu, g.MemoryReserved, reserved[name], memory, seconds, p.scheduled, p.finished)
		}
		checkCPU(t, name, main.CPU, p.said.CPU, 1)
		line := fmt.Sprintf("%s on %s: CPU %.4f s of %.4f", name, p.node, main.CPU, float64(p.said.CPU)/1e9)
		switch kind {
		case "hold":
			checkNear(t, "memory of "+name, main.Memory, p.said.Private)
			if p.said.Private < p.said.Held {
				t.Errorf("%s says %+v", name, p.said)
			}
			line += fmt.Sprintf(", memory %.0f of %d byte-seconds (%+.2f %%; holds %d; anonymous %.0f)", main.Memory, p.said.Private,
				100*(main.Memory/float64(p.said.Private)-1), p.said.Held, main.Anon)
		case "write":
			checkNear(t, "bytes written by "+name, main.Written, p.said.Written)
			line += fmt.Sprintf(", written %.0f of %d bytes", main.Written, p.said.Written)
		case "serve", "talk":
			checkNear(t, "bytes received by "+name, g.Rx, p.said.Rx)
			checkNear(t, "bytes sent by "+name, g.Tx, p.said.Tx)
			line += fmt.Sprintf(", received %.0f of %d bytes (payload %d), sent %.0f of %d (%d)", g.Rx, p.said.Rx, p.said.Received, g.Tx, p.said.Tx, p.said.Sent)
			if p.said.Rx < p.said.Received || p.said.Tx < p.said.Sent || kind == "talk" && (p.said.Sent != sent || p.said.Received != received) {
				t.Errorf("%s says %+v", name, p.said)
			}
		}
		t.Log(line)
	}
	s.checkWhole()
	var told struct{ Findings []any }
	if out := s.run("check", filepath.Join(s.dir, "server"), "-o", "json"); json.Unmarshal([]byte(out), &told) != nil || len(told.Findings) > 0 {
		t.Errorf("mete check:\n%s", out)
	}
	for gap := range strings.SplitSeq(s.run("gaps", "--server", s.url, "--token", s.viewer), "\n") {
		t.Log(gap)
	}
}

// checkWhole checks that all groups sum to the machine, in nanoseconds, byte-seconds and bytes.
func (s *site) checkWhole() {
	s.t.Helper()
	out := s.run("usage", "--from", "-1h", "-o", "json", "--by", "namespace,job,pod,container,workload,kind", "--limit", "10000", "--server", s.url, "--token", s.viewer)
	var a struct {
		Groups       []map[string]any
		Total, Whole map[string]any
	}
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	for key, unit := range map[string]float64{"cpu_seconds": 1e9, "memory_byte_seconds": 1, "disk_read_bytes": 1, "disk_written_bytes": 1, "energy_joules": 1e6} {
		var sum int64
		parts := map[string]int64{}
		for _, g := range a.Groups {
			if f, ok := g[key].(float64); ok {
				n := int64(math.Round(f * unit))
				sum += n
				parts[fmt.Sprint(g["kind"])] += n
			}
		}
		total, _ := a.Total[key].(float64)
		whole, _ := a.Whole[key].(float64)
		s.t.Logf("%s: %d groups sum to %d, of %.0f and %.0f: %v", key, len(a.Groups), sum, total*unit, whole*unit, parts)
		if sum == 0 || sum != int64(math.Round(total*unit)) || sum != int64(math.Round(whole*unit)) {
			s.t.Errorf("%s: groups sum to %d, the total is %.0f, the machine %.0f", key, sum, total*unit, whole*unit)
		}
	}
}
