package server_test

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"

	"mete.dev/mete/internal/model/registry"
)

// A writer token can only write series, into its cluster, and other roles cannot write.
// Viewers of the cluster see the series.
func TestWriter(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	bearer := func(role registry.Role, cluster string) string {
		text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: role, Cluster: cluster})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	writer, lab, other := bearer(registry.Writer, "lab"), bearer(registry.Viewer, "lab"), bearer(registry.Viewer, "other")
	do := func(method, path, token string, body []byte) (int, string) {
		t.Helper()
		r := httptest.NewRequest(method, path, bytes.NewReader(body))
		r.TLS = &tls.ConnectionState{}
		r.Header.Set("Content-Type", "application/x-protobuf")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	req := prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
		Labels:  prompb.FromLabels(labels.FromStrings(model.MetricNameLabel, "app_up", "cluster", "other"), nil),
		Samples: []prompb.Sample{{Timestamp: time.Now().Add(-time.Second).UnixMilli(), Value: 1}},
	}}}
	raw, err := req.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	body := snappy.Encode(nil, raw)
	for who, token := range map[string]string{"no token": "", "viewer": lab, "agent": bearer(registry.Agent, "lab"), "upstream": bearer(registry.Upstream, "lab")} {
		if code, text := do(http.MethodPost, "/api/v1/write", token, body); code != http.StatusForbidden && code != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", who, code, text)
		}
	}
	if code, text := do(http.MethodPost, "/api/v1/write", writer, body); code/100 != 2 {
		t.Fatalf("writer: %d %s", code, text)
	}
	for _, path := range []string{"/api/v1/query?query=up", "/federate?match[]=up", "/v1/nodes", "/metrics"} {
		if code, text := do(http.MethodGet, path, writer, nil); code != http.StatusForbidden {
			t.Errorf("writer at %s: %d %s", path, code, text)
		}
	}
	if code, text := do(http.MethodPost, "/v1/batches", writer, body); code/100 != 4 {
		t.Errorf("writer offers a batch: %d %s", code, text)
	}
	if _, text := do(http.MethodGet, "/api/v1/query?query=app_up", lab, nil); !strings.Contains(text, `"cluster":"lab"`) {
		t.Errorf("viewer of the cluster: %s", text)
	}
	if _, text := do(http.MethodGet, "/api/v1/query?query=app_up", other, nil); strings.Contains(text, "app_up") {
		t.Errorf("viewer of another cluster: %s", text)
	}
}
