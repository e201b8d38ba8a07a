package testbed_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

// TestAPI creates an object, which nothing runs, and restarts the API server, with which watches of before expire.
func TestAPI(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	c.Kubectl(t, "", "create", "namespace", "shop")
	c.Kubectl(t, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}, "data": {"k": "v"}}`, "create", "-f", "-")
	if got := c.Kubectl(t, "", "-n", "shop", "get", "configmap", "a", "-o", "jsonpath={.data.k}"); got != "v" {
		t.Errorf("the object has %q", got)
	}
	since := c.Kubectl(t, "", "-n", "shop", "get", "configmap", "a", "-o", "jsonpath={.metadata.resourceVersion}")
	c.Kubectl(t, "", "-n", "shop", "label", "configmap", "a", "seen=later")
	expired := func() bool {
		t.Helper()
		return strings.Contains(c.Kubectl(t, "", "get", "--raw", "/api/v1/namespaces/shop/configmaps?watch=1&timeoutSeconds=2&resourceVersion="+since), `"code":410`)
	}
	if expired() {
		t.Error("a watch expires before the restart")
	}
	if err := c.RestartAPI(); err != nil {
		t.Fatal(err)
	}
	if !expired() {
		t.Error("a watch goes on after the restart")
	}
}

// TestSim lets pods seem to run on simulated nodes.
func TestSim(t *testing.T) {
	testkit.Stage(t, "kube", "runs a control plane")
	c := testbed.Start(t, testbed.Sim, testbed.Options{Nodes: 3})
	if got := strings.Count(c.Kubectl(t, "", "get", "nodes", "-o", "name"), "node/simulated-"); got != 3 {
		t.Errorf("%d nodes, want 3", got)
	}
	c.Kubectl(t, fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 6, "selector": {"matchLabels": {"app": "web"}},
"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}], "containers": [{"name": "main", "image": %q}]}}}}`,
		testbed.PodImage), "create", "-f", "-")
	c.Kubectl(t, "", "rollout", "status", "deployment/web", "--timeout=2m")
}

// TestReal runs a Job on two nodes, whose pods say how much CPU time they used. Nothing of the nodes is left
// on the machine.
func TestReal(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns")
	t.Cleanup(func() {
		left, err := filepath.Glob("/sys/fs/cgroup/*/mete-tb-*")
		links, linksErr := exec.Command("ip", "-o", "link").CombinedOutput()
		spaces, spacesErr := exec.Command("ip", "netns").CombinedOutput()
		if err != nil || linksErr != nil || spacesErr != nil || len(left) > 0 || strings.Contains(string(links)+string(spaces), "mete-tb") {
			t.Errorf("left: %q\n%s\n%s (%v, %v, %v)", left, links, spaces, err, linksErr, spacesErr)
		}
	})
	c := testbed.Start(t, testbed.Real, testbed.Options{})
	const count = 8
	c.Kubectl(t, fmt.Sprintf(`{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "burn"}, "spec": {"completions": %d, "parallelism": 4, "template": {"spec": {"restartPolicy": "Never",
"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"job-name": "burn"}}}],
"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "args": ["burn", "-cpu", "200ms"]}]}}}}`, count, testbed.PodImage), "create", "-f", "-")
	c.Kubectl(t, "", "wait", "--for=condition=complete", "job/burn", "--timeout=3m")
	used := 0
	for line := range strings.Lines(c.Kubectl(t, "", "logs", "-l", "job-name=burn", "--max-log-requests", fmt.Sprint(count))) {
		var pod struct {
			Pod string
			CPU int64 `json:"cpu_ns"`
		}
		if err := json.Unmarshal([]byte(line), &pod); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if used++; pod.CPU < 200e6 || !strings.HasPrefix(pod.Pod, "burn-") {
			t.Errorf("%+v", pod)
		}
	}
	if used != count {
		t.Errorf("%d pods used CPU time, want %d", used, count)
	}
	nodes := c.Kubectl(t, "", "get", "pods", "-l", "job-name=burn", "-o", "jsonpath={.items[*].spec.nodeName}")
	if !strings.Contains(nodes, "node1") || !strings.Contains(nodes, "node2") {
		t.Errorf("the pods ran on %s", nodes)
	}
}
