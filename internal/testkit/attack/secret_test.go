package attack_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/attack"
)

// TestSecrets lets a server talk to systems outside, whose addresses and headers hold secrets, and
// which answer with errors, with a redirect to another server, or not at all: no secret is in its
// output, its metrics, its API or its ledger, and the other server gets no request.
func TestSecrets(t *testing.T) {
	attackStage(t)
	var mu sync.Mutex
	asked, followed := map[string]int{}, ""
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		followed += r.Method + " " + r.URL.String() + "\n"
	}))
	defer other.Close()
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		who, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		asked[who]++
		if asked[who]%2 == 0 {
			http.Error(w, "no, "+r.URL.String()+" "+r.Header.Get("Authorization"), http.StatusInternalServerError)
			return
		}
		http.Redirect(w, r, other.URL+"/latest/meta-data", http.StatusTemporaryRedirect)
	}))
	defer outside.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	header := file("header", "Authorization: Bearer HEADERSECRET\n")
	rules := file("rules.yml", "groups: [{name: g, interval: 1s, rules: [{alert: Always, expr: vector(1)}]}]")
	var list strings.Builder
	for i, u := range []string{outside.URL, gone.URL} {
		for _, kind := range []string{"http", "prometheus", "redfish"} {
			fmt.Fprintf(&list, "  - {name: %s-%d, type: %s, unit: W, url: \"%s/meter-%s/PATHSECRET?key=QUERYSECRET\", user: u, password_file: %s, nodes: [payroll-host]", kind, i, kind, u, kind, file("password", "PASSWORDSECRET"))
			if kind == "prometheus" {
				list.WriteString(", query: q")
			}
			list.WriteString("}\n")
		}
	}
	s := newScene(t, "--meters", file("meters.yml", "meters:\n"+list.String()), "--rules", rules,
		"--remote-write", "@"+file("write", outside.URL+"/write/PATHSECRET?key=QUERYSECRET"), "--remote-write-header", header,
		"--remote-write", gone.URL+"/write/PATHSECRET?key=QUERYSECRET",
		"--alert-webhook", "@"+file("hook", outside.URL+"/hook/PATHSECRET?key=QUERYSECRET"), "--alert-webhook-header", header,
		"--alertmanager", outside.URL+"/manager", "--alertmanager-header", header)
	testkit.Eventually(t, "each system outside has two requests", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, who := range []string{"meter-http", "meter-prometheus", "meter-redfish", "write", "hook", "manager"} {
			if asked[who] < 2 {
				return false
			}
		}
		return true
	})
	secrets := append(s.secrets, "PATHSECRET", "QUERYSECRET", "HEADERSECRET", "PASSWORDSECRET")
	s.CheckSecrets(t, secrets...)
	for _, path := range []string{"/metrics", "/v1/health", "/v1/sources", "/v1/alerts", "/api/v1/rules", "/api/v1/alertmanagers", "/api/v1/status/config", "/api/v1/status/flags",
		"/api/v1/query?query=%7B__name__!=%22%22%7D", "/api/v1/series?match[]=%7B__name__!=%22%22%7D", "/v1/gaps", "/v1/uptime"} {
		answer := s.Do(t, "GET", path, nil, attack.Bearer(s.admin)...)
		if answer.Status != 200 {
			t.Errorf("%s: %d %.300s", path, answer.Status, answer.Body)
		}
		for _, secret := range secrets {
			if strings.Contains(answer.Body, secret) {
				t.Errorf("%s has the secret %s: %.300s", path, secret, answer.Body)
			}
		}
	}
	for _, name := range []string{"ledger.db", "ledger.db-wal"} { // with the audit log
		b, err := os.ReadFile(filepath.Join(s.State, name))
		if err != nil {
			t.Error(err)
		}
		for _, secret := range secrets {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s has the secret %s", name, secret)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if followed != "" {
		t.Errorf("the server follows redirects: %s", followed)
	}
	s.Check(t, mostMemory)
	// An address that cannot be used.
	for _, args := range [][]string{
		{"--database", "postgresx://u:DBSECRET@127.0.0.1/mete"}, {"--database", "postgres://u:DBSECRET@" + strings.TrimPrefix(gone.URL, "http://") + "/mete"},
		{"--remote-write", "http://u:DBSECRET@h/write"}, {"--remote-write", "ftp://h/DBSECRET"}, {"--alert-webhook", "ftp://h/DBSECRET"}, {"--alert-webhook", "http://[DBSECRET"}, {"--alertmanager", "ftp://u:DBSECRET@h"},
		{"--upstream", "https://127.0.0.1:1", "--upstream-token", "DBSECRET"},
	} {
		p := attack.Start(t, attack.Config{}, filepath.Join(programs.Dir(t), "mete"), append([]string{"server", "--listen", "127.0.0.1:0", "--state", t.TempDir()}, args...)...)
		if err := p.Wait(); err == nil {
			t.Errorf("mete server %s starts", args)
		}
		p.CheckSecrets(t, "DBSECRET")
	}
}
