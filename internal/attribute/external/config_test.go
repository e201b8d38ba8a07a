package external_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

const example = `# What feeds the machines of rack 1.
meters:
  - name: pdu-1
    type: redfish
    url: https://pdu-1.example.org
    chassis: "1"
    user: mete
    password_env: PDU_PASSWORD
    unit: kWh
    error_percent: 1
    interval: 30s
    nodes: [web-1, web-2]
  - name: plug
    type: mqtt
    url: tcp://broker:1883
    topic: tele/plug/SENSOR
    path: ENERGY.Power
    unit: W
    kind: power
    max_watts: 3500
    nodes: [lab/db-1]
  - {name: ups, type: prometheus, url: "http://prometheus:9090", query: "sum(ups_watts)", unit: W, wait: 10m, stale: 5m, nodes: [web-3]}
  - name: file
    type: file
    file: /run/meter
    unit: J
    wrap: 4294.967296e6
    max_watts: 1000
    nodes: [web-4]
`

func TestParse(t *testing.T) {
	specs, err := external.Parse([]byte(example), false)
	if err != nil {
		t.Fatal(err)
	}
	var got []external.Meter
	for _, s := range specs {
		got = append(got, s.Meter)
	}
	const day = 26 * time.Hour
	want := []external.Meter{
		{Name: "pdu-1", Kind: power.Energy, ErrorPPM: 10_000, MaxPower: 200_000e6, Stale: 15 * time.Minute, Wait: day, Nodes: []string{"web-1", "web-2"}},
		{Name: "plug", Kind: power.Power, ErrorPPM: 50_000, MaxPower: 3500e6, Stale: 2 * time.Minute, Wait: day, Nodes: []string{"lab/db-1"}},
		{Name: "ups", Kind: power.Power, ErrorPPM: 50_000, MaxPower: 100_000e6, Stale: 5 * time.Minute, Wait: 10 * time.Minute, Nodes: []string{"web-3"}},
		{Name: "file", Kind: power.Energy, Wrap: 4294967296e6, ErrorPPM: 50_000, MaxPower: 1000e6, Stale: 15 * time.Minute, Wait: day, Nodes: []string{"web-4"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("meters (-want +got):\n%s", diff)
	}
	if s := specs[1]; s.Topic != "tele/plug/SENSOR" || s.Path.String() != "ENERGY.Power" || s.Interval != 10*time.Second || specs[0].Password.Env != "PDU_PASSWORD" {
		t.Errorf("the specs are %+v", specs)
	}
	// JSON is YAML.
	if specs, err := external.Parse([]byte(`{"meters": [{"name": "a", "type": "http", "url": "http://a", "unit": "W", "token": "x", "nodes": ["n"]}]}`), true); err != nil || specs[0].Token.Clear != "x" {
		t.Errorf("JSON: %+v, %v", specs, err)
	}
}

// TestParseRefuses checks that an error names the line of the mistake.
func TestParseRefuses(t *testing.T) {
	good := "meters:\n  - name: a\n    type: http\n    url: http://a\n    unit: W\n    nodes: [n]\n"
	if _, err := external.Parse([]byte(good), false); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"wait: 2m", "wait: 26h", "interval: 1s", "interval: 1h", "stale: 10s", "stale: 26h", "error_percent: 0", "error_percent: 100", "max_watts: 0.5"} {
		if _, err := external.Parse([]byte(good+"    "+limit+"\n"), false); err != nil {
			t.Errorf("%s: %v", limit, err)
		}
	}
	for text, want := range map[string]string{
		"":                                          "no list of meters",
		"meters: 3":                                 "1",
		"meter: []":                                 `unknown field "meter"`,
		good + "    nods: [n]\n":                    `[7:5] unknown field "nods"`,
		good + "    interval: 0.5s\n":               "line 2: meter \"a\": interval 500ms",
		good + "    interval: soon\n":               `line 2: meter "a": time: invalid duration "soon"`,
		good + "    wrap: 5\n":                      "only a counter of energy wraps",
		good + "    kind: energy\n":                 "W is a unit of power",
		good + "    topic: x\n":                     "topic: a meter of type http has none",
		good + "    token: secret\n":                "others can read this file",
		good + "    password: secret\n":             "others can read this file",
		good + "    error_percent: -1\n":            "error_percent -1",
		good + "    error_percent: 100.5\n":         "error_percent 100.5",
		good + "    max_watts: 0\n    wrap: 1e-6\n": "only a counter of energy wraps",
		strings.Replace(good, "unit: W", "unit: J\n    wrap: -1", 1):                              "wrap -1: it is negative or too large",
		strings.Replace(good, "unit: W", "unit: J\n    wrap: 4.7e12", 1):                          "too large",
		strings.Replace(good, "unit: W", "unit: J\n    wrap: 1e-6", 1):                            "it could wrap unseen",
		good + "    error_percent: .nan\n":                                                        "error_percent NaN",
		good + "    max_watts: .inf\n":                                                            "max_watts +Inf",
		good + "    stale: 27h\n":                                                                 "stale 27h",
		good + "    wait: 1s\n":                                                                   "wait 1s",
		good + "    path: a..b\n":                                                                 "path",
		good + strings.TrimPrefix(good, "meters:\n"):                                              "line 7: meter \"a\": name: there is another meter",
		strings.Replace(good, "unit: W", "unit: V", 1):                                            `line 2: meter "a": unit "V" is none of`,
		strings.Replace(good, "    unit: W\n", "", 1):                                             "line 2: meter \"a\": unit: it has none",
		strings.Replace(good, "type: http", "type: snmp", 1):                                      `type "snmp" is none of`,
		strings.Replace(good, "    url: http://a\n", "", 1):                                       "url: it has none",
		strings.Replace(good, "[n]", "[]", 1):                                                     "nodes: it feeds none",
		strings.Replace(good, "name: a", "name: ''", 1):                                           "name: it has none",
		strings.Replace(good, "unit: W", "unit: J\n    wrap: 100000", 1):                          "it could wrap unseen",
		"meters:\n  - {name: a, type: mqtt, url: 'tcp://b', topic: 'a/#', unit: W, nodes: [n]}\n": "without wildcards",
	} {
		_, err := external.Parse([]byte(text), false)
		if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v, want %q", text, err, want)
		}
	}
}

