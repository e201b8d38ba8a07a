package guest

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/prometheus"
	"mete.dev/mete/internal/testkit/testbed"
)

// A pod of the API server whose container runs in the virtual machine.
type podInGuest struct {
	name, uid, container string
	group                string // in the guest
}

// createPod creates a pod, and says in its status that its container runs, as a kubelet does.
func (r *rig) createPod(c *testbed.Cluster, name string) *podInGuest {
	r.t.Helper()
	p := &podInGuest{name: name, container: strings.Repeat(fmt.Sprintf("%x", name[0]), 32)}
	p.uid = strings.TrimSpace(c.Kubectl(r.t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q},
"spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]}}`, name), "create", "-o", "jsonpath={.metadata.uid}", "-f", "-"))
	c.Kubectl(r.t, "", "-n", "shop", "patch", "pod", name, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status": {"containerStatuses":
[{"name": "main", "image": "x", "imageID": "x", "ready": true, "restartCount": 0, "containerID": "containerd://%s", "state": {"running": {}}}]}}`, p.container))
	p.group = "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(p.uid, "-", "_") + ".slice/cri-containerd-" + p.container + ".scope"
	return p
}

// runIn starts a program in a group of the guest.
func (r *rig) runIn(group string, args ...string) (pid int) {
	r.t.Helper()
	pid, err := r.vm.Start(group, nil, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

// podEnergy returns the energy of the guest in uJ: of each pod by name, of all else by kind, and of all.
func (r *rig) podEnergy() (by map[string]int64, cpu map[string]float64, all int64) {
	r.t.Helper()
	var u struct {
		Groups []struct {
			Kind, Pod string
			CPU       float64 `json:"cpu_seconds"`
			Energy    float64 `json:"energy_joules"`
		}
	}
	r.ask(&u, "usage", "--by", "kind,pod", "--from", "-1h", "--nested", "only")
	by, cpu = map[string]int64{}, map[string]float64{}
	for _, g := range u.Groups {
		key := g.Pod
		if key == "" {
			key = g.Kind
		}
		by[key] += int64(math.Round(g.Energy * 1e6))
		cpu[key] += g.CPU
	}
	var node usage
	r.ask(&node, "usage", "--by", "node", "--from", "-1h", "--nested", "only")
	if len(node.Groups) != 1 {
		r.t.Fatalf("mete usage: %+v, want the guest alone", node.Groups)
	}
	return by, cpu, int64(math.Round(node.Groups[0].Energy * 1e6))
}

// noteShares records the shares that the host gives until the test ends.
func (r *rig) noteShares() {
	ended := r.t.Context().Done()
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(50 * time.Millisecond):
				if b, err := os.ReadFile(filepath.Join(r.dir, "shares", name, energyshare.File)); err == nil {
					if m, err := energyshare.Decode(b); err == nil {
						r.seen.note(m)
					}
				}
			}
		}
	}()
}

// given returns two shares between which the host gave an amount, the second one n or a later one; -1 if there are none.
func (r *rig) given(n, uj int64) (first, last int64) {
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	for _, to := range r.seen.shares {
		for _, from := range r.seen.shares {
			if to.N >= n && from.Epoch == to.Epoch && to.Energy()-from.Energy() == uj {
				return from.N, to.N
			}
		}
	}
	return -1, -1
}

// authority returns the certificate of the server's authority alone, without its key, in a file.
func (r *rig) authority() string {
	r.t.Helper()
	rest, err := os.ReadFile(filepath.Join(r.dir, "state", "server", "authority", "ca.pem"))
	if err != nil {
		r.t.Fatal(err)
	}
	for b, rest := pem.Decode(rest); b != nil; b, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(b.Bytes); b.Type != "CERTIFICATE" || err != nil {
			continue
		}
		file := filepath.Join(r.dir, "authority.pem")
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			r.t.Fatal(err)
		}
		return file
	}
	r.t.Fatal("the authority has no certificate")
	return ""
}

// TestPodEnergy measures pods in a virtual machine whose host gives it its share of energy: pods, system and idle together
// have exactly what the host gave, pods stand under their names, and a stock Prometheus that scrapes the server has them too.
func TestPodEnergy(t *testing.T) {
	testkit.Stage(t, "vm", "boots a virtual machine beside an API server of Kubernetes")
	hosttest.Need(t, "root", "qemu", "prometheus")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	c.Kubectl(t, "", "create", "namespace", "shop")
	c.Kubectl(t, "", "-n", "shop", "create", "serviceaccount", "default")
	r := newRig(t)
	r.serve("--kube-cluster", "default", "--kubeconfig", c.Kubeconfig)
	r.says(&r.server.log, 0, time.Minute, "pods are named by this server")
	r.simulate()
	r.startHost()
	r.boot()
	r.checkFound()
	r.noteShares()
	r.startGuest()
	r.await(time.Minute, "the guest's agent receives shares", r.sharesArrive)
	r.open.Store(true)
	r.waitForEqualShares(3)
	scraper := prometheus.Start(t, fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - {job_name: mete, scheme: https, metrics_path: /federate, honor_labels: true, params: {"match[]": ['{__name__=~"mete_workload_(info|energy_joules_total)"}']},
     tls_config: {ca_file: %q}, authorization: {credentials: %q}, static_configs: [{targets: [%q]}]}
`, r.authority(), r.viewer, strings.TrimPrefix(r.url, "https://")))

	// Two pods work, one three times as long as the other, beside a group of another kind. Programs that hold memory keep the pods.
	web, batch := r.createPod(c, "web"), r.createPod(c, "batch")
	held := []int{r.runIn(web.group, "/bin/load", "anon", "-mb", "1", "-for", "10m"), r.runIn(batch.group, "/bin/load", "anon", "-mb", "1", "-for", "10m")}
	work := []int{r.runIn(web.group, "/bin/load", "busy", "-for", "45s"), r.runIn("/sys/fs/cgroup/other", "/bin/load", "busy", "-for", "10s")}
	time.Sleep(15 * time.Second)
	work = append(work, r.runIn(batch.group, "/bin/load", "busy", "-for", "15s"))
	for _, pid := range work {
		if code, err := r.vm.Wait(pid, 3*time.Minute); err != nil || code != 0 {
			t.Fatalf("load in the guest: exit code %d, %v", code, err)
		}
	}
	time.Sleep(6 * time.Second) // two windows, and their delivery
	const byPod = `sum by (pod) (mete_workload_energy_joules_total * on (cluster, node, workload) group_left (pod) mete_workload_info{namespace="shop"})`
	scraped := map[string]float64{}
	r.await(time.Minute, "Prometheus has the pods", func() bool {
		list, err := scraper.Client().Query(byPod)
		if err != nil {
			t.Fatal(err)
		}
		clear(scraped)
		for _, s := range list {
			if scraped[s.Metric["pod"]], err = strconv.ParseFloat(fmt.Sprint(s.Value[1]), 64); err != nil {
				t.Fatal(err)
			}
		}
		return len(scraped) == 2
	})
	for _, pid := range held {
		r.must(r.vm.Signal(pid, int(syscall.SIGKILL)))
	}
	modelled := r.modelledEnergy()
	r.stopGuest()
	acks, _ := r.lastTap().acked()
	if len(acks) == 0 {
		t.Fatal("the guest acknowledged nothing")
	}
	last := acks[len(acks)-1]
	var by map[string]int64
	var cpu map[string]float64
	var all int64
	r.await(time.Minute, "the last window of the guest", func() bool {
		before := all
		by, cpu, all = r.podEnergy()
		time.Sleep(3 * time.Second)
		return all == before
	})

	// Of the whole: what the host gave, to the microjoule.
	sum := int64(0)
	for _, uj := range by {
		sum += uj
	}
	if sum != all {
		t.Errorf("pods, system, idle and all else: %d uJ, the guest %d uJ: %v", sum, all, by)
	}
	first, given := r.given(last.N, all)
	if first < 0 {
		t.Errorf("the guest has %d uJ, which its host did not give from any share to another: the guest acknowledged %d uJ with share %d; modelled before: %.6f J", all, last.Energy, last.N, modelled)
	}
	// Of the pods: by CPU time, and the same in Prometheus.
	for _, p := range []*podInGuest{web, batch} {
		if by[p.name] <= 0 || cpu[p.name] <= 0 {
			t.Errorf("pod %s has %d uJ and %.1f s", p.name, by[p.name], cpu[p.name])
		}
		if uj := scraped[p.name] * 1e6; math.Abs(uj-float64(by[p.name])) > 0.03*float64(by[p.name]) {
			t.Errorf("pod %s: %.0f uJ in Prometheus, %d in the ledger", p.name, uj, by[p.name])
		}
	}
	if energy, busy := float64(by["web"])/float64(by["batch"]), cpu["web"]/cpu["batch"]; math.Abs(energy/busy-1) > 0.15 {
		t.Errorf("web has %.2f times the energy of batch, and %.2f times its CPU time", energy, busy)
	}
	for _, key := range []string{"system", "idle"} {
		if by[key] <= 0 {
			t.Errorf("%s has %d uJ", key, by[key])
		}
	}
	t.Logf("uJ by pod or kind: %v; in Prometheus: %v J; the guest: %d uJ, given from share %d to %d; acknowledged share %d", by, scraped, all, first, given, last.N)
}
