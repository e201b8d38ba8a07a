package chart

import (
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/result"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// wave returns a series with a point per minute, without the points for which skip is true.
func wave(name string, n int, f func(i int) float64, skip func(i int) bool) result.Series {
	s := result.Series{Labels: map[string]string{"__name__": "m", "node": "web", "part": name}}
	for i := range n {
		if skip == nil || !skip(i) {
			s.Points = append(s.Points, result.Point{Time: begin.Add(time.Duration(i) * time.Minute), Value: f(i), Text: digits(f(i))})
		}
	}
	return s
}

func example() (*result.Answer, Options) {
	a := &result.Answer{Kind: "matrix", Series: []result.Series{
		wave("idle", 61, func(i int) float64 { return 0.5 + 0.3*math.Cos(float64(i)/9) }, nil),
		wave("workloads", 61, func(i int) float64 { return 1 + math.Sin(float64(i)/7) }, func(i int) bool { return i > 20 && i < 30 }),
	}}
	return a, Options{Width: 72, Height: 14, From: begin, To: begin.Add(time.Hour), Step: time.Minute, Zone: time.FixedZone("IST", 19800), Unit: Cores}
}

func plainText(lines []top.Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update rewrites it):\n%s", name, got)
	}
}

func TestChart(t *testing.T) {
	a, o := example()
	golden(t, "letters.txt", plainText(Chart(a, o)))
	o.Color = true
	golden(t, "braille.txt", plainText(Chart(a, o)))
	o.Color, o.ASCII = false, true
	a.Series = a.Series[1:]
	golden(t, "ascii.txt", plainText(Chart(a, o)))
	o.ASCII, o.Unit = false, Bytes
	o.To = begin.Add(30 * time.Hour)
	a.Series[0] = wave("", 1800, func(i int) float64 { return 3e9 + 2e8*math.Sin(float64(i)/300) }, nil)
	golden(t, "bytes.txt", plainText(Chart(a, o)))
}

// Colors distinguish the series, in the chart and in its legend.
func TestChartRoles(t *testing.T) {
	a, o := example()
	o.Color = true
	seen := map[top.Role]int{}
	lines := Chart(a, o)
	for _, l := range lines {
		for _, s := range l {
			if strings.TrimSpace(s.Text) != "" {
				seen[s.Role]++
			}
		}
	}
	if seen[top.Series1] < 5 || seen[top.Series2] < 5 || seen[top.Series3] != 0 {
		t.Errorf("roles are drawn %v times", seen)
	}
	if legend := lines[len(lines)-2].String(); !strings.Contains(legend, "part=workloads") || strings.Contains(legend, "node=") {
		t.Errorf("the legend of the largest is %q, want only the labels that differ", legend)
	}
}

