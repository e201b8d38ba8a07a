package api_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/apispec"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A used is what one workload used in one minute.
type used struct {
	at   time.Time
	node string
	name batch.Name
	cpu  int64 // ns
}

// A book is a ledger in memory.
type book struct {
	rows   []used
	node   []query.Node
	gaps   []query.Gap
	stream *query.Stream // the only one, whatever the scope

	streams int    // number of streams of node N1, 0 is one
	rates   []int  // number of workloads of each node in its latest window, nil is one of one node
	name    string // of these workloads
	told    int    // number of nodes whose rates the latest answer asked for
	slow    time.Duration
	err     error
	last    query.Query
}

func (b *book) key(u *used, d query.Dimension) string {
	switch {
	case d == query.ByNode:
		return u.node
	case d == query.ByKind:
		return u.name.Kind.String()
	case u.name.Kind == workload.Idle || u.name.Kind == workload.System:
		return u.name.Kind.String()
	case d == query.ByJob:
		return u.name.Job
	case strings.HasPrefix(string(d), string(query.ByLabel)):
		return u.name.Labels[strings.TrimPrefix(string(d), string(query.ByLabel))]
	}
	return string(u.name.ID)
}

func (b *book) match(u *used, q query.Query) bool {
	for d, values := range q.Where {
		if !slices.Contains(values, b.key(u, d)) {
			return false
		}
	}
	own := q.OmitOwn && slices.Contains(query.OwnNames, u.name.Name)
	return q.Scope.All && !own && !u.at.Before(q.From) && u.at.Before(q.To)
}

func (b *book) Usage(ctx context.Context, q query.Query) (*query.Answer, error) {
	if b.last = q; b.slow > 0 {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("select: %w", ctx.Err())
		case <-time.After(b.slow):
		}
	}
	if b.err != nil {
		return nil, b.err
	}
	a := &query.Answer{From: q.From, To: q.To, By: q.By, Gaps: len(b.gaps)}
	at := map[string]int{}
	for i := range b.rows {
		u := &b.rows[i]
		if !b.match(u, q) {
			continue
		}
		var keys []string
		for _, d := range q.By {
			keys = append(keys, b.key(u, d))
		}
		n, ok := at[strings.Join(keys, "\x00")]
		if !ok {
			n = len(a.Groups)
			at[strings.Join(keys, "\x00")] = n
			a.Groups = append(a.Groups, query.Group{Keys: keys, Nodes: 1, First: u.at})
		}
		g := &a.Groups[n]
		g.Last = u.at.Add(time.Minute)
		add := query.Total{Present: usage.SetOf(usage.CPU), Covered: unit.Sum{}.Add(int64(time.Minute))}
		add.Quality.Set(usage.CPU, usage.Measured)
		add.Sum[usage.CPU] = unit.Sum{}.Add(u.cpu)
		g.Usage.Add(&add)
	}
	slices.SortStableFunc(a.Groups, func(x, y query.Group) int {
		return cmp.Or(y.Usage.Sum[usage.CPU].Compare(x.Usage.Sum[usage.CPU]), slices.Compare(x.Keys, y.Keys))
	})
	if q.Limit > 0 {
		a.Groups = a.Groups[:min(q.Limit, len(a.Groups))]
	}
	return a, nil
}

func (b *book) EachPeriod(ctx context.Context, q query.Query, every query.Period, f func(*query.Answer) error) error {
	return apispec.EachPeriod(ctx, q, every, b.Usage, f)
}

// Connections returns three edges of the first workload, as long as there is one.
func (b *book) Connections(_ context.Context, q query.Query) (*query.Connections, error) {
	b.last = q
	c := &query.Connections{From: q.From.Truncate(time.Hour), To: q.To.Add(time.Hour - 1).Truncate(time.Hour), By: q.By}
	if !q.Scope.All || len(b.rows) == 0 {
		return c, b.err
	}
	var keys []string
	for _, d := range q.By {
		keys = append(keys, b.key(&b.rows[0], d))
	}
	for i, peer := range []string{"10.0.0.7", "fd00::7", "192.0.2.1"} {
		e := connection.Entry{Edge: connection.Edge{Peer: netip.MustParseAddr(peer), Port: 443, Protocol: []uint8{6, 17, 132}[i], Listens: i == 0, Class: []uint8{3, 0, 99}[i]},
			Traffic: connection.Traffic{RxBytes: int64(2000 - i), TxBytes: int64(i), RxPackets: 12, TxPackets: 9}, Error: int64(100 * i)}
		c.Edges = append(c.Edges, query.Edge{Keys: keys, Entry: e})
	}
	c.Missed = 250
	for i, r := range []usage.Resource{usage.NetworkRx, usage.NetworkTx} {
		c.Traffic.Present |= usage.SetOf(r)
		c.Traffic.Quality.Set(r, usage.Apportioned)
		c.Traffic.Sum[r] = unit.Sum{}.Add(int64(7000 - 6990*i))
	}
	c.Limit(q.Limit)
	return c, b.err
}

func (b *book) Nodes(_ context.Context, s query.Scope) ([]query.Node, error) {
	list := slices.Clone(b.node)
	if !s.All {
		list = slices.DeleteFunc(list, func(n query.Node) bool { return !slices.Contains(s.Clusters, n.Cluster) })
	}
	return list, b.err
}

func (b *book) DownstreamServers(_ context.Context, s query.Scope) ([]query.Source, error) {
	if !s.All {
		return nil, b.err
	}
	return []query.Source{{ID: "S1", Name: "core-1", State: "live", Pages: 7}}, b.err
}

func (b *book) Dimensions(_ context.Context, s query.Scope) ([]query.DimensionCount, error) {
	list := []query.DimensionCount{{Dimension: query.ByJob}, {Dimension: query.ByProject}}
	if s.All {
		list[0].Workloads = 3
	}
	return list, b.err
}

