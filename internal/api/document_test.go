package api_test

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/apispec"
)

// knownValues are valid values of parameters that select something in [example]. There are few
// ranges and cursors, since not all valid ones can be combined.
var knownValues = map[string][]string{
	"run": {"a", "abc27"}, "from": {"-1h", "2026-02-28", "-7d"}, "to": {"now", "2026-03-02T00:00:00Z", "1772400000"}, "by": {"job", "kind,node", "label:app"},
	"where": {"job=build", "kind=", "label:app=web&"}, "node": {"N1", "web-1", "none"}, "cluster": {"", "lab"}, "cursor": {"TjE"}, "If-None-Match": {`"x"`, "*"},
}

func TestDocument(t *testing.T) {
	h := handler(example(), all)
	d := apispec.Read(t, h)
	for _, path := range []string{"/v1/usage", "/v1/connections", "/v1/jobs", "/v1/energy", "/v1/rates", "/v1/summary", "/v1/clusters", "/v1/nodes", "/v1/workloads", "/v1/runs", "/v1/vms",
		"/v1/dimensions", "/v1/sources", "/v1/health", "/v1/gaps", "/v1/uptime", "/v1/streams", "/v1/alerts", "/healthz"} {
		if q := d.Paths[path].Get; q.OperationID == "" || q.Summary == "" {
			t.Errorf("%s is not described: %+v", path, q)
		}
	}
	for path, item := range d.Paths {
		for _, p := range item.Get.Parameters {
			if p.Description == "" {
				t.Errorf("%s: %s has no description", path, p.Name)
			}
		}
		r := httptest.NewRequest(http.MethodGet, path, nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if d.Check(t, r, w); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestFuzz checks that the server answers requests that match the description, refuses all
// others, and never fails.
func TestFuzz(t *testing.T) {
	h := handler(example(), all)
	apispec.Read(t, h).Fuzz(t, h, knownValues)
}

// TestRefusalsAsDescribed checks that a refusal matches the description, whether or not the
// caller may read anything.
func TestRefusalsAsDescribed(t *testing.T) {
	d := apispec.Read(t, handler(example(), all))
	nobody := handler(example(), func(*http.Request) (query.Scope, error) { return query.Scope{}, nil })
	for path := range d.Paths {
		for _, target := range []string{path + "?no=1", path + "?limit=0", path} {
			r := httptest.NewRequest(http.MethodGet, target, nil)
			w := httptest.NewRecorder()
			nobody.ServeHTTP(w, r)
			d.Check(t, r, w)
			if strings.Contains(target, "?no") && path != "/healthz" && w.Code != 400 {
				t.Errorf("%s: %d, want 400", target, w.Code)
			}
		}
	}
}

// A hugeLedger answers with groups of which each amount exceeds 2^63.
type hugeLedger struct{ *book }

func (l hugeLedger) Usage(ctx context.Context, q query.Query) (*query.Answer, error) {
	a, err := l.book.Usage(ctx, q)
	for i := range a.Groups {
		all := query.Total{Present: usage.All}
		usage.All.Each(func(r usage.Resource) {
			all.Sum[r] = unit.Sum{}.Add(math.MaxInt64).Add(math.MaxInt64)
			all.Quality.Set(r, usage.Measured)
		})
		a.Groups[i].Usage.Add(&all)
	}
	return a, err
}

// TestLargeAsDescribed checks that the description also covers amounts above 2^53, which a
// float64 cannot hold exactly, such as the byte-seconds of 105 GB over a day.
func TestLargeAsDescribed(t *testing.T) {
	b := hugeLedger{example()}
	h := api.New(b, b, b, all, func() time.Time { return noon }, slog.New(slog.DiscardHandler))
	d := apispec.Read(t, h)
	for _, target := range []string{"/v1/usage", "/v1/jobs"} {
		r := httptest.NewRequest(http.MethodGet, target, nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if d.Check(t, r, w); !strings.Contains(w.Body.String(), `"memory_byte_seconds":"18`) {
			t.Errorf("%s: %d %.2000s", target, w.Code, w.Body)
		}
	}
}
