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
	"os"
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
	"mete.dev/mete/internal/store/ledger"
)

// A Config sets the size of a fleet.
type Config struct {
	Nodes, Each int // machines, and workloads per machine
	// Windows is the number of windows per machine, the latest of them now, and Window
	// their length: 0 means a quarter of an hour in windows of ten seconds.
	Windows int
	Window  time.Duration
	// Days is how many days before today are in the ledger, written directly into its tables
	// as rows of hours and days; their minutes are not kept. The metrics have only the windows.
	Days int
	// Ago is how long all machines have sent nothing: the latest window ends that long before now.
	Ago time.Duration
	// Tame leaves out the hostile names.
	Tame bool
	// Reserved says that the workloads are pods of Kubernetes, of which it is known what they reserve.
	Reserved bool
	// Volumes says, with Reserved, that each cluster has a persistent volume of 100 GiB, of which a quarter is used.
	Volumes bool
	// Classes says that most workloads have network traffic of some classes.
	Classes bool
	// Ledger is the file of a ledger that the server begins with, as the only one that uses it.
	Ledger string
}

// A Fleet is a server with the simulated nodes.
type Fleet struct {
	URL, Viewer string // its address, and a viewer token
	Server      *server.Server

	state string
	stop  func() error

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

// Open starts a server and fills it; it stops with the test. Without nodes it stays empty.
func Open(t testing.TB, c Config) *Fleet {
	t.Helper()
	if c.Windows == 0 {
		c.Windows, c.Window = 90, 10*time.Second
	}
	f := &Fleet{state: t.TempDir()}
	if c.Ledger != "" {
		if err := os.Link(c.Ledger, filepath.Join(f.state, "ledger.db")); err != nil {
			t.Fatal(err)
		}
	}
	f.start(t)
	t.Cleanup(func() {
		if err := f.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := f.sendBatches(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c.Reserved {
		if err := f.reserve(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if c.Days > 0 {
		now := time.Now()
		// Hours that are over are folded first: only minutes of today remain.
		err := errors.Join(f.Server.Ledger.Fold(t.Context(), now.Add(ledger.Default().Grace)), seed(t.Context(), filepath.Join(f.state, "ledger.db"), c, now), f.Server.Ledger.Fold(t.Context(), now))
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if f.Viewer, _, err = f.Server.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Uses: -1}); err != nil {
		t.Fatal(err)
	}
	return f
}

// start starts the server on the fleet's state.
func (f *Fleet) start(t testing.TB) {
	t.Helper()
	cfg := server.Default()
	cfg.State = f.state
	s, err := server.Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Run(ctx) })
	web := httptest.NewUnstartedServer(f.recordRequests(s.Handler()))
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	web.TLS = s.Authority.ServerTLS()
	web.StartTLS()
	f.URL, f.Server = web.URL, s
	f.stop = func() error {
		web.Close()
		cancel()
		return errors.Join(g.Wait(), s.Close())
	}
}

// Restart stops the server and starts it again on the same state, at another address.
func (f *Fleet) Restart(t testing.TB) {
	t.Helper()
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	f.start(t)
}

// sendBatches sends the batches of all machines, some concurrently.
func (f *Fleet) sendBatches(ctx context.Context, c Config) error {
	now := time.Now().Truncate(10 * time.Second)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range c.Nodes {
		end := now.Add(-c.Ago)
		if i == c.Nodes-1 {
			end = end.Add(-Silent)
		}
		m, cluster := newMachine(c, i), clusterOf(i)
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
