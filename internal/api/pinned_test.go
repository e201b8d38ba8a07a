package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/apispec"
)

// odd are names that a format may have to quote.
var odd = []string{`a "quoted", name`, "two\nlines\r", "<b>&amp;</b>", "=HYPERLINK(1)", "+1", "", "é\u2028\x1b", `back\slash`, " blank "}

// museum is a ledger with one of everything that an answer may hold, under odd
// names; an empty one has nothing.
type museum struct {
	*book
	empty bool
}

func (m museum) Usage(_ context.Context, q query.Query) (*query.Answer, error) {
	a := &query.Answer{From: q.From, To: q.To, By: q.By, Gaps: 3, Idle: q.Idle, Nested: q.Nested, NestedNodes: 2, AveragedOver: 1234567890123}
	if m.empty {
		a.AveragedOver = 0
		return a, nil
	}
	for i := range len(odd) {
		g := query.Group{Nodes: i, Usage: museumTotal(i)}
		if i > 0 {
			g.First, g.Last = noon.Add(time.Duration(-i)*time.Hour), noon.Add(time.Duration(i)*time.Millisecond)
		}
		for k, d := range q.By {
			name := odd[(i+k)%len(odd)]
			switch {
			case d == query.ByKind:
				name = []string{"job", "system", "idle"}[i%3]
			case i == 3:
				name = "idle"
			case i == 4 && k > 0:
				name = "system"
			}
			g.Keys = append(g.Keys, name)
		}
		a.Groups = append(a.Groups, g)
	}
	if q.Nested == query.NestedAlso {
		a.Groups, a.NestedGroups = a.Groups[:6], a.Groups[6:]
	}
	a.Capacity = museumTotal(1)
	return a, nil
}

// museumTotal has each resource in each quality, whole and broken numbers, and ones
// that many readers would round.
func museumTotal(i int) (t query.Total) {
	if i == 2 {
		return t
	}
	for r := usage.Resource(1); r < usage.Limit; r++ {
		q := usage.Quality((int(r) + i) % 4)
		if q == usage.Absent {
			continue
		}
		t.Present |= usage.SetOf(r)
		t.Quality.Set(r, q)
		t.Sum[r] = t.Sum[r].Add(int64(r) * int64(i*i*i) * 1_234_567)
		if (int(r)+i)%7 == 0 {
			t.Sum[r] = t.Sum[r].Add(1<<63 - 1).Add(1<<63 - 1)
		}
	}
	t.Covered = unit.Sum{}.Add(int64(i) * 1234567891)
	if i%2 == 1 {
		t.Idle, t.IdleError, t.IdleQuality = t.Idle.Add(7_000_001), t.IdleError.Add(9), usage.Modelled
	}
	return t
}

func (m museum) Connections(ctx context.Context, q query.Query) (*query.Connections, error) {
	c, err := m.book.Connections(ctx, q)
	if m.empty {
		c.Edges, c.Missed, c.Traffic = nil, 0, query.Total{}
	}
	for i := range c.Edges {
		c.Edges[i].Keys = slices.Clone(c.Edges[i].Keys)
		c.Edges[i].Keys[0] = odd[i]
	}
	return c, err
}

func (m museum) Nodes(context.Context, query.Scope) ([]query.Node, error) {
	if m.empty {
		return nil, nil
	}
	list := []query.Node{{ID: "N0", Name: "bare", State: "silent"}}
	for i, name := range odd {
		list = append(list, query.Node{ID: fmt.Sprint("N", i+1), Name: name, Cluster: odd[(i+3)%len(odd)], MachineID: name, Boot: name, CPUs: i, Streams: i, State: []string{"live", "behind", "revoked"}[i%3],
			Enrolled: noon.Add(-time.Hour), Through: noon.Add(time.Duration(-i) * 1_000_001), Revoked: noon.In(time.FixedZone("CET", 3600)), Source: name,
			Nested: &query.Nesting{Host: "H", HostName: name, Workload: "w", Name: name, Since: noon, Seen: noon.Add(1)}})
	}
	return append(list, query.Node{ID: "N99", State: "live", Through: noon.Add(-time.Minute), Nested: &query.Nesting{Host: "H"}}), nil
}

func (m museum) Dimensions(context.Context, query.Scope) ([]query.DimensionCount, error) {
	if m.empty {
		return nil, nil
	}
	return []query.DimensionCount{{Dimension: query.ByJob, Workloads: 1<<53 + 1}, {Dimension: query.ByNamespace}}, nil
}

func (m museum) DownstreamServers(context.Context, query.Scope) ([]query.Source, error) {
	if m.empty {
		return nil, nil
	}
	list := []query.Source{{ID: "S0"}}
	for i, name := range odd {
		list = append(list, query.Source{ID: fmt.Sprint("S", i+1), Name: name, Cluster: name, State: "live", Nodes: i, Pages: 1<<63 + uint64(i), Epoch: name, Enrolled: noon, Seen: noon, Through: noon, Revoked: noon})
	}
	return list, nil
}

