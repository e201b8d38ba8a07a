package attack_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit/attack"
)

// otherRoutes are the routes that the description of the API does not list.
var otherRoutes = []string{"/v1/enroll", "/v1/renew", "/v1/batches", "/v1/lost", "/v1/directives", "/v1/directives/x", "/v1/states", "/v1/states/mark", "/v1/page-token", "/v1/self", "/v1/tokens", "/v1/tokens/x", "/v1/nodes/x", "/v1/backup", "/v1/page-links", "/v1/audit", "/v1/silences/x",
	"/metrics", "/api/v0/snapshot", "/api/v1/write", "/api/v1/read", "/api/v1/query?query=up", "/api/v1/query_range?query=up&start=0&end=1&step=1", "/api/v1/query_exemplars?query=up", "/api/v1/format_query?query=up", "/api/v1/parse_query?query=up",
	"/api/v1/labels", "/api/v1/label/node/values", "/api/v1/series?match[]=up", "/api/v1/metadata", "/api/v1/rules", "/api/v1/alerts", "/api/v1/targets", "/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo", "/api/v1/status/tsdb", "/api/v1/status/config",
	"/api/v1/alertmanagers", "/api/v1/otlp/v1/metrics", "/federate", "/debug/pprof/", "/debug/vars"}

// routes returns the routes of a server.
func (s *scene) routes(t *testing.T) []string {
	t.Helper()
	a := s.Do(t, "GET", "/openapi.json", nil, attack.Bearer(s.admin)...)
	var description struct{ Paths map[string]any }
	if err := json.Unmarshal([]byte(a.Body), &description); err != nil || len(description.Paths) < 10 {
		t.Fatalf("%d %.300s: %v", a.Status, a.Body, err)
	}
	return append(slices.Collect(maps.Keys(description.Paths)), otherRoutes...)
}

