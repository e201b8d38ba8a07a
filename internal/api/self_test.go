package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

func TestSelf(t *testing.T) {
	nobody := func(*http.Request) (query.Scope, error) { return query.Scope{}, fault.ErrDenied }
	h := handler(example(), nobody) // Self does not call authorize
	code, _, m := ask(t, h, "GET", "/v1/self", "")
	used, _ := m["usage"].(map[string]any)
	latest, _ := m["latest"].(map[string]any)
	rates, _ := latest["rates"].(map[string]any)
	if code != 200 || m["workload"] != "w" || m["node_name"] != "web-1" || m["complete_through"] != "2026-03-01T11:59:59Z" || m["gaps"] != 1.0 || m["ended_at"] != nil ||
		used["cpu_seconds"] != 90.0 || used["memory_byte_seconds"] != float64(3600<<20) || used["disk_read_bytes"] != nil || used["covered_seconds"] != 3600.0 ||
		rates["cpu_cores"] != 1.5 || latest["to"] != "2026-03-01T12:00:00Z" {
		t.Errorf("%d %v", code, m)
	}
	w := get(h, "/v1/self")
	var s v1.Self
	err := json.Unmarshal(w.Body.Bytes(), &s)
	if err != nil || s.Usage.Get("cpu_seconds").Value.String() != "90000000000" || s.Usage.Get("memory_byte_seconds").Quality != usage.Apportioned || s.Job != "build" || !s.Through.Equal(noon.Add(-time.Second)) {
		t.Errorf("read as %+v, %v", s, err)
	}
	if w := get(h, "/v1/self?format=csv"); w.Code != 200 || !strings.Contains(w.Body.String(), "web-1,make,1,") {
		t.Errorf("as CSV: %d %s", w.Code, w.Body)
	}
	if code, _, m := ask(t, h, "GET", "/v1/self?node=N2", ""); code != 400 {
		t.Errorf("about another: %d %v", code, m)
	}
	r := httptest.NewRequest("GET", "/v1/self", nil)
	r.Header.Set("Authorization", "Bearer wrong")
	wrong := httptest.NewRecorder()
	if h.ServeHTTP(wrong, r); wrong.Code != 401 || wrong.Header().Get("WWW-Authenticate") == "" {
		t.Errorf("wrong: %d %s", wrong.Code, wrong.Body)
	}
}

// A held book refuses a client that sent too many wrong tokens.
type held struct{ book }

func (held) Identify(*http.Request) (api.SelfCaller, error) {
	return api.SelfCaller{}, &fault.RetryError{Err: fmt.Errorf("too many wrong tokens: %w", fault.ErrUnavailable), After: 1500 * time.Millisecond}
}

func TestSelfHeldUp(t *testing.T) {
	b := &held{*example()}
	w := get(api.New(b, b, b, all, time.Now, slog.New(slog.DiscardHandler)), "/v1/self")
	if w.Code != 429 || w.Header().Get("Retry-After") != "2" || !strings.Contains(w.Body.String(), `"status":429`) {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// TestSelfNone checks that a server without jobs refuses the request, and that a reader
// rejects a malformed answer.
func TestSelfNone(t *testing.T) {
	b := example()
	if w := get(api.New(b, b, nil, all, time.Now, slog.New(slog.DiscardHandler)), "/v1/self"); w.Code != 501 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, body := range []string{"", "{}", `{"format":2}`, `{"format":1,"usage":{"cpu_seconds":"x","quality":{"cpu_seconds":"measured"}}}`, "[]"} {
		var s v1.Self
		if err := s.UnmarshalJSON([]byte(body)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %+v, %v", body, s, err)
		}
	}
}
