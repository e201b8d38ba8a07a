package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/server"
)

// A bench is a running server and its URL.
type bench struct {
	*server.Server
	url string
}

func open(t *testing.T, state string, change func(*server.Config)) *bench {
	t.Helper()
	cfg := server.Default()
	cfg.State = state
	cfg.Receiver.SnapshotTTL = 24 * time.Hour // independent of the test's duration
	if change != nil {
		change(&cfg)
	}
	s, err := server.Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return s.Run(ctx) })
	g.Go(func() error { return server.Serve(ctx, ln, s.Handler(), s.Authority.ServerTLS()) })
	t.Cleanup(func() {
		stop()
		if err := errors.Join(g.Wait(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return &bench{s, "https://" + ln.Addr().String()}
}

// enroll enrolls a machine.
func (b *bench) enroll(t *testing.T, role registry.Role, machine string) *enroll.Identity {
	t.Helper()
	return b.enrollAs(t, role, machine, "alpha")
}

func (b *bench) enrollAs(t *testing.T, role registry.Role, machine, name string) *enroll.Identity {
	t.Helper()
	text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: role, Cluster: "lab", Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	id, err := enroll.Open(enroll.Config{Dir: t.TempDir(), Server: b.url, Role: role, Facts: enroll.Facts{Machine: machine, Boot: "b", Name: name},
		Token: func() (token.Token, error) { return token.Parse(text) }}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(id.Client().CloseIdleConnections)
	return id
}

// aBatch returns a batch of one window that just ended, in which the service "web" used one
// of ten CPU seconds.
func aBatch(t *testing.T, node string) ([]byte, batch.Clock) {
	t.Helper()
	return aBatchOf(t, node, 7, "web")
}

// aBatchOf is aBatch with another stream and another name of the service.
func aBatchOf(t *testing.T, node string, stream byte, name string) ([]byte, batch.Clock) {
	t.Helper()
	now := time.Now()
	w := usage.Window{Boot: "b", Start: 100e9, End: 110e9, Offset: now.UnixNano() - 110e9, CPUs: 1}
	add := func(kind workload.Kind, key, name string, cpu int64) {
		r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID(node, kind, key), Kind: kind, Key: key, Name: name}})
		r.Usage.Put(usage.CPU, cpu, usage.Measured)
		r.Usage.Covered = 10 * time.Second
		w.Rows = append(w.Rows, r)
	}
	add(workload.Job, name, name, 1e9)
	add(workload.System, "", "system", 2e9)
	add(workload.Idle, "", "idle", 7e9)
	w.Balance = usage.Balance{Whole: usage.Shares{10e9}, Workloads: usage.Shares{1e9}, System: usage.Shares{2e9}, Idle: usage.Shares{7e9}}
	b := batch.Batch{Stream: batch.Stream{stream}, Number: 1, Windows: []usage.Window{wire.Prepare(&w)}}
	for i := range w.Rows {
		b.Names = append(b.Names, wire.NameOf(&w.Rows[i]))
	}
	sent, err := wire.Encode(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	return sent, batch.Clock{Boot: "b", Boottime: 110e9, Wall: now.UnixNano()}
}

func offer(t *testing.T, id *enroll.Identity, b *bench, sent []byte, clock batch.Clock) (batch.Reply, error) {
	t.Helper()
	base, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	return sender.NewHTTP(base, id.Client(), "test").Offer(t.Context(), clock, sent)
}

// /v1/rates shows the latest window of a node with the names of the ledger, to viewers of
// its cluster.
func TestRates(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	id := b.enroll(t, registry.Agent, "m")
	sent, clock := aBatch(t, id.Node())
	if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatalf("batch: %+v, %v", r, err)
	}
	for cluster, want := range map[string]bool{"": true, "lab": true, "other": false} {
		c := b.viewer(t, cluster)
		status, body := get(t, c, b.url+"/v1/rates")
		if status != 200 || strings.Contains(body, `"web"`) != want || strings.Contains(body, "alpha") != want {
			t.Errorf("rates of cluster %q: %d %s", cluster, status, body)
		}
		if status, body := get(t, c, b.url+"/v1/nodes"); status != 200 || strings.Contains(body, "alpha") != want {
			t.Errorf("nodes of cluster %q: %d %s", cluster, status, body)
		}
	}
	if status, _ := get(t, id.Client(), b.url+"/v1/usage"); status != http.StatusForbidden {
		t.Errorf("query by an agent: %d, want 403", status)
	}
}

func get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Answers to readers are compressed for clients that accept it.
func TestCompressed(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	id := b.enroll(t, registry.Agent, "m")
	sent, clock := aBatch(t, id.Node())
	if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatalf("batch: %+v, %v", r, err)
	}
	c := b.viewer(t, "")
	defer c.CloseIdleConnections()
	for _, path := range []string{"/v1/usage?by=workload", "/openapi.json", "/metrics", "/api/v1/series?match[]={__name__=~\".%2B\"}", "/"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", "gzip")
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: %s, %q of %d bytes, %v", path, resp.Status, resp.Header.Get("Content-Encoding"), len(body), err)
		}
	}
}

