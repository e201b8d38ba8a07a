package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/apispec"
)

const orchard, quarry = "01J00000000000000000000000", "01J00000000000000000000001"

// job returns the token of a service of the tenants server as if it were a job.
func job(node, name string) token.Job {
	return token.Job{Workload: workload.NewID(node, workload.Job, name), Node: node, Ends: time.Now().Add(time.Hour)}
}

// bearing returns b's handler with a bearer token in each request.
func bearing(b *bench, text string) http.Handler {
	h := b.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
		if text != "" {
			r.Header.Set("Authorization", "Bearer "+text)
		}
		h.ServeHTTP(w, r)
	})
}

// A valid job token reads the job's own use; any other is refused.
func TestSelf(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	b, as := tenants(t)
	mine := job(orchard, "job-orchard")
	key := b.Authority.JobKey(orchard)
	h := bearing(b, key.Sign(mine))
	d := apispec.Read(t, as[""])
	r := httptest.NewRequest("GET", "/v1/self", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	d.Check(t, r, w)
	var got struct {
		Workload, Node, Name string
		Gaps                 int
		Through              time.Time `json:"complete_through"`
		Usage                map[string]any
		Latest               struct {
			Rates map[string]any
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
		t.Fatalf("%d %s, %v", w.Code, w.Body, err)
	}
	if got.Workload != string(mine.Workload) || got.Node != orchard || got.Name != "job-orchard" || got.Usage["cpu_seconds"] != 1.0 || got.Gaps != 1 ||
		got.Latest.Rates["cpu_cores"] != 0.1 || got.Through.Before(began) || got.Through.After(time.Now()) || strings.Contains(w.Body.String(), "quarry") {
		t.Errorf("%s", w.Body)
	}
	if w := answerOf(h, "GET", "/v1/self", "Accept", "text/csv"); w.Code != 200 || !strings.Contains(w.Body.String(), "box-orchard,job-orchard,") || strings.Count(w.Body.String(), "\n") != 2 {
		t.Errorf("as CSV: %d %s", w.Code, w.Body)
	}
	// Unknown workloads, and workloads of another node in a token signed with this
	// node's key, have no use.
	for name, j := range map[string]token.Job{"new": job(orchard, "new"), "another node's": {Workload: job(quarry, "job-quarry").Workload, Node: orchard, Ends: mine.Ends}} {
		if w := answerOf(bearing(b, key.Sign(j)), "GET", "/v1/self"); w.Code != 200 || !strings.Contains(w.Body.String(), `"usage":null`) || !strings.Contains(w.Body.String(), `"latest":null`) || strings.Contains(w.Body.String(), "quarry") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	ended := mine
	ended.Ends = time.Now().Add(-time.Second)
	for name, text := range map[string]string{
		"none": "", "ended": key.Sign(ended), "by another node's key": b.Authority.JobKey(quarry).Sign(mine), "by no key": token.JobKeyOf([]byte("guess"), orchard).Sign(mine),
		"cut off": key.Sign(mine)[:80], "with another workload": strings.Replace(key.Sign(mine), string(mine.Workload), string(job(orchard, "x").Workload), 1),
	} {
		if w := answerOf(bearing(b, text), "GET", "/v1/self"); w.Code != 401 || w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	// Jobs of a revoked node get no answer.
	if err := b.Authority.RevokeNode(t.Context(), orchard); err != nil {
		t.Fatal(err)
	}
	if w := answerOf(h, "GET", "/v1/self"); w.Code != 403 {
		t.Errorf("revoked node: %d %s", w.Code, w.Body)
	}
}

// A job token is refused at every other path and method, even where requests without
// credentials are allowed.
func TestSelfTokenOnOtherPaths(t *testing.T) {
	b, as := tenants(t)
	text := b.Authority.JobKey(orchard).Sign(job(orchard, "job-orchard"))
	h := bearing(b, text)
	paths := slices.Collect(maps.Keys(apispec.Read(t, as[""]).Paths))
	paths = append(paths, "/metrics", "/federate?match[]=up", "/api/v1/query?query=up", "/api/v1/query_range?query=up&start=1&end=2&step=1", "/api/v1/series?match[]=up", "/api/v1/labels", "/api/v1/label/node/values",
		"/api/v1/metadata", "/api/v1/rules", "/api/v1/alerts", "/api/v1/targets", "/api/v1/status/tsdb", "/api/v1/status/config", "/api/v1/write", "/v1/enroll", "/v1/renew", "/v1/batches", "/v1/lost", "/v1/states", "/v1/states/mark")
	public := []string{"/healthz", "/v1/self"}
	for _, path := range paths {
		if slices.Contains(public, path) {
			continue
		}
		refused := 0
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
			for _, header := range [][]string{nil, {token.NodeHeader, orchard}} {
				w := answerOf(h, method, path, header...)
				if w.Code < 400 || method == "GET" && w.Code < 500 && strings.Contains(w.Body.String(), "box-") {
					t.Errorf("%s %s %v: %d %.300s", method, path, header, w.Code, w.Body)
				}
				if w.Code == 401 || w.Code == 403 {
					refused++
				}
			}
		}
		// Requests with a wrong method or body fail before authorization; at least one
		// request per path must fail in authorization.
		if refused == 0 && path != "/v1/enroll" && path != "/v1/renew" {
			t.Errorf("%s refused no request with 401 or 403", path)
		}
	}
	// A pod's token is refused too, and at /v1/self if the server watches no cluster.
	h = bearing(b, "a.b.c")
	for _, path := range append(paths, "/v1/self") {
		if w := answerOf(h, "GET", path); !slices.Contains([]string{"/healthz", "/v1/enroll", "/v1/renew", "/v1/page-token"}, path) && (w.Code < 400 || w.Code >= 500) {
			t.Errorf("%s with a pod's token: %d %.300s", path, w.Code, w.Body)
		}
	}
	if w := answerOf(h, "GET", "/v1/self"); w.Code != 401 || !strings.Contains(w.Body.String(), "--kube-cluster") {
		t.Errorf("a pod's token without a cluster: %d %s", w.Code, w.Body)
	}
	// The job cannot enroll either.
	r := httptest.NewRequest("POST", "/v1/enroll", strings.NewReader(fmt.Sprintf(`{"token":%q,"machine_id":"m","boot":"b","name":"n"}`, text)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 400 {
		t.Errorf("enrollment with a job token: %d %s", w.Code, w.Body)
	}
}

// Over TLS a job reads its use with a token signed by its agent, and trusts only the
// server's authority.
func TestSelfTLS(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	id := b.enroll(t, registry.Agent, "m")
	sent, clock := aBatchOf(t, id.Node(), 1, "make")
	if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatalf("%+v, %v", r, err)
	}
	self := id.Self(id.Node(), workload.NewID(id.Node(), workload.Job, "make"))
	jobClient, err := client.ForSelf(self)
	if err != nil {
		t.Fatal(err)
	}
	s, err := jobClient.Self(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "make" || s.Usage.Covered.Int64() != int64(10*time.Second) {
		t.Errorf("%+v", s)
	}
	if self.URL != b.url+"/v1/self" || !strings.Contains(self.CA, "CERTIFICATE") {
		t.Errorf("%+v", self)
	}
	// A plain HTTP client that trusts the authority can read it too.
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(self.CA)) {
		t.Fatal("no certificate")
	}
	plain := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer plain.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), "GET", self.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+self.Token)
	resp, err := plain.Do(r)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("plain client: %v, %v", resp, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	// The token is not sent to a server of another authority.
	other := open(t, t.TempDir(), nil)
	jobClient, err = client.ForSelf(token.SelfAccess{URL: other.url + "/v1/self", Token: self.Token, CA: self.CA})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobClient.Self(t.Context()); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "another certificate authority") {
		t.Errorf("other server: %v", err)
	}
}
