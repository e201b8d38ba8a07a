package server_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/apispec"
	"mete.dev/mete/internal/testkit/testbed"
)

// podBatch returns a batch of one window of ten seconds, in which each of some pods and its container used CPU time, of a
// number of seconds each, after earlier ones. The window of the first one ends at a time.
func podBatch(t *testing.T, node string, first time.Time, cpu map[string]int64, earlier ...[]byte) ([]byte, batch.Clock) {
	t.Helper()
	now, number := time.Now(), int64(len(earlier)+1)
	at := 90e9 + number*10e9
	w := usage.Window{Boot: "b", Start: at, End: at + 10e9, Offset: first.UnixNano() - 110e9, CPUs: 64}
	total := int64(0)
	add := func(kind workload.Kind, key string, parent workload.ID, cpu int64) workload.ID {
		r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID(node, kind, key), Kind: kind, Key: key}, Parent: parent})
		r.Usage.Put(usage.CPU, cpu*1e9, usage.Measured)
		r.Has |= usage.SetOf(usage.CPU)
		r.Total[usage.CPU] = number * cpu * 1e9
		r.Usage.Covered = 10 * time.Second
		w.Rows, total = append(w.Rows, r), total+cpu*1e9
		return r.Workload.ID
	}
	for uid, seconds := range cpu {
		add(workload.Container, strings.ReplaceAll(uid, "-", "")+strings.Repeat("0", 32), add(workload.Pod, uid, "", seconds), seconds)
	}
	used := total
	add(workload.System, "", "", 0)
	add(workload.Idle, "", "", 640-used/1e9)
	w.Balance = usage.Balance{Whole: usage.Shares{640e9}, Workloads: usage.Shares{used}, Idle: usage.Shares{640e9 - used}}
	b := batch.Batch{Stream: batch.Stream{1}, Number: uint64(number), Windows: []usage.Window{wire.Prepare(&w)}}
	if len(earlier) > 0 {
		b.Previous = batch.HashOf(earlier[len(earlier)-1])
	}
	for i := range w.Rows {
		b.Names = append(b.Names, wire.NameOf(&w.Rows[i]))
	}
	sent, err := wire.Encode(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	return sent, batch.Clock{Boot: "b", Boottime: now.UnixNano() - w.Offset, Wall: now.UnixNano()}
}

