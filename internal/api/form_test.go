package api_test

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

func get(h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// crowd is a ledger with n nodes, workloads and gaps.
func crowd(n int) *book {
	b := example()
	row := b.rows[0]
	b.rows, b.node, b.gaps = nil, nil, nil
	for i := range n {
		name := fmt.Sprintf("n%03d", (i*7)%n)
		b.node = append(b.node, query.Node{ID: "I" + name, Name: name, Cluster: []string{"a", "b"}[i%2], Enrolled: noon.Add(-time.Hour), Through: noon, State: "live"})
		row.name.Name, row.name.Job, row.node = name, "job "+name, "I"+name
		b.rows = append(b.rows, row)
		b.gaps = append(b.gaps, query.Gap{Node: "I" + name, Name: name, Gap: usage.Gap{From: noon.Add(-time.Duration(i/2) * time.Minute), To: noon, Reason: usage.Rebooted}})
	}
	return b
}

// Pages together are the whole list, each element once, also where an element that
// a cursor stands on has gone.
func TestPages(t *testing.T) {
	b := crowd(23)
	h := handler(b, all)
	for path, key := range map[string]string{"/v1/nodes": "nodes", "/v1/clusters": "clusters", "/v1/gaps": "gaps", "/v1/workloads": "workloads", "/v1/jobs": "jobs", "/v1/energy": "nodes"} {
		_, _, whole := ask(t, h, "GET", path, "")
		want := map[string]bool{}
		for _, v := range whole[key].([]any) {
			want[fmt.Sprint(v)] = true
		}
		pages, target := 0, path+"?limit=4"
		for ; target != ""; pages++ {
			w := get(h, target)
			_, _, m := ask(t, h, "GET", target, "")
			list := m[key].([]any)
			for _, v := range list {
				if !want[fmt.Sprint(v)] {
					t.Errorf("%s: %v comes twice, or never was there", target, v)
				}
				delete(want, fmt.Sprint(v))
			}
			next, more := m["next_cursor"].(string)
			link := w.Header().Get("Link")
			if more != (link != "") || more && len(list) != 4 || len(list) > 4 {
				t.Errorf("%s: %d elements, next %q, Link %q", target, len(list), next, link)
			}
			if target, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">"); more && !strings.Contains(target, "cursor="+url.QueryEscape(next)) {
				t.Errorf("Link %q does not go on at %q", link, next)
			}
		}
		if len(want) != 0 || whole["next_cursor"] != nil {
			t.Errorf("%s: after %d pages %d elements are missing: %v", path, pages, len(want), want)
		}
	}
	_, _, m := ask(t, h, "GET", "/v1/nodes?limit=5", "")
	b.node = b.node[8:] // whatever these are
	_, _, rest := ask(t, h, "GET", "/v1/nodes?cursor="+m["next_cursor"].(string), "")
	first, next := m["nodes"].([]any), rest["nodes"].([]any)
	if last := fmt.Sprint(first[4].(map[string]any)["cluster"], first[4].(map[string]any)["name"]); len(next) == 0 || fmt.Sprint(next[0].(map[string]any)["cluster"], next[0].(map[string]any)["name"]) <= last {
		t.Errorf("after %s: %v", last, next)
	}
	for _, bad := range []string{"limit=0", "limit=10001", "limit=x", "cursor=", "cursor=%25", "cursor=a&cursor=b"} {
		if code, _, m := ask(t, h, "GET", "/v1/nodes?"+bad, ""); code != 400 || m["hint"] == nil {
			t.Errorf("%s: %d %v", bad, code, m)
		}
	}
}

func TestFilters(t *testing.T) {
	h := handler(crowd(10), all)
	for target, want := range map[string]int{"/v1/nodes?cluster=a": 5, "/v1/nodes?cluster=b&state=live": 5, "/v1/nodes?state=silent": 0, "/v1/nodes?cluster=": 0, "/v1/alerts?state=firing": 1,
		"/v1/alerts?cluster=lab": 1, "/v1/streams?node=N1": 1, "/v1/streams?cluster=x": 0, "/v1/sources?state=live": 1, "/v1/sources?cluster=x": 0} {
		_, _, m := ask(t, h, "GET", target, "")
		for key, list := range m {
			if n := len(list.([]any)); n != want {
				t.Errorf("%s: %d %s, want %d", target, n, key, want)
			}
		}
	}
	// An empty list for an unknown state would suggest that no node or alert has a problem.
	for _, target := range []string{"/v1/nodes?state=dead", "/v1/nodes?state=", "/v1/nodes?state=firing", "/v1/sources?state=dead", "/v1/alerts?state=fires", "/v1/alerts?state=live",
		"/v1/nodes?limit=", "/v1/usage?limit="} {
		if code, _, m := ask(t, h, "GET", target, ""); code != 400 || m["hint"] == nil {
			t.Errorf("%s: %d %v", target, code, m)
		}
	}
}

