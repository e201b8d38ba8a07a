package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
)

// The files in deploy are up to date.
func TestUpToDate(t *testing.T) {
	t.Parallel()
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		have, err := os.ReadFile(filepath.Join("../../deploy/grafana", name))
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("deploy/grafana/%s is stale (%v): run go generate ./tools/grafana", name, err)
		}
	}
}

// A dashboard with an unknown variable is refused.
func TestUnknownVariable(t *testing.T) {
	t.Parallel()
	b := board{"x", "x", "", nil, []panel{{title: "p", queries: []query{{`up{cluster=~"$cluster"}`, ""}}}}}
	if _, err := b.render(); err == nil || !strings.Contains(err.Error(), "$cluster") {
		t.Errorf("rendered: %v", err)
	}
	b.panels[0].queries[0].expr = `rate(x[$__rate_interval])` // a variable of Grafana
	if _, err := b.render(); err != nil {
		t.Error(err)
	}
}

// A server answers like Grafana's data source: over TLS, with its header.
type server struct {
	t   *testing.T
	f   *fleet.Fleet
	c   http.Client
	now time.Time // evaluation time of panels
}

// ask returns the result of a query: values, series, or streams of samples.
func (s *server) ask(path string, form url.Values) []any {
	s.t.Helper()
	q, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.f.URL+path+"?"+form.Encode(), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+s.f.Viewer)
	r, err := s.c.Do(q)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	var v struct {
		Status, Error string
		Warnings      []string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil || v.Status != "success" || len(v.Warnings) > 0 {
		s.t.Errorf("%s %s: %s, %s, %q, %v", path, form, r.Status, v.Error, v.Warnings, err)
		return nil
	}
	var list []any
	if json.Unmarshal(v.Data, &list) == nil {
		return list
	}
	var found struct{ Result []any }
	if err := json.Unmarshal(v.Data, &found); err != nil {
		s.t.Error(err)
	}
	return found.Result
}

// query queries like a panel.
func (s *server) query(p *panel, expr string) []any {
	s.t.Helper()
	now := s.now.Unix()
	if p.instant() {
		return s.ask("/api/v1/query", url.Values{"query": {expr}, "time": {strconv.FormatInt(now, 10)}})
	}
	return s.ask("/api/v1/query_range", url.Values{"query": {expr}, "start": {strconv.FormatInt(now-900, 10)}, "end": {strconv.FormatInt(now, 10)}, "step": {"15"}})
}

// Every query of every dashboard parses, and uses metrics that exist: of a server, of its
// nodes' windows, or recorded by the shipped rules.
func TestNames(t *testing.T) {
	t.Parallel()
	s := &server{t, fleet.Open(t, fleet.Config{Nodes: 2, Each: 5}), http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}, time.Now()}
	read := parser.NewParser(parser.Options{})
	known := map[string]bool{"ALERTS": true}
	groups, errs := rulefmt.Parse(rule.Shipped, false, model.UTF8Validation, read, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			known[r.Record] = true
		}
	}
	for _, m := range metric.Metrics() {
		known[m.Name] = true
	}
	for _, one := range s.ask("/api/v1/label/__name__/values", nil) { // gauges of the nodes
		known[fmt.Sprint(one)] = true
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Authorization", "Bearer "+s.f.Viewer)
	s.f.Server.Handler().ServeHTTP(w, r)
	for line := range strings.Lines(w.Body.String()) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "TYPE" {
			known[f[2]] = true
		}
	}
	asked := 0
	check := func(of, expr string) {
		asked++
		values := []string{"$__rate_interval", "1m", "$__range", "15m"}
		for _, b := range boards() {
			for _, c := range b.choices {
				if len(c.options) > 0 {
					values = append(values, "$"+c.name, c.options[0])
				}
				values = append(values, "$"+c.name, ".*")
			}
		}
		e, err := read.ParseExpr(strings.NewReplacer(values...).Replace(expr))
		if err != nil {
			t.Errorf("%s: %s: %v", of, expr, err)
			return
		}
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok && !known[v.Name] {
				t.Errorf("%s: unknown metric %q: %s", of, v.Name, expr)
			}
			return nil
		})
	}
	for _, b := range boards() {
		for _, c := range b.choices {
			if len(c.options) > 0 {
				continue
			}
			check(b.title+", "+c.name, strings.TrimPrefix(c.query[:strings.LastIndex(c.query, ", ")], "label_values("))
		}
		for i := range b.panels {
			for _, q := range b.panels[i].queries {
				check(b.title+", "+b.panels[i].title, q.expr)
			}
		}
	}
	if asked < 40 {
		t.Errorf("%d queries", asked)
	}
}

