package server_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/apispec"
)

// tenants returns a server with a node in each of the clusters orchard and quarry, and its
// handler with a viewer token for each cluster; "" means all clusters.
func tenants(t *testing.T) (b *bench, as map[string]http.Handler) {
	t.Helper()
	b = open(t, t.TempDir(), func(c *server.Config) { c.Local = true })
	for i, cluster := range []string{"orchard", "quarry"} {
		id, now := "01J0000000000000000000000"+fmt.Sprint(i), time.Now().UTC()
		if err := b.Ledger.PutNode(t.Context(), registry.Node{ID: id, MachineID: "machine-" + cluster, Cluster: cluster, Name: "box-" + cluster, At: now}); err != nil {
			t.Fatal(err)
		}
		sent, clock := aBatchOf(t, id, byte(i+1), "job-"+cluster)
		if r, err := b.Transport(id).Offer(t.Context(), clock, sent); err != nil || r.Verdict != batch.Accepted {
			t.Fatalf("offer: %+v, %v", r, err)
		}
		lost := batch.Loss{Stream: batch.Stream{byte(i + 1)}, From: 2, To: 3, Gap: usage.Gap{From: now.Add(-time.Minute), To: now, Reason: usage.Overflow, Detail: "of " + cluster}}
		if r, err := b.Transport(id).Lost(t.Context(), lost); err != nil || r.Verdict != batch.Accepted {
			t.Fatalf("lost: %+v, %v", r, err)
		}
	}
	as = map[string]http.Handler{}
	for _, cluster := range []string{"", "orchard", "quarry", "desert"} {
		text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Cluster: cluster})
		if err != nil {
			t.Fatal(err)
		}
		h := b.Handler()
		as[cluster] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
			r.Header.Set("Authorization", "Bearer "+text)
			h.ServeHTTP(w, r)
		})
	}
	return b, as
}