// /v1/summary shows sums and the busiest workloads, to viewers of the cluster.
func TestSummary(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	id := b.enroll(t, registry.Agent, "m")
	sent, clock := aBatch(t, id.Node())
	if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatalf("batch: %+v, %v", r, err)
	}
	for cluster, measured := range map[string]float64{"": 1, "lab": 1, "other": 0} {
		viewer, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Cluster: cluster, Uses: -1})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "https://server/v1/summary?nodes=1&top=2", nil)
		r.Header.Set("Authorization", "Bearer "+viewer)
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, r)
		var m struct {
			Measured float64
			Sum      struct {
				CPU *struct{ Workloads, System, Idle, Whole float64 } `json:"cpu_cores"`
			}
			Nodes []struct{ Name string }
			Top   map[string][]struct{ Name, Node string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
		if m.Measured != measured || len(m.Nodes) != int(measured) || len(m.Top["cpu"]) != int(measured) {
			t.Errorf("viewer of %q: %s", cluster, w.Body)
		}
		if measured == 0 {
			continue
		}
		if c := m.Sum.CPU; c == nil || c.Workloads != 0.1 || c.System != 0.2 || c.Idle != 0.7 || m.Top["cpu"][0].Name != "web" || m.Top["cpu"][0].Node != "alpha" {
			t.Errorf("viewer of %q: %s", cluster, w.Body)
		}
	}
}