func (m museum) Workloads(context.Context, query.Query) ([]query.Workload, error) {
	if m.empty {
		return nil, nil
	}
	list := []query.Workload{{Node: "N1"}}
	for i, name := range odd {
		w := query.Workload{Node: fmt.Sprint("N", i), Cluster: name, First: noon, Last: noon.Add(time.Minute)}
		w.ID, w.Kind, w.Name.Name, w.Job, w.User, w.Project, w.Key, w.Path, w.Parent = workload.ID(fmt.Sprint("w", i)), workload.Kind(i), name, name, name, name, name, name, "p"
		w.Labels, w.Started, w.Ended, w.Exit = map[string]string{"b;" + name: name, "a": "1", name: "="}, noon, noon, &i
		list = append(list, w)
	}
	return list, nil
}

func (m museum) Gaps(context.Context, time.Time, time.Time, string, query.Scope) ([]query.Gap, error) {
	if m.empty {
		return nil, nil
	}
	var list []query.Gap
	for r := usage.UnknownReason; r <= usage.MeterFailed+1; r++ {
		name := odd[int(r)%len(odd)]
		list = append(list, query.Gap{Node: "N" + r.String(), Name: name, Booked: noon, Gap: usage.Gap{From: noon, To: noon.Add(time.Duration(r) * 1_500_000_001), Reason: r, Detail: name}})
	}
	return append(list, query.Gap{}, query.Gap{Node: "N1", Shift: 2*time.Hour + 4, Gap: usage.Gap{From: noon, To: noon}}, query.Gap{Node: "N1", Shift: -1e6, Gap: usage.Gap{From: noon, To: noon}}), nil
}

func (m museum) Uptimes(context.Context, time.Time, time.Time, string, query.Scope) ([]query.Uptime, error) {
	if m.empty {
		return nil, nil
	}
	list := []query.Uptime{{Node: "N0", From: noon, To: noon}}
	for i, name := range odd {
		list = append(list, query.Uptime{Node: fmt.Sprint("N", i+1), Name: name, Cluster: name, From: noon.Add(-time.Hour), To: noon, Up: time.Hour - 3*time.Duration(i)*1_500_000_001,
			Down: time.Duration(i) * 1_500_000_001, Unknown: 2 * time.Duration(i) * 1_500_000_001, Downs: i, Last: query.Interval{From: noon.Add(-time.Minute), To: noon.Add(-time.Second)}})
	}
	return list, nil
}

func (m museum) EachGap(ctx context.Context, from, to time.Time, s query.Scope, f func(*query.Gap)) error {
	list, err := m.Gaps(ctx, from, to, "", s)
	for i := range list {
		f(&list[i])
	}
	return err
}

func (m museum) Streams(context.Context, query.StreamQuery) ([]query.Stream, error) {
	if m.empty {
		return nil, nil
	}
	list := []query.Stream{{ID: "00"}}
	for i, name := range odd {
		list = append(list, query.Stream{ID: fmt.Sprint("0", i+1), Node: "N1", Name: name, Cluster: name, Next: 1<<63 + uint64(i), Boot: name, Opened: noon, Seen: noon})
	}
	return list, nil
}

func (m museum) VMs(context.Context, time.Time, time.Time, query.Scope) ([]query.VM, error) {
	if m.empty {
		return nil, nil
	}
	list := []query.VM{{Guest: "g"}}
	for i, name := range odd {
		v := query.VM{Guest: fmt.Sprint("g", i), Name: name, Host: "H", HostName: name, Workload: "w", Node: "N1", NodeName: name, Compared: int64(i) << 50, Differing: 2, Largest: 1_500_000, N: 1<<53 + 1, Last: noon}
		v.Usage = museumTotal(i)
		list = append(list, v)
	}
	return list, nil
}

func (m museum) Alerts(context.Context, query.Scope) ([]query.Alert, error) {
	if m.empty {
		return nil, nil
	}
	list := []query.Alert{{Rule: "R"}}
	for i, name := range odd {
		list = append(list, query.Alert{Rule: name, State: []string{"firing", "pending"}[i%2], Cluster: name, Labels: map[string]string{name: name, "a": "<1>"}, Annotations: map[string]string{"summary": name}, Since: noon, Value: float64(i) * 1e21 / 7})
	}
	return list, nil
}

func (m museum) Silences(context.Context, query.Scope) ([]query.Silence, error) {
	if m.empty {
		return nil, nil
	}
	return silencesOf(noon), nil
}

