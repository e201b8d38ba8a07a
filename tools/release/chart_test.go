package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

var update = flag.Bool("update", false, "write deploy/kubernetes/mete.yaml")

// The chart and the manifest of a release have its version, and images of it.
func TestChartVersion(t *testing.T) {
	t.Parallel()
	all := write(t, fake(t, "1.2.3+dirty"))
	manifest := string(untar(t, all["mete-1.2.3+dirty_linux_amd64.tar.gz"])["mete-1.2.3+dirty/deploy/kubernetes/mete.yaml"])
	for _, image := range []string{"mete-agent", "mete-server"} {
		if strings.Count(manifest, `image: "`+image+`:`) != 1 || !strings.Contains(manifest, `image: "`+image+`:1.2.3-dirty"`+"\n") {
			t.Errorf("the manifest has another image than that of %s", image)
		}
	}
	files := untar(t, all["mete-chart-1.2.3+dirty.tgz"])
	chart := string(files["mete/Chart.yaml"])
	for _, want := range []string{"\nname: mete\n", "\nversion: \"1.2.3+dirty\"\n", "\nappVersion: \"1.2.3-dirty\"\n"} {
		if !strings.Contains(chart, want) {
			t.Errorf("it lacks %q:\n%s", want, chart)
		}
	}
	for _, name := range []string{"values.yaml", "values.schema.json", "templates/agent.yaml", "templates/_helpers.tpl"} {
		if len(files["mete/"+name]) == 0 {
			t.Errorf("it lacks %s", name)
		}
	}
}

// The ledger's volume, on node1.
const volume = `{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "ledger"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
"storageClassName": "here", "persistentVolumeReclaimPolicy": "Retain", "local": {"path": "/var/lib/ledger"},
"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]}]}]}}}}`

