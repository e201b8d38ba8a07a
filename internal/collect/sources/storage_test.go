package sources_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/collect/storage"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

// TestPodStorage compares the disk space that is booked to pods of a cluster with what they wrote: a container to its own layer, and
// another one of the same pod to an emptyDir volume on disk and to one in memory.
func TestPodStorage(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "cgroup1")
	c := testbed.Start(t, testbed.Real, testbed.Options{})
	node := filepath.Join(filepath.Dir(c.Logs), "node1")
	const layer, volume = 20 << 20, 30 << 20
	container := func(name string, args ...string) string {
		text, err := json.Marshal(append([]string{"write", "-for", "3s"}, args...))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"name": %q, "image": %q, "imagePullPolicy": "Never", "args": %s, "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "memory", "mountPath": "/memory"}]}`,
			name, testbed.PodImage, text)
	}
	c.Kubectl(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"}, "spec": {"nodeName": "node1", "terminationGracePeriodSeconds": 1,
		"volumes": [{"name": "data", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}], "containers": [%s, %s, %s]}}`,
		container("layer", "-bytes", fmt.Sprint(layer), "-stay"), container("data", "-bytes", fmt.Sprint(volume), "-file", "/data/written", "-stay"),
		container("memory", "-bytes", fmt.Sprint(volume), "-file", "/memory/written", "-stay")), "create", "-f", "-")

	cfg := everyTick(sources.Files)
	cfg.Window = 2 * cfg.Tick
	cfg.Energy.NVML, cfg.Energy.Powercap = "off", t.TempDir()
	cfg.Storage = storage.Default()
	cfg.Storage.Kubelet, cfg.Storage.Logs = filepath.Join(node, "lib", "kubelet"), filepath.Join(node, "log")
	m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, m)
	c.Kubectl(t, "", "wait", "--for=condition=Ready", "pod/writer", "--timeout=2m")
	uid := c.Kubectl(t, "", "get", "pod", "writer", "-o", "jsonpath={.metadata.uid}")
	ids := map[string]string{}
	for _, name := range []string{"layer", "data", "memory"} {
		id := c.Kubectl(t, "", "get", "pod", "writer", "-o", fmt.Sprintf("jsonpath={.status.containerStatuses[?(@.name==%q)].containerID}", name))
		ids[id[max(0, len(id)-64):]] = name
	}
	if len(ids) != 3 {
		t.Fatalf("containers %v", ids)
	}
	want := map[string]int64{"layer": layer, "data": 0, "memory": 0, "pod": volume}
	near := func(name string, bytes int64) bool { // directories and logs take some blocks
		return bytes >= want[name] && bytes <= want[name]+want[name]/100+100<<10
	}
	testkit.Eventually(t, "all figures are near", func() bool {
		if _, err := m.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		w := m.ClosedWindow()
		if w == nil {
			return false
		}
		got := map[string]int64{}
		for _, r := range w.Rows {
			name := ids[r.Workload.Key]
			if r.Workload.Kind == workload.Pod && r.Workload.Key == uid {
				name = "pod"
			}
			if amount, ok := r.Usage.Get(usage.Storage); ok && name != "" && r.Usage.Covered > 0 {
				got[name] = int64(float64(amount) / r.Usage.Covered.Seconds())
				if q := r.Usage.Quality.Get(usage.Storage); q != usage.Measured {
					t.Errorf("%s is %s", name, q)
				}
			}
		}
		all := true
		for name := range want {
			bytes, ok := got[name]
			all = all && ok && near(name, bytes)
		}
		if all {
			t.Logf("%v of %v", got, want)
		}
		return all
	})
	if found, all, notes := m.StorageNotes(); found < 5 { // with the sandbox and the pod
		t.Errorf("%d of %d: %v", found, all, notes)
	}
}
