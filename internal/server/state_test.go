package server_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/testkit"
)

// ask queries the Prometheus API and decodes the data of the answer into v.
func (b *bench) ask(t *testing.T, c *http.Client, path string, v any) {
	t.Helper()
	status, body := get(t, c, b.url+"/api/v1/"+path)
	answer := struct {
		Status string
		Data   any
	}{Data: v}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK || answer.Status != "success" {
		t.Fatalf("%s: %d %s, %v", path, status, body, err)
	}
}

// values returns the current results of a query, by the label node or certificate.
func (b *bench) values(t *testing.T, c *http.Client, query string) map[string]float64 {
	t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	b.ask(t, c, "query?query="+url.QueryEscape(query), &data)
	out := map[string]float64{}
	for _, r := range data.Result {
		v, err := strconv.ParseFloat(r.Value[1].(string), 64)
		if err != nil {
			t.Error(err)
		}
		out[r.Metric["node"]+r.Metric["certificate"]] = v
	}
	return out
}

// viewer returns a client with a viewer token for a cluster, or for all if cluster is "".
func (b *bench) viewer(t *testing.T, cluster string) *http.Client {
	t.Helper()
	text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Cluster: cluster, Uses: -1})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := token.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := enroll.ReaderClient(b.url, tok)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The time series database records the state of a node for viewers of its cluster:
