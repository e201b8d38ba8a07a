package httpx_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"mete.dev/mete/internal/x/httpx"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-1": 0, "0": 0, "7": 7 * time.Second, "86400": 24 * time.Hour, "99999999999": 0,
		now.Add(time.Minute).Format(http.TimeFormat):  time.Minute,
		now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := httpx.RetryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("RetryAfter(%q) = %v, want %v", text, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "1", time.Millisecond: "1", time.Second: "1", 1500 * time.Millisecond: "2", time.Hour: "3600"} {
		w := httptest.NewRecorder()
		if httpx.SetRetryAfter(w, d); w.Header().Get("Retry-After") != want {
			t.Errorf("SetRetryAfter(%v) sets %q, want %q", d, w.Header().Get("Retry-After"), want)
		}
	}
}
