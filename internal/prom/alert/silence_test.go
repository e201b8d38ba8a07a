package alert_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/testkit"
)

func silence(t *testing.T, matchers string, length time.Duration) query.Silence {
	t.Helper()
	ms, err := query.ParseMatchers(matchers)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	return query.Silence{Matchers: ms, Starts: now, Ends: now.Add(length), By: "me", Comment: "work on rack 1"}
}

// Silences are in their file after a restart; an ended one stays in the list for a while. A file
// that cannot be read silences nothing.
func TestSilencesAreKept(t *testing.T) {
	cfg := quickConfig(t)
	cfg.Silences = filepath.Join(t.TempDir(), "silences.json")
	r := open(t, cfg)
	now := time.Now()
	made, err := r.Silence(silence(t, `alertname=Down, node=~"a|b"`, time.Hour), now)
	if err != nil || made.ID == "" {
		t.Fatal(made, err)
	}
	if _, err := r.Silence(silence(t, `alertname=Down`, time.Minute), now); err != nil {
		t.Fatal(err)
	}
	alert := labels.FromStrings("alertname", "Down", "node", "a")
	r = open(t, cfg)
	if list := r.Silences(); len(list) != 2 || list[0].ID != made.ID || list[0].Matchers.String() != made.Matchers.String() || !list[0].Ends.Equal(made.Ends) || list[0].By != "me" || list[0].Comment != "work on rack 1" {
		t.Errorf("after a restart: %+v", list)
	}
	if by := r.SilencedBy(alert, now.Add(2*time.Minute)); len(by) != 1 || by[0] != made.ID {
		t.Errorf("silenced by %v, want %s", by, made.ID)
	}
	ended, err := r.EndSilence(made.ID, now.Add(2*time.Minute))
	if err != nil || !ended.Ends.Equal(now.Add(2*time.Minute)) {
		t.Errorf("ended: %+v, %v", ended, err)
	}
	if again, err := r.EndSilence(made.ID, now.Add(3*time.Minute)); err != nil || !again.Ends.Equal(ended.Ends) {
		t.Errorf("ended twice: %+v, %v", again, err)
	}
	if _, err := r.EndSilence("none", now); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("ended one that does not exist: %v", err)
	}
	if by := r.SilencedBy(alert, now.Add(4*time.Minute)); len(by) != 0 {
		t.Errorf("silenced by %v after all have ended", by)
	}
	if list := open(t, cfg).Silences(); len(list) != 2 {
		t.Errorf("%d silences, want those that ended too", len(list))
	}
	if _, err := r.Silence(silence(t, `alertname=Down`, 90*24*time.Hour), now.Add(31*24*time.Hour)); err != nil || len(r.Silences()) != 1 {
		t.Errorf("%d silences a month later, want the new one; %v", len(r.Silences()), err)
	}
	if err := os.WriteFile(cfg.Silences, []byte(`[{"id":"x","matchers":"("},{"id":"y","matchers":"a=b"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	r = open(t, cfg)
	if list := r.Silences(); len(list) != 1 || list[0].ID != "y" || !strings.Contains(r.log.String(), "silence=x") {
		t.Errorf("of a file that is partly wrong: %+v\n%s", list, r.log)
	}
}

func TestTooManySilences(t *testing.T) {
	r := open(t, quickConfig(t))
	s := silence(t, "a=b", time.Hour)
	for range 500 {
		if _, err := r.Silence(s, s.Starts); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Silence(s, s.Starts); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("one silence too many: %v", err)
	}
	if _, err := r.Silence(s, s.Ends); err != nil {
		t.Errorf("after the others have ended: %v", err)
	}
}

// Neither receiver is notified of an alert that is silenced; both are when the silence ends.
func TestSilencedNotifications(t *testing.T) {
	var mu sync.Mutex
	var got []string
	receive := func(kind string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var list []struct{ Labels map[string]string }
			var message struct {
				Alerts []struct{ Labels map[string]string }
			}
			d := json.NewDecoder(r.Body)
			var err error
			if kind == "webhook" {
				err = d.Decode(&message)
				list = message.Alerts
			} else {
				err = d.Decode(&list)
			}
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, a := range list {
				got = append(got, kind+" "+a.Labels["alertname"])
			}
		}))
		t.Cleanup(s.Close)
		return s
	}
	cfg := quickConfig(t)
	cfg.Resend = time.Second
	cfg.Rules = []string{file(t, "own.yml", ownRules+"      - {alert: Loud, expr: test_up == 0}\n")}
	cfg.Webhook, cfg.Alertmanagers = receive("webhook").URL, []string{receive("manager").URL}
	r := open(t, cfg)
	made, err := r.Silence(silence(t, "alertname=Down", time.Hour), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	seen := func(want string) bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(got, want)
	}
	r.run(t)
	r.set(t, 0)
	testkit.Eventually(t, "the alert fires, and both receivers get another one", func() bool { return r.Firing() >= 2 && seen("webhook Loud") && seen("manager Loud") })
	r.awaitEvaluations(t)
	if seen("webhook Down") || seen("manager Down") {
		t.Errorf("receivers got the silenced alert: %v", got)
	}
	if _, err := r.EndSilence(made.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "both receivers get the alert after the silence", func() bool {
		r.set(t, 0) // the sample of the first one grows old
		return seen("webhook Down") && seen("manager Down")
	})
}
