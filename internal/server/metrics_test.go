package server_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/registry"
)

// TestMetrics checks that /metrics needs a viewer token and respects its scope.
func TestMetrics(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	ask := func(bearer string) (int, string) {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		r.TLS = &tls.ConnectionState{}
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, r)
		body, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		if kind := w.Header().Get("Content-Type"); w.Code == http.StatusOK && kind != "text/plain; version=0.0.4; charset=utf-8" {
			t.Errorf("content type %q", kind)
		}
		return w.Code, string(body)
	}
	if code, body := ask(""); code != http.StatusUnauthorized || strings.Contains(body, "mete_server") {
		t.Errorf("without a token: %d, %s", code, body)
	}
	id := b.enroll(t, registry.Agent, "m1")
	sent, clock := aBatch(t, id.Node())
	if _, err := offer(t, id, b, sent, clock); err != nil {
		t.Fatal(err)
	}
	if err := b.Ledger.Fold(t.Context(), time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	viewer, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Uses: -1})
	if err != nil {
		t.Fatal(err)
	}
	code, body := ask(viewer)
	if code != http.StatusOK {
		t.Fatalf("viewer: %d, %s", code, body)
	}
	for _, want := range []string{
		`mete_server_batches_total{verdict="taken"} 1`, `mete_server_rows_total 3`, `mete_server_nodes{state="(live|behind|silent)"} 1`,
		`mete_server_ledger_minute_rows [36]`, `mete_server_ledger_bytes \d+`, `mete_server_ledger_hour_lag_seconds -?\d.*`,
		`mete_server_ledger_fold_slices_total [2457]`,
	} {
		if !regexp.MustCompile("(?m)^" + strings.ReplaceAll(strings.ReplaceAll(want, "{", `\{`), "}", `\}`) + "$").MatchString(body) {
			t.Errorf("missing %s in\n%s", want, body)
		}
	}
	// Each metric must have help.
	for line := range strings.Lines(body) {
		if name := strings.FieldsFunc(line, func(r rune) bool { return r == '{' || r == ' ' })[0]; name != "#" && !strings.Contains(body, "# HELP "+name+" ") {
			t.Errorf("%s has no help", name)
		}
	}
	other, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Cluster: "elsewhere", Uses: -1})
	if err != nil {
		t.Fatal(err)
	}
	// Only viewers of all clusters get the totals over all callers.
	_, body = ask(other)
	if !strings.Contains(body, "mete_server_nodes{state=\"live\"} 0\n") {
		t.Errorf("viewer of another cluster:\n%s", body)
	}
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "mete_server_nodes{") {
			t.Errorf("viewer of another cluster: %s", line)
		}
	}
}