func (b *book) Workloads(_ context.Context, q query.Query) ([]query.Workload, error) {
	b.last = q
	var list []query.Workload
	for i := range b.rows {
		if u := &b.rows[i]; b.match(u, q) {
			w := query.Workload{Node: u.node, Name: u.name, First: u.at, Last: u.at.Add(time.Minute)}
			if w.PageKey() > q.After {
				list = append(list, w)
			}
		}
	}
	slices.SortFunc(list, func(a, b query.Workload) int { return cmp.Compare(a.PageKey(), b.PageKey()) })
	if q.Limit > 0 && len(list) > q.Limit {
		list = list[:q.Limit]
	}
	return list, b.err
}

func (b *book) Runs(ctx context.Context, q query.RunQuery) (list []query.Run, err error) {
	after, limit := q.After, q.Limit
	q.After, q.Limit = "", 0
	found, err := b.Workloads(ctx, q.Query)
	for _, w := range found {
		r := query.Run{Workload: w, NodeID: "id-" + w.Node, State: query.Ended, Length: 4 * time.Second}
		r.Usage.Present = usage.SetOf(usage.CPU)
		r.Usage.Quality.Set(usage.CPU, usage.Measured)
		r.Usage.Sum[usage.CPU] = unit.Sum{}.Add(6e9)
		if code := len(w.Name.Name) % 2; w.Kind.IsRun() && w.RunKey() > after && (code > 0 || !q.Failed) && strings.HasPrefix(string(w.ID), q.ID) {
			r.Exit = &code
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b query.Run) int { return cmp.Compare(a.RunKey(), b.RunKey()) })
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, err
}

func (b *book) Gaps(_ context.Context, from, to time.Time, node string, s query.Scope) ([]query.Gap, error) {
	var list []query.Gap
	for _, g := range b.gaps {
		if s.All && g.From.Before(to) && from.Before(g.To) && (node == "" || node == g.Node || node == g.Name) {
			list = append(list, g)
		}
	}
	return list, b.err
}

func (b *book) Uptimes(_ context.Context, from, to time.Time, node string, s query.Scope) ([]query.Uptime, error) {
	var list []query.Uptime
	for _, n := range b.node {
		if s.All && (node == "" || node == n.ID || node == n.Name) {
			list = append(list, query.Uptime{Node: n.ID, Name: n.Name, Cluster: n.Cluster, From: from, To: to, Up: to.Sub(from)})
		}
	}
	return list, b.err
}

func (b *book) EachGap(ctx context.Context, from, to time.Time, s query.Scope, f func(*query.Gap)) error {
	list, err := b.Gaps(ctx, from, to, "", s)
	for i := range list {
		f(&list[i])
	}
	return err
}

func (b *book) VMs(_ context.Context, from, to time.Time, s query.Scope) ([]query.VM, error) {
	if !s.All || !from.Equal(noon.Add(-time.Hour)) || !to.Equal(noon) {
		return nil, b.err
	}
	return []query.VM{{Guest: "g", HostName: "metal", Compared: 7}}, b.err
}

func (b *book) Streams(_ context.Context, q query.StreamQuery) (list []query.Stream, err error) {
	if b.stream != nil {
		return []query.Stream{*b.stream}, b.err
	}
	if !q.Scope.All || q.Node != "" && q.Node != "N1" && q.Node != "web-1" {
		return nil, b.err
	}
	for i := range max(1, b.streams) {
		id := "07"
		if i > 0 {
			id += fmt.Sprintf("%04x", i)
		}
		if s := (query.Stream{ID: id, Node: "N1", Name: "web-1", Next: 1 << 60, Opened: noon.Add(-time.Duration(i)), Seen: noon}); s.ID > q.After && (q.Limit == 0 || len(list) < q.Limit) {
			list = append(list, s)
		}
	}
	return list, b.err
}

func (b *book) Alerts(context.Context, query.Scope) ([]query.Alert, error) {
	return []query.Alert{{Rule: "Silent", State: "firing", Cluster: "lab", Since: noon, Value: 2}, {Rule: "Gap", State: "pending", Since: noon}}, b.err
}

func (b *book) Silences(context.Context, query.Scope) ([]query.Silence, error) {
	return silencesOf(noon), b.err
}

func (b *book) ServerHealth(context.Context) (*query.ServerHealth, error) {
	return &query.ServerHealth{Conflicts: 3}, b.err
}

func (*book) Identify(r *http.Request) (api.SelfCaller, error) {
	if r.Header.Get("Authorization") == "Bearer wrong" {
		return api.SelfCaller{}, &api.UnauthenticatedError{Err: fmt.Errorf("token is wrong: %w", fault.ErrDenied)}
	}
	return api.SelfCaller{Job: token.Job{Workload: "w", Node: "N1"}}, nil
}

func (b *book) Self(ctx context.Context, c api.SelfCaller) (*query.Self, error) {
	var latest *live.NodeRates
	err := b.EachLatest(ctx, query.Scope{}, "", func(n *live.NodeRates) bool { latest = n; return false })
	s := &query.Self{Node: c.Job.Node, NodeName: "web-1", Cluster: "lab", Name: batch.Name{ID: c.Job.Workload, Kind: workload.Job, Name: "make", Job: "build", Started: noon.Add(-time.Hour)},
		First: noon.Add(-time.Hour), Last: noon, Through: noon.Add(-time.Second), Gaps: 1, Latest: latest}
	s.Usage.Present, s.Usage.Covered = usage.SetOf(usage.CPU, usage.Memory), unit.Sum{}.Add(int64(time.Hour))
	s.Usage.Quality.Set(usage.CPU, usage.Measured)
	s.Usage.Quality.Set(usage.Memory, usage.Apportioned)
	s.Usage.Sum[usage.CPU], s.Usage.Sum[usage.Memory] = unit.Sum{}.Add(90e9), unit.Sum{}.Add(3600<<20)
	return s, err
}

