package api_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/query"
)

// slowNodes is a ledger that takes a second to list the nodes, and knows how many ask
// at once.
type slowNodes struct {
	*book
	running, most atomic.Int64
}

func (s *slowNodes) Nodes(context.Context, query.Scope) ([]query.Node, error) {
	s.most.Store(max(s.most.Load(), s.running.Add(1)))
	time.Sleep(time.Second)
	s.running.Add(-1)
	return nil, nil
}

// TestCrowd checks that a client with many requests at once delays neither the answers to
// other clients nor other work of the ledger.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &slowNodes{book: example()}
		h := api.New(l, l, nil, func(r *http.Request) (query.Scope, error) {
			return query.Scope{Clusters: []string{r.Header.Get("Cluster")}}, nil
		}, time.Now, slog.New(slog.DiscardHandler))
		began := time.Now()
		get := func(cluster string) *httptest.ResponseRecorder {
			r := httptest.NewRequest("GET", "/v1/nodes", http.NoBody)
			r.Header.Set("Cluster", cluster)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		var all sync.WaitGroup
		var crowd, late atomic.Int64
		for range 400 {
			all.Go(func() {
				w := get("many")
				switch body := w.Body.String(); {
				case w.Code == 200:
				case w.Code == 503 && strings.Contains(body, "too many wait: 256 requests") && w.Header().Get("Retry-After") != "":
					crowd.Add(1)
				case w.Code == 503 && strings.Contains(body, "no answer within 30s"):
					late.Add(1)
				default:
					t.Errorf("%d %s", w.Code, body)
				}
			})
		}
		synctest.Wait()
		if running := l.running.Load(); running != 3 {
			t.Errorf("%d requests of one cluster run, want 3", running)
		}
		if w := get("few"); w.Code != 200 || time.Since(began) != time.Second {
			t.Errorf("another one after %v: %d %s", time.Since(began), w.Code, w.Body)
		}
		all.Wait()
		// Three at once for 30 s; of those that began within them the last ended after.
		if crowd.Load() != 400-256-3 || late.Load() < 150 || late.Load() > 256-3*29 || l.most.Load() != 4 {
			t.Errorf("%d were refused at once and %d later; %d ran at most", crowd.Load(), late.Load(), l.most.Load())
		}
	})
}
