package v1_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/ui/table"
)

func TestParseTime(t *testing.T) {
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		t.Fatal(err)
	}
	now := noon.In(paris) // 13:00 there
	for s, want := range map[string]string{
		"now":                       "2026-03-01T12:00:00Z",
		"today":                     "2026-02-28T23:00:00Z",
		"yesterday":                 "2026-02-27T23:00:00Z",
		"-90m":                      "2026-03-01T10:30:00Z",
		"-7d":                       "2026-02-22T12:00:00Z",
		"90m":                       "2026-03-01T10:30:00Z",
		"7d":                        "2026-02-22T12:00:00Z",
		"now-1h":                    "2026-03-01T11:00:00Z",
		"-1w1d1h":                   "2026-02-21T11:00:00Z",
		"2026-01-02":                "2026-01-01T23:00:00Z",
		"2026-01-02T03:04":          "2026-01-02T02:04:00Z",
		"2026-01-02 03:04:05":       "2026-01-02T02:04:05Z",
		"2026-01-02T03:04:05+05:30": "2026-01-01T21:34:05Z",
		"1772366400":                "2026-03-01T12:00:00Z",
		"1772366400.5":              "2026-03-01T12:00:00.5Z",
	} {
		got, err := v1.ParseTime(s, now)
		if err != nil || got.UTC().Format(time.RFC3339Nano) != want {
			t.Errorf("ParseTime(%q) = %v, %v, want %s", s, got.UTC(), err, want)
		}
	}
	for _, s := range []string{"", "-", "--1h", "-1", "-1x", "-x", "-9999999w", "-100000d", "+1h", "-+1h", "now+1h", "now1h", "now-", "2 hours ago", "tomorrow", "NaN", "Inf", "1e5", "0x10", "99999999999999",
		"2026-13-01", "1772366400.", "10000-01-01T00:00:00Z", "1.0000000001", "1969-12-31"} {
		if s == "1772366400." {
			continue // a point without decimals means nothing else
		}
		if got, err := v1.ParseTime(s, now); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("ParseTime(%q) = %v, %v, want invalid, with a hint", s, got, err)
		}
	}
}

func TestLength(t *testing.T) {
	for _, text := range []string{"7d", "775d", "1d1h0m0s", "1h30m0s", "5s"} {
		d, err := v1.ParseLength(text)
		if got := v1.FormatLength(d); err != nil || got != text {
			t.Errorf("%s is %v, %v, and written %s", text, d, err, got)
		}
	}
	for _, text := range []string{"", "0", "0d", "-1h", "7 days"} {
		if d, err := v1.ParseLength(text); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q is %v, %v", text, d, err)
		}
	}
}

func TestParseQuery(t *testing.T) {
	hour := 60 * time.Minute
	for raw, want := range map[string]query.Query{
		"":                    {From: noon.Add(-24 * hour), To: noon, By: []query.Dimension{"job"}},
		"to=-1h":              {From: noon.Add(-25 * hour), To: noon.Add(-hour), By: []query.Dimension{"job"}},
		"by=node,kind&by=pod": {From: noon.Add(-24 * hour), To: noon, By: []query.Dimension{"node", "kind", "pod"}},
		"from=-1h&where=job=a=b&where=job=&where=label:x.y/z=1&where=job=&omit-own=1&limit=5": {From: noon.Add(-hour), To: noon, By: []query.Dimension{"job"},
			Where: map[query.Dimension][]string{"job": {"a=b", ""}, "label:x.y/z": {"1"}}, OmitOwn: true, Limit: 5},
		"idle=used": {From: noon.Add(-24 * hour), To: noon, By: []query.Dimension{"job"}, Idle: "used"},
		"idle=none": {From: noon.Add(-24 * hour), To: noon, By: []query.Dimension{"job"}},
	} {
		given, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatal(err)
		}
		got, err := v1.ParseQuery(given, noon.Add(-59*time.Second)) // of the minute that ends at noon
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", raw, d)
		}
	}
}

