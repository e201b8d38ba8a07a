package external_test

import (
	"errors"
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
	for _, limit := range []string{"wait: 2m", "wait: 26h", "interval: 1s", "interval: 1h", "stale: 10s", "stale: 26h", "error_percent: 0", "error_percent: 100"} {
		if _, err := external.Parse([]byte(good+"    "+limit+"\n"), false); err != nil {
			t.Errorf("%s: %v", limit, err)
		}
	}
	for text, want := range map[string]string{
		"":                                                               "no list of meters",
		"meters: 3":                                                      "1",
		"meter: []":                                                      `unknown field "meter"`,
		good + "    nods: [n]\n":                                         `[7:5] unknown field "nods"`,
		good + "    interval: 0.5s\n":                                    "line 2: meter \"a\": interval 500ms",
		good + "    interval: soon\n":                                    `line 2: meter "a": time: invalid duration "soon"`,
		good + "    wrap: 5\n":                                           "only a counter of energy wraps",
		good + "    kind: energy\n":                                      "W is a unit of power",
		good + "    topic: x\n":                                          "topic: a meter of type http has none",
		good + "    token: secret\n":                                     "others can read this file",
		good + "    password: secret\n":                                  "others can read this file",
		good + "    error_percent: -1\n":                                 "error_percent -1",
		good + "    error_percent: .nan\n":                               "error_percent NaN",
		good + "    max_watts: .inf\n":                                   "max_watts +Inf",
		good + "    stale: 27h\n":                                        "stale 27h",
		good + "    wait: 1s\n":                                          "wait 1s",
		good + "    path: a..b\n":                                        "path",
		good + strings.TrimPrefix(good, "meters:\n"):                     "line 7: meter \"a\": name: there is another meter",
		strings.Replace(good, "unit: W", "unit: V", 1):                   `line 2: meter "a": unit "V" is none of`,
		strings.Replace(good, "    unit: W\n", "", 1):                    "line 2: meter \"a\": unit: it has none",
		strings.Replace(good, "type: http", "type: snmp", 1):             `type "snmp" is none of`,
		strings.Replace(good, "    url: http://a\n", "", 1):              "url: it has none",
		strings.Replace(good, "[n]", "[]", 1):                            "nodes: it feeds none",
		strings.Replace(good, "name: a", "name: ''", 1):                  "name: it has none",
		strings.Replace(good, "unit: W", "unit: J\n    wrap: 100000", 1): "it could wrap unseen",
		"meters:\n  - {name: a, type: mqtt, url: 'tcp://b', topic: 'a/#', unit: W, nodes: [n]}\n": "without wildcards",
	} {
		_, err := external.Parse([]byte(text), false)
		if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v, want %q", text, err, want)
		}
	}
}
