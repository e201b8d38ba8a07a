package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/prometheus"
)

// TestStockSite connects a site with Prometheus servers: one scrapes the server and an agent and
// writes the result to the server; another one receives the server's samples by remote write.
func TestStockSite(t *testing.T) {
	testkit.Stage(t, "peers", "a Prometheus scrapes for a while")
	hosttest.Need(t, "prometheus")
	t.Parallel()
	s := newSite(t)
	told := prometheus.Start(t, "global: {}\n", "--web.enable-remote-write-receiver")
	s.serve("--remote-write", told.URL+"/api/v1/write")
	status := freePort(t)
	s.measure("-tick", "200ms", "-window", "2s", "-status", status, "-status-workloads", "-compat", "kepler")
	writer := s.run("token", "create", "--role", "writer", "--cluster", "lab")
	lab := prometheus.Client{URL: s.url, Token: s.run("token", "create", "--role", "viewer", "--cluster", "lab")}
	other := prometheus.Client{URL: s.url, Token: s.run("token", "create", "--role", "viewer", "--cluster", "default")}
	all := prometheus.Client{URL: s.url, Token: s.viewer}
	bearer := func(token string) string {
		return "authorization: {credentials: " + token + "}, tls_config: {insecure_skip_verify: true}"
	}
	scraper := prometheus.Start(t, fmt.Sprintf(`
global: {scrape_interval: 2s, external_labels: {cluster: forged}}
scrape_configs:
  - {job_name: server, scheme: https, %s, static_configs: [{targets: ["%s"]}]}
  - {job_name: agent, static_configs: [{targets: ["%s"]}]}
remote_write:
  - {url: "%s/api/v1/write", %s, queue_config: {batch_send_deadline: 1s}}
`, bearer(s.viewer), strings.TrimPrefix(s.url, "https://"), status, s.url, bearer(writer)))

	await := func(what string, ok func() error) {
		t.Helper()
		var last error
		s.server.await(what, func() bool { last = ok(); return last == nil })
	}
	count := func(c prometheus.Client, query string, least int) func() error {
		return func() error {
			got, err := c.Query(query)
			if err == nil && len(got) < least {
				err = fmt.Errorf("%s: %d series", query, len(got))
			}
			return err
		}
	}
	for _, q := range []string{`up{job="server"} == 1`, `up{job="agent"} == 1`, `scrape_samples_scraped{job="server"} > 20`, `scrape_samples_scraped{job="agent"} > 20`,
		`mete_server_batches_total{verdict="taken"} > 0`, `mete_agent_windows_total > 0`, `mete_workload_cpu_seconds_total * on (node, workload) group_left (name) mete_workload_info`,
		`mete_server_remote_samples_total > 0`} {
		await("a scrape: "+q, count(scraper.Client(), q, 1))
	}
	targets, err := scraper.Client().Ask("targets")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		ActiveTargets []struct{ ScrapePool, Health, LastError string }
	}
	if err := json.Unmarshal(targets.Data, &list); err != nil {
		t.Fatal(err)
	}
	for _, one := range list.ActiveTargets {
		if one.Health != "up" || one.LastError != "" {
			t.Errorf("%s: %s %s", one.ScrapePool, one.Health, one.LastError)
		}
	}

	// The server has what it scraped, in the cluster of its token, except for names that are
	// reserved for the server.
	await("what was written", count(lab, `up{job="agent"} == 1`, 1))
	await("what was written", count(lab, `{__name__=~"kepler_.+"}`, 1))
	for query, c := range map[string]prometheus.Client{`up`: other, `{cluster="forged"}`: all, `{__name__=~"mete_.+",job="server"}`: all, `{__name__=~"mete_.+"}`: lab} {
		if got, err := c.Query(query); err != nil || len(got) > 0 {
			t.Errorf("%s: %v, %v", query, got, err)
		}
	}
	await("the count of it", count(all, `mete_server_written_samples_total{result="refused"} > 0`, 1))

	// The other one has the server's samples, with equal values.
	const ours = `mete_workload_cpu_seconds_total[1m]`
	await("a minute's samples", func() error {
		got, err := told.Client().Query(ours)
		if err != nil || len(got) == 0 || len(got[0].Values) < 3 {
			return fmt.Errorf("%d series, %v", len(got), err)
		}
		return nil
	})
	got, err := told.Client().Query(ours)
	if err != nil {
		t.Fatal(err)
	}
	// By its name, a range selector would leave out the samples at minute edges.
	have, err := all.Query(`{__name__=~"mete_workload_cpu_seconds_total"}[1m]`)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][2]any{}
	for _, one := range have {
		for _, v := range one.Values {
			known[fmt.Sprint(one.Metric, v[0])] = v
		}
	}
	n := 0
	for _, one := range got {
		for _, v := range one.Values {
			if want := known[fmt.Sprint(one.Metric, v[0])]; !reflect.DeepEqual(v, want) {
				t.Errorf("%v: %v; the server has %v", one.Metric, v, want)
			}
			n++
		}
	}
	t.Logf("%d samples of %d series arrived", n, len(got))
}