func (b *book) EachLatest(_ context.Context, _ query.Scope, after string, f func(*live.NodeRates) bool) error {
	row := live.WorkloadRates{ID: "w", Kind: workload.Job, Name: "make", Job: "build"}
	var u usage.Usage
	u.Put(usage.CPU, 15e9, usage.Measured)
	u.Put(usage.Memory, 10<<20, usage.Measured)
	u.Put(usage.NetworkRx, 1000, usage.Apportioned)
	amounts := live.FiguresOf(&u)
	row.Rates, row.Quality = amounts.Rates(10 * time.Second)
	b.told = 0
	for i := range max(1, len(b.rates)) {
		n := live.NodeRates{Node: fmt.Sprint("N", 1+i), Name: fmt.Sprint("web-", 1+i), From: noon.Add(-10 * time.Second), To: noon, CPUs: 2, Rows: []live.WorkloadRates{row}}
		if b.rates != nil {
			n.Rows[0].Name = b.name
			n.Rows = slices.Repeat(n.Rows, b.rates[i])
		}
		if n.Node <= after {
			continue
		}
		if b.told++; !f(&n) {
			break
		}
	}
	return b.err
}

func (b *book) Summary(_ context.Context, _ query.Scope, node string, top int) (*live.Summary, error) {
	out := live.NewSummary(noon)
	from := noon.Add(-10 * time.Second)
	for _, n := range b.node {
		if node != "" && node != n.ID && node != n.Name {
			continue
		}
		var parts [3]usage.Usage
		parts[0].Put(usage.CPU, 15e9, usage.Measured)
		parts[1].Put(usage.CPU, 1e9, usage.Apportioned)
		parts[2].Put(usage.CPU, 4e9, usage.Measured)
		p := live.NodePresent{Node: n.ID, Name: n.Name, State: n.State, From: &from, To: &noon, Present: live.PresentOf(parts, &usage.Usage{}, 10*time.Second)}
		p.CPUs, p.Workloads = n.CPUs, 1
		out.Add(&p)
	}
	for range top {
		out.Top = map[string][]live.TopWorkload{"cpu": append(out.Top["cpu"], live.TopWorkload{ID: "w", Kind: workload.Job, Name: "make", Node: "web-1", Value: 1.5, Quality: usage.Measured})}
	}
	return out, b.err
}

// example is a node with a minute of three workloads, twenty minutes ago.
func example() *book {
	at := noon.Add(-20 * time.Minute)
	name := func(kind workload.Kind, job, name string) batch.Name {
		return batch.Name{ID: workload.NewID("N1", kind, name), Kind: kind, Name: name, Job: job, Labels: map[string]string{"app": job + "&"}}
	}
	return &book{
		rows: []used{
			{at, "N1", name(workload.Job, "build", "make"), 30e9},
			{at, "N1", name(workload.Job, "web", "nginx"), 10e9},
			{at.Add(time.Minute), "N1", name(workload.Job, "web", "nginx"), 10e9},
			{at, "N1", name(workload.Service, "", "mete-agent.service"), 1e9},
			{at, "N1", name(workload.Idle, "", "idle"), 79e9},
		},
		node: []query.Node{{ID: "N1", Name: "web-1", Enrolled: noon.Add(-time.Hour), Through: noon, State: "live", CPUs: 2}},
		gaps: []query.Gap{{Node: "N1", Name: "web-1", Gap: usage.Gap{From: at, To: at.Add(time.Second), Reason: usage.Rebooted}}},
	}
}

func all(*http.Request) (query.Scope, error) { return query.Scope{All: true}, nil }

func handler(b *book, authorize func(*http.Request) (query.Scope, error)) http.Handler {
	return api.New(b, b, b, authorize, func() time.Time { return noon }, slog.New(slog.DiscardHandler))
}

// ask sends a request, and reads the answer as JSON.
func ask(t *testing.T, h http.Handler, method, target, body string) (int, http.Header, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	var m map[string]any
	if w.Body.Len() > 0 && strings.Contains(w.Header().Get("Content-Type"), "json") {
		if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
			t.Fatalf("%s: %v\n%s", target, err, w.Body)
		}
	}
	return w.Code, w.Header(), m
}

// groups are the CPU seconds of an answer by the key of each group.
func groups(m map[string]any, by string) string {
	var s []string
	list, _ := m["groups"].([]any)
	for _, g := range list {
		row, _ := g.(map[string]any)
		s = append(s, fmt.Sprintf("%v=%v", row[by], row["cpu_seconds"]))
	}
	return strings.Join(s, " ")
}

func TestUsage(t *testing.T) {
	h := handler(example(), all)
	for _, c := range []struct{ target, by, want string }{
		{"/v1/usage", "job", "idle=79 build=30 web=20 =1"},
		{"/v1/usage?by=kind", "kind", "idle=79 job=50 service=1"},
		{"/v1/usage?by=node", "node", "N1=130"},
		{"/v1/usage?by=label:app", "label:app", "idle=79 build&=30 web&=20 &=1"},
		{"/v1/usage?where=job=web&where=job=build", "job", "build=30 web=20"},
		{"/v1/usage?where=job=&where=kind=service", "job", "=1"},
		{"/v1/usage?where=label:app=web%26", "job", "web=20"},
		{"/v1/usage?omit-own=1", "job", "idle=79 build=30 web=20"},
		{"/v1/usage?from=-19m", "job", "web=10"},
		{"/v1/usage?to=-19m", "job", "idle=79 build=30 web=10 =1"},
		{"/v1/usage?limit=1", "job", "idle=79 build=30"},
	} {
		code, header, m := ask(t, h, "GET", c.target, "")
		if got := groups(m, c.by); code != 200 || got != c.want {
			t.Errorf("%s: %d %q, want %q", c.target, code, got, c.want)
		}
		if header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v", c.target, header)
		}
	}
}