func (m museum) ServerHealth(context.Context) (*query.ServerHealth, error) {
	if m.empty {
		return &query.ServerHealth{}, nil
	}
	return &query.ServerHealth{Violations: 1, Conflicts: 2, Refused: 3, Missed: 4, Queue: 5, Hours: noon, Days: noon.Add(-time.Hour), Bytes: 1 << 60}, nil
}

func (m museum) EachLatest(ctx context.Context, s query.Scope, after string, f func(*live.NodeRates) bool) error {
	if m.empty {
		return nil
	}
	return m.book.EachLatest(ctx, s, after, f)
}

func (m museum) Self(ctx context.Context, c api.SelfCaller) (*query.Self, error) {
	if m.empty {
		return &query.Self{Node: "N1", Name: batch.Name{ID: "w"}}, nil
	}
	self, err := m.book.Self(ctx, c)
	exit := -1
	self.Name.Name, self.NodeName, self.Job, self.User, self.Exit, self.Ended = odd[0], odd[1], odd[2], odd[3], &exit, noon
	self.Usage = museumTotal(3)
	return self, err
}

// dump writes an answer with its headers.
func dump(b *strings.Builder, title string, w *httptest.ResponseRecorder) {
	fmt.Fprintf(b, "=== %s\n%d\n", title, w.Code)
	for _, k := range slices.Sorted(maps.Keys(w.Header())) {
		fmt.Fprintf(b, "%s: %s\n", k, strings.Join(w.Header()[k], " | "))
	}
	fmt.Fprintf(b, "\n%s\n", w.Body)
}

// pin holds a text to a golden file.
func pin(t *testing.T, file, have string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("%s (-want +have):\n%s", file, diff)
	}
}

// Every answer, as JSON and as CSV, is to the byte what the golden file holds.
func TestPinnedAnswers(t *testing.T) {
	var b strings.Builder
	for _, empty := range []bool{false, true} {
		m := museum{example(), empty}
		h := api.New(m, m, m, all, func() time.Time { return noon }, slog.New(slog.DiscardHandler))
		for _, target := range []string{"/v1/usage?by=job,label:" + url.QueryEscape(`<&"`), "/v1/usage?by=node,user&limit=2&idle=used", "/v1/usage?by=cluster&nested=also&fields=cpu_seconds,memory_byte_seconds,energy_joules&sort=memory_byte_seconds",
			"/v1/usage?by=node,user&limit=1&every=1d&fields=cpu_seconds&from=2026-02-28T12:00:00Z", "/v1/usage?nested=only&limit=3", "/v1/usage?by=kind&nested=also&limit=1", "/v1/jobs", "/v1/jobs?limit=2&fields=cpu_seconds", "/v1/energy", "/v1/energy?limit=1", "/v1/rates", "/v1/rates?limit=1", "/v1/summary", "/v1/clusters", "/v1/clusters?limit=2",
			"/v1/nodes", "/v1/nodes?limit=3", "/v1/nodes?cluster=none", "/v1/workloads", "/v1/workloads?limit=3", "/v1/runs", "/v1/runs?limit=2", "/v1/runs?failed=1", "/v1/vms", "/v1/vms?limit=2", "/v1/connections", "/v1/connections?limit=1&by=node,label:app&from=-1h", "/v1/dimensions", "/v1/sources", "/v1/sources?state=live&limit=1", "/v1/health", "/v1/gaps", "/v1/gaps?limit=4", "/v1/uptime", "/v1/uptime?limit=2",
			"/v1/streams", "/v1/streams?limit=1", "/v1/alerts", "/v1/alerts?state=firing&limit=2", "/v1/self"} {
			for _, accept := range []string{"application/json", "text/csv"} {
				dump(&b, fmt.Sprintf("%s, empty %t, %s", target, empty, accept), get(h, target, "Accept", accept))
			}
		}
	}
	pin(t, "testdata/answers.txt", b.String())
}

// wrongValues are values that a parameter refuses; each may be refused when it is given
// twice too.
var wrongValues = map[string][]string{
	"by": {"color", "", "job,job", "job,", "label:", "a,b", "label:a,label:b,label:c,label:d,label:e,label:f,label:g,label:h,label:i"}, "from": {"soon", "", "now", "3000-01-01", "1900-01-01", "-", "99999-01-01"},
	"to": {"soon", "", "-48h", "10000-01-01T00:00:00Z", "0"}, "where": {"job", "color=1", "=", "", "label:=x"}, "omit-own": {"maybe", "", "2"}, "limit": {"0", "10001", "x", "", "-1", "1.5"},
	"idle": {"some", "", "reserved"}, "nested": {"some", ""}, "fields": {"cpu", "", "cpu_seconds,", "cpu_seconds,x"}, "sort": {"cpu", "cpu_seconds,memory_average_bytes"}, "every": {"2h", "", "1w"}, "failed": {"2", "yes", ""}, "run": {"A", "", "a1", "abcdefghijklmnopqrstuvwxyz2"}, "format": {"xml", "", "CSV"},
	"cursor": {"", "%", "a b", "TjE="}, "cluster": {}, "state": {"dead", "", "Live"}, "node": {"nowhere"}, "nodes": {"2", "x", "", "-1"}, "top": {"101", "x", "", "-1"},
}