// A real server answers every query of every dashboard, including variables, with a
// non-empty result for all values and for each first value, except quiet panels.
func TestQueries(t *testing.T) {
	testkit.Stage(t, "timing", "queries the last minute, and waits half a minute for a server's own metrics")
	t.Parallel()
	const nodes = 6
	s := &server{t, fleet.Open(t, fleet.Config{Nodes: nodes, Each: 5}), http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}, time.Now()}
	// A server writes its own metrics, and those of its nodes, every 15 seconds. All panels
	// are evaluated at the time at which each node has two samples, including the node that
	// came last.
	moment := &panel{kind: table}
	testkit.Eventually(t, "the server has metrics of all nodes", func() bool {
		s.now = time.Now()
		return len(s.query(moment, "rate(mete_node_gap_seconds_total[1m])")) == nodes
	})
	asked := 0
	for _, b := range boards() {
		all := []string{"$__rate_interval", "1m", "$__range", "15m"}
		first := append([]string{}, all...)
		for _, c := range b.choices {
			if n := len(c.options); n > 0 {
				all = append(all, "$"+c.name, c.options[0])
				first = append(first, "$"+c.name, c.options[n-1])
				continue
			}
			at := strings.LastIndex(c.query, ", ")
			expr, label := strings.TrimPrefix(c.query[:at], "label_values("), strings.TrimSuffix(c.query[at+2:], ")")
			found := s.ask("/api/v1/label/"+label+"/values", url.Values{"match[]": {strings.NewReplacer(first...).Replace(expr)}})
			if len(found) == 0 {
				t.Fatalf("%s: no values for the variable %s", b.title, c.name)
			}
			all = append(all, "$"+c.name, ".*")
			first = append(first, "$"+c.name, quoted(fmt.Sprint(found[len(found)-1])))
		}
		for i := range b.panels {
			p := &b.panels[i]
			for _, q := range p.queries {
				for _, values := range [][]string{all, first} {
					asked++
					found := s.query(p, strings.NewReplacer(values...).Replace(q.expr))
					s.checkLinks(p, found)
					if len(found) == 0 && !p.quiet {
						t.Errorf("%s, %s: empty result of %s with %q", b.title, p.title, q.expr, values)
					}
				}
			}
		}
	}
	t.Logf("%d queries", asked)
}

// checkLinks checks that each series of a panel has the labels that its links need.
func (s *server) checkLinks(p *panel, found []any) {
	s.t.Helper()
	for _, l := range p.links {
		for _, name := range l.labels {
			for _, f := range found {
				series, ok := f.(map[string]any)
				labels, isMap := series["metric"].(map[string]any)
				if !ok || !isMap || labels[name] == nil {
					s.t.Errorf("%s: a series has no label %s for the link %q: %v", p.title, name, l.title, f)
				}
			}
		}
	}
}

// Every link leads to a dashboard that has the variables which it sets.
func TestLinks(t *testing.T) {
	t.Parallel()
	byUID := map[string]board{}
	for _, b := range boards() {
		byUID[b.uid] = b
	}
	links := 0
	for _, b := range boards() {
		for _, p := range b.panels {
			for _, l := range p.links {
				links++
				to, ok := byUID[l.board]
				if !ok {
					t.Errorf("%s, %s: no dashboard %s", b.title, p.title, l.board)
				}
				for _, name := range l.labels {
					if !to.knows(name) {
						t.Errorf("%s, %s: %s has no variable %s", b.title, p.title, to.title, name)
					}
				}
			}
		}
	}
	if links == 0 {
		t.Error("no links")
	}
}

// Values at and beyond their limits have the colors of warnings and errors, in either direction.
func TestThresholds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		panel panel
		want  string
	}{
		{panel{limits: [2]float64{1, 10}}, `[{"color":"green","value":null},{"color":"yellow","value":1},{"color":"red","value":10}]`},
		{panel{limits: [2]float64{0, 1}}, `[{"color":"green","value":null},{"color":"red","value":1}]`},
		{panel{limits: [2]float64{3, 9}, below: true}, `[{"color":"red","value":null},{"color":"yellow","value":3},{"color":"green","value":9}]`},
	} {
		if got, err := json.Marshal(c.panel.thresholds()["steps"]); err != nil || string(got) != c.want {
			t.Errorf("%+v: %s, %v; want %s", c.panel, got, err, c.want)
		}
	}
}

// quoted returns a value as Grafana quotes it in a regular expression in a string.
func quoted(v string) string {
	var out strings.Builder
	for _, r := range v {
		if strings.ContainsRune(`\^$.*+?()[]{}|`, r) {
			out.WriteString(`\\`)
		}
		if r == '\\' || r == '"' {
			out.WriteString(`\`)
		}
		out.WriteRune(r)
	}
	return out.String()
}