// TestFieldsAndSort checks that a client can select figures and sort groups by one figure.
func TestFieldsAndSort(t *testing.T) {
	h := handler(example(), all)
	_, _, m := ask(t, h, "GET", "/v1/usage?fields=cpu_seconds,energy_joules&limit=1", "")
	list, _ := m["groups"].([]any)
	g, _ := list[0].(map[string]any)
	if q, _ := g["quality"].(map[string]any); len(q) != 2 || g["memory_byte_seconds"] != nil || q["energy_joules"] != "absent" {
		t.Errorf("two fields: %v", g)
	}
	// Nothing of energy is known here: all are last, by their names.
	if _, _, m := ask(t, h, "GET", "/v1/usage?sort=energy_joules&limit=1", ""); groups(m, "job") != "=1 idle=79" {
		t.Errorf("by energy: %s", groups(m, "job"))
	}
	for _, bad := range []string{"fields=cpu", "fields=", "sort=cpu", "sort=cpu_seconds&sort=cpu_seconds"} {
		if code, _, m := ask(t, h, "GET", "/v1/usage?"+bad, ""); code != 400 || m["hint"] == nil {
			t.Errorf("%s: %d %v, want 400 with a hint", bad, code, m)
		}
	}
}

func TestSummary(t *testing.T) {
	h := handler(example(), all)
	code, _, m := ask(t, h, "GET", "/v1/summary", "")
	sum, _ := m["sum"].(map[string]any)
	cpu, _ := sum["cpu_cores"].(map[string]any)
	if code != 200 || cpu["workloads"] != 1.5 || cpu["whole"] != 2.0 || cpu["quality"] != "apportioned" || sum["memory_bytes"] != nil {
		t.Errorf("summary: %d %v", code, m)
	}
	if m["nodes"] != nil || m["top"] != nil {
		t.Errorf("the summary has parts that the request did not include: %v", m)
	}
	_, _, m = ask(t, h, "GET", "/v1/summary?nodes=1&top=3&node=web-1", "")
	nodes, _ := m["nodes"].([]any)
	top, _ := m["top"].(map[string]any)
	if list, _ := top["cpu"].([]any); len(nodes) != 1 || len(list) != 3 {
		t.Errorf("%d nodes, top %v, want 1 and 3", len(nodes), top)
	}
	for target, want := range map[string]int{"?node=none": 404, "?top=101": 400, "?top=x": 400, "?nodes=2": 400, "?by=node": 400} {
		if code, _, m := ask(t, h, "GET", "/v1/summary"+target, ""); code != want || m["hint"] == nil {
			t.Errorf("%s: %d %v, want %d with a hint", target, code, m, want)
		}
	}
}

func TestUsageAround(t *testing.T) {
	b := example()
	_, _, m := ask(t, handler(b, all), "GET", "/v1/usage?limit=1&idle=used", "")
	rest, _ := m["rest"].(map[string]any)
	total, _ := m["total"].(map[string]any)
	if m["rest_groups"] != 2.0 || rest["cpu_seconds"] != 21.0 || total["cpu_seconds"] != 130.0 {
		t.Errorf("rest of %v groups: %v, total %v, want 21 of 130 in 2", m["rest_groups"], rest["cpu_seconds"], total["cpu_seconds"])
	}
	if m["averages_over_seconds"] != 3600.0 || m["gaps"] != 1.0 || m["from"] != "2026-02-28T12:00:00Z" {
		t.Errorf("averages over %v, %v gaps, from %v", m["averages_over_seconds"], m["gaps"], m["from"])
	}
	if b.last.Limit != 0 || !b.last.Scope.All || b.last.Idle != "used" {
		t.Errorf("query of the ledger: %+v", b.last)
	}
}

func TestTooManyGroups(t *testing.T) {
	b := &book{}
	for i := range v1.MaxGroups + 1 {
		b.rows = append(b.rows, used{noon.Add(-time.Minute), "N1", batch.Name{Job: fmt.Sprint(i)}, 1})
	}
	code, _, m := ask(t, handler(b, all), "GET", "/v1/usage", "")
	if code != 400 || m["detail"] != "more than 10000 groups by job: invalid" || m["hint"] == "" {
		t.Errorf("%d %v, want 400", code, m)
	}
	code, _, m = ask(t, handler(b, all), "GET", "/v1/usage?limit=2", "")
	if code != 200 || m["rest_groups"] != float64(v1.MaxGroups-1) {
		t.Errorf("the two largest of too many: %d, %v in the rest", code, m["rest_groups"])
	}
	code, _, m = ask(t, handler(b, all), "GET", "/v1/workloads", "")
	if code != 400 {
		t.Errorf("%d %v, want 400", code, m)
	}
	code, _, m = ask(t, handler(b, all), "GET", "/v1/workloads?limit=3", "")
	if list, _ := m["workloads"].([]any); code != 200 || len(list) != 3 {
		t.Errorf("%d, %d workloads, want 3", code, len(list))
	}
}

// TestTooManyGaps checks that a list of gaps is refused rather than cut, and that the latest ones come in pages.
func TestTooManyGaps(t *testing.T) {
	b := &book{}
	gap := query.Gap{Node: "N1", Gap: usage.Gap{From: noon.Add(-time.Minute), To: noon, Reason: usage.Forgotten}}
	for range query.MaxGaps {
		b.gaps = append(b.gaps, gap)
	}
	h := handler(b, all)
	for _, target := range []string{"/v1/gaps", "/v1/gaps?limit=5"} {
		if code, _, m := ask(t, h, "GET", target, ""); code != 200 {
			t.Errorf("%s of as many as fit: %d %v", target, code, m["detail"])
		}
	}
	b.gaps = append(b.gaps, gap)
	if code, _, m := ask(t, h, "GET", "/v1/gaps?limit=5", ""); code != 200 || len(m["gaps"].([]any)) != 5 || m["next_cursor"] == nil {
		t.Errorf("a page of more: %d", code)
	}
	if code, _, m := ask(t, h, "GET", "/v1/gaps", ""); code != 400 || m["detail"] != "more than 10000 gaps: invalid" || m["hint"] == nil {
		t.Errorf("all of more: %d %v, want 400", code, m["detail"])
	}
}

