package enroll

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
)

// a body records whether it was closed.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

// TestNotEnrolled checks that an identity without a node sends nothing.
func TestNotEnrolled(t *testing.T) {
	i, err := Open(Config{Dir: t.TempDir(), Server: "https://server"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	sent := &body{Reader: strings.NewReader("x")}
	_, withBody := i.Client().Post("https://server", "text/plain", sent)
	_, without := i.Client().Get("https://server")
	i.Client().CloseIdleConnections()
	for name, err := range map[string]error{"a body": withBody, "no body": without, "Renew": i.Renew(t.Context()), "Reenroll": i.Reenroll(t.Context()), "Enroll": i.Enroll(t.Context())} {
		if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "not enrolled") {
			t.Errorf("%s: %v, want denied", name, err)
		}
	}
	if !sent.closed {
		t.Error("the body is not closed")
	}
	if i.Node() != "" || i.Cluster() != "" || i.LedgerID() != "" || !i.Expiry().IsZero() || i.Self("", "") != (token.SelfAccess{}) || i.IsForOtherAuthority(token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3})) {
		t.Errorf("%q in %q of ledger %q until %v", i.Node(), i.Cluster(), i.LedgerID(), i.Expiry())
	}
}

// TestIdentity checks what an enrolled machine knows of itself, that it asks no second time, and
// that it leaves no connection open.
func TestIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		i := b.identity(t, b.tok)
		var sent token.Claim
		b.answers(func(w http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			if err = errors.Join(err, json.Unmarshal(text, &sent)); err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(strings.NewReader(string(text)))
			b.ca.Handler().ServeHTTP(w, r)
		})
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.answers(nil)
		if want := (token.Claim{Token: b.tok.Reveal(), CSR: sent.CSR, Machine: "m", Boot: "b", Name: "n"}); sent != want {
			t.Errorf("claimed %+v, want %+v", sent, want)
		}
		if synctest.Wait(); b.open.Load() != 0 {
			t.Errorf("%d connections stay open", b.open.Load())
		}
		for _, i := range []*Identity{i, b.identity(t, token.Token{})} {
			if i.Node() == "" || i.Cluster() != "default" || i.Server() != "https://server" || i.LedgerID() != LedgerID(b.ca.CA()) || len(i.LedgerID()) != 16 || !i.Expiry().Equal(time.Now().Add(30*day).Truncate(time.Second)) {
				t.Errorf("%q in %q of ledger %q until %v", i.Node(), i.Cluster(), i.LedgerID(), i.Expiry())
			}
			if err := i.Enroll(t.Context()); err != nil {
				t.Error(err)
			}
			if i.IsForOtherAuthority(b.tok) || i.IsForOtherAuthority(token.Token{}) || !i.IsForOtherAuthority(token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3})) {
				t.Error("IsForOtherAuthority is wrong")
			}
			job := workload.NewID(i.Node(), workload.Job, "x")
			v := i.Self(i.Node(), job)
			parsed, err := token.ParseJob(v.Token)
			want := token.Job{Workload: job, Node: i.Node(), Ends: time.Now().Add(token.JobLife).UTC().Truncate(time.Second)}
			if err != nil || parsed.Job != want || !parsed.IsSignedBy(b.ca.JobKey(i.Node())) || v.URL != "https://server/v1/self" || v.CA != string(b.ca.CAPEM()) {
				t.Errorf("access of a job: %+v, %v", v, err)
			}
			if v := i.Self("another", job); v != (token.SelfAccess{}) {
				t.Errorf("access of a job of another node: %+v", v)
			}
		}
		if b.enrolls.Load() != 1 {
			t.Errorf("%d requests, want 1", b.enrolls.Load())
		}
		// Its files say the same, without the rest of its configuration.
		leaf := i.state.Load().leaf
		if f, err := Inspect(i.cfg.Dir); err != nil || f.Path != i.path() || f.Node != i.Node() || f.Cluster != "default" || f.Server != "https://server" || !f.Certificate.Equal(leaf) || !f.Renew.After(time.Now()) || !f.Renew.Before(i.Expiry()) {
			t.Errorf("the files say %+v, %v", f, err)
		}
		// An older server gives no key for jobs.
		f, err := readFile[identityFile](i.path())
		if err != nil {
			t.Fatal(err)
		}
		f.JobKey = ""
		if err := writeFile(i.path(), f); err != nil {
			t.Fatal(err)
		}
		if i := b.identity(t, b.tok); i.Self(i.Node(), workload.NewID(i.Node(), workload.Job, "x")) != (token.SelfAccess{}) {
			t.Error("access of a job without a key")
		}
	})
}

