package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

// podManifest returns a pod in the namespace shop, with the arguments of each of its containers by name.
func podManifest(name, node string, containers map[string][]string) string {
	var list []string
	for c, args := range containers {
		a, _ := json.Marshal(args) // of strings
		list = append(list, fmt.Sprintf(`{"name": %q, "image": %q, "imagePullPolicy": "Never", "args": %s}`, c, testbed.PodImage, a))
	}
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q}, "spec": {"nodeSelector": {"kubernetes.io/hostname": %q}, "restartPolicy": "Never",
"terminationGracePeriodSeconds": 1, "containers": [%s]}}`, name, node, strings.Join(list, ", "))
}

// said is what the program of a container says of itself.
type said struct {
	CPU     int64 `json:"cpu_ns"`
	Private int64 `json:"private_byte_seconds"`
	Tx      int64 `json:"tx_bytes"`
	Rx      int64 `json:"rx_bytes"`
}

// TestAgreement compares what mete says of pods on two nodes with what the kubelets, a cAdvisor on each node and metrics-server
// say of the same ones, and with what the pods say of themselves; and the CPU time that each of the programs uses meanwhile.
//
// The figures of containers that stay are between what the kubelet and cAdvisor read before the agent stops and after, since
// all read the same counters of the kernel. The test logs what the others lack of pods that end, and does not judge it.
func TestAgreement(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes, cAdvisor and metrics-server")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns", "bpf")
	c := testbed.Start(t, testbed.Real, testbed.Options{Peers: true})
	s := newSite(t)
	s.measureCluster(c, c.Kubeconfig)
	nodes := []string{"node1", "node2"}
	testkit.Eventually(t, "metrics-server knows the nodes", func() bool {
		return strings.Count(c.Kubectl(t, "", "get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"), `"window"`) == len(nodes)
	})

	a := &agreement{t: t, site: s, cluster: c, kubelet: newPeer("kubelet"), cadvisor: newPeer("cAdvisor"), metrics: newPeer("metrics-server"), said: map[member]said{}, before: map[string][]float64{}}
	before := a.costs()
	began := time.Now()
	stay := a.start(nodes)
	// A user may read the others each 15 s. metrics-server has windows of 15 s, so it is read more often: none shall be missed.
	const oftener, every = 5 * time.Second, 3
	var read, done time.Time // done: all pods have done their work
	var passed time.Duration
	var after map[string]cost
	rounds := 0
	testkit.Eventually(t, "readings after the work of all pods", func() bool {
		if time.Since(read) < oftener {
			return false
		}
		read = time.Now()
		if rounds%every == 0 {
			a.readCounters(nodes)
		}
		rounds++
		a.metrics.readMetrics(t, c)
		if done.IsZero() && a.reports(stay) && a.complete() {
			after, passed = a.costs(), time.Since(began)
			done = time.Now().Add(time.Second) // metrics-server has whole seconds
		}
		return !done.IsZero() && !slices.ContainsFunc(stay, func(k member) bool {
			return slices.ContainsFunc(a.peers(), func(p *peer) bool { return p.last(k).at.Before(done) })
		})
	})
	for _, p := range a.counters() {
		for _, k := range stay {
			a.before[p.name] = append(a.before[p.name], p.last(k).cpu)
		}
	}
	s.node.stop()
	stopped := time.Now()
	testkit.Eventually(t, "readings after the end of the agent", func() bool {
		a.readCounters(nodes)
		return !slices.ContainsFunc(stay, func(k member) bool {
			return slices.ContainsFunc(a.counters(), func(p *peer) bool { return p.last(k).at.Before(stopped) })
		})
	})
	for name, p := range endedPods(t, c) {
		a.said[member{name, "main"}] = said{CPU: p.said.CPU, Private: p.said.Private, Rx: p.said.Rx, Tx: p.said.Tx}
	}

	a.containers, a.pods = map[member]podGroup{}, map[string]podGroup{}
	for _, g := range s.askGroups("--by", "pod,container", "--where", "namespace=shop") {
		a.containers[member{g.Pod, g.Container}] = g
	}
	for _, g := range s.askGroups("--by", "pod", "--where", "namespace=shop") {
		a.pods[g.Pod] = g
	}
	a.check(stay)
	a.report()
	rows := [][]string{{"program", "CPU", "of it in a minute", "memory at the end"}}
	for _, name := range []string{"mete-agent", "mete server", "cAdvisor, two", "metrics-server", "kubelet, two"} {
		used := after[name].cpu - before[name].cpu
		rows = append(rows, []string{name, fmt.Sprintf("%.2f s", used), fmt.Sprintf("%.2f s", used/passed.Minutes()), fmt.Sprintf("%d MiB", after[name].rss>>20)})
	}
	t.Logf("CPU time of the programs in %v:%s", passed.Round(time.Second), markdown(rows))
}

// An agreement is what mete and others say of the same pods.
type agreement struct {
	t                          *testing.T
	site                       *site
	cluster                    *testbed.Cluster
	kubelet, cadvisor, metrics *peer
	jobs                       []string
	said                       map[member]said
	containers                 map[member]podGroup
	pods                       map[string]podGroup
	before                     map[string][]float64 // CPU seconds of those that stay, by peer, before the agent stops
}

// counters are those that show the kernel's counters.
func (a *agreement) counters() []*peer { return []*peer{a.kubelet, a.cadvisor} }

// readCounters reads the kubelets and the cAdvisors.
func (a *agreement) readCounters(nodes []string) {
	a.t.Helper()
	for i, node := range nodes {
		a.kubelet.readKubelet(a.t, a.cluster, node)
		a.cadvisor.readCAdvisor(a.t, a.cluster.CAdvisor(i+1))
	}
}

func (a *agreement) peers() []*peer { return []*peer{a.kubelet, a.cadvisor, a.metrics} }

// start starts pods of each kind on each node, and returns the containers that stay after they have used what they use.
func (a *agreement) start(nodes []string) (stay []member) {
	a.t.Helper()
	create := func(kind, node string, containers map[string][]string) {
		for name, args := range containers {
			containers[name] = append(args, "-stay")
			stay = append(stay, member{kind + "-" + node, name})
		}
		a.cluster.Kubectl(a.t, podManifest(kind+"-"+node, node, containers), "create", "-f", "-")
	}
	job := func(kind, node string, count int, args ...string) {
		a.jobs = append(a.jobs, kind+"-"+node)
		a.cluster.Kubectl(a.t, jobManifest(kind+"-"+node, fmt.Sprintf(`"completions": %d, "parallelism": %d, "backoffLimit": 0,`, count, max(count/4, 1)),
			fmt.Sprintf(`"nodeSelector": {"kubernetes.io/hostname": %q},`, node), "", args...), "create", "-f", "-")
	}
	for _, node := range nodes {
		create("serve", node, map[string][]string{"main": {"serve", "-clients", "1"}})
	}
	for i, node := range nodes {
		create("steady", node, map[string][]string{"main": {"burn", "-cpu", "9s", "-for", "90s"}})
		create("bursts", node, map[string][]string{"main": {"burn", "-cpu", "2700ms", "-for", "90s", "-parts", "9"}})
		create("three", node, map[string][]string{"even": {"burn", "-cpu", "4s", "-for", "80s"},
			"four": {"burn", "-cpu", "1200ms", "-for", "80s", "-parts", "4"}, "early": {"burn", "-cpu", "500ms", "-for", "1s"}})
		job("hold", node, 1, "hold", "-bytes", fmt.Sprint(256<<20), "-for", "80s")
		job("cache", node, 1, "write", "-bytes", "100000000", "-for", "80s")
		for life, count := range map[int]int{1: 10, 2: 8, 3: 6, 5: 4} {
			job(fmt.Sprintf("short%d", life), node, count, "burn", "-cpu", fmt.Sprintf("%dms", 100*life), "-for", fmt.Sprintf("%ds", life))
		}
		other := "serve-" + nodes[1-i]
		var address string
		testkit.Eventually(a.t, "an address of "+other, func() bool {
			address = a.cluster.Kubectl(a.t, "", "-n", "shop", "get", "pod", other, "-o", "jsonpath={.status.podIP}")
			return address != ""
		})
		create("talk", node, map[string][]string{"main": {"traffic", "-to", address + ":7000", "-send", "30000000", "-receive", "20000000", "-for", "60s"}})
	}
	return stay
}

// reports reads the reports of containers that stay, and reports whether all have one.
func (a *agreement) reports(stay []member) bool {
	a.t.Helper()
	for _, k := range stay {
		if _, ok := a.said[k]; ok {
			continue
		}
		out, err := a.cluster.Try("", "-n", "shop", "logs", k.pod, "-c", k.name)
		if err != nil || out == "" { // it may not have started
			return false
		}
		var r said
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			a.t.Fatalf("%v says %q: %v", k, out, err)
		}
		a.said[k] = r
	}
	return true
}

// complete reports whether all Jobs are complete.
func (a *agreement) complete() bool {
	a.t.Helper()
	conditions := a.cluster.Kubectl(a.t, "", "-n", "shop", "get", "jobs", "-o", `jsonpath={range .items[*]}{.status.conditions[?(@.status=="True")].type};{end}`)
	if strings.Contains(conditions, "Failed") {
		a.t.Fatalf("jobs: %s", conditions)
	}
	return strings.Count(conditions, "Complete;") == len(a.jobs)
}

// costs returns what the programs have used.
func (a *agreement) costs() map[string]cost {
	a.t.Helper()
	all := map[string]cost{"mete-agent": costOf(a.t, a.site.node.cmd.Process.Pid), "mete server": costOf(a.t, a.site.server.cmd.Process.Pid)}
	for name, p := range map[string]struct {
		program string
		count   int
	}{"cAdvisor, two": {"cadvisor", 2}, "metrics-server": {"metrics-server", 1}, "kubelet, two": {"kubelet", 2}} {
		pids, err := a.cluster.Processes(p.program)
		if err != nil || len(pids) != p.count {
			a.t.Fatalf("%s: %v, %v", p.program, pids, err)
		}
		all[name] = costOf(a.t, pids...)
	}
	return all
}

// check checks mete's figures: against counters that must be equal, and against what the programs say.
func (a *agreement) check(stay []member) {
	a.t.Helper()
	// The runtime starts in a container's group, for a time that depends on the machine. The kubelet read how long for those
	// that stay.
	var start, most float64
	const rounding = 1e-6
	for i, k := range stay {
		for _, p := range a.counters() {
			got, low, high := a.containers[k].CPU, a.before[p.name][i], p.last(k).cpu
			if most = max(most, high-low); got < low-rounding || got > high+rounding {
				a.t.Errorf("%v used %.6f s, %s read %.6f before and %.6f after", k, got, p.name, low, high)
			}
		}
		start = max(start, a.kubelet.last(k).cpu-float64(a.said[k].CPU)/1e9)
	}
	a.t.Logf("of %d containers that stay mete has what the kubelet and cAdvisor read, within the %.2f ms at most that they used meanwhile; the kubelet has at most %.1f ms more than they say",
		len(stay), most*1e3, start*1e3)
	for k, r := range a.said {
		if cpu, own := a.containers[k].CPU, float64(r.CPU)/1e9; cpu < own*.999 || cpu > own*1.001+2*start {
			a.t.Errorf("%v used %.4f s, it says %.4f", k, cpu, own)
		}
		switch kindOf(k.pod) {
		case "hold":
			checkNear(a.t, "memory of "+k.pod, a.containers[k].Memory, r.Private)
		case "serve", "talk":
			checkNear(a.t, "bytes received by "+k.pod, a.pods[k.pod].Rx, r.Rx)
			checkNear(a.t, "bytes sent by "+k.pod, a.pods[k.pod].Tx, r.Tx)
			for _, p := range a.counters() {
				checkNear(a.t, "bytes received by "+k.pod+", and "+p.name, p.rx[k.pod], r.Rx)
				checkNear(a.t, "bytes sent by "+k.pod+", and "+p.name, p.tx[k.pod], r.Tx)
			}
		}
	}
}

// kindOf returns the kind of a pod by its name.
func kindOf(pod string) string {
	kind, _, _ := strings.Cut(pod, "-")
	return strings.TrimRight(kind, "0123456789")
}

// A figure is an amount of a container by one source.
type figure func(k member) float64

// sums returns the sum of each figure over containers.
func sums(of []member, figures []figure) []float64 {
	all := make([]float64, len(figures))
	for i, f := range figures {
		for _, k := range of {
			all[i] += f(k)
		}
	}
	return all
}

// compared writes amounts in a unit, each with its difference from the first one in percent.
func compared(unit string, amounts []float64) (cells []string) {
	for i, f := range amounts {
		s := fmt.Sprintf("%.3f %s", f, unit)
		if i > 0 && amounts[0] > 0 {
			s += fmt.Sprintf(" (%+.2f %%)", 100*(f/amounts[0]-1))
		}
		cells = append(cells, s)
	}
	return cells
}

// report logs tables.
func (a *agreement) report() {
	a.t.Helper()
	kinds := map[string][]member{}
	for k := range a.said {
		kinds[kindOf(k.pod)] = append(kinds[kindOf(k.pod)], k)
	}
	table := func(what, unit string, names []string, head []string, figures []figure) {
		a.t.Helper()
		rows := [][]string{append([]string{"pods", "containers"}, head...)}
		for _, kind := range names {
			rows = append(rows, append([]string{kind, fmt.Sprint(len(kinds[kind]))}, compared(unit, sums(kinds[kind], figures))...))
		}
		a.t.Logf("%s:%s", what, markdown(rows))
	}
	const gib, mb = 1 << 30, 1e6

	cpu := []figure{func(k member) float64 { return float64(a.said[k].CPU) / 1e9 }, func(k member) float64 { return a.containers[k].CPU }}
	memory := []figure{func(k member) float64 { return float64(a.said[k].Private) / gib }, func(k member) float64 { return a.containers[k].Memory / gib },
		func(k member) float64 { return a.containers[k].Working / gib }}
	for _, p := range a.peers() {
		cpu = append(cpu, func(k member) float64 { return p.last(k).cpu })
		memory = append(memory, func(k member) float64 { return p.byteSeconds(k) / gib })
	}
	network := []figure{func(k member) float64 { return float64(a.said[k].Rx+a.said[k].Tx) / mb }, func(k member) float64 { return (a.pods[k.pod].Rx + a.pods[k.pod].Tx) / mb }}
	for _, p := range []*peer{a.kubelet, a.cadvisor} {
		network = append(network, func(k member) float64 { return (p.rx[k.pod] + p.tx[k.pod]) / mb })
	}
	table("CPU time", "s", []string{"steady", "bursts", "three", "serve", "talk", "hold", "cache", "short"}, []string{"they say", "mete", "kubelet", "cAdvisor", "metrics-server"}, cpu)
	table("Memory over time", "GiB s", []string{"hold", "cache"}, []string{"they say", "mete, memory", "mete, memory_working", "kubelet", "cAdvisor", "metrics-server"}, memory)
	table("Bytes received and sent", "MB", []string{"serve", "talk"}, []string{"they say", "mete", "kubelet", "cAdvisor"}, network)

	short := kinds["short"]
	of := func(shown func(k member) bool) string {
		n := 0
		for _, k := range short {
			if shown(k) {
				n++
			}
		}
		return fmt.Sprintf("%d of %d", n, len(short))
	}
	times := compared("s", sums(short, cpu))
	rows := [][]string{{"of pods that live for 1 to 5 s", "read", "read twice", "CPU time of " + times[0]},
		{"mete", of(func(k member) bool { return a.containers[k].CPU > 0 }), "", times[1]}}
	for i, p := range a.peers() {
		rows = append(rows, []string{p.name, of(func(k member) bool { return len(p.readings[k]) > 0 }), of(func(k member) bool { return len(p.readings[k]) > 1 }), times[2+i]})
	}
	a.t.Logf("Short lives:%s", markdown(rows))
}
