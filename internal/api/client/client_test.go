package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/ui/cli"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// serve returns a client of a server that answers as f does.
func serve(t *testing.T, f http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, token.Token{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestQuestions(t *testing.T) {
	var asked string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path + "?" + r.URL.Query().Encode()
		switch r.URL.Path {
		case "/v1/usage":
			_, _ = w.Write(v1.JSON(v1.UsageOf(&query.Answer{From: noon, To: noon.Add(time.Hour), By: []query.Dimension{"job"}, Gaps: 3}, nil)))
		case "/v1/nodes":
			_, _ = w.Write(v1.JSON(v1.ListOf([]query.Node{{ID: "N1"}}, v1.NodeOf)))
		case "/v1/sources":
			_, _ = w.Write(v1.JSON(v1.ListOf([]query.Source{{ID: "S1"}}, v1.SourceOf)))
		case "/v1/vms":
			_, _ = w.Write(v1.JSON(v1.ListOf([]query.VM{{Guest: "g", Compared: 3}}, v1.VMOf)))
		case "/v1/workloads":
			_, _ = w.Write(v1.JSON(v1.ListOf([]query.Workload{{Node: "N1"}}, v1.WorkloadOf)))
		case "/v1/gaps":
			_, _ = w.Write(v1.JSON(v1.ListOf([]query.Gap{{Node: "N1"}}, v1.GapOf)))
		case "/v1/rates":
			l := v1.List[live.NodeRates]{Items: []live.NodeRates{{Node: "N1"}}, Next: "more"}
			if r.FormValue("cursor") != "" {
				l = v1.List[live.NodeRates]{Items: []live.NodeRates{{Node: "N2"}}}
			}
			_, _ = w.Write(v1.JSON(l))
		}
	})
	q := query.Query{From: noon, To: noon.Add(time.Hour), By: []query.Dimension{"job", "node"}, Where: map[query.Dimension][]string{"job": {"a&b"}}, OmitOwn: true, Idle: "used", Nested: query.NestedAlso}
	const span = "from=2026-03-01T12%3A00%3A00Z"
	const end = "to=2026-03-01T13%3A00%3A00Z"
	a, err := c.Usage(t.Context(), v1.UsageQuery{Query: q})
	if want := "/v1/usage?by=job%2Cnode&" + span + "&idle=used&nested=also&omit-own=1&" + end + "&where=job%3Da%26b"; err != nil || a.Gaps != 3 || asked != want {
		t.Errorf("Usage: %v, %v, asked %s, want %s", a, err, asked, want)
	}
	if n, err := c.Nodes(t.Context()); err != nil || len(n) != 1 || asked != "/v1/nodes?" {
		t.Errorf("Nodes: %v, %v, asked %s", n, err, asked)
	}
	if b, err := c.Sources(t.Context()); err != nil || len(b) != 1 || asked != "/v1/sources?" {
		t.Errorf("Sources: %v, %v, asked %s", b, err, asked)
	}
	if v, err := c.VMs(t.Context(), q.From, q.To); err != nil || len(v) != 1 || v[0].Compared != 3 || asked != "/v1/vms?"+span+"&"+end {
		t.Errorf("VMs: %v, %v, asked %s", v, err, asked)
	}
	q.OmitOwn, q.Nested = false, query.NestedOnly
	if w, err := c.Workloads(t.Context(), q); err != nil || len(w) != 1 || asked != "/v1/workloads?"+span+"&"+end+"&where=job%3Da%26b" {
		t.Errorf("Workloads: %v, %v, asked %s", w, err, asked)
	}
	if r, err := c.Rates(t.Context()); err != nil || len(r) != 2 || r[1].Node != "N2" || asked != "/v1/rates?cursor=more&limit=10000" {
		t.Errorf("Rates: %v, %v, asked %s", r, err, asked)
	}
	if g, err := c.Gaps(t.Context(), q.From, q.To, "web"); err != nil || len(g) != 1 || asked != "/v1/gaps?"+span+"&node=web&"+end {
		t.Errorf("Gaps: %v, %v, asked %s", g, err, asked)
	}
}