// CSV has the rows of the JSON form, in either of the two ways to ask for it.
func TestCSV(t *testing.T) {
	h := handler(example(), all)
	for path, rows := range map[string]int{"/v1/usage": 4, "/v1/usage?fields=cpu_seconds&limit=1": 3, "/v1/connections": 4, "/v1/connections?limit=2&by=user,label:a": 3, "/v1/jobs": 2, "/v1/nodes": 1, "/v1/clusters": 1, "/v1/sources": 1, "/v1/workloads": 5,
		"/v1/gaps": 1, "/v1/vms?from=-1h": 1, "/v1/streams": 1, "/v1/alerts": 2, "/v1/energy": 0} {
		for _, w := range []*httptest.ResponseRecorder{get(h, path, "Accept", "text/csv"), get(h, path+map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")]+"format=csv", "Accept", "application/json")} {
			list, err := csv.NewReader(w.Body).ReadAll()
			if err != nil || len(list) != rows+1 || w.Header().Get("Content-Type") != "text/csv; charset=utf-8" || !strings.HasPrefix(w.Header().Get("Content-Disposition"), "attachment") {
				t.Errorf("%s: %d rows, %v, %v; want %d", path, len(list)-1, err, w.Header(), rows)
			}
		}
		for _, accept := range []string{"", "*/*", "application/json", "text/csv;q=0.1, application/json"} {
			if w := get(h, path, "Accept", accept); w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s, Accept %q: %v", path, accept, w.Header())
			}
		}
	}
	if w := get(h, "/v1/usage?fields=cpu_seconds&format=csv"); !strings.HasPrefix(w.Body.String(), "job,nodes,first_at,last_at,wall_seconds,cpu_seconds,covered_seconds,quality,") {
		t.Errorf("one field: %s", w.Body)
	}
	for _, bad := range []string{"/v1/usage?format=xml", "/v1/usage?format=", "/v1/rates?format=csv"} {
		if w := get(h, bad); w.Code != 400 {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
}

// TestTags checks that a client that has the current answer receives 304 until it changes.
func TestTags(t *testing.T) {
	b := example()
	h := handler(b, all)
	for _, path := range []string{"/v1/usage", "/v1/nodes", "/v1/summary", "/openapi.json", "/docs", "/docs/docs.js"} {
		first := get(h, path)
		tag := first.Header().Get("ETag")
		if first.Code != 200 || tag == "" || first.Header().Get("Cache-Control") != "private, no-cache" || !strings.Contains(strings.Join(first.Header().Values("Vary"), ","), "Authorization") {
			t.Errorf("%s: %d %v", path, first.Code, first.Header())
		}
		for _, match := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
			if w := get(h, path, "If-None-Match", match); w.Code != 304 || w.Body.Len() != 0 || w.Header().Get("ETag") != tag || w.Header().Get("Content-Type") != "" {
				t.Errorf("%s, If-None-Match %s: %d %v", path, match, w.Code, w.Header())
			}
		}
		if w := get(h, path, "If-None-Match", `"x"`); w.Code != 200 {
			t.Errorf("%s, another tag: %d", path, w.Code)
		}
	}
	tag := get(h, "/v1/nodes").Header().Get("ETag")
	b.node[0].State = "silent"
	if w := get(h, "/v1/nodes", "If-None-Match", tag); w.Code != 200 || !strings.Contains(w.Body.String(), "silent") {
		t.Errorf("after a change: %d %s", w.Code, w.Body)
	}
	if w := get(h, "/v1/nodes", "Accept", "text/csv", "If-None-Match", get(h, "/v1/nodes").Header().Get("ETag")); w.Code != 200 {
		t.Errorf("the other form has the same tag")
	}
	// No client may cache a refusal.
	if w := get(h, "/v1/usage?x=1"); w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("ETag") != "" {
		t.Errorf("a refusal: %v", w.Header())
	}
}

func TestHealth(t *testing.T) {
	b := example()
	b.gaps = append(b.gaps, b.gaps[0])
	_, _, m := ask(t, handler(b, all), "GET", "/v1/health?from=-1h", "")
	gap := m["gaps"].([]any)[0].(map[string]any)
	if s := fmt.Sprint(m["nodes"], m["alerts"], m["shares"], m["furthest_behind_seconds"]); s != "map[live:1] map[firing:1 pending:1] map[compared:7 differing:0] 0" ||
		gap["count"] != 2.0 || gap["nodes"] != 1.0 || gap["seconds"] != 2.0 || gap["reason"] != "rebooted" || m["server"].(map[string]any)["conflicts"] != 3.0 {
		t.Errorf("health: %v", m)
	}
	some := handler(b, func(*http.Request) (query.Scope, error) { return query.Scope{Clusters: []string{"lab"}}, nil })
	if _, _, m := ask(t, some, "GET", "/v1/health", ""); m["server"] != nil {
		t.Errorf("a reader of one cluster received the health of the server: %v", m)
	}
}

// TestMachinesOfOthers checks that a reader of some clusters does not learn the machine ids and boot
// ids of nodes, by which one recognizes a machine elsewhere.
func TestMachinesOfOthers(t *testing.T) {
	b := example()
	b.node[0].MachineID, b.node[0].Boot = "4d1c", "boot-1"
	some := handler(b, func(*http.Request) (query.Scope, error) {
		return query.Scope{Clusters: []string{b.node[0].Cluster}}, nil
	})
	b.stream = &query.Stream{ID: "07", Node: b.node[0].ID, Cluster: b.node[0].Cluster, Boot: "boot-1"}
	for name, c := range map[string]struct {
		h    http.Handler
		want string
	}{"all": {handler(b, all), "4d1c boot-1 boot-1"}, "one cluster": {some, "  "}} {
		_, _, m := ask(t, c.h, "GET", "/v1/nodes", "")
		n := m["nodes"].([]any)[0].(map[string]any)
		_, _, m = ask(t, c.h, "GET", "/v1/streams", "")
		s := m["streams"].([]any)[0].(map[string]any)
		if got := fmt.Sprint(n["machine_id"], " ", n["boot"], " ", s["boot"]); got != c.want {
			t.Errorf("a reader of %s receives machine id, boot and boot of a stream %q, want %q", name, got, c.want)
		}
	}
}

// The page of the description loads nothing from elsewhere.
func TestPage(t *testing.T) {
	h := handler(example(), all)
	for _, path := range []string{"/docs", "/docs/docs.js", "/docs/docs.css"} {
		w := get(h, path)
		if w.Code != 200 || strings.Contains(w.Body.String(), "://") || strings.Contains(w.Body.String(), "innerHTML") || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
	}
}

// A large answer is the same as a small one: with its length and its tag, and not held in memory.
func TestLargeAnswer(t *testing.T) {
	b := crowd(5000)
	for i := range b.rows {
		b.rows[i].name.Path = strings.Repeat("x", 500)
	}
	h := handler(b, all)
	for _, target := range []string{"/v1/workloads", "/v1/workloads?format=csv"} {
		w := get(h, target)
		body := w.Body.String()
		if w.Code != http.StatusOK || len(body) < 2<<20 || w.Header().Get("Content-Length") != fmt.Sprint(len(body)) || strings.Count(body, strings.Repeat("x", 500)) != 5000 {
			t.Fatalf("%s: %d with %d bytes, said to be %s", target, w.Code, len(body), w.Header().Get("Content-Length"))
		}
		if again := get(h, target, "If-None-Match", w.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s again: %d with %d bytes", target, again.Code, again.Body.Len())
		}
		for _, v := range [][]string{{"If-None-Match", `"another"`}, nil} {
			if again := get(h, target, v...); again.Body.String() != body {
				t.Errorf("%s: another answer", target)
			}
		}
	}
	counting := &counter{header: http.Header{}}
	if h.ServeHTTP(counting, httptest.NewRequest(http.MethodGet, "/v1/workloads", nil)); counting.largest > 64<<10 {
		t.Errorf("%d bytes are written at once", counting.largest)
	}
}

// A counter is a ResponseWriter that keeps the size of the largest write.
type counter struct {
	header  http.Header
	largest int
}

func (c *counter) Header() http.Header { return c.header }
func (c *counter) WriteHeader(int)     {}
func (c *counter) Write(b []byte) (int, error) {
	c.largest = max(c.largest, len(b))
	return len(b), nil
}

// A page ends at 8 MiB of texts, and together pages are the whole list. All of it at once is
// refused.
func TestPageBytes(t *testing.T) {
	b := crowd(3000)
	for i := range b.rows {
		b.rows[i].name.Path = strings.Repeat("x", 7000)
	}
	h := handler(b, all)
	if code, _, m := ask(t, h, "GET", "/v1/workloads", ""); code != http.StatusBadRequest || !strings.Contains(fmt.Sprint(m), "8 MiB") {
		t.Errorf("20 MiB at once: %d", code)
	}
	pages, found := 0, map[string]bool{}
	for target := "/v1/workloads?limit=3000"; target != ""; pages++ {
		w := get(h, target)
		_, _, m := ask(t, h, "GET", target, "")
		list, _ := m["workloads"].([]any)
		if w.Body.Len() > 10<<20 || len(list) == 0 {
			t.Fatalf("page %d: %d bytes, %d workloads", pages, w.Body.Len(), len(list))
		}
		for _, v := range list {
			found[v.(map[string]any)["name"].(string)] = true
		}
		target, _, _ = strings.Cut(strings.TrimPrefix(w.Header().Get("Link"), "<"), ">")
	}
	if len(found) != 3000 || pages != 3 {
		t.Errorf("%d workloads in %d pages, want 3000 in 3", len(found), pages)
	}
}
