package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestMetersOutside gives this machine two power supplies, one scraped by a Prometheus and one
// published by MQTT, and checks that mete usage shows the sum of both for each minute, also if the
// server is killed within it. It takes four minutes.
func TestMetersOutside(t *testing.T) {
	testkit.Stage(t, "peers", "runs a Prometheus and a broker for four minutes")
	hosttest.Need(t, "prometheus", "mosquitto")
	t.Parallel()
	s := newSite(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`meters:
  - {name: supply-1, type: prometheus, url: "http://%s", query: supply_watts, unit: W, interval: 2s, error_percent: 1, nodes: ["%[3]s"]}
  - {name: supply-2, type: mqtt, url: "tcp://%[2]s", topic: tele/supply/SENSOR, path: ENERGY.Power, unit: W, error_percent: 1, nodes: ["%[3]s"]}
`, scraped(s, "supply_watts 150"), published(s, "tele/supply/SENSOR", `{"ENERGY":{"Power":50.5}}`), host)
	file := filepath.Join(s.dir, "meters.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s.serve("--meters", file)
	s.measure("-tick", "1s", "-window", "10s")
	s.start("load", exec.Command("sh", "-c", "while :; do :; done"))
	// The first complete minute and the two after it: a new Prometheus has no samples at first.
	first := time.Now().Add(15 * time.Second).Truncate(time.Minute).Add(time.Minute)
	time.Sleep(time.Until(first.Add(80 * time.Second)))
	s.server.kill()
	s.serve("--meters", file)
	time.Sleep(time.Until(first.Add(190 * time.Second)))

	for i := range 3 {
		from := first.Add(time.Duration(i) * time.Minute)
		var a struct {
			Groups []struct {
				Kind    string            `json:"kind"`
				CPU     float64           `json:"cpu_seconds"`
				Energy  float64           `json:"energy_joules"`
				Idle    float64           `json:"energy_idle_booked_joules"` // of virtual machines, and of the row idle
				Rest    float64           `json:"energy_rest_joules"`
				Quality map[string]string `json:"quality"`
			} `json:"groups"`
			Total, Whole struct {
				Energy float64 `json:"energy_joules"`
			}
		}
		s.server.await("the minute as the meters showed it", func() bool {
			c := s.command("mete", "usage", "--by", "kind", "-o", "json", "--server", s.url, "--from", from.UTC().Format(time.RFC3339), "--to", from.Add(time.Minute).UTC().Format(time.RFC3339))
			c.Env = append(c.Env, "METE_TOKEN="+s.viewer)
			var log bytes.Buffer
			c.Stderr = &log
			out, err := c.Output()
			if err != nil {
				t.Fatalf("mete usage: %v\n%s", err, &log)
			}
			if err := json.Unmarshal(out, &a); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			return math.Abs(a.Total.Energy-200.5*60) < .001
		})
		t.Logf("minute %d: %.6f J", i, a.Total.Energy)
		if a.Whole.Energy != a.Total.Energy {
			t.Errorf("minute %d: rows sum to %v J, machine used %v", i, a.Total.Energy, a.Whole.Energy)
		}
		var cpu, active float64
		for _, g := range a.Groups {
			if g.Quality["energy_joules"] == "modelled" {
				t.Errorf("minute %d: the energy of %s is modelled", i, g.Kind)
			}
			if g.Kind != "idle" {
				cpu, active = cpu+g.CPU, active+g.Energy-g.Idle
			}
			t.Logf("minute %d: %s used %.3f s and %.3f J", i, g.Kind, g.CPU, g.Energy)
		}
		for _, g := range a.Groups {
			if share := g.CPU / cpu * active; g.Kind != "idle" && math.Abs(g.Energy-g.Idle-share) > .001 {
				t.Errorf("minute %d: %s has %v J of its own, and by its CPU time %v", i, g.Kind, g.Energy-g.Idle, share)
			}
		}
	}
	metrics := s.metrics()
	for _, want := range []string{`mete_server_meter_up{meter="supply-1"} 1`, `mete_server_meter_watts{meter="supply-2"} 50.5`, `mete_server_meter_gaps_total{meter="supply-1"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics do not say %q:\n%s", want, metrics)
		}
	}
}

// metrics returns the server's metrics.
func (s *site) metrics() string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/metrics", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.viewer)
	// The server is the test's own.
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer c.CloseIdleConnections()
	resp, err := c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		s.t.Fatal(err)
	}
	return string(body)
}

// freePort returns an unused port of this machine.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// scraped returns the address of a Prometheus that scrapes the exported text.
func scraped(s *site, says string) string {
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, says) }))
	s.t.Cleanup(e.Close)
	config := filepath.Join(s.dir, "prometheus.yml")
	text := "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: supply, static_configs: [{targets: ['" + strings.TrimPrefix(e.URL, "http://") + "']}]}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	addr := freePort(s.t)
	s.start("prometheus", exec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(s.dir, "tsdb"), "--web.listen-address="+addr))
	return addr
}

// published returns the address of a broker to which a message is published every second.
func published(s *site, topic, message string) string {
	addr := freePort(s.t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		s.t.Fatal(err)
	}
	config := filepath.Join(s.dir, "mosquitto.conf")
	if err := os.WriteFile(config, []byte("listener "+port+" "+host+"\nallow_anonymous true\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.start("mosquitto", exec.Command("/usr/sbin/mosquitto", "-c", config))
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// It fails until the broker has started.
			_ = exec.CommandContext(ctx, "mosquitto_pub", "-h", host, "-p", port, "-V", "mqttv311", "-t", topic, "-m", message).Run()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	s.t.Cleanup(func() { stop(); <-ended })
	return addr
}