// TestParseKeys gives meters of each type one key more than they must have, and one less.
func TestParseKeys(t *testing.T) {
	keys := map[string]string{"url": "http://a", "query": "q", "topic": "t", "file": "/f", "chassis": "c", "path": "p", "user": "u", "password": "p",
		"password_env": "P", "token": "t", "token_file": "/t", "ca_file": "/ca", "tls_insecure": "true"}
	for kind, c := range map[string]struct{ must, may string }{
		"redfish":    {"url", "chassis user password password_env ca_file tls_insecure"},
		"prometheus": {"url query", "user password password_env token token_file ca_file tls_insecure"},
		"http":       {"url", "path user password password_env token token_file ca_file tls_insecure"},
		"mqtt":       {"url topic", "path user password password_env ca_file tls_insecure"},
		"file":       {"file", "path"},
	} {
		must, may := strings.Fields(c.must), strings.Fields(c.may)
		parse := func(given ...string) error {
			var text strings.Builder
			text.WriteString("meters:\n  - {name: a, unit: W, nodes: [n], type: " + kind)
			for _, key := range given {
				text.WriteString(", " + key + ": '" + keys[key] + "'")
			}
			_, err := external.Parse([]byte(strings.ReplaceAll(text.String(), "'true'", "true")+"}\n"), true)
			return err
		}
		if err := parse(must...); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		for i, key := range must {
			if err := parse(slices.Delete(slices.Clone(must), i, i+1)...); err == nil || !strings.Contains(err.Error(), key+": it has none") {
				t.Errorf("%s without %s: %v", kind, key, err)
			}
		}
		for key := range keys {
			if slices.Contains(must, key) {
				continue
			}
			if err := parse(append(slices.Clone(must), key)...); (err == nil) != slices.Contains(may, key) {
				t.Errorf("%s with %s: %v", kind, key, err)
			}
		}
	}
}

// TestParseStale checks that a meter that is read seldom may be silent for three intervals, and that
// the largest possible counter is accepted.
func TestParseStale(t *testing.T) {
	const list = "meters:\n  - {name: a, type: file, file: /f, nodes: [n], "
	for text, want := range map[string]external.Meter{
		"unit: W, interval: 40s":                     {Stale: 2 * time.Minute},
		"unit: W, interval: 41s":                     {Stale: 123 * time.Second},
		"unit: J, interval: 6m":                      {Stale: 18 * time.Minute},
		"unit: J, wrap: 4.6e12":                      {Stale: 15 * time.Minute, Wrap: 4.6e18},
		"unit: W, interval: 41s, stale: 100s":        {Stale: 100 * time.Second},
		"unit: J, wrap: 1, max_watts: .09":           {Stale: 15 * time.Minute, Wrap: 1e6},
		"unit: kWh, wrap: 2, interval: 1m, wait: 1h": {Stale: 15 * time.Minute, Wrap: 7200e9},
	} {
		specs, err := external.Parse([]byte(list+text+"}\n"), false)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := specs[0].Meter; got.Stale != want.Stale || got.Wrap != want.Wrap {
			t.Errorf("%s: silent for %v, wraps at %d; want %v, %d", text, got.Stale, got.Wrap, want.Stale, want.Wrap)
		}
	}
}
