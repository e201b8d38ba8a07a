// Package fleet fills a real server with the data of simulated machines, as their agents
// would send it, for tests of fleet views.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/server"
)

// A Config sets the size of a fleet.
type Config struct {
	Nodes, Each int // machines, and workloads per machine
	// Windows is the number of windows per machine, the latest of them now, and Window
	// their length: 0 means a quarter of an hour in windows of ten seconds.
	Windows int
	Window  time.Duration
	// Days is how many days before today are in the ledger, plus the hours of today,
	// written directly into its tables as rows of hours and days. The metrics have only the
	// windows.
	Days int
	// Tame leaves out the hostile names.
	Tame bool
}

// A Fleet is a server with the simulated nodes.
type Fleet struct {
	URL, Viewer string // its address, and a viewer token
	Server      *server.Server

	mu    sync.Mutex
	asked []string
}

// Requests returns the HTTP requests since the last call without duplicates: paths with
// parameters.
func (f *Fleet) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.asked
	f.asked = nil
	slices.Sort(list)
	return slices.Compact(list)
}

func (f *Fleet) recordRequests(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/api/") || r.URL.Path == "/metrics" {
			f.mu.Lock()
			f.asked = append(f.asked, r.URL.RequestURI())
			f.mu.Unlock()
		}
		h.ServeHTTP(w, r)
	})
}

// HostileNames are names with markup and special characters: those of the first workload of
// the first machines.
var HostileNames = []string{`<img src=x onerror="document.title='pwned'">`, `"><script>document.title='pwned'</script>`, "نص عربي", `a"b\c{d}|e.*`, "javascript:alert(1)"}

// Silent is how long the last machine has sent nothing.
const Silent = 12 * time.Minute

// Open starts a server and fills it; it stops with the test.
func Open(t testing.TB, c Config) *Fleet {
	t.Helper()
	if c.Windows == 0 {
		c.Windows, c.Window = 90, 10*time.Second
	}
	cfg := server.Default()
	cfg.State = t.TempDir()
	s, err := server.Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Run(ctx) })
	f := &Fleet{Server: s}
	web := httptest.NewUnstartedServer(f.recordRequests(s.Handler()))
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	web.TLS = s.Authority.ServerTLS()
	web.StartTLS()
	t.Cleanup(func() {
		web.Close()
		stop()
		if err := errors.Join(g.Wait(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	f.URL = web.URL
	if err := f.sendBatches(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c.Days > 0 {
		if err := errors.Join(seed(t.Context(), filepath.Join(cfg.State, "ledger.db"), c.Days, time.Now()), s.Ledger.Fold(t.Context(), time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	if f.Viewer, _, err = s.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Uses: -1}); err != nil {
		t.Fatal(err)
	}
	return f
}

// sendBatches sends the batches of all machines, some concurrently.
func (f *Fleet) sendBatches(ctx context.Context, c Config) error {
	now := time.Now().Truncate(10 * time.Second)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range c.Nodes {
		end := now
		if i == c.Nodes-1 {
			end = now.Add(-Silent)
		}
		m := &machine{Config: c, node: fmt.Sprintf("01J0000000000000000000%04d", i), name: fmt.Sprintf("rack%d-n%02d", i/8+1, i%8+1), seed: i, cpus: 16 + 16*(i%3)}
		cluster := []string{"north", "south"}[i%2]
		g.Go(func() error {
			if err := f.Server.Ledger.PutNode(ctx, registry.Node{ID: m.node, Name: m.name, Cluster: cluster, MachineID: fmt.Sprint(i), At: now.Add(-time.Hour)}); err != nil {
				return err
			}
			m.fill()
			return m.batches(end, now, func(sent []byte, clock batch.Clock) error {
				r, err := f.Server.Receiver.Offer(ctx, m.node, clock, sent)
				if err == nil && r.Verdict != batch.Accepted {
					err = fmt.Errorf("%s: %+v", m.name, r)
				}
				return err
			})
		})
	}
	return g.Wait()
}
