package alert_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// alertmanager starts Debian's Alertmanager with a webhook receiver at hook and returns its
// URL.
func alertmanager(t *testing.T, hook string) string {
	t.Helper()
	hosttest.Need(t, "alertmanager")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	conf := file(t, "am.yml", fmt.Sprintf(`route: {receiver: test, group_by: [alertname], group_wait: 100ms, group_interval: 200ms}
receivers:
  - name: test
    webhook_configs: [{url: %q, send_resolved: true}]
`, hook))
	cmd := exec.Command("prometheus-alertmanager", "--config.file="+conf, "--storage.path="+t.TempDir(), "--web.listen-address="+addr, "--web.route-prefix=/am", "--cluster.listen-address=")
	out := &logged{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("alertmanager:\n%s", out.String())
		}
	})
	testkit.Eventually(t, "Alertmanager answers", func() bool {
		resp, err := http.Get("http://" + addr + "/am/-/ready")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return "http://" + addr + "/am"
}

// A message is a request that a receiver got: its status, the JSON keys and the first alert.
type message struct {
	status string
	keys   []string
	alert  map[string]any
}

// receiver starts a webhook receiver that keeps the messages about the alert Down.
func receiver(t *testing.T) (url string, got func() []message) {
	t.Helper()
	var mu sync.Mutex
	var list []message
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var all map[string]any
		if err == nil {
			err = json.Unmarshal(b, &all)
		}
		if err != nil {
			t.Error(err)
			return
		}
		labels, _ := all["groupLabels"].(map[string]any)
		if labels["alertname"] != "Down" {
			return
		}
		m := message{status: fmt.Sprint(all["status"]), alert: all["alerts"].([]any)[0].(map[string]any)}
		for k := range all {
			m.keys = append(m.keys, fmt.Sprintf("%s %T", k, all[k]))
		}
		for k := range m.alert {
			m.keys = append(m.keys, fmt.Sprintf("alerts.%s %T", k, m.alert[k]))
		}
		slices.Sort(m.keys)
		mu.Lock()
		defer mu.Unlock()
		list = append(list, m)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func() []message {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// A real Alertmanager receives the start and the end of an alert, and mete's webhook
// messages have the same form as those of that Alertmanager.
func TestAlertmanager(t *testing.T) {
	testkit.Stage(t, "peers", "runs Debian's Alertmanager")
	theirs, atTheirs := receiver(t)
	ours, atOurs := receiver(t)
	url := alertmanager(t, theirs)
	cfg := quickConfig(t)
	cfg.Alertmanagers, cfg.Webhook, cfg.PageURL = []string{url}, ours, "https://mete.example.org:9797"
	r := open(t, cfg)
	r.run(t)
	testkit.Eventually(t, "the Alertmanager is known", func() bool { return len(r.Alertmanagers()) == 1 })
	if got := r.Alertmanagers()[0].String(); got != url+"/api/v2/alerts" {
		t.Errorf("alerts go to %s", got)
	}
	r.set(t, 0)
	both := func(status string) func() bool {
		is := func(m message) bool { return m.status == status }
		return func() bool { return slices.ContainsFunc(atTheirs(), is) && slices.ContainsFunc(atOurs(), is) }
	}
	testkit.Eventually(t, "both receive the alert", both("firing"))
	resp, err := http.Get(url + "/api/v2/alerts?filter=alertname%3DDown")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var alerts []struct {
		Labels, Annotations map[string]string
		GeneratorURL        string
	}
	if err := json.NewDecoder(resp.Body).Decode(&alerts); err != nil || len(alerts) != 1 {
		t.Fatalf("%+v, %v", alerts, err)
	}
	a := alerts[0]
	if a.Labels["cluster"] != "lab" || a.Labels["node"] != "a" || a.Labels["severity"] != "critical" || a.Annotations["summary"] != "a is down." ||
		a.GeneratorURL != "https://mete.example.org:9797/query?q=test_up+%3D%3D+0" {
		t.Errorf("%+v", a)
	}
	r.set(t, 1)
	testkit.Eventually(t, "both receive its end", both("resolved"))
	t1, o1 := atTheirs()[0], atOurs()[0]
	if !slices.Equal(t1.keys, o1.keys) {
		t.Errorf("Alertmanager posts %v\nmete %v", t1.keys, o1.keys)
	}
	for _, k := range []string{"fingerprint", "generatorURL", "status", "labels", "annotations", "endsAt"} {
		if fmt.Sprint(t1.alert[k]) != fmt.Sprint(o1.alert[k]) {
			t.Errorf("%s: Alertmanager posts %v, mete %v", k, t1.alert[k], o1.alert[k])
		}
	}
	since := func(m message) time.Time {
		at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(m.alert["startsAt"]))
		if err != nil {
			t.Error(err)
		}
		return at.Truncate(time.Millisecond)
	}
	if !since(t1).Equal(since(o1)) {
		t.Errorf("Alertmanager posts the start %v, mete %v", since(t1), since(o1))
	}
	if c := r.Counts(); c.Sent == 0 || c.Failed != 0 {
		t.Errorf("%+v", c)
	}
}

// An unreachable Alertmanager does not affect another one, and requests have the headers of
// the file.
func TestAlertmanagerAway(t *testing.T) {
	var mu sync.Mutex
	header := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		header = r.Header.Get("X-Secret")
	}))
	defer srv.Close()
	cfg := quickConfig(t)
	cfg.Resend = 200 * time.Millisecond // the test counts repeated requests
	away := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer away.Close()
	cfg.AlertmanagerHeader = file(t, "header", "X-Secret: hunter2")
	cfg.Alertmanagers = []string{away.URL, srv.URL}
	r := open(t, cfg)
	r.run(t)
	r.set(t, 0)
	testkit.Eventually(t, "the reachable Alertmanager receives the header", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return header == "hunter2"
	})
	testkit.Eventually(t, "requests to the other one fail", func() bool { return r.Counts().Failed > 0 })
	if err := os.Remove(cfg.AlertmanagerHeader); err != nil {
		t.Fatal(err)
	}
	before := r.Counts().Failed
	testkit.Eventually(t, "requests fail without the header file", func() bool { return r.Counts().Failed > before+2 })
}