// TestLocalIdentity checks the identity of a machine to a server of its own user: it needs no
// certificate, and the machine requests it at each start, as the server may have another ledger.
func TestLocalIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLocalBench(t)
		i := b.identity(t, token.Token{})
		b.down.Store(true)
		if err := i.Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) || i.Node() != "" {
			t.Errorf("while the server is down: %v", err)
		}
		b.down.Store(false)
		if err := errors.Join(i.Enroll(t.Context()), i.Enroll(t.Context())); err != nil || i.Node() == "" {
			t.Fatal(err)
		}
		if synctest.Wait(); b.open.Load() != 0 || b.enrolls.Load() != 2 {
			t.Errorf("%d connections stay open after %d requests, want none after 2", b.open.Load(), b.enrolls.Load())
		}
		again := b.identity(t, token.Token{})
		if again.Node() != i.Node() || again.LedgerID() != LedgerID(b.ca.CA()) || !again.Expiry().IsZero() || again.IsForOtherAuthority(b.tok) {
			t.Errorf("after a restart: %q of ledger %q until %v, want %q", again.Node(), again.LedgerID(), again.Expiry(), i.Node())
		}
		if v := again.Self(i.Node(), workload.NewID(i.Node(), workload.Job, "x")); v.URL != b.server+"/v1/self" || v.Token == "" || v.CA != "" {
			t.Errorf("access of a job: %+v", v)
		}
		// There is nothing to renew.
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- i.Run(ctx) }()
		time.Sleep(400 * day)
		if err := errors.Join(i.Renew(t.Context()), i.Refresh(t.Context())); err != nil || b.renewals.Load() != 0 || b.enrolls.Load() != 2 {
			t.Errorf("%v, %d renewals, %d enrollments", err, b.renewals.Load(), b.enrolls.Load()-2)
		}
		select {
		case err := <-done:
			t.Fatalf("Run ended: %v", err)
		default:
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		// The server learns the node, and no other server does.
		var node, url string
		b.answers(func(_ http.ResponseWriter, r *http.Request) { node, url = r.Header.Get(token.NodeHeader), r.Host })
		for target, want := range map[string]string{b.server: i.Node(), "http://127.0.0.1:1": ""} {
			r, err := http.NewRequest(http.MethodGet, target, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := i.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close() // it is empty
			if node != want || "http://"+url != target || len(r.Header) != 0 {
				t.Errorf("%s: node %q at %s, want %q; the caller's request has %v", target, node, url, want, r.Header)
			}
		}
		// A server that refuses is not one that is down.
		b.answers(func(w http.ResponseWriter, _ *http.Request) { httpx.Fail(w, fault.ErrDenied) })
		if err := i.Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) {
			t.Errorf("while the server refuses: %v", err)
		}
		b.down.Store(true)
		if err := i.Enroll(t.Context()); err != nil || i.Node() == "" {
			t.Errorf("while the server is down: %v", err)
		}
		b.down.Store(false)
		// An older server does not name its authority: its address identifies the ledger.
		b.answers(func(w http.ResponseWriter, _ *http.Request) {
			httpx.WriteJSON(w, http.StatusOK, token.Grant{Node: "N2", Cluster: "c"})
		})
		sum := sha256.Sum256([]byte("127.0.0.1:9797"))
		if err := i.Enroll(t.Context()); err != nil || i.Node() != "N2" || i.LedgerID() != LedgerID(token.Fingerprint(sum[:])) {
			t.Errorf("%v; node %q of ledger %q", err, i.Node(), i.LedgerID())
		}
		files, err := os.ReadDir(b.dir)
		if err != nil || len(files) != 1 || files[0].Name() != "local.json" {
			t.Errorf("%v, %v, want no file but local.json", files, err)
		}
		if n := strings.Count(b.log.String(), "a new node id"); n != 1 || strings.Contains(b.log.String(), "renewed") {
			t.Errorf("log: %s", &b.log)
		}
	})
}

