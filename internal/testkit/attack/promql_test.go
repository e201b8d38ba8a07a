package attack_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/attack"
)

// queryMemory limits the memory of a server that answers drawn queries, in bytes.
const queryMemory = 512 << 20

// TestQueries asks a real server some hundred drawn queries, by a viewer of one cluster. Whatever
// they are, each ends, and the server stays within its memory.
func TestQueries(t *testing.T) { testQueries(t, 1, 500, 3, 6, 60) }

// TestQueriesDrawn is TestQueries with many queries and more series, within a control group.
func TestQueriesDrawn(t *testing.T) {
	testkit.Stage(t, "drawn", "asks a server 100,000 queries")
	testQueries(t, rand.Uint64(), 100_000, 20, 50, 90)
}

func testQueries(t *testing.T, seed uint64, queries, nodes, workloads, windows int) {
	cfg := attack.Config{}
	args := []string{"--query-timeout", "10s", "--query-slow", "0s"}
	if queries > 1000 {
		cfg.Memory = queryMemory
	} else {
		args = append(args, "--query-memory", "128MiB")
	}
	s := attack.StartServer(t, programs, cfg, args...)
	metrics, histograms := s.Fill(t, nodes, workloads, windows)
	viewer := s.Token(t, "viewer", "--cluster", "lab")
	t.Logf("seed %d", seed)

	const parallel = 4
	var mu sync.Mutex
	var slowest time.Duration
	asked, valid, slowQuery, statuses := 0, 0, "", map[int]int{}
	reader := parser.NewParser(parser.Options{})
	var wait sync.WaitGroup
	for w := range parallel {
		wait.Go(func() {
			c := attack.NewClient(t)
			q := &attack.Queries{Rand: rand.New(rand.NewPCG(seed, uint64(w))), Metrics: metrics, Histograms: histograms,
				Labels: []string{"cluster", "node", "workload", "instance", "le", "app", "code", "name", "__name__", "nosuch"},
				Values: []string{"lab", "prod", "node0", "app-1", "i-1", "200", "", "é"}}
			for range queries / parallel {
				text := q.Draw()
				instant, params := q.Params(time.Now().Unix())
				path, form := "/api/v1/query_range", url.Values{"query": {text}}
				if instant {
					path = "/api/v1/query"
				}
				for k, v := range params {
					form.Set(k, v)
				}
				_, err := reader.ParseExpr(text)
				a := attack.Do(t, c, http.MethodPost, s.URL+path, strings.NewReader(form.Encode()), append(attack.Bearer(viewer), "Content-Type", "application/x-www-form-urlencoded")...)
				mu.Lock()
				asked++
				if err == nil {
					valid++
				}
				statuses[a.Status]++
				if a.Took > slowest {
					slowest, slowQuery = a.Took, path+" "+form.Encode()
				}
				if asked%1000 == 0 || asked == queries {
					t.Logf("%d queries, %.1f %% valid; answers %s; peak RSS %d MiB; slowest %v: %.1000s", asked, 100*float64(valid)/float64(asked), fmt.Sprint(statuses), s.PeakRSS()>>20, slowest.Round(time.Millisecond), slowQuery)
				}
				mu.Unlock()
				switch {
				case a.Status == 200, a.Status == 400, a.Status == 422, a.Status == 503:
				default:
					t.Errorf("%d %.300s: %s %.3000s", a.Status, a.Body, path, form.Encode())
				}
				// The answers have no machine of the other cluster.
				if strings.Contains(a.Body, "hidden") || strings.Contains(a.Body, `"cluster":"prod"`) && !strings.Contains(text, "prod") {
					t.Errorf("a viewer of lab sees prod: %.300s: %.3000s", a.Body, form.Encode())
				}
				if s.Ended() || t.Failed() {
					return
				}
			}
		})
	}
	wait.Wait()
	s.Check(t, queryMemory)
	if 10*valid < 8*queries && !t.Failed() {
		t.Errorf("only %d of %d queries are valid", valid, queries)
	}
}
