package sources_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

// A measured machine is read in real time, and what each workload used is summed.
type measured struct {
	rows    map[workload.ID]usage.Row
	windows atomic.Int64
}

// measure reads this machine until the context ends. noMeters is an empty directory.
func (m *measured) measure(ctx context.Context, reader, noMeters string) (err error) {
	cfg := sources.Config{Config: sampler.Default(), Reader: reader, Scope: sources.ScopeAuto}
	cfg.Energy.NVML, cfg.Energy.Powercap = "off", noMeters
	from, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	for {
		if _, err := from.Next(ctx); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		w := from.ClosedWindow()
		if w == nil {
			continue
		}
		for _, r := range w.Rows {
			sum := m.rows[r.Workload.ID]
			sum.Workload = r.Workload
			sum.Usage.Add(&r.Usage)
			m.rows[r.Workload.ID] = sum
		}
		m.windows.Add(1)
	}
}

// TestPodNetwork compares what is booked to the pods of a cluster with the counters of their
// interfaces, which the pods print.
func TestPodNetwork(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "bpf", "cgroup1", "memcg1", "netns")
	c := testbed.Start(t, testbed.Real, testbed.Options{})

	const limits = `"requests": {"cpu": "10m", "memory": "20Mi"}, "limits": {"cpu": "1", "memory": "20Mi"}`
	kinds := []struct {
		name, resources   string
		count, containers int
		args              []string
	}{
		{"short", "", 8, 1, []string{"-for", "1s"}},
		{"brief", "", 4, 1, nil},
		{"burstable", limits, 2, 1, []string{"-for", "2s"}},
		{"guaranteed", `"limits": {"cpu": "100m", "memory": "20Mi"}`, 2, 1, []string{"-for", "2s"}},
		{"quiet", "", 2, 1, []string{"-wait", "25s"}},
		{"long", "", 2, 1, []string{"-for", "25s"}},
		{"two", "", 2, 2, []string{"-for", "2s"}},
		{"host", "", 1, 1, []string{"-for", "2s"}}, // in the network of its node
	}
	clients := 0
	for _, k := range kinds {
		clients += k.count * k.containers
	}
	pod := func(name, resources string, containers int, args []string) string {
		text, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for i := range containers {
			list = append(list, fmt.Sprintf(`{"name": "c%d", "image": %q, "imagePullPolicy": "Never", "args": %s, "resources": {%s}}`, i, testbed.PodImage, text, resources))
		}
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"hostNetwork": %v, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [%s]}}`,
			name, strings.HasPrefix(name, "host"), strings.Join(list, ", "))
	}
	c.Kubectl(t, pod("server", "", 1, []string{"serve", "-clients", fmt.Sprint(clients)}), "create", "-f", "-")
	c.Kubectl(t, "", "wait", "--for=condition=Ready", "pod/server", "--timeout=2m")
	server := c.Kubectl(t, "", "get", "pod", "server", "-o", "jsonpath={.status.podIP}")
	machines := map[string]*measured{}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, reader := range []string{sources.BPF, sources.Files} {
		m := &measured{rows: map[workload.ID]usage.Row{}}
		machines[reader] = m
		noMeters := t.TempDir()
		running.Go(func() {
			if err := m.measure(ctx, reader, noMeters); err != nil {
				t.Error(err)
			}
		})
	}
	defer running.Wait()
	defer stop()
	windows := func(n int64) {
		t.Helper()
		for reader, m := range machines {
			before := m.windows.Load()
			testkit.Eventually(t, "windows of "+reader, func() bool { return m.windows.Load() >= before+n || t.Failed() })
		}
	}
	windows(1)

	var all []string
	for _, k := range kinds {
		for i := range k.count {
			all = append(all, pod(fmt.Sprintf("%s-%d", k.name, i), k.resources, k.containers,
				append([]string{"traffic", "-to", server + ":7000", "-send", "1000000", "-receive", "2000000"}, k.args...)))
		}
	}
	c.Kubectl(t, strings.Join(all, "\n"), "create", "-f", "-")
	c.Kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod", "--all", "--timeout=4m")
	windows(2) // the second one begins after the end of all
	stop()
	running.Wait()

	var pods struct{ Items []kubePod }
	if err := json.Unmarshal([]byte(c.Kubectl(t, "", "get", "pods", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		t.Error("no pods")
	}
	for _, p := range pods.Items {
		want := p.printed(t, c)
		for reader, m := range machines {
			m.checkPod(t, reader, &p, want)
		}
	}
	for reader, m := range machines {
		for _, r := range m.rows {
			if r.Workload.Kind != workload.Pod && strings.Contains(r.Workload.Path, "/kubepods") && r.Usage.Present.Has(usage.NetworkRx) {
				t.Errorf("%s: %v %s has received %d bytes and sent %d", reader, r.Workload.Kind, r.Workload.Path, r.Usage.Amount[usage.NetworkRx], r.Usage.Amount[usage.NetworkTx])
			}
		}
	}
}

// A kubePod is a pod, as the API server describes it.
type kubePod struct {
	Metadata struct{ Name, UID string }
	Spec     struct {
		HostNetwork bool
		Containers  []struct{ Name string }
	}
}

// printed returns the bytes of the pod's interfaces that the last container has printed.
func (p *kubePod) printed(t *testing.T, c *testbed.Cluster) (at traffic) {
	t.Helper()
	sum := traffic{}
	for _, k := range p.Spec.Containers {
		var now struct {
			Received, Sent int64
			Rx             int64 `json:"rx_bytes"`
			Tx             int64 `json:"tx_bytes"`
		}
		if err := json.Unmarshal([]byte(c.Kubectl(t, "", "logs", p.Metadata.Name, "-c", k.Name)), &now); err != nil {
			t.Fatal(err)
		}
		at.rx, at.tx = max(at.rx, now.Rx), max(at.tx, now.Tx)
		sum.rx, sum.tx = sum.rx+now.Received, sum.tx+now.Sent
	}
	if sum.rx == 0 || sum.tx == 0 || at.rx < sum.rx || at.tx < sum.tx {
		t.Errorf("%s: its interfaces have %+v bytes, its programs %+v", p.Metadata.Name, at, sum)
	}
	return at
}

// traffic is bytes received and sent.
type traffic struct{ rx, tx int64 }

// checkPod compares what is booked to a pod with what it has printed.
func (m *measured) checkPod(t *testing.T, reader string, p *kubePod, want traffic) {
	t.Helper()
	var row usage.Row
	for _, r := range m.rows {
		if r.Workload.Kind == workload.Pod && r.Workload.Key == p.Metadata.UID {
			row = r
		}
	}
	got := traffic{row.Usage.Amount[usage.NetworkRx], row.Usage.Amount[usage.NetworkTx]}
	present, quality := row.Usage.Present.Has(usage.NetworkRx), row.Usage.Quality.Get(usage.NetworkRx)
	switch {
	case row.Workload.Kind != workload.Pod:
		t.Errorf("%s: no %s", reader, p.Metadata.Name)
	case p.Spec.HostNetwork:
		if present {
			t.Errorf("%s: %s has %+v bytes, but no network of its own", reader, p.Metadata.Name, got)
		}
	case !present || quality != usage.Measured || !near(got.rx, want.rx) || !near(got.tx, want.tx):
		t.Errorf("%s: %s has %+v bytes, %v, want %+v", reader, p.Metadata.Name, got, quality, want)
	default:
		t.Logf("%s: %s has %+v bytes of %+v", reader, p.Metadata.Name, got, want)
	}
}

// near reports whether a is within 1 % of b.
func near(a, b int64) bool { return max(a-b, b-a) <= b/100 }