// TestLargeAnswer checks that an answer has up to 1 MiB.
func TestLargeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLocalBench(t)
		i := b.identity(t, token.Token{})
		text := `{"node":"N1","cluster":"c"}`
		for size, want := range map[int]error{1<<20 + 1: fault.ErrUnavailable, 1 << 20: nil} {
			b.answers(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, text+strings.Repeat(" ", size-len(text))) // the client reports errors
			})
			i.state.Store(nil)
			if err := i.Enroll(t.Context()); !errors.Is(err, want) {
				t.Errorf("%d bytes: %v, want %v", size, err, want)
			}
		}
	})
}

func page(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

func problem(err error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { httpx.Fail(w, err) }
}

func grant(g token.Grant) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { httpx.WriteJSON(w, http.StatusOK, g) }
}

var errUnauthorized = httpx.WithStatus(fault.ErrDenied, httpx.ErrUnauthorized)

// TestAnswers checks the error of each answer that grants nothing, and that the key stays the same
// until the server grants an identity.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, local := newBench(t), newLocalBench(t)
		var key pendingKey
		for name, c := range map[string]struct {
			answer    http.HandlerFunc
			local     bool
			want      error
			text      string
			hint      string
			isRefused bool
			after     time.Duration
		}{
			"no JSON":                {page(http.StatusOK), false, fault.ErrUnavailable, "answer", "", false, 0},
			"unauthorized":           {problem(errUnauthorized), false, fault.ErrDenied, "", "", true, 0},
			"denied":                 {problem(fault.WithHint(fault.ErrDenied, "as told")), false, fault.ErrDenied, "", "as told", false, 0},
			"later":                  {problem(fault.ErrUnavailable), false, fault.ErrUnavailable, "", "", false, 0},
			"in a while":             {problem(&fault.RetryError{Err: fault.ErrUnavailable, After: 7 * time.Second}), false, fault.ErrUnavailable, "", "", false, 7 * time.Second},
			"a proxy":                {page(http.StatusBadGateway), false, fault.ErrUnavailable, "not from a mete server", "", false, 0},
			"another's 400":          {page(http.StatusBadRequest), false, fault.ErrUnavailable, "not from a mete server", "", false, 0},
			"a proxy, plain":         {page(http.StatusBadGateway), true, fault.ErrUnavailable, "not from a mete server", "", false, 0},
			"another's 400, plain":   {page(http.StatusBadRequest), true, fault.ErrUnavailable, "not from a mete server", "perhaps it speaks TLS: use https://", false, 0},
			"no certificate":         {grant(token.Grant{Node: "N1"}), false, fault.ErrUnavailable, "invalid grant", "", false, 0},
			"no node":                {grant(token.Grant{}), true, fault.ErrUnavailable, "invalid grant", "", false, 0},
			"certificate is damaged": {grant(token.Grant{Node: "N1", CA: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))}), true, fault.ErrUnavailable, "invalid grant", "", false, 0},
		} {
			bench := b
			if c.local {
				bench = local
			}
			bench.answers(c.answer)
			i := bench.identity(t, b.tok)
			err := i.Enroll(t.Context())
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.HasPrefix(err.Error(), bench.server+": ") || fault.Hint(err) != c.hint || isRefused(err) != c.isRefused {
				t.Errorf("%s: %v (hint %q), refused: %v", name, err, fault.Hint(err), isRefused(err))
			}
			if after, _ := fault.RetryAfter(err); after != c.after {
				t.Errorf("%s: retry after %v, want %v", name, after, c.after)
			}
			if i.Node() != "" {
				t.Errorf("%s: node %q", name, i.Node())
			}
			kept, err := readFile[pendingKey](filepath.Join(b.dir, pendingFile))
			if key.Key == "" {
				key = kept
			}
			if !c.local && (err != nil || kept != key) {
				t.Errorf("%s: the key changed: %v", name, err)
			}
		}
		b.answers(nil)
		i := b.identity(t, b.tok)
		if err := i.Enroll(t.Context()); err != nil || !decodeKey(key.Key).PublicKey.Equal(i.state.Load().leaf.PublicKey) {
			t.Errorf("%v, or another key", err)
		}
		if _, err := os.Stat(filepath.Join(b.dir, pendingFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the key of the finished enrollment is kept: %v", err)
		}
	})
}