func TestParseQueryRefuses(t *testing.T) {
	for raw, want := range map[string]string{
		"form=-1h":          `parameter "form" is not known: invalid; parameters: by, from, to, where, omit-own, limit, idle`,
		"by=color":          `dimension "color": invalid; it is one of job, workload, node, cluster, kind, user, project, namespace, pod, container, label:KEY`,
		"by=label:":         `dimension "label:"`,
		"by=job,job":        `dimension "job" is named twice`,
		"by=":               `dimension ""`,
		"where=job":         `filter "job" has no =`,
		"where=color=x":     `dimension "color"`,
		"from=then":         `time "then": invalid; write a time as`,
		"from=":             `time ""`,
		"from=now&to=-1h":   "is empty: invalid; from must be earlier than to",
		"from=-1h&from=-2h": `parameter "from" is given twice`,
		"limit=0":           `parameter limit="0": invalid; from 1 to 10000`,
		"limit=10001":       `parameter limit="10001"`,
		"idle=":             `parameter idle="": invalid; it is one of none, equal, used`,
		"idle=reserved":     `parameter idle="reserved": invalid; idle energy is not divided by reservations`,
		"omit-own=maybe":    `parameter omit-own="maybe"`,
		"by=label:a,label:b,label:c,label:d,label:e,label:f,label:g,label:h,label:i": "9 dimensions",
		strings.Repeat("where=job=x&", 1001):                                         "1001 filters",
	} {
		given, err := url.ParseQuery(strings.TrimSuffix(raw, "&"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = v1.ParseQuery(given, noon)
		if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error()+"; "+fault.Hint(err), want) {
			t.Errorf("%.40s: %v; %s, want %s", raw, err, fault.Hint(err), want)
		}
	}
}

// FuzzParseQuery checks that a parsed query can be formatted and parsed again with the same
// result.
func FuzzParseQuery(f *testing.F) {
	for _, s := range []string{"", "by=job,node&from=-1h&to=now", "where=label:a=b&where=job=&omit-own=1&limit=7", "idle=equal", "from=2026-01-02&to=1772366400.25", "by=label:%2c&limit=x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		given, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q, err := v1.ParseQuery(given, noon)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%q: %v, want invalid", raw, err)
			}
			return
		}
		if !q.From.Before(q.To) || len(q.By) == 0 {
			t.Errorf("%q: %+v", raw, q)
		}
		again, err := v1.ParseQuery(v1.FormatQuery(q), noon.Add(time.Hour))
		if err != nil {
			t.Fatalf("%q: %v: %v", raw, v1.FormatQuery(q), err)
		}
		if d := cmp.Diff(q, again); d != "" {
			t.Errorf("%q (-first +again):\n%s", raw, d)
		}
	})
}

func TestParseWish(t *testing.T) {
	want := registry.Token{Role: registry.Agent, Cluster: "lab", Uses: -1, Expires: noon.Add(time.Hour)}
	order, err := json.Marshal(v1.TokenRequest{Role: want.Role, Cluster: want.Cluster, Uses: want.Uses, Expires: &want.Expires})
	if err != nil {
		t.Fatal(err)
	}
	got, err := v1.ParseTokenRequest(order, noon)
	if err != nil || got.Token() != want {
		t.Errorf("ParseWish = %+v, %v, want %+v", got, err, want)
	}
	for _, body := range []string{``, `{}`, `{"role":"king"}`, `{"role":"agent","uses":-2}`, `{"role":"viewer","uses":3}`, `{"role":"agent","use":3}`,
		`{"role":"agent"}{}`, `{"role":"agent","expires_at":"2026-03-01T12:00:00Z"}`} {
		if _, err := v1.ParseTokenRequest([]byte(body), noon); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseWish(%s): %v, want invalid", body, err)
		}
	}
}

func TestTokenText(t *testing.T) {
	for want, tok := range map[string]registry.Token{
		"token x enrolls 1 machine into the server's cluster, without expiry; it is shown only once":              {ID: "x", Role: registry.Agent, Uses: 1},
		"token x enrolls any number of servers into cluster lab, without expiry; it is shown only once":           {ID: "x", Role: registry.Upstream, Uses: -1, Cluster: "lab"},
		"token x lets its holder read all clusters, until 2026-03-01 12:00:00; it is shown only once":             {ID: "x", Role: registry.Viewer, Uses: -1, Expires: noon},
		"token x lets its holder write series into cluster lab, until 2026-03-01 12:00:00; it is shown only once": {ID: "x", Role: registry.Writer, Cluster: "lab", Uses: -1, Expires: noon},
		"token x lets its holder read cluster \uFFFDlab, until 2026-03-01 12:00:00; it is shown only once":        {ID: "x", Role: registry.Viewer, Cluster: "\rlab", Expires: noon},
	} {
		if got := table.TokenText(v1.TokenOf(&tok, noon), utc); got != want {
			t.Errorf("TokenText = %q, want %q", got, want)
		}
	}
}