// If names are unique, ids are not shown.
func TestNames(t *testing.T) {
	one := func(workload, name string) plottedSeries {
		return plottedSeries{Series: &result.Series{Labels: map[string]string{"workload": workload, "name": name, "node": "n"}}}
	}
	for _, tc := range []struct {
		list []plottedSeries
		want string
	}{
		{[]plottedSeries{one("w1", "train"), one("w2", "serve")}, "name=train, name=serve"},
		{[]plottedSeries{one("w1", "train"), one("w2", "train")}, "workload=w1, workload=w2"},
		{[]plottedSeries{one("w1", "train"), one("w2", "")}, "name=train workload=w1, name= workload=w2"},
		{[]plottedSeries{one("w1", "train")}, "name=train node=n"},
	} {
		if got := strings.Join(nameSeries(tc.list), ", "); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

// For any values and screen, no line is wider than the screen, none has a control
// character, and nothing is drawn outside.
func TestChartAnyValues(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	odd := []float64{0, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 5e-324, math.MaxFloat64, -math.MaxFloat64, 1e-9, 7}
	for range 400 {
		a := &result.Answer{Kind: "matrix"}
		for range rng.IntN(10) {
			s := result.Series{Labels: map[string]string{"a": []string{"x", "\x1b[31m", "名前", strings.Repeat("y", 200)}[rng.IntN(4)]}}
			for i := range rng.IntN(50) {
				v := rng.NormFloat64() * math.Pow(10, float64(rng.IntN(30)-15))
				if rng.IntN(5) == 0 {
					v = odd[rng.IntN(len(odd))]
				}
				s.Points = append(s.Points, result.Point{Time: begin.Add(time.Duration(i) * time.Minute), Value: v})
			}
			a.Series = append(a.Series, s)
		}
		o := Options{Width: minWidth + rng.IntN(150), Height: rng.IntN(30), From: begin, To: begin.Add(time.Duration(rng.Int64N(int64(400 * day)))),
			Step: time.Minute, Zone: time.UTC, Unit: Unit(rng.IntN(len(unitNames))), ASCII: rng.IntN(2) == 0, Color: rng.IntN(2) == 0}
		for _, l := range Chart(a, o) {
			if l.Width() > o.Width || text.Clean(l.String()) != l.String() {
				t.Fatalf("width %d of %d: %q", l.Width(), o.Width, l.String())
			}
		}
	}
}

func TestMaxSeries(t *testing.T) {
	a := &result.Answer{Kind: "matrix"}
	for i := range 9 {
		a.Series = append(a.Series, wave(string(rune('a'+i)), 5, func(int) float64 { return float64(i) }, nil))
	}
	_, o := example()
	got := plainText(Chart(a, o))
	if !strings.Contains(got, "3 more series") || !strings.Contains(got, "part=i") || strings.Contains(got, "part=c ") {
		t.Errorf("nine series are drawn as\n%s", got)
	}
	if Chart(&result.Answer{Series: []result.Series{{Points: []result.Point{{Value: math.NaN()}}}}}, o) != nil {
		t.Error("a chart of an empty answer")
	}
}

func TestUnitOf(t *testing.T) {
	for query, want := range map[string]Unit{
		`rate(mete_workload_cpu_seconds_total[5m])`:                                                             Cores,
		`sum by (node) (rate(mete_workload_cpu_seconds_total{node="a"}[5m]))`:                                   Cores,
		`rate(mete_workload_memory_byte_seconds_total[5m])`:                                                     Bytes,
		`sum(rate(mete_workload_energy_joules_total[5m]) * on (workload) group_left (name) mete_workload_info)`: Watts,
		`increase(mete_workload_energy_joules_total[1h])`:                                                       Joules,
		`rate(mete_workload_network_rx_bytes_total[5m])`:                                                        BytesPerSecond,
		`8 * rate(mete_workload_network_rx_bytes_total[5m]) / 8`:                                                BytesPerSecond,
		`mete_node_memory_bytes`:                                                                                Bytes,
		`topk(3, max_over_time(mete_node_power_watts[1h]))`:                                                     Watts,
		`max_over_time(rate(mete_workload_cpu_seconds_total[5m])[1h:])`:                                         Cores,
		`sum(mete_node_cpu_cores{part="idle"}) / sum(mete_node_cpu_cores)`:                                      Ratio,
		`rate(mete_workload_pressure_cpu_seconds_total[5m])`:                                                    Ratio,
		`mete_node_last_window_timestamp_seconds`:                                                               Unknown,
		`count(mete_node_power_watts)`:                                                                          Unknown,
		`mete_node_power_watts * mete_node_power_watts`:                                                         Unknown,
		`mete_node_power_watts > 100`:                                                                           Watts,
		`mete_node_power_watts > bool 100`:                                                                      Unknown,
		`rate(mete_server_batches_total[5m])`:                                                                   PerSecond,
		`1 + 1`:                                                                                                 Unknown,
		`)`:                                                                                                     Unknown,
		`mete_node_memory_held_bytes + on (node) mete_node_power_watts`:                                         Unknown,
		`label_replace(mete_node_power_watts, "a", "$1", "node", "(.*)")`:                                       Watts,
		`sum_over_time(time()[1h:])`:                                                                            Unknown,
		`clamp_max(quantile(0.9, rate(mete_workload_cpu_seconds_total[5m])), 4)`:                                Cores,
		`quantile_over_time(0.9, mete_node_power_watts[1h])`:                                                    Watts,
	} {
		if got := UnitOf(query); got != want {
			t.Errorf("%s counts %d, want %d", query, got, want)
		}
	}
}

func TestMarkError(t *testing.T) {
	for _, c := range []struct{ query, complaint, text, about string }{
		{"a + )", `invalid parameter "query": 1:5: parse error: unexpected right parenthesis`, "a + )\n    ^", "unexpected right parenthesis"},
		{"sum(\n\ta b)", `2:4: parse error: unexpected identifier`, " a b)\n   ^", "unexpected identifier"},
		{"名前 b", `1:8: parse error: unexpected`, "名前 b\n     ^", "unexpected"},
		{"a", `1:2: parse error: unexpected end`, "a\n ^", "unexpected end"},
	} {
		text, about, ok := MarkError(c.query, c.complaint)
		if !ok || text != c.text || about != c.about {
			t.Errorf("%q, %q: %v\n%s\n%q", c.query, c.complaint, ok, text, about)
		}
	}
	for _, complaint := range []string{"query timed out", "1:99: parse error: x", "9:1: parse error: x", "0:0: parse error: x", "99999999999999999999:1: parse error: x"} {
		if text, _, ok := MarkError("a + b", complaint); ok {
			t.Errorf("%q is marked as\n%s", complaint, text)
		}
	}
}

const vector = `{"status":"success","data":{"resultType":"vector","result":[
{"metric":{"__name__":"m","node":"we\"b,1"},"value":[1772366400.5,"1536.25"]},
{"metric":{"node":"\u001b[2J"},"value":[1772366400.5,"NaN"]},{"metric":{},"histogram":[1,{}]}]},"warnings":["careful"]}`

func TestTables(t *testing.T) {
	a, err := result.Parse([]byte(vector))
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Series) != 2 || a.Histograms != 1 || len(a.Warnings) != 1 {
		t.Fatalf("parsed %+v", a)
	}
	o := Options{Zone: time.UTC, Unit: Bytes}
	if got, want := Table(a, o), "METRIC  NODE       VALUE\nm       we\"b,1  1.50 KiB\n        \uFFFD[2J         NaN\n"; got != want {
		t.Errorf("table\n%q\nwant\n%q", got, want)
	}
	o.Unit = Unknown
	if got := Table(a, o); !strings.Contains(got, "1536.25\n") {
		t.Errorf("without a unit the value has changed:\n%s", got)
	}
	if got, want := string(CSV(a)), "time,__name__,node,value\n2026-03-01T12:00:00.5Z,m,\"we\"\"b,1\",1536.25\n2026-03-01T12:00:00.5Z,,\uFFFD[2J,NaN\n"; got != want {
		t.Errorf("CSV\n%q\nwant\n%q", got, want)
	}
	a, o = example()
	a.Series[0].Points = a.Series[0].Points[:2]
	a.Series = a.Series[:1]
	if got, want := Table(a, o), "METRIC  NODE  PART  TIME                        VALUE\nm       web   idle  2026-03-01 17:30:00     0.8 cores\nm       web   idle  2026-03-01 17:31:00  0.7982 cores\n"; got != want {
		t.Errorf("table of a range\n%s\nwant\n%s", got, want)
	}
	for body, kind := range map[string]string{`{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}`: "2",
		`{"status":"success","data":{"resultType":"string","result":[1,"hi\n"]}}`: "hi\uFFFD"} {
		a, err := result.Parse([]byte(body))
		if err != nil || Table(a, Options{Zone: time.UTC, Unit: Watts, ASCII: false}) == "" {
			t.Fatal(err)
		}
		if got := Table(a, Options{Zone: time.UTC}); !strings.HasSuffix(got, kind+"\n") {
			t.Errorf("%s is shown as %q", body, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(vector))
	f.Add([]byte(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"2"],[3,"x"]]}]}}`))
	f.Add([]byte(`{"status":"success","data":{"resultType":"scalar","result":null}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := result.Parse(body)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Fatalf("%v has no kind", err)
			}
			return
		}
		_, o := example()
		_ = Table(a, o)
		_ = CSV(a)
		for _, l := range Chart(a, o) {
			if l.Width() > o.Width {
				t.Fatalf("%q is wider than %d", l.String(), o.Width)
			}
		}
	})
}

func TestStepFor(t *testing.T) {
	for length, want := range map[time.Duration]time.Duration{time.Minute: 10 * time.Second, time.Hour: 15 * time.Second, day: 10 * time.Minute,
		7 * day: time.Hour, 365 * day: 2 * day} {
		if got := StepFor(length); got != want {
			t.Errorf("a range of %s has steps of %s, want %s", length, got, want)
		}
	}
}

func TestTimeMarks(t *testing.T) {
	zone, err := time.LoadLocation("Asia/Kathmandu") // 5:45 ahead of UTC
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range timeMarks(begin, begin.Add(3*time.Hour), 8, zone) {
		got = append(got, m.text)
	}
	if strings.Join(got, " ") != "18:00 18:30 19:00 19:30 20:00 20:30" {
		t.Errorf("marks in Kathmandu: %q", got)
	}
	got = nil
	for _, m := range timeMarks(begin, begin.Add(5*day), 6, time.UTC) {
		got = append(got, m.text)
	}
	if strings.Join(got, " ") != "Mar 2 Mar 3 Mar 4 Mar 5 Mar 6" {
		t.Errorf("day marks: %q", got)
	}
}