// TestManyStreams checks that more streams than a list may have come in pages only, which together have
// each of them.
func TestManyStreams(t *testing.T) {
	b := &book{streams: v1.MaxGroups}
	h := handler(b, all)
	if code, _, m := ask(t, h, "GET", "/v1/streams", ""); code != 200 || len(m["streams"].([]any)) != v1.MaxGroups || m["streams"].([]any)[0].(map[string]any)["stream"] != fmt.Sprintf("07%04x", v1.MaxGroups-1) {
		t.Errorf("as many as fit: %d, not the first opened first", code)
	}
	b.streams++
	if code, _, m := ask(t, h, "GET", "/v1/streams", ""); code != 400 || m["detail"] != "more than 10000 streams: invalid" || m["hint"] == nil {
		t.Errorf("%d %v, want 400", code, m["detail"])
	}
	seen, next := map[any]bool{}, ""
	for range 3 {
		_, _, m := ask(t, h, "GET", "/v1/streams?limit=4000"+next, "")
		for _, s := range m["streams"].([]any) {
			seen[s.(map[string]any)["stream"]] = true
		}
		cursor, more := m["next_cursor"]
		if next = fmt.Sprint("&cursor=", cursor); !more {
			break
		}
	}
	if len(seen) != b.streams {
		t.Errorf("%d streams in three pages, want %d", len(seen), b.streams)
	}
}

// TestManyRates checks that the present rates of more workloads than a list may have come in pages only,
// each of which ends with the node that reaches the limit, and which together have each node once.
func TestManyRates(t *testing.T) {
	const most = v1.MaxGroups
	for _, c := range []struct {
		rates  []int
		name   string // of each workload
		limit  int
		fit    bool // into an answer without a limit
		onPage []int
	}{
		{[]int{most - 1, 1}, "w", 3, true, []int{2}},
		{[]int{most - 1, 1, 1}, "w", 3, false, []int{2, 1}},
		{[]int{2 * most, 1, most - 1, 1}, "w", 3, false, []int{1, 2, 1}},
		{[]int{2 * most}, "w", 1, true, []int{1}},
		{[]int{0, 1, 2, 3}, "w", 3, true, []int{3, 1}},
		{[]int{8, 8, 8, 8}, strings.Repeat("w", 1<<20), 4, false, []int{1, 1, 1, 1}},
		{[]int{4, 4, 4, 4}, strings.Repeat("w", 1<<20), 4, false, []int{2, 2}},
	} {
		b := &book{rates: c.rates, name: c.name}
		h := handler(b, all)
		code, _, m := ask(t, h, "GET", "/v1/rates", "")
		if c.fit != (code == 200) || !c.fit && (code != 400 || m["hint"] == nil || m["detail"] != "more than 10000 nodes or workloads, or 8 MiB: invalid") {
			t.Errorf("%v without a limit: %d %v", c.rates, code, m["detail"])
		}
		var got []int
		seen, next := map[any]bool{}, ""
		for {
			_, _, m := ask(t, h, "GET", fmt.Sprintf("/v1/rates?limit=%d%s", c.limit, next), "")
			list, _ := m["nodes"].([]any)
			got = append(got, len(list))
			for _, n := range list {
				seen[n.(map[string]any)["node"]] = true
			}
			cursor, more := m["next_cursor"]
			if next = fmt.Sprint("&cursor=", cursor); !more || len(list) == 0 {
				break
			}
		}
		if !slices.Equal(got, c.onPage) || len(seen) != len(c.rates) {
			t.Errorf("%v in pages of %d: %v nodes, %d in all, want %v", c.rates, c.limit, got, len(seen), c.onPage)
		}
		if most := slices.Max(c.onPage) + 1; b.told > most {
			t.Errorf("%v in pages of %d: %d nodes were looked up for one page, want at most %d", c.rates, c.limit, b.told, most)
		}
	}
}

func TestLists(t *testing.T) {
	b := example()
	h := handler(b, all)
	_, _, m := ask(t, h, "GET", "/v1/nodes", "")
	if s := fmt.Sprint(m["nodes"]); !strings.Contains(s, "name:web-1") {
		t.Errorf("nodes: %s", s)
	}
	_, _, m = ask(t, h, "GET", "/v1/vms?from=-1h", "")
	if list := m["vms"].([]any); len(list) != 1 || list[0].(map[string]any)["compared"] != 7.0 {
		t.Errorf("virtual machines: %v", m)
	}
	if _, _, m = ask(t, h, "GET", "/v1/usage?nested=only", ""); b.last.Nested != query.NestedOnly {
		t.Errorf("asked %+v: %v", b.last, m)
	}
	_, _, m = ask(t, h, "GET", "/v1/dimensions", "")
	if s := fmt.Sprint(m["dimensions"]); s != "[map[dimension:job workloads:3] map[dimension:project workloads:0]]" {
		t.Errorf("dimensions: %s", s)
	}
	_, _, m = ask(t, h, "GET", "/v1/sources", "")
	if s := fmt.Sprint(m["sources"]); !strings.Contains(s, "name:core-1") || !strings.Contains(s, "pages:7") {
		t.Errorf("sources: %s", s)
	}
	_, _, m = ask(t, h, "GET", "/v1/workloads?where=kind=service", "")
	if s := fmt.Sprint(m["workloads"]); !strings.Contains(s, "name:mete-agent.service") {
		t.Errorf("workloads: %s", s)
	}
	_, _, m = ask(t, h, "GET", "/v1/gaps?node=web-1", "")
	if s := fmt.Sprint(m["gaps"]); !strings.Contains(s, "reason:rebooted seconds:1 ") {
		t.Errorf("gaps: %s", s)
	}
	_, _, m = ask(t, h, "GET", "/v1/gaps?node=web-1&to=-2h&from=-3h", "")
	if s := fmt.Sprint(m["gaps"]); s != "[]" {
		t.Errorf("gaps of another time: %s", s)
	}
	if code, _, m := ask(t, h, "GET", "/v1/gaps?node=web-2", ""); code != 404 || m["detail"] != `node "web-2": not found` || m["hint"] == nil {
		t.Errorf("gaps of another node: %d %v", code, m)
	}
	_, _, m = ask(t, h, "GET", "/v1/rates", "")
	if s := fmt.Sprint(m["nodes"]); !strings.Contains(s, "cpu_cores:1.5 ") || !strings.Contains(s, "memory_bytes:1.048576e+06 ") ||
		!strings.Contains(s, "network_rx_bytes_per_second:100 ") || !strings.Contains(s, "pids:<nil>") {
		t.Errorf("rates: %s", s)
	}
}

