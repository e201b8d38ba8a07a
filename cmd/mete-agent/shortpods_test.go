package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

// TestShortPods measures pods that live for 0.3 to 2 s, most of them between two ticks of the agent: the CPU time that
// they say they used stands under their own names and those of their Jobs, and none of it under another one.
func TestShortPods(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns", "bpf")
	c := testbed.Start(t, testbed.Real, testbed.Options{})
	s := newSite(t)
	s.measureCluster(c, c.Kubeconfig)

	// Each pod uses another amount of CPU time, and lives for another time, by its index in its Job: 20 ms and 0.2 ms for each
	// index, in 300 ms and 3 ms for each.
	const index = "$(JOB_COMPLETION_INDEX)"
	counts := map[string]int{"many": 500, "few": 50}
	began := time.Now()
	for name, count := range counts {
		cpu, life := "20ms"+index+"00us"+index+"00us", "300ms"+index+"ms"+index+"ms"+index+"ms"
		if name == "few" {
			cpu, life = "25ms"+index+"000us"+index+"000us", "350ms"+index+"0ms"+index+"0ms"
		}
		spec := fmt.Sprintf(`"completionMode": "Indexed", "completions": %d, "parallelism": %d,`, count, count/25)
		c.Kubectl(t, jobManifest(name, spec, "", "", "burn", "-cpu", cpu, "-for", life), "create", "-f", "-")
	}
	for name := range counts {
		c.Kubectl(t, "", "-n", "shop", "wait", "--for=condition=complete", "job/"+name, "--timeout=20m")
	}
	t.Logf("all pods ended after %v", time.Since(began).Round(time.Second))
	s.node.stop()

	pods := endedPods(t, c)
	said := map[string]int64{} // by job
	nodes := map[string]int{}
	var lives []time.Duration
	for _, p := range pods {
		said[p.job] += p.said.CPU
		nodes[p.node]++
		lives = append(lives, time.Duration(p.said.Life))
	}
	slices.Sort(lives)
	t.Logf("%v pods by node; lives from %v to %v, half of them up to %v", nodes, lives[0], lives[len(lives)-1], lives[len(lives)/2])
	if len(pods) != 550 || len(nodes) != 2 {
		t.Errorf("%d pods have ended on %v, want 550 on two nodes", len(pods), nodes)
	}

	jobs := 0
	for _, g := range s.askGroups("--by", "job", "--where", "namespace=shop", "--where", "container=main") {
		for name, count := range counts {
			if g.Job != "shop/job/"+name {
				continue
			}
			jobs++
			checkCPU(t, g.Job, g.CPU, said[name], count)
			ns := float64(said[name]) / 1e9
			t.Logf("%s: %d pods say %.4f s, in the ledger are %.4f: %.2f ms more for each", g.Job, count, ns, g.CPU, (g.CPU-ns)*1e3/float64(count))
		}
	}
	if jobs != len(counts) {
		t.Errorf("%d jobs are named", jobs)
	}
	least, most, named := 1., 0., 0
	for _, g := range s.askGroups("--by", "job,pod", "--where", "namespace=shop", "--where", "container=main") {
		p, ok := pods[g.Pod]
		if !ok || g.Job != "shop/job/"+p.job {
			t.Errorf("pod %q, of job %q, used %v s under the job %q", g.Pod, p.job, g.CPU, g.Job)
			continue
		}
		named++
		more := g.CPU - float64(p.said.CPU)/1e9
		least, most = min(least, more), max(most, more)
		checkCPU(t, g.Pod, g.CPU, p.said.CPU, 1)
	}
	t.Logf("%d pods are named; each has %.2f to %.2f ms more than it says", named, least*1e3, most*1e3)
	if named != len(pods) {
		t.Errorf("%d pods of %d are named", named, len(pods))
	}
	for _, g := range s.askGroups("--by", "kind,workload,namespace") {
		if g.inKubernetes() && g.CPU > 0 {
			t.Errorf("%s %q has no name of a pod, and used %v s", g.Kind, g.Workload, g.CPU)
		}
	}
}
