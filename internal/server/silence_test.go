package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/registry"
)

// The administrator makes a silence, which is audited and in a backup. A viewer of one cluster sees
// those that match only alerts of that cluster.
func TestSilences(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	order := func(method, path, body string, want int) string {
		t.Helper()
		w := httptest.NewRecorder()
		b.AdminHandler(b.Handler()).ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, want)
		}
		return w.Body.String()
	}
	for _, matchers := range []string{"cluster=lab, node=~a.*", "cluster=other", "alertname=Secret"} {
		order("POST", "/v1/silences", fmt.Sprintf(`{"matchers":%q,"ends_at":%q,"created_by":"ann"}`, matchers, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)), 201)
	}
	if list := order("GET", "/v1/silences", "", 200); strings.Count(list, `"state":"active"`) != 3 {
		t.Errorf("all silences: %s", list)
	}
	seen := func(c *http.Client) (out string) {
		t.Helper()
		status, body := get(t, c, b.url+"/v1/silences?state=active")
		if status != http.StatusOK {
			t.Fatalf("silences: %d %s", status, body)
		}
		for _, name := range []string{"lab", "other", "Secret"} {
			if strings.Contains(body, name) {
				out += name + " "
			}
		}
		return out
	}
	if all, lab := seen(b.viewer(t, "")), seen(b.viewer(t, "lab")); all != "lab other Secret " || lab != "lab " {
		t.Errorf("a viewer sees %s, one of cluster lab sees %s", all, lab)
	}
	silences := b.viewer(t, "")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/v1/silences", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := silences.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a viewer makes a silence: %d, %v", resp.StatusCode, err)
	}
	list := order("GET", "/v1/silences", "", 200)
	_, id, _ := strings.Cut(list, `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	order("DELETE", "/v1/silences/"+id, "", 200)
	order("DELETE", "/v1/silences/none", "", 404)
	audits, err := b.Ledger.Audits(t.Context(), registry.AuditQuery{Limit: 20})
	if err != nil {
		t.Fatal(err)
	}
	created, ended := 0, 0
	for _, a := range audits {
		switch {
		case a.Action == "silence.create" && a.Actor == "local" && strings.Contains(a.Detail, "by ann"):
			created++
		case a.Action == "silence.end" && a.Object == id:
			ended++
		}
	}
	if created != 3 || ended != 1 {
		t.Errorf("audited are %d silences and %d ends: %+v", created, ended, audits)
	}
	if log := order("GET", "/v1/audit?action=silence.end&about="+id, "", 200); strings.Count(log, `"actor":"local"`) != 1 {
		t.Errorf("audit: %s", log)
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if _, err := b.Backup(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	restored := open(t, dir, nil)
	w := httptest.NewRecorder()
	restored.AdminHandler(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/silences", nil))
	if got := w.Body.String(); strings.Count(got, `"state":"active"`) != 2 || strings.Count(got, `"state":"expired"`) != 1 {
		t.Errorf("silences of a restored backup: %s", got)
	}
}