// TestPodSelf: a pod reads its own use with a token that the API server of its cluster issued, and nothing else.
func TestPodSelf(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	uids, tokens := map[string]string{}, map[string]string{}
	const scheduled = `{"status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`
	for ns, requests := range map[string]string{"shop": "100m", "evil": "7"} {
		c.Kubectl(t, "", "create", "namespace", ns)
		c.Kubectl(t, "", "-n", ns, "create", "serviceaccount", "default") // no controller runs
		var made struct{ Metadata struct{ UID string } }
		object := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": %q, "name": "web"}, "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "x", "resources": {"requests": {"cpu": %q}}}]}}`, ns, requests)
		if err := json.Unmarshal([]byte(c.Kubectl(t, object, "create", "-o", "json", "-f", "-")), &made); err != nil {
			t.Fatal(err)
		}
		uids[ns] = made.Metadata.UID
		c.Kubectl(t, "", "-n", ns, "patch", "pod", "web", "--subresource", "status", "--type", "merge", "-p", scheduled)
		tokens[ns] = strings.TrimSpace(c.Kubectl(t, "", "-n", ns, "create", "token", "default", "--audience", "mete", "--bound-object-kind", "Pod", "--bound-object-name", "web", "--bound-object-uid", uids[ns]))
	}
	unbound := strings.TrimSpace(c.Kubectl(t, "", "-n", "shop", "create", "token", "default", "--audience", "mete"))
	b := open(t, t.TempDir(), func(cfg *server.Config) { cfg.Kube = kube.Config{Cluster: "lab", Kubeconfig: c.Kubeconfig} })
	id := b.enroll(t, registry.Agent, "m")
	file := filepath.Join(t.TempDir(), "token")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte(id.Self(id.Node(), workload.NewID(id.Node(), workload.Job, "x")).CA), 0o600); err != nil {
		t.Fatal(err)
	}
	self := func(token string) (*v1.Self, error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		pod, err := client.ForJob(func(key string) string {
			return map[string]string{"METE_SELF_URL": b.url + "/v1/self", "METE_SELF_TOKEN_FILE": file, "METE_SELF_CA": ca}[key]
		})
		if err != nil {
			t.Fatal(err)
		}
		return pod.Self(t.Context())
	}
	testkit.Eventually(t, "the ledger has the pods", func() bool {
		for _, token := range tokens {
			if _, err := self(token); err != nil {
				return false
			}
		}
		return true
	})
	if s, err := self(tokens["shop"]); err != nil || s.Name != "web" || s.Job != "shop/pod/web" || s.Usage != nil || s.Latest != nil || s.Node != "" || s.Cluster != "lab" {
		t.Errorf("before anything is booked: %+v, %v", s, err)
	}
	sent, clock := podBatch(t, id.Node(), time.Now(), map[string]int64{uids["shop"]: 2, uids["evil"]: 30})
	if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatalf("%+v, %v", r, err)
	}
	for ns, seconds := range map[string]int64{"shop": 4, "evil": 60} {
		s, err := self(tokens[ns])
		if err != nil {
			t.Fatal(err)
		}
		if cpu := s.Usage.Get("cpu_seconds").Value.String(); s.Name != "web" || s.Kind != workload.Pod || s.Job != ns+"/pod/web" || s.ID != workload.NewID(id.Node(), workload.Pod, uids[ns]) || s.Node != id.Node() || s.NodeName != "alpha" ||
			cpu != fmt.Sprint(seconds*1e9) || s.Usage.Covered.Int64() != int64(10*time.Second) || s.Latest == nil || *s.Latest.Rates.CPU != float64(seconds)/10 || s.Latest.Rates.Name != "web" {
			t.Errorf("%s: %+v, usage %+v", ns, s, s.Usage)
		}
	}
	// Its reservations are booked after the next minute, and are its own.
	for ns, cores := range map[string]float64{"shop": 0.1, "evil": 7} {
		testkit.Eventually(t, "a minute of what the pods reserve", func() bool {
			s, err := self(tokens[ns])
			if err != nil || s.Usage.Get("cpu_reserved_seconds").Quality == usage.Absent {
				return false
			}
			over, err := s.Reserved.Float64()
			if reserved := s.Usage.Get("cpu_reserved_seconds").Value.Float(unit.Nanosecond); err != nil || over <= 0 || math.Abs(reserved-cores*over) > 1e-6 {
				t.Errorf("%s: %v CPU s are reserved in %v s, %v", ns, reserved, over, err)
			}
			return true
		})
	}
	if _, err := self(unbound); err == nil || !strings.Contains(err.Error(), "not bound to a pod") || !strings.Contains(fault.Hint(err), "projected volume") {
		t.Errorf("a token that is not bound: %v", err)
	}

	h := b.Handler()
	d := apispec.Read(t, h)
	ask := func(target, text string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", target, nil)
		r.TLS = &tls.ConnectionState{}
		r.Header.Set("Authorization", "Bearer "+text)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if target == "/v1/self" {
			d.Check(t, r, w)
		}
		return w
	}
	// The token is for this path only.
	for path := range d.Paths {
		if w := ask(path, tokens["shop"]); path != "/healthz" && path != "/v1/self" && w.Code != http.StatusForbidden {
			t.Errorf("%s: %d %.200s", path, w.Code, w.Body)
		}
	}
	if w := ask("/v1/self", tokens["shop"]); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "evil") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask("/v1/self", unbound); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "audience mete") || w.Header().Get("WWW-Authenticate") == "" {
		t.Errorf("a token that is not bound: %d %s", w.Code, w.Body)
	}
	// Without TLS it is not looked at.
	if w := answerOf(h, "GET", "/v1/self", "Authorization", "Bearer "+tokens["shop"]); w.Code != http.StatusUnauthorized {
		t.Errorf("without TLS: %d %s", w.Code, w.Body)
	}
}