func TestRefusals(t *testing.T) {
	h := handler(example(), all)
	for _, c := range []struct {
		method, target string
		code           int
		detail         string
	}{
		{"GET", "/v1/usage?buy=job", 400, `parameter "buy" is not known: invalid`},
		{"GET", "/v1/usage?by=color", 400, `dimension "color": invalid`},
		{"GET", "/v1/usage?from=%ZZ", 400, `parameters: invalid URL escape "%ZZ": invalid`},
		{"GET", "/v1/usage?from=a;to=b", 400, "parameters: invalid semicolon separator in query: invalid"},
		{"GET", "/v1/nodes?x=1", 400, `parameter "x" is not known: invalid`},
		{"GET", "/v1/vms?node=1", 400, `parameter "node" is not known: invalid`},
		{"GET", "/v1/vms?from=x", 400, `time "x": invalid`},
		{"GET", "/v1/usage?nested=x", 400, `parameter nested="x": invalid`},
		{"GET", "/v1/sources?x=1", 400, `parameter "x" is not known: invalid`},
		{"GET", "/v1/workloads?by=job", 400, `parameter "by" is not known: invalid`},
		{"GET", "/v1/gaps?from=soon", 400, `time "soon": invalid`},
		{"GET", "/v1/gaps?node=a&node=b", 400, `parameter "node" is given twice: invalid`},
		{"GET", "/v1/rates?x=", 400, `parameter "x" is not known: invalid`},
		{"POST", "/v1/usage", 405, "there is only GET and HEAD"},
		{"DELETE", "/healthz", 405, "there is only GET and HEAD"},
		{"GET", "/v1/usages", 404, `"/v1/usages": not found`},
	} {
		code, header, m := ask(t, h, c.method, c.target, "")
		if code != c.code || m["detail"] != c.detail || m["status"] != float64(c.code) || header.Get("Content-Type") != fault.ProblemType {
			t.Errorf("%s %s: %d %v, want %d %s", c.method, c.target, code, m, c.code, c.detail)
		}
		if c.code == 400 && m["hint"] == nil {
			t.Errorf("%s: no hint", c.target)
		}
	}
	if code, _, _ := ask(t, h, "HEAD", "/healthz", ""); code != 200 {
		t.Errorf("HEAD /healthz: %d", code)
	}
	w := httptest.NewRecorder()
	api.New(example(), nil, nil, all, time.Now, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest("GET", "/v1/rates", nil))
	if w.Code != 501 {
		t.Errorf("rates without a source: %d, want 501", w.Code)
	}
}

func TestErrorsByKind(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int
		detail any
	}{
		{fault.WithHint(fmt.Errorf("dimension pod: %w", fault.ErrInvalid), "x"), 400, "dimension pod: invalid"},
		{fmt.Errorf("ledger: busy: %w", fault.ErrUnavailable), 503, "ledger: busy: unavailable"},
		{errors.New("disk on fire at /secret"), 500, nil},
	} {
		b := example()
		b.err = c.err
		for _, target := range []string{"/v1/usage", "/v1/connections", "/v1/nodes", "/v1/sources", "/v1/workloads", "/v1/gaps", "/v1/vms", "/v1/rates"} {
			code, _, m := ask(t, handler(b, all), "GET", target, "")
			if code != c.code || m["detail"] != c.detail {
				t.Errorf("%s, %v: %d %v", target, c.err, code, m)
			}
		}
	}
}

func TestAuthorization(t *testing.T) {
	denied := func(*http.Request) (query.Scope, error) { return query.Scope{}, fault.ErrDenied }
	code, header, _ := ask(t, handler(example(), denied), "GET", "/v1/usage", "")
	if code != 401 || header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("without a credential: %d %v, want 401", code, header)
	}
	r := httptest.NewRequest("GET", "/v1/usage", nil)
	r.Header.Set("Authorization", "Bearer x")
	w := httptest.NewRecorder()
	handler(example(), denied).ServeHTTP(w, r)
	if w.Code != 403 {
		t.Errorf("with a bad one: %d, want 403", w.Code)
	}
	if code, _, _ := ask(t, handler(example(), denied), "GET", "/healthz", ""); code != 200 {
		t.Errorf("/healthz: %d, want 200", code)
	}
	// The scope is what authorize says, and nothing is seen without.
	nothing := func(*http.Request) (query.Scope, error) { return query.Scope{}, nil }
	if _, _, m := ask(t, handler(example(), nothing), "GET", "/v1/usage", ""); groups(m, "job") != "" {
		t.Errorf("an empty scope sees %s", groups(m, "job"))
	}
}

