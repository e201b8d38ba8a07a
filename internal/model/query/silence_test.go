package query_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
)

// Matchers compare as Alertmanager's do: all of them, whole values, an absent label as empty.
func TestMatchers(t *testing.T) {
	alert := map[string]string{"alertname": "Down", "node": "rack1-n01", "cluster": "lab"}
	for _, tc := range []struct {
		text, form string
		want       bool
	}{
		{`alertname=Down`, `alertname="Down"`, true},
		{` alertname = "Down" , node=~"rack1-.*"`, `alertname="Down", node=~"rack1-.*"`, true},
		{`node=~rack1`, `node=~"rack1"`, false},
		{`node=~"a|rack1-n01"`, `node=~"a|rack1-n01"`, true},
		{`node!~"rack2.*", alertname=Down`, `node!~"rack2.*", alertname="Down"`, true},
		{`node!=rack1-n01,alertname=Down`, `node!="rack1-n01", alertname="Down"`, false},
		{`alertname=Down,namespace=""`, `alertname="Down", namespace=""`, true},
		{`alertname=Down,namespace!=""`, `alertname="Down", namespace!=""`, false},
		{`alertname=Up`, `alertname="Up"`, false},
		{`alertname="a, b\"="`, `alertname="a, b\"="`, false},
	} {
		ms, err := query.ParseMatchers(tc.text)
		if err != nil || ms.String() != tc.form || ms.Match(alert) != tc.want {
			t.Errorf("%s: %v, %v; want %s, %v; %v", tc.text, ms, ms.Match(alert), tc.form, tc.want, err)
		}
		if again, err := query.ParseMatchers(ms.String()); err != nil || again.String() != tc.form {
			t.Errorf("%s: again %v, %v", tc.text, again, err)
		}
	}
	for _, bad := range []string{"", "Down", "alertname", "=x", "1a=x", `alertname="x`, `alertname="x" node=y`, "alertname=x,", `node=~"("`, `node=~".*"`, `node=""`, `namespace!="x"`,
		strings.Repeat("a=b,", query.MaxMatchers) + "a=b", "a=" + strings.Repeat("b", query.MaxMatcherBytes),
		`a=~` + strings.Repeat(`\.`, query.MaxMatcherBytes/2-10)} {
		if ms, err := query.ParseMatchers(bad); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("%.40q: %v, %v", bad, ms, err)
		}
	}
	for text, want := range map[string]bool{"cluster=lab": true, "cluster=~lab": false, "cluster!=lab,a=b": false, "cluster=other": false, "node=x": false} {
		if ms, err := query.ParseMatchers(text); err != nil || ms.Only("cluster", []string{"lab", "x"}) != want {
			t.Errorf("%s is only of the clusters: %v, want %v; %v", text, !want, want, err)
		}
	}
}

func TestSilenceState(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ms, err := query.ParseMatchers("alertname=Down")
	if err != nil {
		t.Fatal(err)
	}
	s := query.Silence{Matchers: ms, Starts: start, Ends: start.Add(time.Hour)}
	for after, want := range map[time.Duration]string{-time.Second: "pending", 0: "active", time.Hour - 1: "active", time.Hour: "expired"} {
		now := start.Add(after)
		if got := s.State(now); got != want || s.Suppresses(map[string]string{"alertname": "Down"}, now) != (want == "active") || s.Suppresses(nil, now) {
			t.Errorf("after %v: %s, want %s", after, got, want)
		}
	}
}