// TestRenewal checks what a machine does with a certificate that is due or has ended, for each
// answer to its renewal.
func TestRenewal(t *testing.T) {
	later := problem(fault.ErrUnavailable)
	for name, c := range map[string]struct {
		days    time.Duration // since the enrollment; the certificate lives for 30
		bears   bool          // a token
		answer  http.HandlerFunc
		enrolls int32
		want    error
		text    string
		hint    string
	}{
		"not due":                       {18 * day, true, nil, 0, nil, "", ""},
		"due":                           {21 * day, true, nil, 0, nil, "", ""},
		"due, server is down":           {21 * day, true, later, 0, fault.ErrUnavailable, "", ""},
		"due, refused":                  {21 * day, true, problem(errUnauthorized), 1, nil, "", ""},
		"due, refused, no token":        {21 * day, false, problem(errUnauthorized), 0, fault.ErrDenied, "", ""},
		"due, revoked":                  {21 * day, true, problem(fault.ErrDenied), 0, fault.ErrDenied, "", ""},
		"due, another node's":           {21 * day, false, grant(token.Grant{Node: "N2"}), 0, fault.ErrUnavailable, `"N2" instead of`, ""},
		"ended":                         {31 * day, true, nil, 1, nil, "", ""},
		"ended, server is down":         {31 * day, true, later, 1, nil, "", ""},
		"ended, no token":               {31 * day, false, nil, 0, fault.ErrDenied, "no token to enroll again", "on the server's machine: mete token create --role agent"},
		"ended, no token, server, down": {31 * day, false, later, 0, fault.ErrUnavailable, "ended on", "on the server's machine: mete token create --role agent"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				if err := b.identity(t, b.tok).Enroll(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(c.days)
				b.enrolls.Store(0)
				tok := b.tok
				if !c.bears {
					tok = token.Token{}
				}
				i := b.identity(t, tok)
				node, ends := i.Node(), i.Expiry()
				b.answers(func(w http.ResponseWriter, r *http.Request) {
					if c.answer != nil && r.URL.Path == "/v1/renew" {
						c.answer(w, r)
						return
					}
					b.ca.Handler().ServeHTTP(w, r)
				})
				err := i.Refresh(t.Context())
				if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.text) || fault.Hint(err) != c.hint && c.hint != "" {
					t.Errorf("%v (hint %q), want %v, %q (hint %q)", err, fault.Hint(err), c.want, c.text, c.hint)
				}
				if renews := c.days > 20*day; b.enrolls.Load() != c.enrolls || (b.renewals.Load() == 1) != renews || (err == nil && renews) != i.Expiry().After(ends) || c.days > 30*day && i.Node() != node {
					t.Errorf("%d enrollments, %d renewals, node %s until %v, before %s until %v", b.enrolls.Load(), b.renewals.Load(), i.Node(), i.Expiry(), node, ends)
				}
				// The next start finds what this one knows.
				if again := b.identity(t, tok); again.Node() != i.Node() || !again.Expiry().Equal(i.Expiry()) {
					t.Errorf("after a restart: node %s until %v", again.Node(), again.Expiry())
				}
			})
		})
	}
}