// TestPages checks that the client follows the pages that a server ends early, up to the limit and no further,
// and does not return a part of a list when a page fails.
func TestPages(t *testing.T) {
	for _, c := range []struct {
		limit, pages, fails int
		asked               []string // limit and cursor
		want                string
	}{
		{5, 9, 0, []string{"5 ", "3 c1", "1 c2"}, "0 0 1 1 2"},
		{5, 2, 0, []string{"5 ", "3 c1"}, "0 0 1 1"},
		{4, 9, 0, []string{"4 ", "2 c1"}, "0 0 1 1"},
		{2, 9, 0, []string{"2 "}, "0 0"},
		{0, 3, 0, []string{" ", " c1", " c2"}, "0 0 1 1 2 2"},
		{5, 9, 1, []string{"5 ", "3 c1"}, ""},
	} {
		var asked []string
		cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
			n := len(asked)
			asked = append(asked, r.FormValue("limit")+" "+r.FormValue("cursor"))
			if c.fails > 0 && n == c.fails {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			var l v1.List[v1.Workload]
			for range 2 {
				if limit := r.FormValue("limit"); limit == "" || len(l.Items) < int(limit[0]-'0') {
					l.Items = append(l.Items, v1.Workload{Name: fmt.Sprint(n)})
				}
			}
			if n+1 < c.pages {
				l.Next = fmt.Sprint("c", n+1)
			}
			_, _ = w.Write(v1.JSON(l))
		})
		list, err := cl.Workloads(t.Context(), query.Query{From: noon, To: noon.Add(time.Hour), Limit: c.limit})
		var got []string
		for _, w := range list {
			got = append(got, w.Name)
		}
		if d := cmp.Diff(c.asked, asked); d != "" || strings.Join(got, " ") != c.want || (err != nil) != (c.fails > 0) {
			t.Errorf("limit %d of %d pages: %v, %v, asked (-want +got):\n%s", c.limit, c.pages, got, err, d)
		}
	}
	asked := 0
	list, err := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = w.Write(v1.JSON(v1.List[v1.Node]{Items: []v1.Node{{}}[min(1, asked-1):], Next: "again"}))
	}).Nodes(t.Context())
	if len(list) != 1 || err != nil || asked != 2 {
		t.Errorf("empty pages: %v, %v after %d of them", list, err, asked)
	}
}

