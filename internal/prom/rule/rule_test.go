package rule_test

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/testkit/hosttest"
)

func shipped(t *testing.T) *rulefmt.RuleGroups {
	t.Helper()
	groups, errs := rulefmt.Parse(rule.Shipped, false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	return groups
}

// The shipped rules pass their unit tests with Debian's promtool.
func TestShipped(t *testing.T) {
	hosttest.Need(t, "promtool")
	files, err := filepath.Glob("testdata/*.test.yml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, args := range [][]string{{"check", "rules", rule.File}, append([]string{"test", "rules"}, files...)} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// Each alert has a test in which it fires, one in which it does not, a severity, a summary
// and a description; each recording rule has a test of its value.
func TestRulesHaveTests(t *testing.T) {
	files, err := filepath.Glob("testdata/*.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	for _, g := range shipped(t).Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				// The tests of MeteTrafficSpike cover the traffic's recording rule.
				if !regexp.MustCompile(`expr: `+regexp.QuoteMeta(r.Record)+`\n`).Match(text) && r.Record != "node:mete_network_bytes_per_second:avg5m" {
					t.Errorf("%s is not tested", r.Record)
				}
				continue
			}
			name := `alertname: ` + r.Alert + `\n\s+exp_alerts:`
			if !regexp.MustCompile(name + `[^\[\n]*\n`).Match(text) {
				t.Errorf("no test in which %s fires", r.Alert)
			}
			if r.Alert != "MeteDeadMan" && !regexp.MustCompile(name+` \[\]`).Match(text) {
				t.Errorf("no test in which %s does not fire", r.Alert)
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks severity, summary or description: labels %v, annotations %v", r.Alert, r.Labels, r.Annotations)
			}
		}
	}
}

func TestParseCap(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]rule.Cap{
		"lab=5000":      {Cluster: "lab", Watts: 5000},
		"lab/node=1=7":  {},
		"lab/a.b=400.5": {Cluster: "lab", Node: "a.b", Watts: 400.5},
		"lab":           {}, "=5": {}, "lab/=5": {}, "lab=-5": {}, "lab=0": {}, "lab=NaN": {}, "lab=Inf": {}, "lab=5kW": {}, "/a=5": {},
	} {
		got, err := rule.ParseCap(s)
		if got != want || (want == rule.Cap{}) != errors.Is(err, fault.ErrInvalid) || err != nil && fault.Hint(err) == "" {
			t.Errorf("%q is %+v, %v; want %+v", s, got, err, want)
		}
	}
}
