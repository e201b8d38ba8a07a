package alert_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/alert"
	"mete.dev/mete/internal/prom/api"
	"mete.dev/mete/internal/store/tsdb"
	"mete.dev/mete/internal/testkit"
)

// A rig evaluates rules over its own store.
type rig struct {
	*alert.Alerts
	store *tsdb.Store
	state *tsdb.State
	log   *logged
}

// logged is a buffer for concurrent reads and writes.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// ownRules has a rule that fires if the test's series is 0.
const ownRules = `groups:
  - name: own
    rules:
      - alert: Down
        expr: test_up == 0
        labels: {severity: critical}
        annotations: {summary: "{{ $labels.node }} is down."}
      - record: node:test_up:negative
        expr: -test_up
`

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// quickConfig returns a Config with short intervals. Resend is long, because an alert expires
// after four times Resend without an evaluation, which happens on a busy machine.
func quickConfig(t *testing.T) alert.Config {
	cfg := alert.Default()
	cfg.Interval, cfg.Resend = 200*time.Millisecond, time.Hour
	cfg.RetryDelay, cfg.RestoreGrace = 100*time.Millisecond, 2*time.Second
	cfg.Rules = []string{file(t, "own.yml", ownRules)}
	return cfg
}

func open(t *testing.T, cfg alert.Config) *rig {
	t.Helper()
	c := tsdb.Default()
	c.Dir = t.TempDir()
	store, err := tsdb.Open(c, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{store: store, state: store.State(), log: &logged{}}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	limits := api.Default()
	limits.Timeout, limits.Lookback = time.Hour, time.Hour // for slow machines
	if r.Alerts, err = alert.Open(cfg, api.Engine(limits, nil, log), store, nil, log); err != nil {
		t.Fatal(err)
	}
	return r
}

// run starts Run until stop is called or the test ends.
func (r *rig) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// set appends a sample of test_up.
func (r *rig) set(t *testing.T, up float64) {
	t.Helper()
	err := r.state.Put(t.Context(), time.Now(), []tsdb.Sample{{Name: "test_up", Labels: []string{"cluster", "lab", "node", "a"}, Value: up}})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitEvaluations waits for five more evaluations of the test's rules.
func (r *rig) awaitEvaluations(t *testing.T) {
	t.Helper()
	var last time.Time
	times := 0
	testkit.Eventually(t, "the rules are evaluated again", func() bool {
		for _, g := range r.RuleGroups() {
			if at := g.GetLastEvaluation(); g.Name() == "own" && at.After(last) {
				last = at
				times++
			}
		}
		return times > 4
	})
}

// Errors in rule files name the file and the line.
func TestFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"yaml":       {"groups:\n  - name: a\n    rules: 7\n", ":3: "},
		"an unknown": {"groups:\n  - name: a\n    rulez: []\n", ":3: "},
		"promql":     {"groups:\n  - name: a\n    rules:\n      - alert: X\n        expr: sum(\n", ":5:15: "},
		"a subquery": {"groups:\n  - name: a\n    rules:\n      - alert: X\n        expr: max_over_time(up[100y:1ms])\n", ":5:15: "},
		"recorded":   {"groups:\n  - name: a\n    rules:\n      - record: x\n        expr: |\n          max_over_time(up[1d:1ms])\n", ":5:15: "},
		"a template": {"groups:\n  - name: a\n    rules:\n      - alert: X\n        expr: up\n        annotations:\n          summary: '{{ $x '\n", ":4: "},
		"a label":    {"groups:\n  - name: a\n    rules:\n      - record: y\n        expr: up\n\n      - alert: 'X'\n        expr: up\n        labels: {__name__: z}\n", ":7: "},
		"neither":    {"groups:\n  - name: a\n    rules:\n      - expr: up\n", ": group \"a\", rule 1"},
		"twice":      {"groups:\n  - name: a\n  - name: a\n", ":3: "},
	} {
		path := file(t, "bad.yml", c.text)
		cfg := alert.Default()
		cfg.Rules = []string{path}
		_, err := alert.Open(cfg, nil, nil, nil, slog.New(slog.DiscardHandler))
		if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), path+c.want[:1]) || !strings.Contains(err.Error(), c.want) || fault.Hint(err) == "" {
			t.Errorf("%s: %v; want %s%s", name, err, path, c.want)
		}
	}
	cfg := alert.Default()
	cfg.Rules = []string{filepath.Join(t.TempDir(), "none.yml")}
	if _, err := alert.Open(cfg, nil, nil, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) || fault.Hint(err) == "" {
		t.Errorf("a missing file: %v", err)
	}
}

// Invalid URLs of receivers are rejected, and errors show no secrets.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"alertmanager:9093", "http://", "ftp://a", "http://me:secret@a:9093", "://secret"} {
		cfg := alert.Default()
		cfg.Alertmanagers = []string{bad}
		if err := cfg.Validate(); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
		cfg = alert.Default()
		cfg.Webhook = bad
		if _, err := alert.Open(cfg, nil, nil, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("webhook %s: %v", bad, err)
		}
	}
	cfg := alert.Default()
	cfg.Webhook, cfg.WebhookHeader = "http://a", file(t, "header", "secret")
	if _, err := alert.Open(cfg, nil, nil, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "secret\n") || strings.Contains(err.Error(), `"secret"`) {
		t.Errorf("a header without a name: %v", err)
	}
}