// Requests without credentials get 401, those of the wrong role 403.
func TestSendAuthorization(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer stranger.CloseIdleConnections()
	upstream := b.enroll(t, registry.Upstream, "s").Client()
	agent := b.enroll(t, registry.Agent, "m")
	revoked := b.enroll(t, registry.Agent, "r")
	if err := b.Authority.RevokeNode(t.Context(), revoked.Node()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		who    string
		client *http.Client
		path   string
		want   int
		text   string
	}{
		{"no credentials", stranger, "/v1/batches", 401, "neither a certificate nor a token"},
		{"no credentials", stranger, "/v1/lost", 401, "neither a certificate nor a token"},
		{"no credentials", stranger, "/v1/states", 401, ""},
		{"a server", upstream, "/v1/batches", 403, "only agents send batches"},
		{"an agent", agent.Client(), "/v1/states", 403, "only servers replicate states"},
		{"a revoked node", revoked.Client(), "/v1/batches", 403, "is revoked"},
	} {
		resp, err := c.client.Post(b.url+c.path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		var p fault.Problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
			t.Error(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want || !strings.Contains(p.Detail, c.text) {
			t.Errorf("%s at %s: %d %+v, want %d and %q", c.who, c.path, resp.StatusCode, p, c.want, c.text)
		}
	}
}

// A machine is revoked by its id or name: at once on open connections, in the ledger, and
// permanently.
func TestRevoke(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	id, below := b.enroll(t, registry.Agent, "m"), b.enroll(t, registry.Upstream, "s")
	sent, clock := aBatch(t, id.Node())
	if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatalf("batch: %+v, %v", r, err)
	}
	revoke := func(which string) (int, string) {
		w := httptest.NewRecorder()
		b.AdminHandler(nil).ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/v1/nodes/"+which, nil))
		return w.Code, w.Body.String()
	}
	for which, want := range map[string]string{"nosuch": `"status":404`, "alpha": "name one by its id: "} {
		if _, body := revoke(which); !strings.Contains(body, want) {
			t.Errorf("%s: %s, want %s", which, body, want)
		}
	}
	if code, body := revoke(below.Node()); code != 200 || !strings.Contains(body, below.Node()) {
		t.Errorf("server below: %d %s", code, body)
	}
	if code, body := revoke("alpha"); code != 200 || !strings.Contains(body, id.Node()) {
		t.Errorf("only unrevoked node of this name: %d %s", code, body)
	}
	if _, err := offer(t, id, b, sent, clock); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "is revoked") || fault.Hint(err) == "" {
		t.Errorf("offer: %v, %q", err, fault.Hint(err))
	}
	if _, err := b.Transport(id.Node()).Offer(t.Context(), clock, sent); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("offer within the process: %v", err)
	}
	if _, err := b.Transport(id.Node()).Lost(t.Context(), batch.Loss{}); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("loss within the process: %v", err)
	}
	if err := id.Renew(t.Context()); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("renewal: %v", err)
	}
	nodes, err := b.Ledger.Nodes(t.Context(), query.Scope{All: true})
	if err != nil || len(nodes) != 1 || nodes[0].State != "revoked" || nodes[0].Revoked.IsZero() {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
	sources, err := b.Ledger.DownstreamServers(t.Context(), query.Scope{All: true})
	if err != nil || len(sources) != 1 || sources[0].ID != below.Node() || sources[0].State != "revoked" {
		t.Errorf("servers below: %+v, %v", sources, err)
	}
	restarted := b.enroll(t, registry.Agent, "m")
	if restarted.Node() == id.Node() {
		t.Error("the machine got the revoked node id again")
	}
	lines, err := b.Ledger.Audits(t.Context(), registry.AuditQuery{Limit: 10})
	if err != nil || !slices.ContainsFunc(lines, func(a registry.Audit) bool { return a.Action == "node.revoke" && a.Object == id.Node() }) {
		t.Errorf("audit: %+v, %v", lines, err)
	}
}

// A node with a valid certificate that the ledger lacks, because it was restored from an
// older backup, is added to the ledger once.
func TestRestoreNode(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, nil)
	id := b.enroll(t, registry.Agent, "m")
	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, "authority"), os.DirFS(filepath.Join(dir, "authority"))); err != nil {
		t.Fatal(err)
	}
	old := open(t, copied, nil)
	sent, clock := aBatch(t, id.Node())
	for _, want := range []batch.Verdict{batch.Accepted, batch.Duplicate} {
		if r, err := offer(t, id, old, sent, clock); err != nil || r.Verdict != want {
			t.Fatalf("batch: %+v, %v; want %v", r, err, want)
		}
	}
	n, err := old.Ledger.Node(t.Context(), id.Node())
	if err != nil || n.Cluster != "lab" {
		t.Errorf("node %+v, %v; want it in the cluster of its certificate", n, err)
	}
	audits, err := old.Ledger.Audits(t.Context(), registry.AuditQuery{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	recalls := 0
	for _, a := range audits {
		if a.Action == "node.recall" && a.Object == id.Node() {
			recalls++
		}
	}
	if recalls != 1 {
		t.Errorf("%d audit records of node.recall, want 1: %+v", recalls, audits)
	}
	// The renewal restores its name and machine id.
	if err := b.Ledger.PutNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if err := id.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Ledger.Node(t.Context(), id.Node()); err != nil || n.Name != "alpha" || n.MachineID != "m" || n.Cluster != "lab" {
		t.Errorf("after the renewal: %+v, %v", n, err)
	}
}

// TestRestoreJobs checks that a node of the jobs of a machine is one in a ledger that lacked it, too.
func TestRestoreJobs(t *testing.T) {
	dir := t.TempDir()
	id := open(t, dir, nil).enroll(t, registry.Agent, registry.JobsMachineID("m"))
	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, "authority"), os.DirFS(filepath.Join(dir, "authority"))); err != nil {
		t.Fatal(err)
	}
	old := open(t, copied, nil)
	sent, clock := aBatch(t, id.Node())
	if r, err := offer(t, id, old, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Fatalf("batch: %+v, %v", r, err)
	}
	if n, err := old.Ledger.Node(t.Context(), id.Node()); err != nil || !n.IsJobs() {
		t.Errorf("node %+v, %v; want that of jobs", n, err)
	}
}