// TestPinnedRefusals pins the status, headers and text of each refusal, and which of two
// mistakes in one request the server reports.
func TestPinnedRefusals(t *testing.T) {
	h := handler(example(), all)
	d := apispec.Read(t, h)
	var b strings.Builder
	tell := func(h http.Handler, target string, header ...string) {
		w := get(h, target, header...)
		if w.Code < 300 {
			fmt.Fprintf(&b, "GET %s: %d\n", target, w.Code)
			return
		}
		dump(&b, strings.TrimSpace(target+" "+strings.Join(header, ": ")), w)
	}
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		if path == "/healthz" {
			continue
		}
		tell(h, path+"?no=1&also=2")
		tell(h, path+"?a=%ZZ")
		tell(h, path+"?from=a;to=b")
		tell(h, path+"?by=color&zzz=1&from=%ZZ")
		var given []string // one mistake for each parameter
		for _, p := range d.Paths[path].Get.Parameters {
			if p.In != "query" {
				continue
			}
			if _, ok := wrongValues[p.Name]; !ok {
				t.Errorf("%s: nothing is wrong for %s", path, p.Name)
			}
			for _, v := range wrongValues[p.Name] {
				tell(h, path+"?"+url.Values{p.Name: {v}}.Encode())
			}
			tell(h, path+"?"+url.Values{p.Name: {"a", "b"}}.Encode())
			switch values := wrongValues[p.Name]; p.Name {
			case "cluster", "node":
				given = append(given, url.Values{p.Name: {"a", "b"}}.Encode())
			default:
				given = append(given, url.Values{p.Name: values[:1]}.Encode())
			}
		}
		for i := range given {
			for _, other := range given[:i] {
				if both := given[i] + "&" + other; !strings.Contains(both, "cluster=") || !strings.Contains(both, "state=") { // the server may report either mistake
					var p fault.Problem
					w := get(h, path+"?"+both)
					if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
						t.Errorf("%s?%s: %v: %s", path, both, err, w.Body)
					}
					fmt.Fprintf(&b, "GET %s?%s: %d %s\n", path, both, w.Code, p.Detail)
				}
			}
		}
	}
	tell(h, "/v1/usage?"+strings.Repeat("where=job=x&", 1001))
	tell(h, "/v1/nothing")
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodOptions} {
		for _, path := range []string{"/v1/usage", "/v1/self", "/healthz", "/openapi.json", "/docs"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, path+"?x=1", nil))
			dump(&b, method+" "+path, w)
		}
	}
	for _, err := range []error{fault.ErrDenied, fmt.Errorf("no token: %w", fault.ErrDenied), &api.UnauthenticatedError{Err: fault.WithHint(fmt.Errorf("token is revoked: %w", fault.ErrDenied), "ask for another")},
		&fault.RetryError{Err: fmt.Errorf("too many: %w", fault.ErrUnavailable), After: 1500 * time.Millisecond}, fmt.Errorf("ledger: %w", fault.ErrUnavailable), errors.New("disk on fire")} {
		refuse := handler(example(), func(*http.Request) (query.Scope, error) { return query.Scope{}, err })
		fmt.Fprintf(&b, "\nauthorize: %v\n", err)
		for _, path := range []string{"/v1/usage", "/v1/nodes?no=1", "/v1/rates?a=%ZZ"} {
			tell(refuse, path)
			tell(refuse, path, "Authorization", "Bearer x")
		}
		failing := example()
		failing.err = err
		fmt.Fprintf(&b, "\nledger: %v\n", err)
		for _, path := range []string{"/v1/usage", "/v1/nodes", "/v1/gaps?node=x", "/v1/health", "/v1/alerts"} {
			tell(handler(failing, all), path)
		}
	}
	bare := api.New(example(), nil, nil, all, func() time.Time { return noon }, slog.New(slog.DiscardHandler))
	for _, path := range []string{"/v1/rates", "/v1/summary", "/v1/alerts", "/v1/self", "/v1/health"} {
		tell(bare, path)
	}
	tell(h, "/v1/self", "Authorization", "Bearer wrong")
	text := api.TextHandler("text/plain", func(context.Context, query.Scope) (string, error) { return "text\n", nil }, all, slog.New(slog.DiscardHandler))
	tell(text, "/metrics?x=1")
	tell(text, "/metrics?x=%ZZ")
	dump(&b, "/metrics", get(text, "/metrics"))
	pin(t, "testdata/refusals.txt", b.String())
}
