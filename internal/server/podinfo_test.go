package server_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
)

// TestPodInfoJoin evaluates the query of docs/metrics.md that joins the use of pods with a series of kube-state-metrics,
// by the UIDs of pods, over a ledger whose pods have equal names in two namespaces.
func TestPodInfoJoin(t *testing.T) {
	docs, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var join string
	for _, block := range regexp.MustCompile("(?s)```\n(.*?)```").FindAllSubmatch(docs, -1) {
		if text := string(block[1]); strings.Contains(text, "kube_pod_info") {
			join = text
		}
	}
	if join == "" {
		t.Fatal("docs/metrics.md has no query with kube_pod_info")
	}
	b := open(t, t.TempDir(), nil)
	id := b.enroll(t, registry.Agent, "m")
	begin := time.Now().Add(-time.Minute)
	uids := map[string]string{"shop": "3f0e0d5a-2f2c-4b8e-9d0a-5a1e4f6b7c8d", "evil": "00000000-0000-0000-0000-000000000001"}
	var pods []pod.Pod
	cpu := map[string]int64{}
	for ns, seconds := range map[string]int64{"shop": 2, "evil": 10} {
		pods = append(pods, pod.Pod{UID: uids[ns], Namespace: ns, Name: "web", Job: ns + "/pod/web", Created: begin})
		cpu[uids[ns]] = seconds
	}
	if err := b.Ledger.BookPods(t.Context(), pod.Lease{Cluster: "lab"}, pods, begin); err != nil {
		t.Fatal(err)
	}
	// The samples of a window are stored before its names join pods: the second one has them.
	var all [][]byte
	for range 2 {
		sent, clock := podBatch(t, id.Node(), begin, cpu, all...)
		all = append(all, sent)
		if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
			t.Fatalf("%+v, %v", r, err)
		}
		names, _, err := b.Ledger.Placed(t.Context(), 0)
		if err != nil || len(names[id.Node()]) != 4 {
			t.Fatalf("%v, %v", names, err)
		}
		b.Metrics.Rename(id.Node(), names[id.Node()])
	}
	at := begin.Add(10 * time.Second) // the end of the second window
	req := prompb.WriteRequest{}
	for ns, uid := range uids {
		req.Timeseries = append(req.Timeseries, prompb.TimeSeries{
			Labels: prompb.FromLabels(labels.FromStrings(model.MetricNameLabel, "kube_pod_info", "namespace", ns, "pod", "web", "uid", uid, "node", "k8s-1",
				"created_by_kind", "ReplicaSet", "created_by_name", ns+"-5d4f", "priority_class", "batch", "host_ip", "10.0.0.1", "pod_ip", "10.1.0.2", "host_network", "false"), nil),
			Samples: []prompb.Sample{{Timestamp: at.UnixMilli(), Value: 1}},
		})
	}
	raw, err := req.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	writer, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Writer, Cluster: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/api/v1/write", bytes.NewReader(snappy.Encode(nil, raw)))
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Authorization", "Bearer "+writer)
	w := httptest.NewRecorder()
	if b.Handler().ServeHTTP(w, r); w.Code/100 != 2 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	ask := func(c *http.Client, query string) map[string]float64 {
		t.Helper()
		var data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
		b.ask(t, c, fmt.Sprintf("query?query=%s&time=%.3f", url.QueryEscape(query), float64(at.UnixMilli())/1000), &data)
		out := map[string]float64{}
		for _, r := range data.Result {
			var text []string
			for name, v := range r.Metric {
				text = append(text, name+"="+v)
			}
			slices.Sort(text)
			v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
			if err != nil {
				t.Fatal(err)
			}
			out[strings.Join(text, " ")] = v
		}
		return out
	}
	lab := b.viewer(t, "lab")
	got := ask(lab, join)
	key := func(ns string) string {
		return fmt.Sprintf("created_by_kind=ReplicaSet created_by_name=%s-5d4f namespace=%s pod=web priority_class=batch uid=%s", ns, ns, uids[ns])
	}
	// Each pod and its container used as much, over 20 s.
	if shop, evil := got[key("shop")], got[key("evil")]; len(got) != 2 || math.Abs(evil/shop-5) > 1e-9 || shop <= 0 {
		t.Errorf("%s is %v", join, got)
	}
	// Both parts of a pod have its UID, beside the names that they have in other series.
	want := map[string]float64{}
	for ns, uid := range uids {
		for _, kind := range []string{"pod", "container"} {
			want[fmt.Sprintf("kind=%s namespace=%s pod=web uid=%s", kind, ns, uid)] = 1
		}
	}
	if d := cmp.Diff(want, ask(lab, `count by (kind, namespace, pod, uid) (mete_workload_info{namespace!=""})`)); d != "" {
		t.Errorf("mete_workload_info (-want +got): %s", d)
	}
	for _, query := range []string{join, `mete_workload_info{uid!=""}`, "kube_pod_info"} {
		if got := ask(b.viewer(t, "other"), query); len(got) != 0 {
			t.Errorf("a viewer of another cluster gets %v of %s", got, query)
		}
	}
}