// TestChart installs the chart of a release into a real cluster, with its images, as
// docs/guide/kubernetes.md says; upgrades it, and uninstalls it. A Job's use stands under its name
// before and after the upgrade.
func TestChart(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns", "bpf")
	dir := t.TempDir()
	r, err := openSource(t.Context(), "../..", true)
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.build(t.Context(), "amd64", filepath.Join(dir, "programs"))
	if err != nil {
		t.Fatal(err)
	}
	b.version = "1.2.3"
	for _, write := range []func(string) error{b.images, b.chart} {
		if err := write(dir); err != nil {
			t.Fatal(err)
		}
	}
	images := map[string]string{}
	for _, name := range []string{"mete-agent", "mete-server"} {
		images[name] = filepath.Join(dir, name+"-1.2.3_linux_amd64.image.tar")
	}
	c := testbed.Start(t, testbed.Real, testbed.Options{Images: images})
	chart := filepath.Join(dir, "mete-chart-1.2.3.tgz")
	c.Helm(t, "lint", "--strict", chart)

	// The plain manifest is what the chart gives for its default values.
	plain := "# Written by `go test ./tools/release -run TestChart -update` from deploy/helm/mete; see docs/guide/kubernetes.md.\n" +
		c.Helm(t, "template", "mete", "../../deploy/helm/mete", "--namespace", "mete")
	const path = "../../deploy/kubernetes/mete.yaml"
	if *update {
		if err := os.WriteFile(path, []byte(plain), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != plain {
		t.Errorf("%s is not what the chart gives: run with -update (%v)", path, err)
	}

	c.Kubectl(t, "", "create", "namespace", "mete")
	c.Kubectl(t, "", "label", "namespace", "mete", "pod-security.kubernetes.io/enforce=privileged")
	c.Kubectl(t, plain, "create", "--dry-run=server", "-f", "-")

	if err := os.Mkdir(filepath.Join(filepath.Dir(c.Logs), "node1/lib/ledger"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, volume, "create", "-f", "-")
	// Both nodes are this machine, so one of them is measured. The cluster has no DNS.
	const address = "10.96.7.7"
	set := []string{"--namespace", "mete", "--set", "cluster=lab,image.pullPolicy=Never,server.storage.size=1Gi,server.storage.className=here,server.storage.keep=false",
		"--set", "server.service.clusterIP=" + address + ",server.names={" + address + "},agent.server=https://" + address + ":9797",
		"--set", `agent.nodeSelector.kubernetes\.io/hostname=node1`}
	notes := c.Helm(t, append([]string{"install", "mete", chart}, set...)...)
	if !strings.Contains(notes, "rollout status statefulset/mete-server") {
		t.Errorf("notes: %s", notes)
	}
	k := func(args ...string) string { return c.Kubectl(t, "", append([]string{"-n", "mete"}, args...)...) }
	mete := func(args ...string) string {
		return k(append([]string{"exec", "mete-server-0", "--", "mete"}, args...)...)
	}
	k("rollout", "status", "statefulset/mete-server", "--timeout=5m")
	token := mete("token", "create", "--role", "agent", "--cluster", "lab")
	c.Kubectl(t, token, "-n", "mete", "create", "secret", "generic", "mete-agent", "--from-file=token=/dev/stdin")
	k("rollout", "restart", "daemonset/mete-agent")
	k("rollout", "status", "daemonset/mete-agent", "--timeout=5m")

	used := func(job string) (seconds float64) {
		t.Helper()
		var a struct {
			Groups []struct {
				Job string
				CPU float64 `json:"cpu_seconds"`
			} `json:"groups"`
		}
		out := mete("usage", "--from", "-1h", "--by", "job", "-o", "json")
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, g := range a.Groups {
			if g.Job == job {
				seconds += g.CPU
			}
		}
		return seconds
	}
	burn := func(name string) {
		t.Helper()
		c.Kubectl(t, fmt.Sprintf(`{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": %q}, "spec": {"template": {"spec": {"restartPolicy": "Never",
"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "args": ["burn", "-cpu", "500ms"]}]}}}}`, name, testbed.PodImage), "create", "-f", "-")
		c.Kubectl(t, "", "wait", "--for=condition=complete", "job/"+name, "--timeout=5m")
		testkit.Eventually(t, "the ledger has the job "+name, func() bool { return used("default/job/"+name) >= .499 })
	}
	testkit.Eventually(t, "the server has the node", func() bool { return strings.Contains(mete("nodes"), "live") })
	burn("first")
	if err := os.Symlink(c.Program("kubectl"), filepath.Join(dir, "kubectl")); err != nil {
		t.Fatal(err)
	}
	plugin := exec.CommandContext(t.Context(), "../../deploy/kubernetes/kubectl-mete", "usage", "--from", "-1h", "--by", "job", "-o", "csv")
	plugin.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig)
	if out, err := plugin.CombinedOutput(); err != nil || !strings.Contains(string(out), "default/job/first") {
		t.Errorf("kubectl mete: %v\n%s", err, out)
	}

	// The example of the guide: a pod reads its own use. The cluster has no names of services.
	guide, err := os.ReadFile("../../docs/guide/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(guide), "```yaml\napiVersion: v1\nkind: Pod\n")
	example, _, _ = strings.Cut(example, "```")
	example = strings.NewReplacer("registry.example.org/tools/mete-server:VERSION", "mete-server:1.2.3", "mete-server.mete.svc", address, "OnFailure", "Always", "--self]", "--self, -o, json]").Replace(example)
	authority, err := os.ReadFile(filepath.Join(filepath.Dir(c.Logs), "node1/lib/ledger/server/authority/ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	var certificate []byte
	for block, rest := pem.Decode(authority); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			certificate = append(certificate, pem.EncodeToMemory(block)...)
		}
	}
	c.Kubectl(t, "", "create", "namespace", "shop")
	c.Kubectl(t, string(certificate), "-n", "shop", "create", "configmap", "mete-ca", "--from-file=ca.pem=/dev/stdin")
	testkit.Eventually(t, "the namespace has an account", func() bool { _, err := c.Try("", "-n", "shop", "get", "serviceaccount", "default"); return err == nil })
	c.Kubectl(t, "apiVersion: v1\nkind: Pod\n"+example, "create", "-f", "-")
	testkit.Eventually(t, "the pod reads its own use", func() bool {
		out, err := c.Try("", "-n", "shop", "logs", "curious")
		var self struct {
			Kind, Name, Job string
			Usage           struct {
				CPU float64 `json:"cpu_seconds"`
			}
		}
		return err == nil && json.Unmarshal([]byte(out), &self) == nil && self.Kind == "pod" && self.Name == "curious" && self.Job == "shop/pod/curious" && self.Usage.CPU > 0
	})
	c.Kubectl(t, "", "delete", "namespace", "shop", "--wait=false")

	checkDirectives(t, c)

	// The rights of the pods.
	var pods struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				AutomountServiceAccountToken *bool
				Containers                   []struct {
					SecurityContext struct {
						Privileged, AllowPrivilegeEscalation, ReadOnlyRootFilesystem bool
						Capabilities                                                 struct{ Add, Drop []string }
					}
				}
				Volumes []struct {
					HostPath *struct{ Path string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(k("get", "pods", "-l", "app.kubernetes.io/name=mete", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 2 {
		t.Errorf("%d pods", len(pods.Items))
	}
	for _, p := range pods.Items {
		var paths []string
		for _, v := range p.Spec.Volumes {
			if v.HostPath != nil {
				paths = append(paths, v.HostPath.Path)
			}
		}
		s := p.Spec.Containers[0].SecurityContext
		rights, token := []string(nil), true
		if strings.HasPrefix(p.Metadata.Name, "mete-agent-") {
			rights, token = []string{"BPF", "PERFMON", "DAC_READ_SEARCH", "NET_ADMIN", "SYS_PTRACE", "NET_BIND_SERVICE"}, false
			if !slices.Equal(paths, []string{"/var/lib/mete-agent", "/etc/machine-id"}) {
				t.Errorf("the agent's pod has the node's %q", paths)
			}
		} else if len(paths) > 0 {
			t.Errorf("the server's pod has the node's %q", paths)
		}
		if s.Privileged || s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Add, rights) || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s: %+v", p.Metadata.Name, s)
		}
		if a := p.Spec.AutomountServiceAccountToken; a == nil || *a != token {
			t.Errorf("%s: a token for the API server: %v", p.Metadata.Name, a)
		}
	}
	// The rights of the server at the API server, and those that it lacks.
	for _, question := range []struct{ verb, what, answer string }{
		{"list", "pods", "yes"}, {"watch", "pods", "yes"}, {"list", "persistentvolumes", "yes"}, {"watch", "persistentvolumeclaims", "yes"}, {"get", "persistentvolumes", "no"}, {"list", "nodes", "yes"}, {"watch", "nodes", "yes"}, {"get", "nodes", "no"}, {"patch", "nodes", "no"}, {"get", "nodes/proxy", "no"}, {"get", "deployments.apps", "yes"}, {"list", "jobs.batch", "yes"}, {"create", "tokenreviews.authentication.k8s.io", "yes"},
		{"get", "secrets", "no"}, {"list", "secrets", "no"}, {"get", "configmaps", "no"}, {"list", "services", "no"},
		{"create", "pods", "no"}, {"delete", "pods", "no"}, {"patch", "pods", "no"}, {"create", "pods/exec", "no"}, {"get", "pods/log", "no"},
		{"create", "deployments.apps", "no"}, {"update", "deployments.apps", "no"}, {"delete", "jobs.batch", "no"}, {"create", "serviceaccounts/token", "no"},
		{"create", "subjectaccessreviews.authorization.k8s.io", "no"},
		{"escalate", "clusterroles.rbac.authorization.k8s.io", "no"}, {"bind", "clusterroles.rbac.authorization.k8s.io", "no"}, {"impersonate", "users", "no"},
	} {
		_, err := c.Try("", "auth", "can-i", question.verb, question.what, "--all-namespaces", "--as", "system:serviceaccount:mete:mete-server")
		if (err == nil) != (question.answer == "yes") {
			t.Errorf("may the server %s %s: %v, want %s", question.verb, question.what, err, question.answer)
		}
	}

	before := used("default/job/first") // all of it, as its pod ended minutes ago
	c.Helm(t, append([]string{"upgrade", "mete", chart, "--set", "server.labels={team},agent.network=false"}, set...)...)
	k("rollout", "status", "statefulset/mete-server", "--timeout=5m")
	k("rollout", "status", "daemonset/mete-agent", "--timeout=5m")
	burn("second")
	t.Logf("jobs of 0.5 s used %.4f s, and %.4f s after the upgrade", before, used("default/job/second"))
	if after := used("default/job/first"); after != before {
		t.Errorf("the first job used %v s after the upgrade, %v before", after, before)
	}

	c.Helm(t, "uninstall", "mete", "--namespace", "mete", "--wait")
	k("delete", "secret", "mete-agent")
	testkit.Eventually(t, "nothing is left", func() bool {
		left := k("get", "daemonsets,statefulsets,pods,services,serviceaccounts,secrets,configmaps,networkpolicies,persistentvolumeclaims,roles,rolebindings", "-o", "name")
		left = strings.ReplaceAll(strings.ReplaceAll(left, "serviceaccount/default\n", ""), "configmap/kube-root-ca.crt\n", "")
		all := c.Kubectl(t, "", "get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=mete", "-o", "name")
		return left+all == ""
	})
	for bad, what := range map[string]string{"agent.sever=https://x": "'sever'", "cluster=": "'/cluster'", "server.service.port=0": "'/server/service/port'", "agent.server=http://x": "'/agent/server'", "server.enabled=false": "agent.server is needed"} {
		if _, err := c.TryHelm("template", "mete", chart, "--set", bad); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("the value %s: %v", bad, err)
		}
	}
}

// checkDirectives changes nodes, and compares the classes of their addresses that the server, which watches them, has the agent
// of node1 keep.
func checkDirectives(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	const file = "node1/lib/mete-agent/directives.json"
	expect := func(others, node string) {
		t.Helper()
		testkit.Eventually(t, "the agent has "+others+" and "+node, func() bool {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(c.Logs), file))
			var kept struct {
				Sections []struct {
					Name    string
					Content []byte
				}
			}
			_, content, _ := bytes.Cut(b, []byte("\n")) // after its checksum
			if err != nil || json.Unmarshal(content, &kept) != nil {
				return false
			}
			got := map[string]string{}
			for _, s := range kept.Sections {
				got[s.Name] = string(s.Content)
			}
			return len(got) == 2 && got["network-classes"] == `{"classes":{`+others+`}}` && got["network-node"] == `{"classes":{`+node+`}}`
		})
	}
	expect(`"internal":["10.99.0.11/32","10.99.0.12/32"]`, `"node":["10.99.0.11/32"]`)
	for i, node := range []string{"node1", "node2"} {
		c.Kubectl(t, "", "patch", "node", node, "-p", fmt.Sprintf(`{"spec": {"podCIDR": "10.244.%[1]d.0/24", "podCIDRs": ["10.244.%[1]d.0/24"]}}`, i+1))
	}
	expect(`"internal":["10.99.0.11/32","10.99.0.12/32","10.244.1.0/24","10.244.2.0/24"]`, `"node":["10.99.0.11/32","10.244.1.0/24"]`)
	c.Kubectl(t, "", "label", "node", "node1", "topology.kubernetes.io/zone=east")
	expect(`"internal":["10.99.0.11/32","10.244.1.0/24"]`, `"node":["10.99.0.11/32","10.244.1.0/24"]`) // node2 may be anywhere
	c.Kubectl(t, "", "label", "node", "node2", "topology.kubernetes.io/zone=west")
	expect(`"internal":["10.99.0.11/32","10.244.1.0/24"],"zone":["10.99.0.12/32","10.244.2.0/24"]`, `"node":["10.99.0.11/32","10.244.1.0/24"]`)
}
