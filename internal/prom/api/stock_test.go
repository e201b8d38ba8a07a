package api_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientprom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/prom/api"
	"mete.dev/mete/internal/store/tsdb"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/prometheus"
)

// A fleet is a set of nodes whose workloads start and end.
type fleet struct {
	names map[workload.ShortID]batch.Name
	rand  *rand.Rand
}

func (fleet) Node(_ context.Context, id string) (registry.Node, error) {
	return registry.Node{ID: id, Name: "host-" + id, Cluster: []string{"lab", "edge"}[len(id)%2]}, nil
}

func (f fleet) Names(_ context.Context, _ string, shorts []workload.ShortID) (map[workload.ShortID]batch.Name, error) {
	found := map[workload.ShortID]batch.Name{}
	for _, s := range shorts {
		if n, ok := f.names[s]; ok {
			found[s] = n
		}
	}
	return found, nil
}

// fill appends windows of ten seconds and shift for a node, from a minute edge on. The last one of a minute
// ends at its edge: for range selectors, mete leaves out edges inside a window, which Prometheus does not know.
// Others do not end at full seconds, because Prometheus 2 and 3 differ in whether a range includes a sample
// at its start.
func (f fleet) fill(t *testing.T, store *tsdb.Store, node string, shift time.Duration, from, to time.Time) {
	t.Helper()
	const edge = int64(time.Minute)
	type one struct {
		short      workload.ShortID
		total      [usage.Limit]int64
		born, dies int64
	}
	var list []one
	var names []batch.Name
	for i := range 8 {
		id := workload.NewID(node, workload.Container, strconv.Itoa(i))
		short, _ := workload.ShortIDOf(id)
		n := batch.Name{ID: id, Kind: workload.Container, Name: "app-" + strconv.Itoa(i), Labels: map[string]string{
			"io.kubernetes.pod.namespace": []string{"shop", "search", "batch"}[i%3], "io.kubernetes.pod.name": "pod-" + strconv.Itoa(i/2)}}
		f.names[short], names = n, append(names, n)
		w := one{short: short, dies: math.MaxInt64}
		if i >= 5 { // comes and goes
			w.born = f.rand.Int64N(int64(to.Sub(from)) / 2)
			w.dies = w.born + int64(to.Sub(from))/4
		}
		list = append(list, w)
	}
	var ws []usage.Window
	for at, end := int64(0), int64(0); at < int64(to.Sub(from)); at = end {
		end = min(at+int64(10*time.Second+shift), at-at%edge+edge)
		w := usage.Window{Boot: "b", Start: at, End: end, Offset: from.UnixNano(), CPUs: 4}
		for i := range list {
			k := &list[i]
			if at < k.born || at > k.dies || f.rand.IntN(6) == 0 { // some windows have no row
				continue
			}
			row := usage.Row{ShortID: k.short, Ended: end > k.dies}
			row.Usage.Covered = time.Duration(end - at)
			for _, res := range []usage.Resource{usage.CPU, usage.Memory, usage.NetworkRx, usage.EnergyPackage, usage.EnergyDRAM} {
				v := f.rand.Int64N(1 << 32)
				row.Usage.Put(res, v, usage.Measured)
				k.total[res] += v
				row.Has |= usage.SetOf(res)
				row.Total[res] = k.total[res]
			}
			w.Rows = append(w.Rows, row)
		}
		ws = append(ws, w)
	}
	cuts, err := walltime.Cut(ws, make([]time.Duration, len(ws)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Append(t.Context(), node, names, cuts.Windows); err != nil {
		t.Fatal(err)
	}
}

// samples returns all series of a store, including stale markers.
func samples(t *testing.T, store *tsdb.Store) (out []prompb.TimeSeries) {
	t.Helper()
	q, err := store.Queryable().Querier(0, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	set := q.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".+"))
	for set.Next() {
		one := prompb.TimeSeries{Labels: prompb.FromLabels(set.At().Labels(), nil)}
		it := set.At().Iterator(nil)
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			one.Samples = append(one.Samples, prompb.Sample{Timestamp: at, Value: v})
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
		out = append(out, one)
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return out
}

// stockSet returns the queries for both servers, with NOW replaced by at.
func stockSet(at string) (list []string) {
	for text := range strings.SplitSeq(strings.ReplaceAll(stockQueries, "NOW", at), "\n") {
		if text = strings.TrimSpace(text); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// TestStockPrometheus compares the answers to a hundred instant and range queries and to
// series requests with those of a Prometheus that holds the same samples. Numbers may
// differ in their last digits, because versions sum in different orders.
func TestStockPrometheus(t *testing.T) {
	testkit.Stage(t, "peers", "asks a Prometheus some 500 times")
	hosttest.Need(t, "prometheus")
	f := fleet{map[workload.ShortID]batch.Name{}, rand.New(rand.NewPCG(1, 2))}
	cfg := tsdb.Default()
	cfg.Dir = t.TempDir()
	log := slog.New(slog.DiscardHandler)
	store, err := tsdb.Open(cfg, f, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	to := time.Now().Truncate(time.Hour).Add(-7 * time.Minute)
	from := to.Add(-100 * time.Minute)
	for i, node := range []string{"a", "b1", "c"} {
		f.fill(t, store, node, time.Duration(217+131*i)*time.Millisecond, from, to)
	}
	stock := prometheus.Start(t, "global: {}\n", "--web.enable-remote-write-receiver")
	all := samples(t, store)
	if err := stock.Write(all); err != nil {
		t.Fatal(err)
	}
	api, err := api.New(api.Default(), store, nil, func(*http.Request) (query.Scope, string, error) { return query.Scope{All: true}, "", nil },
		nil, clientprom.NewRegistry(), "test", log)
	if err != nil {
		t.Fatal(err)
	}
	mete := httptest.NewServer(api)
	defer mete.Close()

	stamp := func(at time.Time) string { return strconv.FormatFloat(float64(at.UnixMilli())/1e3, 'f', 3, 64) }
	last := to.Add(-1877 * time.Millisecond)
	queries := stockSet(stamp(last.Add(-17 * time.Minute)))
	if len(queries) < 100 {
		t.Errorf("%d queries, want 100", len(queries))
	}
	asked, exact, empty := 0, 0, 0
	both := func(path string, form ...string) {
		t.Helper()
		asked++
		want, err := stock.Client().Ask(path, form...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := prometheus.Client{URL: mete.URL}.Ask(path, form...)
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != want.Status || got.ErrorType != want.ErrorType {
			t.Errorf("%s %q: %s %s %s; Prometheus: %s %s %s", path, form, got.Status, got.ErrorType, got.Error, want.Status, want.ErrorType, want.Error)
			return
		}
		a, b := canonical(t, got.Data), canonical(t, want.Data)
		if reflect.DeepEqual(a, b) {
			exact++
		}
		if diff := differ("", a, b); diff != "" {
			t.Errorf("%s %q: %s", path, form, diff)
		}
		if d, ok := a.(map[string]any); ok && reflect.DeepEqual(d["result"], []any{}) {
			empty++
		}
	}
	for _, text := range queries {
		both("query", "query", text, "time", stamp(last))
		both("query", "query", text, "time", stamp(last.Add(-41*time.Minute)))
		both("query_range", "query", text, "start", stamp(last.Add(-95*time.Minute)), "end", stamp(last), "step", "47")
		both("query_range", "query", text, "start", stamp(last.Add(-30*time.Minute)), "end", stamp(last.Add(3*time.Minute)), "step", "15")
	}
	for _, m := range []string{`{__name__=~"mete_.+"}`, `mete_workload_info{namespace="shop"}`, `{node="host-b1",domain!=""}`} {
		both("series", "match[]", m, "start", stamp(from), "end", stamp(to))
		both("labels", "match[]", m, "start", stamp(from), "end", stamp(to))
		both("label/workload/values", "match[]", m, "start", stamp(from), "end", stamp(to))
	}
	t.Logf("%d series; %d queries, %d answers equal in every digit, %d empty", len(all), asked, exact, empty)
	if empty > asked/20 {
		t.Errorf("%d of %d answers are empty", empty, asked)
	}
}

// canonical returns an answer with its series sorted by labels.
func canonical(t *testing.T, raw json.RawMessage) any {
	t.Helper()
	var v any
	if len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	sorted := func(list any) {
		l, _ := list.([]any)
		slices.SortFunc(l, func(a, b any) int { return cmp.Compare(key(a), key(b)) })
	}
	if d, ok := v.(map[string]any); ok {
		if d["resultType"] != "scalar" {
			sorted(d["result"])
		}
	} else {
		sorted(v)
	}
	return v
}

// key returns the sort key of an element of an answer.
func key(v any) string {
	if m, ok := v.(map[string]any); ok && m["metric"] != nil {
		v = m["metric"]
	}
	b, err := json.Marshal(v) // sorts the keys of objects
	if err != nil {
		panic(err) // v was unmarshaled from JSON
	}
	return string(b)
}

// differ returns the first difference of two answers beyond rounding, or "".
func differ(at string, a, b any) string {
	switch a := a.(type) {
	case map[string]any:
		m, ok := b.(map[string]any)
		if !ok || len(m) != len(a) {
			return fmt.Sprintf("%s: %v; Prometheus: %v", at, a, b)
		}
		for k, v := range a {
			if d := differ(at+"."+k, v, m[k]); d != "" {
				return d
			}
		}
		return ""
	case []any:
		l, ok := b.([]any)
		if !ok || len(l) != len(a) {
			return fmt.Sprintf("%s: %.800v; Prometheus: %.800v", at, a, b)
		}
		for i := range a {
			if d := differ(at+"["+strconv.Itoa(i)+"]", a[i], l[i]); d != "" {
				return d
			}
		}
		return ""
	case string:
		if s, ok := b.(string); ok && near(a, s) {
			return ""
		}
	}
	if !reflect.DeepEqual(a, b) {
		return fmt.Sprintf("%s: %v; Prometheus: %v", at, a, b)
	}
	return ""
}

// near reports whether two numbers are equal except for their last digits.
func near(a, b string) bool {
	x, err := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	if err != nil || err2 != nil {
		return a == b
	}
	return a == b || math.Abs(x-y) <= 1e-12*max(math.Abs(x), math.Abs(y))
}