// Rules of a directory are evaluated in addition to the shipped ones and record into the
// store; a reload of a wrong file changes nothing.
func TestReload(t *testing.T) {
	cfg := quickConfig(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "b.yaml")
	for name, text := range map[string]string{"a.yml": ownRules, "b.yaml": strings.ReplaceAll(ownRules, "name: own", "name: other"), "c.txt": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Rules = []string{dir, path}
	r := open(t, cfg)
	r.run(t)
	names := func() (list []string) {
		for _, g := range r.RuleGroups() {
			if strings.HasPrefix(g.File(), dir) {
				list = append(list, filepath.Base(g.File())+" "+g.Name())
			}
		}
		return list
	}
	r.set(t, 0)
	testkit.Eventually(t, "both alerts fire", func() bool { return r.Firing() >= 2 })
	testkit.Eventually(t, "the store has the recorded series", func() bool {
		found := fmt.Sprint(r.names(t))
		return strings.Contains(found, "node:test_up:negative") && strings.Contains(found, "ALERTS ")
	})
	if diff := cmp.Diff([]string{"a.yml own", "b.yaml other"}, names()); diff != "" {
		t.Error(diff)
	}
	if n := len(r.RuleGroups()); n < 5 {
		t.Errorf("%d groups, want the shipped ones too", n)
	}
	if err := os.WriteFile(path, []byte("groups: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Reload(); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), path+":1: ") {
		t.Errorf("a wrong file: %v", err)
	}
	if diff := cmp.Diff([]string{"a.yml own", "b.yaml other"}, names()); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.checkReload(t, dir)
}

// names returns the metric names in the store.
func (r *rig) names(t *testing.T) []string {
	t.Helper()
	q, err := r.store.Queryable().Querier(0, time.Now().Add(time.Minute).UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	found, _, err := q.LabelValues(t.Context(), "__name__", nil)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// checkReload reloads after a file that Config.Rules names was removed, and again after it is
// back without its group.
func (r *rig) checkReload(t *testing.T, dir string) {
	t.Helper()
	if err := r.Reload(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a removed file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.yaml"), []byte("groups: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Reload(); err != nil {
		t.Error(err)
	}
	for _, g := range r.RuleGroups() {
		if g.Name() == "other" {
			t.Error("a removed group is still evaluated")
		}
	}
}

// The webhook receives the start and the end of an alert once each, also after failed
// requests and a restart. The secrets in header and path are not logged.
func TestWebhook(t *testing.T) {
	var mu sync.Mutex
	var got []string
	var bodies [][]byte
	status, tries := http.StatusInternalServerError, 0
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer hunter2" || r.URL.Path != "/T0K3N" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		tries++
		if status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		var m struct {
			Status string
			Alerts []struct{ Status string }
			Common struct{ Alertname string } `json:"commonLabels"`
		}
		if err := json.Unmarshal(b, &m); err != nil {
			t.Error(err)
		}
		if m.Common.Alertname == "Down" {
			got = append(got, fmt.Sprint(m.Status, len(m.Alerts)))
			bodies = append(bodies, b)
		}
	}))
	defer hook.Close()
	cfg := quickConfig(t)
	cfg.Webhook, cfg.WebhookHeader, cfg.State = "@"+file(t, "url", hook.URL+"/T0K3N\n"), file(t, "header", "Authorization: Bearer hunter2\n"), filepath.Join(t.TempDir(), "told")
	r := open(t, cfg)
	stop := r.run(t)
	r.set(t, 0)
	seen := func(want ...string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return cmp.Equal(got, want)
		}
	}
	testkit.Eventually(t, "the request is retried", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return tries >= 3
	})
	mu.Lock()
	status = http.StatusOK
	mu.Unlock()
	testkit.Eventually(t, "the webhook receives the alert", seen("firing1"))
	r.awaitEvaluations(t)
	if !seen("firing1")() {
		t.Errorf("the webhook received %v, want firing1 once", got)
	}
	// The alert ends while the rules are stopped.
	stop()
	r.set(t, 1)
	log := r.log.String()
	r = open(t, cfg)
	r.set(t, 1)
	r.run(t)
	testkit.Eventually(t, "the webhook receives the end", seen("firing1", "resolved1"))
	r.set(t, 0)
	testkit.Eventually(t, "the alert fires again", seen("firing1", "resolved1", "firing1"))
	r.set(t, 1)
	testkit.Eventually(t, "the alert ends again", seen("firing1", "resolved1", "firing1", "resolved1"))
	if c := r.Counts(); c.WebhookSent < 3 || c.Sent != 0 {
		t.Errorf("%+v", c)
	}
	log += r.log.String()
	if strings.Contains(log, "hunter2") || strings.Contains(log, "T0K3N") || !strings.Contains(log, "webhook answered 500") {
		t.Errorf("log:\n%s", log)
	}
	var m struct{ Alerts []map[string]any }
	if err := json.Unmarshal(bodies[0], &m); err != nil || m.Alerts[0]["fingerprint"] == "" {
		t.Errorf("%s, %v", bodies[0], err)
	}
}
