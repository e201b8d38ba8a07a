package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// askSelf is a job that uses CPU time until the server reports some of it.
func askSelf() int {
	c, err := client.ForJob(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	for {
		s, err := c.Self(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 3
		}
		if cpu := s.Usage.Get("cpu_seconds"); cpu.Quality != usage.Absent && cpu.Value.String() != "0" {
			_, _ = os.Stdout.Write(v1.JSON(s)) // the caller checks the output
			return 0
		}
		for spin := time.Now().Add(50 * time.Millisecond); time.Now().Before(spin); {
		}
	}
}

// checkSelfQuery runs a job that queries its own use, and checks the answer.
func checkSelfQuery(t *testing.T, m *mete, args ...string) {
	t.Helper()
	r, out := m.job(append(append([]string{"--name", "asker"}, args...), "--", "env", "METE_TEST_SELF=1", os.Args[0])...)
	if out.code != 0 {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	var s v1.Self
	if err := json.Unmarshal([]byte(out.stdout), &s); err != nil {
		t.Fatal(err)
	}
	if s.Name != "asker" || s.Gaps != 0 || s.Through == nil || time.Since(*s.Through) > time.Hour || s.Ended != nil || s.User == "" {
		t.Errorf("%+v", s)
	}
	var told int64
	if _, err := fmt.Sscan(s.Usage.Get("cpu_seconds").Value.String(), &told); err != nil {
		t.Fatal(err)
	}
	if all, _ := r.Get(report.CPU); told > all || told <= 0 {
		t.Errorf("the server reported %d ns of CPU time of a job that used %d", told, all)
	}
}

// TestSelfServer checks that a job that is sent to a server queries its use there.
func TestSelfServer(t *testing.T) {
	b := newBench(t)
	m := b.program()
	checkSelfQuery(t, m, "--server", b.url(), patient)
	hosttest.Need(t, "curl")
	out := m.run("run", "-q", "--server", b.url(), patient, "--name", "curious", "--", "sh", "-c", `curl -fsS --cacert "$METE_SELF_CA" -H "Authorization: Bearer $METE_SELF_TOKEN" "$METE_SELF_URL" &&
		curl -sS -o /dev/null -w '%{http_code}' --cacert "$METE_SELF_CA" -H "Authorization: Bearer $METE_SELF_TOKEN" "${METE_SELF_URL%self}usage"`)
	if out.code != 0 || !strings.Contains(out.stdout, `"node_name":`) || !strings.HasSuffix(out.stdout, "403") {
		t.Errorf("exit %d: %s%s", out.code, out.stdout, out.stderr)
	}
	// With --self=false the job gets no access.
	out = m.run("run", "-q", "--self=false", "--server", b.url(), patient, "--", "env")
	if out.code != 0 || strings.Contains(out.stdout, "METE_SELF") {
		t.Errorf("exit %d: %s%s", out.code, out.stdout, out.stderr)
	}
}

// TestSelfAgent checks that a job measured by this machine's agent queries its use at the agent's
// server, over TLS.
func TestSelfAgent(t *testing.T) {
	hosttest.Need(t, "root")
	b := newBench(t)
	text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Agent, Cluster: "lab", Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	m := program(t)
	dir := shortDir(t)
	cfg := agent.Default()
	cfg.Server, cfg.Token, cfg.State, cfg.Socket, cfg.Status = b.url(), text, t.TempDir(), filepath.Join(dir, "s"), ""
	cfg.Machine.Tick, cfg.Machine.Window, cfg.Machine.Reader = 100*time.Millisecond, 500*time.Millisecond, "files"
	m.env = append(m.env, "METE_SOCKET="+cfg.Socket)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx, cfg, io.Discard, slog.New(slog.DiscardHandler)) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	testkit.Eventually(t, "the agent listens", func() bool {
		c, err := socket.Dial(cfg.Socket)
		return err == nil && c.Close() == nil
	})
	checkSelfQuery(t, m)
	// Unprivileged jobs verify the server by that file too.
	found, err := filepath.Glob(filepath.Join(dir, "ca-*.pem"))
	if err != nil || len(found) != 1 {
		t.Fatalf("certificates %v, %v", found, err)
	}
	if info, err := os.Stat(found[0]); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestSelfUp checks that a job on a machine with mete up queries its use there without TLS, and
// that a nested job has its own use.
func TestSelfUp(t *testing.T) {
	hosttest.Need(t, "root")
	dir := shortDir(t)
	cfg := up.DefaultAllInOne(t.TempDir())
	cfg.Agent.Socket = filepath.Join(dir, "s")
	cfg.Agent.Machine.Tick, cfg.Agent.Machine.Window, cfg.Agent.Machine.Reader = 100*time.Millisecond, 500*time.Millisecond, "files"
	s, err := up.OpenAllInOne(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	m := program(t)
	m.env = append(m.env, "METE_SOCKET="+cfg.Agent.Socket)
	// Before the URL is known, jobs get no access.
	if out := m.run("run", "-q", "--", "env"); out.code != 0 || strings.Contains(out.stdout, "METE_SELF") {
		t.Errorf("exit %d: %s%s", out.code, out.stdout, out.stderr)
	}
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	s.Serve(h.URL)
	checkSelfQuery(t, m)
	out := m.run("run", "-q", "--", "sh", "-c", `echo $METE_SELF_TOKEN$METE_SELF_CA; METE_TEST_MAIN=1 "$0" run -q -- sh -c 'echo $METE_SELF_TOKEN'`, os.Args[0])
	tokens := strings.Fields(out.stdout)
	if out.code != 0 || len(tokens) != 2 || tokens[0] == tokens[1] || !token.IsJob(tokens[0]) || !token.IsJob(tokens[1]) {
		t.Fatalf("exit %d: %q %s", out.code, out.stdout, out.stderr)
	}
	// A nested job without access does not inherit the outer one's.
	out = m.run("run", "-q", "--", "env", "METE_TEST_MAIN=1", "METE_SOCKET="+filepath.Join(dir, "none"), os.Args[0], "run", "-q", "--", "env")
	if out.code != 0 || strings.Contains(out.stdout, "METE_SELF") {
		t.Errorf("exit %d: %s%s", out.code, out.stdout, out.stderr)
	}
	// Such a token gives no other access.
	r, err := http.NewRequestWithContext(t.Context(), "GET", h.URL+"/v1/usage", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+tokens[0])
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != 403 {
		t.Errorf("%v, %v", resp, err)
	}
	if err == nil {
		err = errors.Join(err, resp.Body.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// shortDir returns a directory that every user may enter, with a path short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mete-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