// TestRenewTwice checks that a renewal takes another key, leaves no connection of the old
// certificate, and that a clone gets a node of its own.
func TestRenewTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		i := b.identity(t, b.tok)
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		node, old := i.Node(), i.state.Load()
		if err := errors.Join(i.Renew(t.Context()), i.Renew(t.Context())); err != nil || i.Node() != node {
			t.Fatal(err)
		}
		if now := i.state.Load(); now.pair.Leaf.SerialNumber.Cmp(old.leaf.SerialNumber) == 0 || old.pair.PrivateKey == now.pair.PrivateKey {
			t.Error("the same certificate or key")
		}
		if !strings.Contains(b.log.String(), "certificate renewed") || strings.Contains(b.log.String(), "new node id") {
			t.Errorf("log: %s", &b.log)
		}
		if synctest.Wait(); b.open.Load() != 0 {
			t.Errorf("%d connections of old certificates stay open", b.open.Load())
		}
		if err := i.Reenroll(t.Context()); err != nil || i.Node() == node || !strings.Contains(b.log.String(), "new node id") {
			t.Errorf("as a clone: %v, node %s; log: %s", err, i.Node(), &b.log)
		}
		node = i.Node()
		b.answers(problem(fault.ErrUnavailable))
		if err := i.Reenroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) || i.Node() != node {
			t.Errorf("without an answer: %v", err)
		}
		if err := i.Renew(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("without an answer: %v", err)
		}
		b.answers(func(w http.ResponseWriter, r *http.Request) { // without a certificate
			httpx.WriteJSON(w, http.StatusOK, token.Grant{Node: node})
		})
		if err := i.Renew(t.Context()); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "invalid grant") {
			t.Errorf("without a certificate: %v", err)
		}
		// A client that has an open connection gives it up for the new certificate.
		b.answers(page(http.StatusOK))
		get(t, i.Client(), b.server)
		b.answers(nil)
		if synctest.Wait(); b.open.Load() != 1 {
			t.Fatalf("%d connections are kept, want 1", b.open.Load())
		}
		i.Client().CloseIdleConnections()
		if synctest.Wait(); b.open.Load() != 0 {
			t.Errorf("%d connections are kept after CloseIdleConnections", b.open.Load())
		}
	})
}

func get(t *testing.T, c *http.Client, url string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close() // it is empty
}

// TestTokenOfOtherAuthority checks that a token of another authority moves the machine to its
// server, and goes to no other one.
func TestTokenOfOtherAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, other := newBench(t), newBench(t)
		i := b.identity(t, b.tok)
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		node := i.Node()
		i = b.identity(t, other.tok)
		if err := i.Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "another certificate authority") || i.Node() != node {
			t.Errorf("at the old server: %v, node %s", err, i.Node())
		}
		if b.enrolls.Load() != 1 {
			t.Error("the old server got a token of the other one")
		}
		cfg := other.config(other.tok)
		cfg.Dir = b.dir
		i = other.openWith(t, cfg)
		if err := i.Enroll(t.Context()); err != nil || i.Node() == node || i.LedgerID() != LedgerID(other.ca.CA()) || other.renewals.Load() != 0 {
			t.Errorf("at the new server: %v, node %s", err, i.Node())
		}
	})
}

// TestTokenUnreadable checks that an error of reading the token is returned, and nothing is sent.
func TestTokenUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		cfg := b.config(token.Token{})
		why := errors.New("permission of the file")
		cfg.Token = func() (token.Token, error) { return token.Token{}, why }
		i := b.openWith(t, cfg)
		if err := i.Enroll(t.Context()); err != why {
			t.Errorf("Enroll: %v", err)
		}
		if err := b.identity(t, b.tok).Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		i = b.openWith(t, cfg)
		time.Sleep(21 * day)
		if err := i.Refresh(t.Context()); err != why || b.renewals.Load() != 0 {
			t.Errorf("Refresh: %v, %d renewals", err, b.renewals.Load())
		}
		cfg.Token = func() (token.Token, error) { return token.Token{}, fault.ErrNotFound }
		if err := b.openWith(t, cfg).Refresh(t.Context()); err != nil || b.renewals.Load() != 1 {
			t.Errorf("without a token: %v, %d renewals", err, b.renewals.Load())
		}
	})
}