// A Transport books in the server's ledger.
func TestTransport(t *testing.T) {
	b := open(t, t.TempDir(), func(c *server.Config) { c.Local = true })
	n, err := b.Authority.EnrollLocal(t.Context(), "m", "b", "alpha")
	if err != nil {
		t.Fatal(err)
	}
	sent, clock := aBatch(t, n.ID)
	if r, err := b.Transport(n.ID).Offer(t.Context(), clock, sent); err != nil || r.Verdict != batch.Accepted || r.Next != 2 {
		t.Fatalf("batch: %+v, %v", r, err)
	}
	gap := usage.Gap{From: time.Now().Add(-time.Minute), To: time.Now(), Reason: usage.Forgotten}
	if r, err := b.Transport(n.ID).Lost(t.Context(), batch.Loss{Stream: batch.Stream{7}, From: 2, To: 3, Gap: gap}); err != nil || r.Next != 4 {
		t.Errorf("lost: %+v, %v", r, err)
	}
	gaps, err := b.Ledger.Gaps(t.Context(), time.Now().Add(-time.Hour), time.Now(), "", query.Scope{All: true})
	if err != nil || len(gaps) != 1 {
		t.Errorf("gaps %+v, %v; want the reported one", gaps, err)
	}
}

// Only one server can open a state directory, and errors of opening have hints.
func TestOpen(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	one := server.Default()
	one.State = t.TempDir()
	first, err := server.Open(t.Context(), one, log)
	if err != nil {
		t.Fatal(err)
	}
	two := one
	two.Database = filepath.Join(t.TempDir(), "other.db")
	_, err = server.Open(t.Context(), two, log)
	if !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" || !strings.Contains(err.Error(), fmt.Sprintf("(process %d)", os.Getpid())) {
		t.Errorf("second server: %v", err)
	}
	if _, err := os.Stat(two.Database); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("second server created a ledger: %v", err)
	}
	// A server opens a state in which the previous one left its socket.
	for range 2 {
		ln, err := server.ListenAdmin(one.State)
		if err != nil {
			t.Fatal(err)
		}
		left := ln.Addr().String()
		if err := errors.Join(ln.Close(), first.Close(), os.WriteFile(left, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if first, err = server.Open(t.Context(), one, log); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for name, addr := range map[string]string{"foreign address": "192.0.2.1:0", "no port": "nowhere", "port in use": usedAddr(t)} {
		if ln, err := server.Listen(t.Context(), addr); err == nil || fault.Hint(err) == "" {
			t.Errorf("%s: %v, %v; want an error with a hint", name, ln, err)
		}
	}
	cfg := server.Default()
	cfg.State = "/dev/null/state"
	if _, err := server.Open(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || fault.Hint(err) == "" {
		t.Errorf("impossible state directory: %v", err)
	}
	cfg.State, cfg.Database = t.TempDir(), "nosuch://db"
	if _, err := server.Open(t.Context(), cfg, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("unknown kind of database: %v", err)
	}
}

func usedAddr(t *testing.T) string {
	ln, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}