// TestRefusals checks that the client returns a server's refusal with its text and kind, and
// reports an answer that is not one of a mete server.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		code             int
		kind, body       string
		want             error
		message, hintHas string
	}{
		{400, fault.ProblemType, `{"status":400,"detail":"dimension \"x\": invalid","hint":"it is\u001b[2J one"}`, fault.ErrInvalid, `dimension "x": invalid`, "it is\uFFFD[2J one"},
		{401, fault.ProblemType, `{"status":401,"detail":"no token"}`, fault.ErrDenied, "no token", ""},
		{403, fault.ProblemType + "; charset=utf-8", `{"status":403,"title":"no\u001b"}`, fault.ErrDenied, "no\uFFFD", ""},
		{503, fault.ProblemType, `{"status":503,"detail":"busy"}`, fault.ErrUnavailable, "busy", ""},
		{500, fault.ProblemType, `{"status":500}`, nil, "the server failed; its log says why", ""},
		{502, fault.ProblemType, `{"status":400,"detail":"of a proxy"}`, fault.ErrUnavailable, "502 Bad Gateway: ", "is this the address of a mete server"},
		{404, "text/plain", "404 page not found\nmore", fault.ErrNotFound, "404 Not Found: 404 page not found", "is this the address of a mete server"},
		{302, "text/html", "", fault.ErrUnavailable, "302 Found: ", "is this the address of a mete server"},
		{200, "text/html", "<html>", fault.ErrInvalid, "invalid list of nodes", "this mete may be older"},
		{200, "application/json", "", fault.ErrInvalid, "invalid list of nodes", "this mete may be older"},
		{200, "application/json", "[]", fault.ErrInvalid, "invalid list of nodes", "this mete may be older"},
		{200, "application/json", "{}", fault.ErrInvalid, "invalid list of nodes", "this mete may be older"},
		{200, "application/json", `{"nodes":1}`, fault.ErrInvalid, "invalid list of nodes", "this mete may be older"},
	} {
		_, err := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(c.code)
			_, _ = io.WriteString(w, c.body)
		}).Nodes(t.Context())
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.message) || !strings.Contains(fault.Hint(err), c.hintHas) {
			t.Errorf("%d %s: %v; %s, want %v %s; %s", c.code, c.kind, err, fault.Hint(err), c.want, c.message, c.hintHas)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	// A socket that is bound and does not listen keeps everybody else from its port.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
	c, err := client.New("http://"+addr+"/", token.Token{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Nodes(t.Context())
	want := fmt.Sprintf("server http://%s: %s: no server listens there: connection refused: unavailable", addr, addr)
	if cli.Code(err) != cli.Unavailable || err.Error() != want || !strings.HasPrefix(fault.Hint(err), "start one with: mete up") {
		t.Errorf("%v; %s, want %s", err, fault.Hint(err), want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Nodes(ctx); cli.Code(err) != cli.Interrupted {
		t.Errorf("interrupted: %v", err)
	}
}

// Who takes the wrong scheme, or a name that is none, reads what to do.
func TestWrongAddress(t *testing.T) {
	tok := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3})
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	plain, secure := httptest.NewServer(nothing), httptest.NewUnstartedServer(nothing)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	for _, c := range []struct{ url, err, hint string }{
		{strings.Replace(secure.URL, "https:", "http:", 1), "it requires TLS", "use " + secure.URL},
		{strings.Replace(plain.URL, "http:", "https:", 1), "HTTP response to HTTPS client", "it speaks plain HTTP, as mete up does: " + plain.URL},
		{secure.URL, "another certificate authority", "check the server's address"},
		{"https://nosuch..invalid:1", "nosuch..invalid", "check the address that --server"},
	} {
		cl, err := client.New(c.url, tok)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = cl.Nodes(t.Context()); err == nil || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(fault.Hint(err), c.hint) {
			t.Errorf("%s: %v; %q, want %s; %s", c.url, err, fault.Hint(err), c.err, c.hint)
		}
	}
}

func TestServerURL(t *testing.T) {
	for _, s := range []string{"", "x", "127.0.0.1:9797", "ftp://x", "http://", "http://u:p@127.0.0.1", "http://127.0.0.1/?a=b", "http://127.0.0.1:x"} {
		if _, err := client.New(s, token.Token{}); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("New(%q): %v, want invalid, with a hint", s, err)
		}
	}
}

// tokens answers as the administration of a server does.
func TestLocal(t *testing.T) {
	dir := t.TempDir()
	l := client.NewLocal(dir)
	if _, err := l.Tokens(t.Context()); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "no server runs here") || !strings.Contains(fault.Hint(err), "--state /var/lib/mete-server") {
		t.Errorf("without a server: %v", err)
	}
	made := v1.TokenOf(&registry.Token{ID: "abcd2345", Role: registry.Agent, Uses: 1, Created: noon}, noon)
	withText := made
	withText.Text = "text"
	testkit.ServeUnix(t, filepath.Join(dir, v1.AdminSocket), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch what := r.Method + " " + r.URL.EscapedPath() + " " + strings.TrimSpace(string(body)); what {
		case `POST /v1/tokens {"role":"agent"}`:
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(v1.JSON(withText))
		case "GET /v1/tokens ":
			_, _ = w.Write(v1.JSON(v1.List[v1.Token]{Items: []v1.Token{made}}))
		case "DELETE /v1/tokens/a%2Fb ":
			w.WriteHeader(http.StatusNoContent)
		case "DELETE /v1/nodes/web%2F1 ":
			_, _ = w.Write(v1.JSON(v1.ListOf([]query.Node{{ID: "N1", Name: "web/1"}}, v1.NodeOf)))
		default:
			t.Errorf("asked %q, %v", what, err)
		}
	}))
	got, err := l.CreateToken(t.Context(), v1.TokenRequest{Role: registry.Agent})
	if err != nil || !cmp.Equal(got, withText) {
		t.Errorf("CreateToken = %+v, %v", got, err)
	}
	if list, err := l.Tokens(t.Context()); err != nil || len(list) != 1 || !cmp.Equal(list[0], made) {
		t.Errorf("Tokens = %+v, %v", list, err)
	}
	if err := l.RevokeToken(t.Context(), "a/b"); err != nil {
		t.Errorf("RevokeToken: %v", err)
	}
	if n, err := l.RevokeNode(t.Context(), "web/1"); err != nil || n.ID != "N1" {
		t.Errorf("RevokeNode: %+v, %v", n, err)
	}
}