// TestHints checks which token the hint for an operator names.
func TestHints(t *testing.T) {
	for _, c := range []struct {
		machine string
		role    registry.Role
		want    string
	}{{"m", "", "--role agent"}, {"m", registry.Agent, "--role agent"}, {"m jobs", "", "--role job"}, {"ledger", registry.Upstream, "--role upstream"}} {
		i, err := Open(Config{Dir: t.TempDir(), Server: "https://server", Role: c.role, Facts: Facts{Machine: c.machine}}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := i.Enroll(t.Context()); !strings.HasSuffix(fault.Hint(err), c.want) {
			t.Errorf("%s: %v (hint %q), want %s", c.machine, err, fault.Hint(err), c.want)
		}
		i.state.Store(&state{node: "S1"})
		if got := i.newTokenHint(); strings.HasSuffix(got, "--node S1") != (c.role == registry.Upstream) {
			t.Errorf("%s as S1: %s", c.machine, got)
		}
	}
}

// TestSilentServer checks how long a machine waits for a server that does not answer.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		took := func(f func() error) (time.Duration, error) {
			began := time.Now()
			err := f()
			return time.Since(began), err
		}
		i := b.identity(t, b.tok)
		silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		b.answers(silent)
		if d, err := took(func() error { return i.Enroll(t.Context()) }); d != 30*time.Second || !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("no answer: %v after %v", err, d)
		}
		b.frozen.Store(true)
		if d, err := took(func() error { return i.Enroll(t.Context()) }); d != 10*time.Second || !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("no handshake: %v after %v", err, d)
		}
		b.frozen.Store(false)
		b.answers(nil)
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.answers(page(http.StatusOK))
		get(t, i.Client(), b.server)
		if time.Sleep(90*time.Second - 1); b.open.Load() != 1 {
			t.Errorf("%d connections within 90 s, want 1", b.open.Load())
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); b.open.Load() != 0 {
			t.Errorf("%d connections after 90 s without a request", b.open.Load())
		}
		// A peer from which nothing arrives is pinged after 30 s, and given up 15 s later.
		get(t, i.Client(), b.server)
		b.frozen.Store(true)
		d, err := took(func() error { resp, err := i.Client().Get(b.server); return errors.Join(err, discard(resp)) })
		if d != 45*time.Second || err == nil {
			t.Errorf("nothing arrives: %v after %v", err, d)
		}
		b.frozen.Store(false)
	})
}

func discard(resp *http.Response) error {
	if resp == nil {
		return nil
	}
	return resp.Body.Close()
}

// TestProxy checks that a proxy may be between a machine and a server with TLS, and none where the
// kernel says who the server is.
func TestProxy(t *testing.T) {
	if newTransport(verifyRoot(nil), nil, nil).Proxy == nil || newTransport(nil, nil, nil).Proxy != nil {
		t.Error("a proxy is used for the loopback, or not with TLS")
	}
}

