package alert

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"mete.dev/mete/internal/prom/rule"
)

// TestRefusedMessage checks that a message that the receiver refuses is sent again later, and delays no other one.
func TestRefusedMessage(t *testing.T) {
	posted, refuse := map[string]int{}, true
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			Common struct{ Alertname string } `json:"commonLabels"`
		}
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		posted[m.Common.Alertname]++
		if m.Common.Alertname == "Long" && refuse {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	}))
	defer hook.Close()
	quiet := slog.New(slog.DiscardHandler)
	silences, err := openSilences("", quiet)
	if err != nil {
		t.Fatal(err)
	}
	wh, err := openWebhook(Config{Webhook: hook.URL, RetryDelay: time.Hour}, silences, quiet)
	if err != nil {
		t.Fatal(err)
	}
	deliver := func(fires string, longs, others int) {
		t.Helper()
		wh.notifications.Add(rule.Alert{Labels: map[string]string{"alertname": fires}, StartsAt: time.Now()}, time.Now().Add(time.Hour))
		if err := wh.deliver(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(posted) - 1; posted["Long"] != longs || n != others {
			t.Errorf("posted %v, want Long %d times and %d others", posted, longs, others)
		}
	}
	deliver("Long", 1, 0)
	deliver("Other", 1, 1)
	r := wh.refused["Long"]
	if r.delay <= 0 || time.Until(r.until) > r.delay {
		t.Errorf("refusal %+v", r)
	}
	r.until = time.Time{}
	wh.refused["Long"], refuse = r, false
	deliver("Third", 2, 2)
	if len(wh.refused) > 0 || wh.sent != 3 || wh.failed != 1 {
		t.Errorf("refused %v, %d sent, %d failed", wh.refused, wh.sent, wh.failed)
	}
}
