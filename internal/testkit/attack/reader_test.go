package attack_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/prompb"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/attack"
)

// readerAttempts are those of the bearer of a token of one cluster, or of none.
var readerAttempts = []attempt{
	{"viewer", "queries that exhaust memory", func(t *testing.T, s *scene) {
		for query, want := range map[string]int{
			`max_over_time(nosuch[100y:1ms])`:                                                400,
			`max_over_time(vector(1)[30d:1ms])`:                                              400,
			`max_over_time(nosuch[1d:1ms])`:                                                  400,
			`max_over_time(max_over_time(nosuch[1d:1s])[30d:1s])`:                            400,
			`count_over_time((absent_over_time(a[1m]) or absent_over_time(b[1m]))[1d:10ms])`: 400,
			strings.Repeat("(", 3000) + "1" + strings.Repeat(")", 3000):                      400,
			strings.Repeat("-", 60_000) + "1":                                                400,
			`{__name__=~"` + strings.Repeat("x", 65<<10) + `"}`:                              400,
			`label_replace(up, "a", "` + strings.Repeat("$1", 500) + `", "b", "(.*)")`:       400,
			`label_join(up, "a", "` + strings.Repeat("x", 2000) + `", "b", "c")`:             400,
		} {
			if len(query) < 1000 {
				s.refused(t, "GET", "/api/v1/query?query="+url.QueryEscape(query), "", attack.Bearer(s.viewer), want)
			}
			s.refused(t, "POST", "/api/v1/query_range", url.Values{"query": {query}, "start": {unix(time.Now().Add(-time.Hour))}, "end": {unix(time.Now())}, "step": {"15"}}.Encode(),
				append(attack.Bearer(s.viewer), "Content-Type", "application/x-www-form-urlencoded"), want)
		}
	}},
	{"viewer", "another cluster by PromQL", func(t *testing.T, s *scene) {
		for _, matcher := range []string{`{__name__=~".+"}`, `{cluster="prod"}`, `{cluster=~"prod|lab"}`, `{cluster!="lab"}`, `{cluster=~".*",__name__!=""}`, `{node="payroll-host"}`, `{__name__=~".+",cluster=~"lab|prod|"}`} {
			m := url.QueryEscape(matcher)
			for _, path := range []string{
				"/api/v1/query?query=" + m, "/api/v1/query?query=" + url.QueryEscape("count_values(\"x\", label_replace("+matcher+", \"y\", \"$1\", \"cluster\", \"(.*)\"))"),
				"/api/v1/query?query=" + url.QueryEscape("group by (cluster, node, name) ("+matcher+")"), "/api/v1/query?query=" + url.QueryEscape(matcher+" @ end()"),
				"/api/v1/query?query=" + url.QueryEscape("last_over_time("+matcher+"[2h])"), "/api/v1/query?stats=all&query=" + m,
				"/api/v1/series?match[]=" + m, "/api/v1/labels?match[]=" + m, "/api/v1/label/node/values?match[]=" + m, "/api/v1/label/cluster/values?match[]=" + m,
				"/api/v1/query_exemplars?start=0&end=9999999999&query=" + m, "/federate?match[]=" + m, "/federate?match[]=up&match[]=" + m,
			} {
				s.hidden(t, path, s.Do(t, "GET", path, nil, attack.Bearer(s.viewer)...).Body)
			}
		}
		for _, path := range []string{"/api/v1/labels", "/api/v1/label/__name__/values", "/api/v1/label/name/values", "/api/v1/metadata", "/api/v1/rules", "/api/v1/alerts", "/api/v1/targets", "/api/v1/targets/metadata",
			"/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo", "/api/v1/scrape_pools", "/metrics"} {
			s.hidden(t, path, s.Do(t, "GET", path, nil, attack.Bearer(s.viewer)...).Body)
		}
		for _, path := range []string{"/api/v1/status/tsdb", "/api/v1/status/config", "/api/v1/status/flags", "/api/v1/status/walreplay", "/api/v1/alertmanagers", "/api/v1/admin/tsdb/snapshot", "/api/v1/admin/tsdb/delete_series?match[]=up",
			"/api/v1/notifications", "/api/v1/notifications/live", "/api/v1/features", "/debug/pprof/heap", "/api/v1/../v1/status/tsdb", "/api/v1/query/../status/tsdb", "/api/v1//status/tsdb", "/api/v1/otlp/v1/metrics"} {
			s.refused(t, "GET", path, "", attack.Bearer(s.viewer), 301, 307, 404, 405)
			s.refused(t, "POST", path, "", attack.Bearer(s.viewer), 301, 307, 404, 405)
		}
		for _, accept := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_SAMPLES, prompb.ReadRequest_STREAMED_XOR_CHUNKS} {
			q := prompb.ReadRequest{AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{accept}, Queries: []*prompb.Query{{StartTimestampMs: 0, EndTimestampMs: time.Now().UnixMilli(),
				Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_RE, Name: "cluster", Value: ".*"}}}}}
			b, err := q.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			a := s.Do(t, "POST", "/api/v1/read", bytes.NewReader(snappy.Encode(nil, b)), append(attack.Bearer(s.viewer), "Content-Encoding", "snappy", "Content-Type", "application/x-protobuf")...)
			raw := a.Body
			if out, err := snappy.Decode(nil, []byte(a.Body)); err == nil {
				raw += string(out)
			}
			s.hidden(t, "remote read", raw)
		}
	}},
	{"viewer", "another cluster by the API", func(t *testing.T, s *scene) {
		for _, path := range []string{
			"/v1/usage?by=cluster,node,name", "/v1/usage?by=namespace,pod", "/v1/usage?cluster=prod&by=node", "/v1/usage?by=cluster&cluster=*", "/v1/usage?node=" + s.victim.ID, "/v1/usage?by=name&name=payroll", "/v1/usage?by=node&idle=usage",
			"/v1/nodes", "/v1/nodes?cluster=prod", "/v1/workloads", "/v1/runs", "/v1/runs?run=a", "/v1/usage?by=cluster,job&every=1d&from=-7d", "/v1/jobs", "/v1/connections", "/v1/connections?by=cluster,node,job&limit=1", "/v1/connections?where=" + url.QueryEscape("cluster=prod"), "/v1/connections?by=cluster&where=" + url.QueryEscape("node="+s.victim.ID), "/v1/gaps", "/v1/gaps?node=" + s.victim.ID, "/v1/uptime", "/v1/uptime?node=" + s.victim.ID, "/v1/streams", "/v1/streams?node=" + s.victim.ID, "/v1/summary?node=" + s.victim.ID, "/v1/vms", "/v1/sources",
			"/v1/shifts", "/v1/alerts", "/v1/alerts?cluster=prod", "/v1/audit", "/v1/health", "/v1/live", "/v1/nodes?cursor=" + url.QueryEscape("a"), "/v1/usage?by=cluster&where=" + url.QueryEscape("1=1"),
			"/v1/usage?by=" + url.QueryEscape("cluster;DROP TABLE node"), "/v1/nodes?limit=-1", "/v1/nodes?limit=99999999999999999999",
		} {
			for _, form := range []string{"", "&format=csv"} {
				if !strings.Contains(path, "?") && form != "" {
					form = "?format=csv"
				}
				s.hidden(t, path+form, s.Do(t, "GET", path+form, nil, attack.Bearer(s.viewer)...).Body)
			}
		}
	}},
	{"viewer", "amounts of another cluster's connections", func(t *testing.T, s *scene) {
		for _, by := range []string{"job", "cluster", "node,label:x"} {
			path := "/v1/connections?from=-2h&by=" + url.QueryEscape(by)
			all := s.Do(t, "GET", path, nil, attack.Bearer(s.admin)...).Body
			if !strings.Contains(all, partner) || strings.Contains(all, `"others_at_most_bytes":0,`) {
				t.Errorf("%s by the administrator: %s", path, all)
			}
			// Nothing in the viewer's cluster has connections.
			mine := s.Do(t, "GET", path, nil, attack.Bearer(s.viewer)...).Body
			if !strings.Contains(mine, `"others_at_most_bytes":0,`) || strings.Contains(mine, `"peer"`) || strings.Contains(mine, `"network_rx_bytes":2`) {
				t.Errorf("%s by the viewer: %s", path, mine)
			}
		}
	}},
	{"viewer", "rights of others", func(t *testing.T, s *scene) {
		for _, path := range []string{"/v1/tokens", "/v1/tokens/x", "/v1/backup", "/v1/page-links", "/v1/audit", "/v1/silences/x", "/v1/nodes/" + s.victim.ID, "/v1/self", "/v1/batches", "/v1/lost", "/v1/states", "/v1/states/mark", "/v1/renew", "/v1/page-token", "/api/v1/write"} {
			for _, method := range []string{"GET", "POST", "DELETE", "PUT"} {
				s.refused(t, method, path, "{}", append(attack.Bearer(s.viewer), "Content-Type", "application/json"), 400, 401, 403, 404, 405, 415)
			}
		}
		// A viewer's token enrolls nothing.
		claim := fmt.Sprintf(`{"token":%q,"machine_id":"m","boot":"b","name":"x","csr":""}`, s.viewer)
		s.refused(t, "POST", "/v1/enroll", claim, []string{"Content-Type", "application/json"}, 400, 403)
		for _, bad := range []string{s.viewer + "x", s.viewer[:len(s.viewer)-1], strings.Replace(s.viewer, s.viewer[20:21], otherLetter(s.viewer[20]), 1), "metejob_" + s.viewer, "metepage_" + s.viewer} {
			s.refused(t, "GET", "/v1/nodes", "", attack.Bearer(bad), 401, 403)
		}
		s.refused(t, "GET", "/v1/nodes?token="+s.viewer, "", nil, 400, 401)
	}},
	{"viewer", "files of the server", func(t *testing.T, s *scene) {
		for _, path := range []string{"/static/../../../../etc/passwd", "/static/..%2f..%2f..%2fetc/passwd", "/..%2fledger.db", "/static/-/%2e%2e/%2e%2e/web.go", "/docs/..%5c..%5cetc", "//etc/passwd", "/static//etc/passwd", "/static/-/js/", "/static/", "/static/-/js/app.js%00.css"} {
			a := s.Do(t, "GET", path, nil, attack.Bearer(s.viewer)...)
			if strings.Contains(a.Body, "root:") || strings.Contains(a.Body, "SQLite") || strings.Contains(a.Body, "package web") || strings.Contains(a.Body, `<a href="app.js"`) {
				t.Errorf("%s: %d %.200s", path, a.Status, a.Body)
			}
			if loc := a.Header.Get("Location"); strings.HasPrefix(loc, "//") || strings.HasPrefix(loc, "http") {
				t.Errorf("%s redirects to %s", path, loc)
			}
		}
	}},
	{"viewer", "bodies that grow", func(t *testing.T, s *scene) {
		zeros := make([]byte, 64<<20)
		var gz bytes.Buffer
		zw := gzip.NewWriter(&gz)
		if _, err := zw.Write(zeros); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
		enc, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		bombs := map[string][]byte{"gzip": gz.Bytes(), "zstd": enc.EncodeAll(zeros, nil), "snappy": snappy.Encode(nil, zeros), "identity": nil}
		for encoding, bomb := range bombs {
			for _, path := range []string{"/api/v1/query", "/api/v1/query_range", "/api/v1/read", "/api/v1/write", "/v1/enroll", "/v1/renew", "/v1/batches", "/v1/lost", "/v1/states", "/v1/page-token", "/v1/usage", "/api/v1/series", "/"} {
				for _, token := range []string{s.viewer, s.writer} {
					a := s.Do(t, "POST", path, bytes.NewReader(bomb), append(attack.Bearer(token), "Content-Encoding", encoding, "Content-Type", "application/x-protobuf")...)
					if a.Status == 200 || a.Status == 500 {
						t.Errorf("%s %s: %d %.200s", path, encoding, a.Status, a.Body)
					}
				}
			}
		}
	}},
	{"anonymous", "large headers and forms", func(t *testing.T, s *scene) {
		a := s.Do(t, "GET", "/v1/nodes", nil, "X-Large", strings.Repeat("x", 4<<20))
		if a.Status != 0 && a.Status != 431 {
			t.Errorf("a header of 4 MiB: %d %.200s", a.Status, a.Body)
		}
		var many []string
		for i := range 5000 {
			many = append(many, fmt.Sprintf("X-%d", i), "1")
		}
		if a := s.Do(t, "GET", "/v1/nodes", nil, many...); a.Status != 0 && a.Status != 431 {
			t.Errorf("5000 headers: %d %.200s", a.Status, a.Body)
		}
		form := strings.Repeat("match[]=up&", 90_000)
		s.refused(t, "POST", "/api/v1/series", form, append(attack.Bearer(s.viewer), "Content-Type", "application/x-www-form-urlencoded"), 200, 400, 401, 413, 422, 503)
	}},
	{"anonymous", "guesses of tokens", func(t *testing.T, s *scene) {
		right, err := token.Parse(s.agent)
		if err != nil {
			t.Fatal(err)
		}
		looked := 0
		for i := range 30 {
			guess := token.New([5]byte{byte(i)}, [20]byte{1}, right.CA()).Reveal()
			if _, err := s.Enroll(t, guess, enrollFacts("guesser")); err == nil {
				t.Error("a guess enrolls a machine")
			} else if _, limited := fault.RetryAfter(err); !limited {
				looked++
			}
		}
		if looked == 30 {
			t.Error("30 guesses of tokens in a row were looked at")
		}
	}},
	{"browser", "requests of another site", func(t *testing.T, s *scene) {
		for _, headers := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
		} {
			for _, path := range []string{"/api/v1/query?query=up", "/v1/usage", "/v1/nodes", "/metrics", "/healthz", "/openapi.json", "/v1/enroll"} {
				s.refused(t, "GET", path, "", append(attack.Bearer(s.admin), headers...), 403)
				s.refused(t, "POST", path, "{}", append(append(attack.Bearer(s.admin), "Content-Type", "application/json"), headers...), 403)
			}
		}
		s.refused(t, "POST", "/v1/enroll", "{}", []string{"Origin", "https://evil.example", "Content-Type", "application/json"}, 403)
	}},
	{"writer", "series of others, and large ones", func(t *testing.T, s *scene) {
		for _, name := range []string{"mete_workload_cpu_seconds_total", "mete_node_up", "ALERTS", "ALERTS_FOR_STATE"} {
			if a := s.Write(t, s.writer, time.Second, attack.Sample{Labels: []string{"__name__", name, "cluster", "prod", "node", "payroll-host"}, Values: []float64{1e18}}); a.Status != 400 {
				t.Errorf("write %s: %d %.200s", name, a.Status, a.Body)
			}
		}
		if a := s.Write(t, s.writer, time.Second, attack.Sample{Labels: []string{"__name__", "app_forged", "cluster", "prod"}, Values: []float64{1}}); a.Status/100 != 2 {
			t.Errorf("write app_forged: %d %s", a.Status, a.Body)
		}
		if a := s.Do(t, "GET", "/api/v1/query?query="+url.QueryEscape(`count(app_forged{cluster="prod"}) or vector(0)`), nil, attack.Bearer(s.admin)...); !strings.Contains(a.Body, `,"0"]`) {
			t.Errorf("a series of a writer of lab in prod: %s", a.Body)
		}
		labels := []string{"__name__", "app_large"}
		for i := range 60 {
			labels = append(labels, fmt.Sprintf("l%d", i), strings.Repeat("x", 4000))
		}
		for i := range 20 {
			if a := s.Write(t, s.writer, time.Second, attack.Sample{Labels: append(labels, "n", fmt.Sprint(i)), Values: []float64{1}}); a.Status != 400 {
				t.Errorf("240 kB of labels: %d %.200s", a.Status, a.Body)
			}
		}
		for _, path := range []string{"/api/v1/query?query=up", "/v1/nodes", "/metrics", "/api/v1/series?match[]=up"} {
			s.refused(t, "GET", path, "", attack.Bearer(s.writer), 401, 403)
		}
		if a := s.Write(t, s.viewer, time.Second, attack.Sample{Labels: []string{"__name__", "x"}, Values: []float64{1}}); !is(a.Status, 401, 403) {
			t.Errorf("a viewer writes: %d %s", a.Status, a.Body)
		}
	}},
	{"viewer", "formulas in CSV", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.agent, enrollFacts("formula"))
		if err != nil {
			t.Fatal(err)
		}
		evil := n.Name("evil", "=cmd|' /C calc'!A1", map[string]string{"app": "@SUM(1)", "x": "\x1b]0;pwned\a"})
		if r := n.Send(t, batchNames(evil), n.Window(n.Boottime-windowLength, n.Boottime, windowLength, evil)); r.Verdict != "taken" {
			t.Fatalf("%+v", r)
		}
		for _, path := range []string{"/v1/usage?by=workload&format=csv", "/v1/workloads?format=csv", "/v1/runs?format=csv"} {
			a := s.Do(t, "GET", path, nil, attack.Bearer(s.viewer)...)
			for line := range strings.Lines(a.Body) {
				for field := range strings.SplitSeq(strings.TrimSpace(line), ",") {
					if strings.ContainsAny(field, "\x1b\a") || len(field) > 0 && strings.ContainsAny(strings.Trim(field, `"`)[:min(1, len(strings.Trim(field, `"`)))], "=@+") {
						t.Errorf("%s has the field %q", path, field)
					}
				}
			}
			if a.Status != http.StatusOK || !strings.Contains(a.Body, "cmd|") && strings.Contains(path, "usage") {
				t.Errorf("%s: %d %.300s", path, a.Status, a.Body)
			}
		}
	}},
}

// otherLetter returns another letter.
func otherLetter(c byte) string {
	if c == 'a' {
		return "b"
	}
	return "a"
}