func answerOf(h http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// extra holds the parameters for the largest answer, by path.
var extra = map[string]string{"/v1/usage": "?by=cluster,node,job&from=-1h&to=2999-01-01", "/v1/summary": "?nodes=1&top=9", "/v1/gaps": "?from=-1h&to=2999-01-01", "/v1/workloads": "?from=-1h&to=2999-01-01",
	"/v1/jobs": "?from=-1h&to=2999-01-01", "/v1/runs": "?from=-1h&to=2999-01-01", "/v1/energy": "?from=-1h&to=2999-01-01"}

// At every path a viewer of one cluster sees nothing of another.
func TestTenancyOfEveryPath(t *testing.T) {
	_, as := tenants(t)
	d := apispec.Read(t, as[""])
	scoped := []string{"/v1/usage", "/v1/jobs", "/v1/energy", "/v1/rates", "/v1/summary", "/v1/clusters", "/v1/nodes", "/v1/workloads", "/v1/runs", "/v1/gaps", "/v1/streams"}
	for path := range d.Paths {
		if path == "/v1/self" {
			for cluster, h := range as {
				if w := answerOf(h, "GET", path); w.Code != 403 || strings.Contains(w.Body.String(), "complete_through") {
					t.Errorf("%s with a viewer token for %q: %d %s", path, cluster, w.Code, w.Body)
				}
			}
			continue
		}
		for _, form := range []string{"application/json", "text/csv"} {
			target := path + extra[path]
			all := answerOf(as[""], "GET", target, "Accept", form).Body.String()
			named := slices.Contains(scoped, path) && !(path == "/v1/energy" && form == "text/csv") // there are no rows of energy
			if named && (!strings.Contains(all, "orchard") || !strings.Contains(all, "quarry")) {
				t.Errorf("%s for all clusters: %s", target, all)
			}
			for _, own := range []string{"orchard", "quarry", "desert"} {
				w := answerOf(as[own], "GET", target, "Accept", form)
				for _, other := range []string{"orchard", "quarry"} {
					see, should := strings.Contains(w.Body.String(), other), own == other && named
					if w.Code != 200 || see && own != other || !see && should {
						t.Errorf("%s for %s: %d, %s named %v, want %v: %s", target, own, w.Code, other, see, should, w.Body)
					}
				}
			}
		}
	}
	// Nodes outside the scope get the same answer as nodes that do not exist.
	for _, target := range []string{"/v1/gaps?node=%s", "/v1/streams?node=%s", "/v1/summary?node=%s"} {
		theirs, none := answerOf(as["orchard"], "GET", fmt.Sprintf(target, "box-quarry")), answerOf(as["orchard"], "GET", fmt.Sprintf(target, "box-quarrx"))
		if theirs.Code != 404 || strings.ReplaceAll(theirs.Body.String(), "box-quarry", "") != strings.ReplaceAll(none.Body.String(), "box-quarrx", "") {
			t.Errorf("%s: %d %s, want as %s", target, theirs.Code, theirs.Body, none.Body)
		}
	}
	// A cursor from another scope is only a position in the caller's own list.
	if w := answerOf(as["quarry"], "GET", "/v1/nodes?limit=1&cursor=b3JjaGFyZA"); strings.Contains(w.Body.String(), "box-orchard") || !strings.Contains(w.Body.String(), "box-quarry") {
		t.Errorf("cursor of another scope: %s", w.Body)
	}
}

// The server answers as its OpenAPI description says, with data in the ledger.
func TestServerMatchesOpenAPI(t *testing.T) {
	_, as := tenants(t)
	words := map[string][]string{"from": {"-1h", "-30d", "-7d"}, "to": {"now"}, "by": {"job", "kind,node", "label:app", "cluster,namespace"},
		"where": {"job=job-orchard", "kind=", "cluster=orchard", "label:a=b"}, "node": {"box-orchard", "box-quarry", "none"}, "cluster": {"", "orchard"}, "cursor": {"TjE"}, "If-None-Match": {`"x"`, "*"}}
	for _, who := range []string{"", "orchard"} {
		apispec.Read(t, as[who]).Fuzz(t, as[who], words)
	}
}

// Every answer forbids framing and content sniffing, and the server refuses what pages of
// another site request, but lets them link to its pages.
func TestBrowserSecurity(t *testing.T) {
	_, as := tenants(t)
	h := as[""]
	paths := slices.Collect(maps.Keys(apispec.Read(t, h).Paths))
	paths = append(paths, "/", "/docs", "/docs/docs.js", "/openapi.json", "/metrics", "/none", "/api/v1/query?query=up", "/federate?match[]=up", "/api/v1/write", "/v1/enroll", "/v1/renew", "/v1/batches", "/v1/lost", "/v1/states")
	for _, path := range paths {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			w := answerOf(h, method, path)
			got := w.Result().Header
			if !strings.Contains(got.Get("Content-Security-Policy"), "frame-ancestors 'none'") || got.Get("X-Frame-Options") != "DENY" ||
				got.Get("X-Content-Type-Options") != "nosniff" || got.Get("Cross-Origin-Resource-Policy") != "same-origin" || got.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %s: %v", method, path, got)
			}
		}
		for _, from := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "null"}} {
			if w := answerOf(h, "POST", path, from...); w.Code != 403 || !strings.Contains(w.Body.String(), "another site") {
				t.Errorf("POST %s from %v: %d %s", path, from, w.Code, w.Body)
			}
		}
		for _, site := range []string{"cross-site", "same-site"} {
			for _, as := range [][2]string{{"no-cors", "image"}, {"cors", "empty"}, {"navigate", "document"}} {
				page := (path == "/" || path == "/docs") && as[0] == "navigate"
				w := answerOf(h, "GET", path, "Sec-Fetch-Site", site, "Sec-Fetch-Mode", as[0], "Sec-Fetch-Dest", as[1])
				if page && w.Code != 200 || !page && (w.Code != 403 || !strings.Contains(w.Body.String(), "another site")) {
					t.Errorf("GET %s, %s, %s: %d %s", path, site, as[0], w.Code, w.Body)
				}
			}
		}
	}
}

// GET requests do not change the ledger.
func TestGetChangesNothing(t *testing.T) {
	b, as := tenants(t)
	paths := apispec.Read(t, as[""]).Paths
	rev := func() int64 {
		t.Helper()
		s, err := b.Ledger.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Rev
	}
	// The server itself folds and drops rows now and then.
	testkit.Eventually(t, "a round of GET requests without a change", func() bool {
		before := rev()
		for path := range paths {
			answerOf(as[""], "GET", path+extra[path])
		}
		return rev() == before
	})
}