// TestDirectory checks which files a start changes in its directory.
func TestDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent := filepath.Join(t.TempDir(), "a[b") // a name, not a pattern
		dir := filepath.Join(parent, "identity")
		start := func() error {
			_, err := Open(Config{Dir: dir, Server: "https://server"}, slog.New(slog.DiscardHandler))
			return err
		}
		mode := func(path string) os.FileMode {
			st, err := os.Stat(path)
			if err != nil {
				return 0
			}
			return st.Mode().Perm()
		}
		if err := start(); err != nil || mode(parent) != 0o700 || mode(dir) != 0o700 {
			t.Errorf("%v; modes %v, %v", err, mode(parent), mode(dir))
		}
		for name, age := range map[string]time.Duration{".new-young": tempFileAge - 1, ".new-old": tempFileAge, "old": day, "x.json": day} {
			path := filepath.Join(dir, name)
			at := time.Now().Add(-age)
			if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Chmod(path, 0o644), os.Chtimes(path, at, at), os.Chmod(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		if err := start(); err != nil || mode(dir) != 0o700 {
			t.Errorf("%v; mode %v", err, mode(dir))
		}
		for name, want := range map[string]os.FileMode{".new-young": 0o644, ".new-old": 0, "old": 0o644, "x.json": 0o600} {
			if got := mode(filepath.Join(dir, name)); got != want {
				t.Errorf("%s: mode %v, want %v (0: removed)", name, got, want)
			}
		}
		left := filepath.Join(dir, ".new-dir")
		old := time.Now().Add(-day)
		if err := errors.Join(os.MkdirAll(filepath.Join(left, "file"), 0o700), os.Chtimes(left, old, old)); err != nil {
			t.Fatal(err)
		}
		if err := start(); err == nil || !strings.Contains(err.Error(), left) {
			t.Errorf("what is left cannot be removed: %v", err)
		}
		if err := errors.Join(os.RemoveAll(left), os.Symlink("loop.json", filepath.Join(dir, "loop.json"))); err != nil {
			t.Fatal(err)
		}
		if err := start(); err == nil || !strings.Contains(err.Error(), "loop.json") {
			t.Errorf("a mode cannot be set: %v", err)
		}
		if err := os.WriteFile(filepath.Join(parent, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(parent, "file", "identity")
		if err := start(); err == nil || !strings.Contains(err.Error(), "mkdir") {
			t.Errorf("below a file: %v", err)
		}
	})
}

// TestUnwritable checks that a machine does not ask for an identity with a key that it cannot keep,
// and has none that it cannot keep.
func TestUnwritable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		i := b.identity(t, b.tok)
		block := func(name string) {
			if err := os.MkdirAll(filepath.Join(b.dir, name, "x"), 0o700); err != nil {
				t.Error(err)
			}
		}
		unblock := func(name string) {
			if err := os.RemoveAll(filepath.Join(b.dir, name)); err != nil {
				t.Error(err)
			}
		}
		block(pendingFile)
		if err := i.Enroll(t.Context()); err == nil || b.enrolls.Load() != 0 {
			t.Errorf("%v, %d requests; the key cannot be kept", err, b.enrolls.Load())
		}
		unblock(pendingFile)
		block("identity.json")
		if err := i.Enroll(t.Context()); err == nil || i.Node() != "" {
			t.Errorf("%v, node %s; the identity cannot be kept", err, i.Node())
		}
		unblock("identity.json")
		grantAnd := func(then func()) {
			b.answers(func(w http.ResponseWriter, r *http.Request) { then(); b.ca.Handler().ServeHTTP(w, r) })
		}
		// Another enrolling process has removed the key.
		grantAnd(func() { unblock(pendingFile) })
		if err := i.Enroll(t.Context()); err != nil || i.Node() == "" {
			t.Errorf("%v; the other one finished", err)
		}
		grantAnd(func() { unblock(pendingFile); block(pendingFile) })
		if err := i.Reenroll(t.Context()); err == nil {
			t.Error("the key of the finished enrollment cannot be removed, without an error")
		}
		unblock(pendingFile)
		for name, text := range map[string]string{"no PEM": "x", "no key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})), "no ECDSA key": `-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----
`} {
			if err := writeFile(filepath.Join(b.dir, pendingFile), pendingKey{"m", text}); err != nil {
				t.Fatal(err)
			}
			if key, err := i.loadPendingKey(); err != nil || key == nil {
				t.Errorf("%s: %v, %v, want a new key", name, key, err)
			}
		}
		if err := os.WriteFile(filepath.Join(b.dir, pendingFile), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if key, err := i.loadPendingKey(); err != nil || key == nil {
			t.Errorf("no JSON: %v, %v, want a new key", key, err)
		}
	})
}

// TestRunEnds checks that Run ends with its context, whatever it is doing, and what it logs.
func TestRunEnds(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		start  time.Duration // of Run, after the enrollment
		after  time.Duration // the start of Run
		log    string
	}{
		"waits until it is due":   {nil, 0, 10 * day, ""},
		"waits for an answer":     {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 20 * day, time.Second, ""},
		"waits after a failure":   {problem(fault.ErrUnavailable), 20 * day, 10 * time.Hour, "retrying"},
		"waits and it ends soon":  {problem(fault.ErrUnavailable), 30*day - time.Minute, time.Second, "which ends soon"},
		"has waited for long now": {problem(fault.ErrUnavailable), 30*day - maxWait - time.Minute, time.Second, "retrying"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				i := b.identity(t, b.tok)
				if err := i.Enroll(t.Context()); err != nil {
					t.Fatal(err)
				}
				if c.answer != nil {
					b.answers(c.answer)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error)
				time.Sleep(c.start)
				go func() { done <- i.Run(ctx) }()
				time.Sleep(c.after)
				cancel()
				began := time.Now()
				if err := <-done; !errors.Is(err, context.Canceled) || !time.Now().Equal(began) {
					t.Errorf("%v, %v later", err, time.Since(began))
				}
				tried := b.renewals.Load()
				if (tried > 0) != (c.answer != nil) {
					t.Errorf("%d renewals", tried)
				}
				if got := b.log.String(); c.log == "" && strings.Contains(got, "cannot renew") || !strings.Contains(got, c.log) || c.log == "retrying" && strings.Contains(got, "ends soon") {
					t.Errorf("log, want %q:\n%s", c.log, got)
				}
			})
		})
	}
}

// TestRenewalTimes checks when a certificate is due, for one that lives for 5120 s: within the
// twentieth of its life before two thirds of it, each fingerprint has its second.
func TestRenewalTimes(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const life = 5120 * time.Second
	seen := map[byte]bool{}
	for n := range 600 {
		raw := fmt.Append(nil, n)
		s := &state{leaf: &x509.Certificate{Raw: raw, NotBefore: begin, NotAfter: begin.Add(life)}}
		first := token.FingerprintOf(raw)[0]
		seen[first] = true
		if want := life*2/3 - time.Duration(first)*time.Second; s.renewAfter() != want || !s.renewalTime().Equal(begin.Add(want)) || s.life() != life {
			t.Fatalf("due after %v of %v, want %v", s.renewAfter(), s.life(), want)
		}
	}
	if len(seen) < 200 {
		t.Fatalf("%d of 256 seconds", len(seen))
	}
	s := &state{leaf: &x509.Certificate{NotBefore: begin, NotAfter: begin.Add(300 * day)}}
	due := s.renewAfter()
	late, early := s.renewalTime(), s.renewalTime().Add(-1)
	for _, c := range []struct {
		now           time.Time
		awake, passed time.Duration
		want          bool
	}{
		{early, due, due, true}, {early, due - 1, due - 1, false}, // by the clock that does not jump
		{late, 30 * day, 30 * day, true}, {late, 30*day - 1, 30 * day, false}, {early, 30 * day, 30 * day, false}, // the wall clock counts after a tenth
		{late, 1, clockInterval + 1, false}, {late, 1, clockInterval + 2, true}, {early, 1, clockInterval + 2, false}, // or after a suspend
		{late, clockInterval + 9, 1, false},
	} {
		if got := s.isDueAgain(c.now, c.awake, c.passed); got != c.want {
			t.Errorf("due %v after the time, awake for %v of %v: %v, want %v", c.now.Sub(late), c.awake, c.passed, got, c.want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		i := &Identity{}
		s := &state{leaf: &x509.Certificate{NotBefore: now, NotAfter: now.Add(300 * day)}}
		i.state.Store(s)
		for _, c := range []struct {
			last time.Time
			want time.Duration
		}{{time.Time{}, s.renewAfter() - 5*day}, {now, s.renewAfter() - 5*day}, {now.Add(3 * day), s.renewAfter() - 2*day}, {now.Add(-400 * day), time.Second}} {
			if time.Now().Equal(now) {
				time.Sleep(5 * day)
			}
			if got := i.untilDue(c.last); got != c.want {
				t.Errorf("renewed last at %v: %v until it is due, want %v", c.last, got, c.want)
			}
		}
	})
}

// TestBackoff checks how long Run waits after a failure: between a half and the whole of a time
// that doubles, up to an hour.
func TestBackoff(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: minWait, 1: 2 * minWait, 5: 32 * minWait, 6: maxWait, 10: maxWait, 99: maxWait} {
		low, high := maxWait, time.Duration(0)
		for range 2000 {
			d := backoff(failures, fault.ErrUnavailable)
			low, high = min(low, d), max(high, d)
		}
		if low < want/2 || low > want*6/10 || high >= want || high < want*9/10 {
			t.Errorf("after %d failures: from %v to %v, want from %v to %v", failures, low, high, want/2, want)
		}
	}
	for after, want := range map[time.Duration]time.Duration{time.Second: minWait / 2, 10 * time.Minute: 10 * time.Minute, day: maxWait} {
		if d := backoff(0, &fault.RetryError{Err: fault.ErrUnavailable, After: after}); d < want || d > max(want, minWait) {
			t.Errorf("a server that asks for %v: %v, want %v", after, d, want)
		}
	}
}

// TestUnreachable checks that a machine without a network says that it may work later.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		cfg := b.config(b.tok)
		cfg.dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
		if err := b.openWith(t, cfg).Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "no route") {
			t.Errorf("%v, want unavailable", err)
		}
	})
}