// routeAttempts ask every route with each kind of credential.
var routeAttempts = []attempt{
	{"everyone", "every route", func(t *testing.T, s *scene) {
		job := s.Token(t, "job", "--cluster", "lab", "--uses", "-1")
		upstream := s.Token(t, "upstream", "--cluster", "lab", "--uses", "-1")
		n, err := s.Enroll(t, s.agent, enrollFacts("router"))
		if err != nil {
			t.Fatal(err)
		}
		below := s.below(t, "route-ledger")
		public := map[string]bool{"/healthz": true, "/openapi.json": true}
		for _, route := range s.routes(t) {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"} {
				for who, token := range map[string]string{"no client": "", "an agent's token": s.agent, "a job's token": job, "a server's token": upstream, "a writer": s.writer, "garbage": "mete_x", "a job": "metejob_x", "a pod": "eyJhbGciOiJub25lIn0.eyJhdWQiOiJtZXRlIn0.x", "a page": "metepage_x"} {
					if who == "a writer" && route == "/api/v1/write" || public[route] {
						continue
					}
					var headers []string
					if token != "" {
						headers = attack.Bearer(token)
					}
					if a := s.Do(t, method, route, strings.NewReader("{}"), append(headers, "Content-Type", "application/json")...); a.Status < 300 || a.Status >= 500 {
						t.Errorf("%s %s by %s: %d %.200s", method, route, who, a.Status, a.Body)
					}
				}
				for who, c := range map[string]*http.Client{"an agent": n.Client, "a server": below.Client} {
					own := who == "an agent" && (route == "/v1/batches" || route == "/v1/lost" || route == "/v1/directives" || route == "/v1/renew") || who == "a server" && (strings.HasPrefix(route, "/v1/states") || route == "/v1/renew")
					if a := attack.Do(t, c, method, s.URL+route, strings.NewReader("{}"), "Content-Type", "application/json"); !own && !public[route] && (a.Status < 300 || a.Status >= 500) {
						t.Errorf("%s %s by %s: %d %.200s", method, route, who, a.Status, a.Body)
					}
				}
				// A viewer of another cluster changes nothing, and sees nothing of the victim.
				a := s.Do(t, method, route, strings.NewReader("{}"), append(attack.Bearer(s.viewer), "Content-Type", "application/json")...)
				if s.hidden(t, route, a.Body); a.Status >= 500 && a.Status != 503 || a.Status < 300 && a.Status != http.StatusNoContent && !slices.Contains([]string{"GET", "HEAD", "POST"}, method) {
					t.Errorf("%s %s by a viewer: %d %.200s", method, route, a.Status, a.Body)
				}
			}
		}
	}},
	{"viewer", "absurd parameters", func(t *testing.T, s *scene) {
		a := s.Do(t, "GET", "/openapi.json", nil, attack.Bearer(s.viewer)...)
		var description struct {
			Paths map[string]struct {
				Get struct{ Parameters []struct{ Name string } }
			}
		}
		if err := json.Unmarshal([]byte(a.Body), &description); err != nil {
			t.Fatal(err)
		}
		absurd := []string{"", "-1", "0", "99999999999999999999", "1e308", "NaN", "0001-01-01", "9999-12-31", "1970-01-01", "-100y", "\x00", "\xff", "'; DROP TABLE node; --", "%s%s%n", "../../etc/passwd", "{{.}}", "${jndi:x}", strings.Repeat("a,", 3000), strings.Repeat("node,", 500), strings.Repeat("(", 5000), "label:" + strings.Repeat("x", 9000),
			strings.Repeat("a=b&", 10), "a=~(x+x+)+y", "cluster=prod", "node=" + s.victim.ID, "*"}
		asked := 0
		for path, of := range description.Paths {
			for _, parameter := range of.Get.Parameters {
				for _, value := range absurd {
					query := "?" + parameter.Name + "=" + url.QueryEscape(value)
					if value == "*" {
						query += strings.Repeat("&"+parameter.Name+"=x", 1000)
					}
					a := s.Do(t, "GET", path+query, nil, attack.Bearer(s.viewer)...)
					asked++
					if s.hidden(t, path, strings.ReplaceAll(a.Body, s.victim.ID, "")); a.Status == 0 || a.Status >= 500 && a.Status != 503 {
						t.Errorf("%s%.200s: %d %.200s", path, query, a.Status, a.Body)
					}
				}
			}
		}
		if t.Logf("%d requests", asked); asked < 500 {
			t.Errorf("only %d requests", asked)
		}
	}},
	{"everyone", "malformed requests", func(t *testing.T, s *scene) {
		for _, request := range []string{
			"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
			"POST /v1/batches HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
			"POST /v1/batches HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
			"POST /v1/batches HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
			"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
			"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
			"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer x\r\n\r\n",
			"GET /v1/nodes HTTP/1.1\r\nHost: x\r\n Authorization: Bearer x\r\n\r\n",
			"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \x00\r\n\r\n",
			"GET /v1/nodes HTTP/1.1\nHost: x\n\n",
			"GET /v1/nodes\r\n\r\n",
			"GET http://evil.example/v1/nodes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
			"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
			"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
			"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
			"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET /" + strings.Repeat("../", 4000) + "etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET /v1/nodes?" + strings.Repeat("a=1&", 3000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=" + strings.Repeat("0-,", 3000) + "\r\n\r\n",
			strings.Repeat("\x00", 4096), "\x16\x03\x01\x02\x00\x01", "SSH-2.0-x\r\n",
		} {
			answer := s.raw(t, request)
			status := 0
			_, _ = fmt.Sscanf(answer, "HTTP/1.%d %d", new(int), &status)
			if strings.Count(answer, "HTTP/1.1 ") > 1 || status == 200 && !strings.HasPrefix(request, "OPTIONS") && !strings.HasPrefix(request, "GET / ") || status == 101 || status >= 500 && status != 501 && status != 505 || len(answer) > 1<<20 {
				t.Errorf("%.100q: %.300q", request, answer)
			}
			s.hidden(t, request[:min(len(request), 40)], answer)
		}
		// Only TLS 1.3, of no older cipher, and nothing in the clear.
		for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11, tls.VersionTLS12} {
			c, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: version})
			if err == nil {
				_ = c.Close()
				t.Errorf("TLS version %x is served", version)
			}
		}
		plain, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = plain.Close() }()
		_, _ = fmt.Fprintf(plain, "GET /v1/nodes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", s.admin)
		if b, _ := io.ReadAll(plain); strings.Contains(string(b), " 200 ") {
			t.Errorf("without TLS: %.200s", b)
		}
	}},
}

// raw sends bytes on a connection of HTTP/1.1, and returns all that comes back.
func (s *scene) raw(t *testing.T, request string) string {
	t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // the server ends it before
	_, _ = io.WriteString(c, request)
	_ = c.CloseWrite()
	b, _ := io.ReadAll(bufio.NewReader(c)) // until the server closes the connection
	return string(b)
}