func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := example()
		b.slow = 29 * time.Second
		if code, _, m := ask(t, handler(b, all), "GET", "/v1/usage", ""); code != 200 {
			t.Errorf("after 29 s: %d %v, want 200", code, m)
		}
		b.slow = time.Hour
		code, header, m := ask(t, handler(b, all), "GET", "/v1/usage", "")
		if code != 503 || m["detail"] != "no answer within 30s: unavailable" || header.Get("Retry-After") == "" {
			t.Errorf("after an hour: %d %v, want 503", code, m)
		}
	})
}

// A ring is tokens in memory.
type ring struct{ list []registry.Token }

func (r *ring) Create(_ context.Context, want registry.Token) (string, registry.Token, error) {
	want.ID, want.Created = fmt.Sprintf("id%d", len(r.list)), noon
	r.list = append(r.list, want)
	return "mete_text_of_" + want.ID, want, nil
}

func (r *ring) List(context.Context) ([]registry.Token, error) { return r.list, nil }

func (r *ring) Revoke(_ context.Context, id string) error {
	for i := range r.list {
		if r.list[i].ID == id {
			r.list[i].Revoked = noon
			return nil
		}
	}
	return fmt.Errorf("token %q: %w", id, fault.ErrNotFound)
}

// fleet is machines of which one may be revoked.
type fleet struct{ query.Node }

func (f fleet) Revoke(_ context.Context, which string) (query.Node, error) {
	if which != f.Name {
		return query.Node{}, fmt.Errorf("node %q: %w", which, fault.ErrNotFound)
	}
	f.State = "revoked"
	return f.Node, nil
}

// silences keep one silence.
type silences struct{ one query.Silence }

func (s *silences) Silence(_ context.Context, made query.Silence) (query.Silence, error) {
	s.one, s.one.ID = made, "s1"
	return s.one, nil
}

func (s *silences) EndSilence(_ context.Context, id string) (query.Silence, error) {
	if id != s.one.ID {
		return query.Silence{}, fmt.Errorf("silence %q: %w", id, fault.ErrNotFound)
	}
	s.one.Ends = noon
	return s.one, nil
}

func (s *silences) AllSilences() []query.Silence { return []query.Silence{s.one} }

// silencesOf returns a silence in each state.
func silencesOf(now time.Time) (list []query.Silence) {
	for i, start := range []time.Duration{-2 * time.Hour, time.Hour, -time.Minute} {
		ms, err := query.ParseMatchers(`alertname="Silent", node=~"rack\\d+|a\"b"`)
		if err != nil {
			panic(err) // it is a constant
		}
		list = append(list, query.Silence{ID: fmt.Sprint("s", i), Matchers: ms, Starts: now.Add(start), Ends: now.Add(start + time.Hour), By: "me", Comment: "<why>"})
	}
	return list
}

// copier says that it made a backup of any directory but one.
type copier struct{}

func (copier) Backup(_ context.Context, dir string) (v1.Backup, error) {
	if dir == "/full" {
		return v1.Backup{}, fmt.Errorf("no room: %w", fault.ErrUnavailable)
	}
	b := v1.Backup{Dir: dir, Metrics: 7, Seconds: 1}
	if dir != "/pg" {
		b.Ledger = new(int64(0))
	}
	return b, nil
}

func (copier) PageLink() (string, error) { return "http://127.0.0.1:9797/#code=once", nil }

// An auditLog answers with the query that it got.
type auditLog struct{}

func (auditLog) Audits(_ context.Context, q registry.AuditQuery) ([]registry.Audit, error) {
	if q.About == "broken" {
		return nil, fmt.Errorf("audit: %w", fault.ErrUnavailable)
	}
	return []registry.Audit{{At: noon, Actor: "local", Action: q.Action, Object: q.About, Detail: fmt.Sprint(q.From.Sub(noon), " ", q.To.Sub(noon), " ", q.Limit)}}, nil
}

// The parameters of the audit log reach the ledger. Wrong ones are refused.
func TestAdminAudit(t *testing.T) {
	h := api.Admin(api.Administration{Audits: auditLog{}}, func() time.Time { return noon }, slog.New(slog.DiscardHandler))
	code, _, m := ask(t, h, "GET", "/v1/audit?from=-1h&to=now&action=token&about=x&limit=7", "")
	if code != 200 || fmt.Sprint(m) != "map[audit:[map[action:token actor:local at:2026-03-01T12:00:00Z detail:-1h0m0s 0s 7 object:x]]]" {
		t.Errorf("%d %v", code, m)
	}
	if _, _, m = ask(t, h, "GET", "/v1/audit", ""); !strings.HasSuffix(fmt.Sprint(m), " 100 object:]]]") {
		t.Errorf("without a limit: %v", m)
	}
	for _, q := range []string{"form=x", "limit=-1", "limit=10001", "limit=x", "from=x", "to=x", "from=-1h&to=-2h", "from=-1h&from=-2h", "action=%zz", "about=a;b"} {
		if code, _, m := ask(t, h, "GET", "/v1/audit?"+q, ""); code != 400 || m["hint"] == "" {
			t.Errorf("%s: %d %v", q, code, m)
		}
	}
	if code, _, m := ask(t, h, "GET", "/v1/audit?about=broken", ""); code != 503 {
		t.Errorf("a ledger that fails: %d %v", code, m)
	}
	if code, _, m := ask(t, h, "DELETE", "/v1/audit", ""); code != 405 {
		t.Errorf("DELETE: %d %v", code, m)
	}
}