// violations, spool, gaps and certificate.
func TestState(t *testing.T) {
	b := open(t, t.TempDir(), func(c *server.Config) {
		c.Caps = []rule.Cap{{Cluster: "lab", Watts: 5000}, {Cluster: "lab", Node: "alpha", Watts: 400}}
	})
	id := b.enroll(t, registry.Agent, "m")
	sent, clock := aBatch(t, id.Node())
	decoded, err := wire.Decode(sent, wire.Default())
	if err != nil {
		t.Fatal(err)
	}
	decoded.Windows[0].Balance.Violations, decoded.Windows[0].Balance.Lost = 2, 3
	if sent, err = wire.Encode(nil, decoded); err != nil {
		t.Fatal(err)
	}
	base, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	way := sender.NewHTTP(base, id.Client(), "test")
	way.Spool = func() (int64, int64) { return 900, 1000 }
	for range 2 { // the second one is a duplicate
		if _, err := way.Offer(t.Context(), clock, sent); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	gap := usage.Gap{From: now.Add(-time.Hour), To: now.Add(-time.Hour + 90*time.Second), Reason: usage.Forgotten}
	if _, err := way.Lost(t.Context(), batch.Loss{Stream: batch.Stream{8}, From: 1, To: 1, Gap: gap}); err != nil {
		t.Fatal(err)
	}
	b.enrollAs(t, registry.Agent, "m jobs", "alpha")
	b.enrollAs(t, registry.Agent, "n jobs", "solo")
	revoked := b.enroll(t, registry.Agent, "r")
	if err := b.Authority.RevokeNode(t.Context(), revoked.Node()); err != nil {
		t.Fatal(err)
	}
	all, lab, other := b.viewer(t, ""), b.viewer(t, "lab"), b.viewer(t, "other")
	// On a slow machine the state may be outdated, so each attempt sends a new batch and
	// records the state again.
	stream := byte(10)
	wait := func(c *http.Client, query string, want map[string]float64) {
		t.Helper()
		var got map[string]float64
		defer func() {
			if t.Failed() {
				t.Logf("%s: %v, want %v", query, got, want)
			}
		}()
		testkit.Eventually(t, query, func() bool {
			stream++
			sent, clock := aBatchOf(t, id.Node(), stream, "web")
			_, err := way.Offer(t.Context(), clock, sent)
			if err = errors.Join(err, b.PutState(t.Context())); err != nil {
				t.Fatal(err)
			}
			got = b.values(t, c, query)
			return maps.Equal(got, want)
		})
	}
	for query, want := range map[string]float64{
		"mete_node_up":                                                                  1,
		"mete_conservation_violations_total > 0":                                        2,
		"mete_node_missed_lives_total > 0":                                              3,
		"mete_node_gap_seconds_total > 0":                                               90,
		"mete_agent_spool_waiting_bytes / mete_agent_spool_limit_bytes":                 0.9,
		"mete_node_power_cap_watts":                                                     400,
		"mete_node_behind_seconds < bool 60":                                            1,
		"abs(time() - mete_node_last_window_timestamp_seconds) < bool 60":               1,
		"(mete_node_certificate_expiry_timestamp_seconds - time()) / 86400 > bool 29.9": 1,
	} {
		for _, c := range []*http.Client{all, lab} {
			wait(c, query, map[string]float64{"alpha": want})
		}
		wait(other, query, map[string]float64{})
	}
	for query, want := range map[string]map[string]float64{
		`mete_server_nodes{state="live"}`:                                               {"": 1},
		"(mete_server_certificate_expiry_timestamp_seconds - time()) / 86400 > bool 89": {"server": 1, "authority": 1},
	} {
		wait(all, query, want)
		wait(lab, query, map[string]float64{})
	}
	if got := b.values(t, lab, `{__name__=~"mete_node_.*|mete_conservation.*",node="solo"} == 0`); len(got) != 1 {
		t.Errorf("metrics of standalone jobs: %v", got)
	}
	// A node that has just enrolled is not silent.
	b.enrollAs(t, registry.Agent, "fresh", "fresh")
	wait(all, "mete_node_up", map[string]float64{"alpha": 1})
}

// alerts returns the names of the alerts that a client sees.
func (b *bench) alerts(t *testing.T, c *http.Client) (names []string) {
	t.Helper()
	var data struct {
		Alerts []struct{ Labels map[string]string }
	}
	b.ask(t, c, "alerts", &data)
	for _, a := range data.Alerts {
		names = append(names, a.Labels["alertname"])
	}
	slices.Sort(names)
	return names
}

// A viewer of one cluster sees its alerts, the built-in rules, and only those of the
// operator's rules that have alerts of the cluster.
func TestAlerts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "own.yml")
	const text = `groups:
  - name: own
    rules:
      - {alert: Up, expr: 'mete_node_up == 1'}
      - {alert: Hidden, expr: vector(1)}
      - {record: hidden, expr: 'vector(2)'}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b := open(t, t.TempDir(), func(c *server.Config) {
		c.Alerts.Rules, c.Alerts.Interval = []string{path}, 200*time.Millisecond
		c.Alerts.Alertmanagers = []string{"http://127.0.0.1:1"}
	})
	id := b.enroll(t, registry.Agent, "m")
	sent, clock := aBatch(t, id.Node())
	if _, err := offer(t, id, b, sent, clock); err != nil {
		t.Fatal(err)
	}
	if err := b.PutState(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, lab, other := b.viewer(t, ""), b.viewer(t, "lab"), b.viewer(t, "other")
	testkit.Eventually(t, "the operator's alerts fire", func() bool {
		list := b.alerts(t, all)
		return slices.Contains(list, "Up") && slices.Contains(list, "Hidden")
	})
	if got := b.alerts(t, lab); !slices.Equal(got, []string{"Up"}) {
		t.Errorf("alerts for a viewer of the cluster: %v", got)
	}
	if got := b.alerts(t, other); len(got) != 0 {
		t.Errorf("alerts for a viewer of another cluster: %v", got)
	}
	type group struct {
		Name, File string
		Rules      []struct {
			Name, State, LastError string
			Alerts                 []any
		}
	}
	// rules lists the operator's rules and the number of built-in groups.
	rules := func(c *http.Client, more string) (text string) {
		var data struct{ Groups []group }
		b.ask(t, c, "rules"+more, &data)
		shipped := 0
		for _, g := range data.Groups {
			if g.File == rule.File {
				shipped++
				continue
			}
			text += g.File + ": "
			for _, r := range g.Rules {
				text += r.Name + " " + r.State + " " + strconv.Itoa(len(r.Alerts)) + ", "
			}
		}
		return text + strconv.Itoa(shipped)
	}
	for _, c := range []struct {
		who        *http.Client
		more, want string
	}{
		{all, "", path + ": Up firing 1, Hidden firing 1, hidden  0, 5"},
		{lab, "", "own.yml: Up firing 1, 5"},
		{lab, "?exclude_alerts=true", "own.yml: Up firing 0, 5"},
		{lab, "?type=record", "2"},
		{other, "", "5"},
	} {
		if got := rules(c.who, c.more); got != c.want {
			t.Errorf("rules%s: %q, want %q", c.more, got, c.want)
		}
	}
	var ams struct {
		Active []struct{ URL string } `json:"activeAlertmanagers"`
	}
	b.ask(t, all, "alertmanagers", &ams)
	if len(ams.Active) != 1 || ams.Active[0].URL != "http://127.0.0.1:1/api/v2/alerts" {
		t.Errorf("Alertmanagers: %+v", ams)
	}
	if status, _ := get(t, lab, b.url+"/api/v1/alertmanagers"); status != http.StatusNotFound {
		t.Errorf("Alertmanagers for a viewer of one cluster: %d, want 404", status)
	}
}
