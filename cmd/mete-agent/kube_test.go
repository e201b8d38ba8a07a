package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

// manifest returns an object with a template of pods that use CPU time and print how much.
func manifest(version, kind, name, spec, labels, cpu string) string {
	restart, stay := "Never", ""
	if kind == "Deployment" || kind == "DaemonSet" {
		restart, stay = "Always", `, "-stay"`
	}
	return fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"namespace": "shop", "name": %q}, "spec": {%s "template": {"metadata": {"labels": {"team": "blue"%s}},
"spec": {"restartPolicy": %q, "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "args": ["burn", "-cpu", %q%s]}]}}}}`,
		version, kind, name, spec, labels, restart, testbed.PodImage, cpu, stay)
}

// TestPods measures the pods of a real cluster with two nodes: each job of Kubernetes has the CPU time that
// its pods say they used, and each pod stands under its own name.
func TestPods(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns", "bpf")
	c := testbed.Start(t, testbed.Real, testbed.Options{})
	s := newSite(t)
	s.serve("--kube-cluster", "lab", "--kubeconfig", c.Kubeconfig, "--kube-label", "team")
	s.token = s.run("token", "create", "--role", "agent", "--cluster", "lab")
	s.server.waitOutput("pods are named by this server")
	s.measure("-reader", "bpf")

	c.Kubectl(t, "", "create", "namespace", "shop")
	batch := manifest("batch/v1", "Job", "batch", `"completions": 20, "parallelism": 4,`, "", "200ms")
	for _, object := range []string{
		manifest("apps/v1", "Deployment", "web", `"replicas": 2, "selector": {"matchLabels": {"app": "web"}},`, `, "app": "web"`, "700ms"),
		manifest("apps/v1", "DaemonSet", "logs", `"selector": {"matchLabels": {"app": "logs"}},`, `, "app": "logs"`, "300ms"),
		batch,
		manifest("batch/v1", "Job", "own", `"completions": 2,`, `, "mete.dev/job": "nightly"`, "300ms"),
		`{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"namespace": "shop", "name": "report"}, "spec": {"schedule": "0 0 1 1 *", "jobTemplate": ` +
			`{"spec": ` + batch[strings.Index(batch, `"spec": `)+len(`"spec": `):len(batch)-1] + `}}}`,
	} {
		c.Kubectl(t, object, "create", "-f", "-")
	}
	c.Kubectl(t, "", "-n", "shop", "create", "job", "--from=cronjob/report", "report-1")
	for _, what := range []string{"job/batch", "job/own", "job/report-1"} {
		c.Kubectl(t, "", "-n", "shop", "wait", "--for=condition=complete", what, "--timeout=5m")
	}
	for _, what := range []string{"deployment/web", "daemonset/logs"} {
		c.Kubectl(t, "", "-n", "shop", "rollout", "status", what, "--timeout=5m")
	}

	// The CPU time that the pods printed, by job.
	jobs := map[string][]string{"shop/deployment/web": {"web-"}, "shop/daemonset/logs": {"logs-"}, "shop/job/batch": {"batch-"}, "shop/nightly": {"own-"}, "shop/cronjob/report": {"report-1-"}}
	type said struct {
		CPU  int64
		Pods map[string]int64
	}
	want := map[string]said{}
	testkit.Eventually(t, "all pods have said what they used", func() bool {
		clear(want)
		count := 0
		for name := range strings.FieldsSeq(c.Kubectl(t, "", "-n", "shop", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")) {
			for job, prefixes := range jobs {
				if !strings.HasPrefix(name, prefixes[0]) {
					continue
				}
				var pod struct {
					CPU int64 `json:"cpu_ns"`
				}
				if json.Unmarshal([]byte(c.Kubectl(t, "", "-n", "shop", "logs", name)), &pod) != nil {
					return false
				}
				w := want[job]
				if w.Pods == nil {
					w.Pods = map[string]int64{}
				}
				w.CPU += pod.CPU
				w.Pods[name] = pod.CPU
				want[job] = w
				count++
			}
		}
		return count == 2+2+20+2+20
	})
	// The series of what lived for more than a window have names too.
	for _, job := range []string{"shop/deployment/web", "shop/daemonset/logs", "shop/nightly"} {
		testkit.Eventually(t, "PromQL finds the pods of "+job, func() bool {
			out := s.run("query", "-o", "csv", "--server", s.url, "--token", s.viewer,
				fmt.Sprintf(`count(last_over_time(mete_workload_cpu_seconds_total[1h]) * on (cluster, node, workload) group_left (pod) last_over_time(mete_workload_info{namespace="shop", job=%q, container="main"}[1h]))`, job))
			return strings.HasSuffix(strings.TrimSpace(out), ",2")
		})
	}
	s.node.stop()

	type answer struct {
		Groups []struct {
			Job, Pod string
			CPU      float64 `json:"cpu_seconds"`
		} `json:"groups"`
	}
	ask := func(args ...string) (a answer) {
		t.Helper()
		out := s.run(append([]string{"usage", "--from", "-1h", "-o", "json", "--server", s.url, "--token", s.viewer, "--where", "namespace=shop", "--where", "label:team=blue"}, args...)...)
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return a
	}
	seen := 0
	for _, g := range ask("--by", "job", "--where", "container=main").Groups {
		w, ok := want[g.Job]
		if !ok {
			t.Errorf("job %q used %v s", g.Job, g.CPU)
			continue
		}
		seen++
		checkCPU(t, g.Job, g.CPU, w.CPU, len(w.Pods))
		t.Logf("%-20s %3d pods: %.4f s, they say %.4f", g.Job, len(w.Pods), g.CPU, float64(w.CPU)/1e9)
	}
	if seen != len(want) {
		t.Errorf("%d jobs are named, want %d", seen, len(want))
	}
	seen = 0
	for _, g := range ask("--by", "job,pod", "--where", "container=main").Groups {
		ns, ok := want[g.Job].Pods[g.Pod]
		if !ok {
			t.Errorf("pod %q of job %q used %v s", g.Pod, g.Job, g.CPU)
			continue
		}
		seen++
		checkCPU(t, g.Pod, g.CPU, ns, 1)
	}
	if seen != 46 {
		t.Errorf("%d pods are named, want 46", seen)
	}

	// Each Job is a run with all of its pods.
	var runs struct {
		Runs []struct {
			Job, Name, Kind, State string
			CPU                    float64 `json:"cpu_seconds"`
			Length                 float64 `json:"length_seconds"`
			Exit                   *int    `json:"exit_code"`
		}
	}
	out := s.run("runs", "--from", "-1h", "-o", "json", "--server", s.url, "--token", s.viewer, "--where", "namespace=shop")
	if err := json.Unmarshal([]byte(out), &runs); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	named := map[string]string{"batch": "shop/job/batch", "own": "shop/nightly", "report-1": "shop/cronjob/report"}
	for _, r := range runs.Runs {
		w := want[r.Job]
		if named[r.Name] != r.Job || r.Kind != "kube-job" || r.State != "ended" || r.Exit == nil || *r.Exit != 0 || r.Length <= 0 {
			t.Errorf("run %+v", r)
		}
		delete(named, r.Name)
		// With the sandboxes of the pods, which the CPU time above is without.
		if own := float64(w.CPU) / 1e9; r.CPU < own || r.CPU > own+0.2*float64(len(w.Pods)) {
			t.Errorf("run %s used %v s, its pods say %v", r.Name, r.CPU, own)
		}
		t.Logf("run %-10s %6.1f s, %.4f s of CPU time", r.Name, r.Length, r.CPU)
	}
	if len(named) > 0 {
		t.Errorf("no runs of %v", named)
	}
}