func TestAdmin(t *testing.T) {
	r := &ring{}
	h := api.Admin(api.Administration{Tokens: r, Nodes: fleet{query.Node{ID: "N1", Name: "web-1"}}, Backups: copier{}, Pages: copier{}, Silences: &silences{}}, func() time.Time { return noon }, slog.New(slog.DiscardHandler))
	code, _, m := ask(t, h, "POST", "/v1/tokens", `{"role":"agent","cluster":"lab","uses":2,"expires_at":"2026-03-02T12:00:00Z"}`)
	if code != 201 || m["token"] != "mete_text_of_id0" || m["uses_left"] != 2.0 || m["state"] != "valid" || m["cluster"] != "lab" {
		t.Errorf("POST: %d %v", code, m)
	}
	if code, _, m = ask(t, h, "POST", "/v1/tokens", `{"role":"king"}`); code != 400 || m["hint"] != "it is one of agent, job, viewer, upstream, writer" {
		t.Errorf("POST of a king: %d %v", code, m)
	}
	if code, _, m = ask(t, h, "POST", "/v1/tokens", strings.Repeat(" ", 1<<17)); code != 413 || m["title"] != "content too large" {
		t.Errorf("POST of too much: %d %v", code, m)
	}
	if code, _, _ = ask(t, h, "DELETE", "/v1/tokens/id0", ""); code != 204 {
		t.Errorf("DELETE: %d", code)
	}
	if code, _, _ = ask(t, h, "DELETE", "/v1/tokens/id9", ""); code != 404 {
		t.Errorf("DELETE of none: %d", code)
	}
	if code, _, m = ask(t, h, "GET", "/v1/tokens", ""); code != 200 || strings.Contains(fmt.Sprint(m), "mete_text") || !strings.Contains(fmt.Sprint(m), "state:revoked") {
		t.Errorf("GET: %d %v", code, m)
	}
	if code, header, _ := ask(t, h, "PUT", "/v1/tokens", ""); code != 405 || header.Get("Allow") != "GET, POST" {
		t.Errorf("PUT: %d %v", code, header)
	}
	code, _, m = ask(t, h, "DELETE", "/v1/nodes/web-1", "")
	if s := fmt.Sprint(m["nodes"]); code != 200 || !strings.Contains(s, "node:N1") || !strings.Contains(s, "state:revoked") {
		t.Errorf("DELETE of a node: %d %v", code, m)
	}
	if code, _, _ = ask(t, h, "DELETE", "/v1/nodes/web-2", ""); code != 404 {
		t.Errorf("DELETE of another node: %d", code)
	}
	if code, header, _ := ask(t, h, "POST", "/v1/nodes/web-1", ""); code != 405 || header.Get("Allow") != "DELETE" {
		t.Errorf("POST of a node: %d %v", code, header)
	}
	if code, _, m := ask(t, h, "POST", "/v1/backup", `{"directory":"/a"}`); code != 201 || m["directory"] != "/a" || m["metrics_bytes"] != 7.0 || m["ledger_bytes"] != 0.0 {
		t.Errorf("POST of a backup: %d %v", code, m)
	}
	if code, _, m := ask(t, h, "POST", "/v1/backup", `{"directory":"/pg"}`); code != 201 || m["ledger_bytes"] != nil {
		t.Errorf("POST of a backup without a ledger: %d %v", code, m)
	}
	for body, want := range map[string]int{`{"directory":"/full"}`: 503, `{"directory":""}`: 400, `{"dir":"/a"}`: 400, `{"directory":"/a"} {}`: 400, "": 400} {
		if code, _, _ := ask(t, h, "POST", "/v1/backup", body); code != want {
			t.Errorf("POST of a backup, %q: %d, want %d", body, code, want)
		}
	}
	if code, header, _ := ask(t, h, "GET", "/v1/backup", ""); code != 405 || header.Get("Allow") != "POST" {
		t.Errorf("GET of a backup: %d %v", code, header)
	}
	if code, _, m := ask(t, h, "POST", "/v1/page-links", ""); code != 201 || m["url"] != "http://127.0.0.1:9797/#code=once" {
		t.Errorf("POST of a link: %d %v", code, m)
	}
	if code, header, _ := ask(t, h, "GET", "/v1/page-links", ""); code != 405 || header.Get("Allow") != "POST" {
		t.Errorf("GET of a link: %d %v", code, header)
	}
	if code, _, _ = ask(t, h, "GET", "/", ""); code != 404 {
		t.Errorf("GET /: %d", code)
	}
	code, _, m = ask(t, h, "POST", "/v1/silences", `{"matchers":"alertname=Down","ends_at":"2026-03-01T13:00:00Z","created_by":"me"}`)
	if code != 201 || m["id"] != "s1" || m["state"] != "active" || m["matchers"] != `alertname="Down"` || m["starts_at"] != "2026-03-01T12:00:00Z" {
		t.Errorf("POST of a silence: %d %v", code, m)
	}
	for _, body := range []string{"", `{}`, `{"matchers":"alertname=Down","created_by":"me"}`, `{"matchers":"alertname=Down","ends_at":"2026-03-01T11:00:00Z","created_by":"me"}`, `{"matchers":"a=b","ends_at":"2026-03-01T13:00:00Z"}`,
		`{"matchers":"a=b","ends_at":"2036-03-01T13:00:00Z","created_by":"me"}`, `{"matchers":"a=b","starts_at":"2026-03-01T14:00:00Z","ends_at":"2026-03-01T13:00:00Z","created_by":"me"}`, `{"matchers":"a=~b(","ends_at":"2026-03-01T13:00:00Z","created_by":"me"}`, `{"x":1}`} {
		if code, _, m := ask(t, h, "POST", "/v1/silences", body); code != 400 {
			t.Errorf("POST of a silence, %s: %d %v", body, code, m)
		}
	}
	if code, _, m := ask(t, h, "DELETE", "/v1/silences/s1", ""); code != 200 || m["state"] != "expired" {
		t.Errorf("DELETE of a silence: %d %v", code, m)
	}
	if code, _, _ := ask(t, h, "DELETE", "/v1/silences/s9", ""); code != 404 {
		t.Errorf("DELETE of no silence: %d", code)
	}
	if code, _, m := ask(t, h, "GET", "/v1/silences", ""); code != 200 || !strings.Contains(fmt.Sprint(m), "state:expired") {
		t.Errorf("GET of silences: %d %v", code, m)
	}
}
