package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/exposition"
	"mete.dev/mete/internal/x/httpx"
)

// A status provides the data of an agent's status endpoints.
type status struct {
	failing func() string   // why windows cannot be stored; "" if they can
	notes   func() []string // what an administrator may want to know
	metrics func() string   // of the agent
	machine *machineMetrics // of the machine
}

// maxStatusConns limits the connections to the status listener: any user of the machine can open them.
const maxStatusConns = 64

// serveStatus serves /healthz and /metrics on an address until ctx ends.
func serveStatus(ctx context.Context, addr string, s status) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fault.WithHint(fmt.Errorf("--status %s: %w", addr, err), "choose another address with --status, or none with --status ''")
	}
	srv := &http.Server{Handler: s.handler(ln.Addr()), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := srv.Serve(httpx.LimitConns(ln, maxStatusConns)); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		return srv.Close()
	})
	return g.Wait()
}

// handler serves the listener at an address. It refuses requests of web pages of other sites, and at
// an address of the loopback those to other host names: such a page may point its own name there.
func (s status) handler(at net.Addr) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if why := s.failing(); why != "" {
			http.Error(w, "windows cannot be kept: "+why, http.StatusServiceUnavailable)
			return
		}
		text := strings.Join(append([]string{"ok"}, s.notes()...), "\n") + "\n"
		_, _ = io.WriteString(w, text) // the client may be gone
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", exposition.ContentType)
		_, _ = io.WriteString(w, s.metrics())
		_, _ = io.WriteString(w, s.machine.text())
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := httpx.CheckSite(r, false); err != nil {
			httpx.Fail(w, err)
			return
		}
		if isLocal(at.String()) && !isLocal(r.Host) {
			http.Error(w, "this name is not served here: use the address of --status", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// writePartial writes whether groups of the machine cannot be seen.
func writePartial(t *exposition.Text, partial string) {
	t.Gauge("mete_agent_partial", "1 if the agent sees only a part of the machine's control groups, as in a container; use outside of them counts for system.", oneIf(partial != ""))
}

func oneIf(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// writeDirectiveMetrics writes the state of the sections of the server's directives.
func writeDirectiveMetrics(t *exposition.Text, sections []directives.SectionStatus) {
	if len(sections) == 0 {
		return
	}
	t.Begin("gauge", "mete_agent_directive_valid_seconds", "Time until a section of the server's directives expires unless the server confirms it; 0 if none holds.")
	for _, s := range sections {
		t.Put(s.Left.Seconds(), "section", s.Name)
	}
	t.Begin("gauge", "mete_agent_directive_rejected", "1 if the latest version of a section is not followed.")
	for _, s := range sections {
		t.Put(oneIf(s.Rejected != ""), "section", s.Name)
	}
}

// notesOf returns what of the machine is not seen by name, and which sections of the server's directives do not hold.
func notesOf(partial string, sections []directives.SectionStatus) (notes []string) {
	if partial != "" {
		notes = append(notes, partial)
	}
	for _, s := range sections {
		switch {
		case s.Rejected != "":
			notes = append(notes, "directive "+s.Name+" is not followed: "+s.Rejected)
		case s.Left == 0:
			notes = append(notes, "directive "+s.Name+" expired: the server did not confirm it")
		}
	}
	return notes
}

// metrics returns the state of an agent in Prometheus's text format.
func metrics(s agent.Status) string {
	var t exposition.Text
	t.Counter("mete_agent_windows_total", "Windows that were made durable.", float64(s.Windows))
	t.Counter("mete_agent_rows_total", "Rows of those windows.", float64(s.Rows))
	t.Gauge("mete_agent_jobs", "Registered jobs that have not ended.", float64(s.Jobs))
	t.Gauge("mete_agent_spool_failing", "1 while windows cannot be made durable.", oneIf(s.Failing != ""))
	t.Gauge("mete_agent_record_failing", "1 while ends of jobs and groups are not recorded at once.", oneIf(s.Unrecorded != ""))
	t.Counter("mete_agent_spool_notes_total", "Records of ends of jobs and groups between windows, each synced.", float64(s.Spool.Notes))
	writeDefects(&t, s.Violations, s.Missed)
	writePartial(&t, s.Partial)
	t.Gauge("mete_agent_connected", "1 while the server takes batches.", oneIf(s.Sender.State == sender.Connected))
	t.Counter("mete_agent_sent_batches_total", "Batches that the server took.", float64(s.Sender.Batches))
	t.Counter("mete_agent_sent_bytes_total", "Bytes of those batches.", float64(s.Sender.Bytes))
	t.Counter("mete_agent_send_retries_total", "Offers that failed and were repeated.", float64(s.Sender.Retries))
	t.Gauge("mete_agent_spool_bytes", "Bytes of the spool on disk.", float64(s.Spool.Bytes))
	t.Gauge("mete_agent_spool_waiting_bytes", "Approximate bytes of the spool that no server has.", float64(s.Spool.Waiting))
	t.Gauge("mete_agent_spool_limit_bytes", "Size of the spool at which the agent drops its oldest windows.", float64(s.Spool.Limit))
	t.Gauge("mete_agent_spool_windows", "Windows that wait to be sent.", float64(s.Spool.Windows))
	t.Counter("mete_agent_spool_dropped_total", "Windows dropped because the spool was full.", float64(s.Spool.Dropped))
	t.Counter("mete_agent_spool_corrupt_total", "Records of the spool that could not be read.", float64(s.Spool.Corrupt))
	t.Counter("mete_agent_spool_refused_total", "Batches that the server rejected as invalid.", float64(s.Spool.Refused))
	writeDirectiveMetrics(&t, s.Directives)
	writeGuestRelayMetrics(&t, s.GuestRelay)
	return t.String()
}
