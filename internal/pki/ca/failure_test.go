package ca_test

import (
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
)

// TestRegistryFailsAtEachStep lets each call of the registry fail in turn: nothing succeeds then,
// and it succeeds when it is tried again after a restart of the server, with no second node. Each
// call takes longer than its result is cached.
func TestRegistryFailsAtEachStep(t *testing.T) { synctest.Test(t, testRegistryFails) }

func testRegistryFails(t *testing.T) {
	request, dir := csr(t, elliptic.P256()), t.TempDir()
	agent := token.Principal{Node: "N1", Cluster: "lab", Role: registry.Agent}
	for name, c := range map[string]struct {
		prepare func(a *ca.Authority, reg *memory) func() error
		want    error // without a failure
		more    bool  // it may make another node when it is tried again
	}{
		"machine":   {enrolls(t, request, registry.Token{Role: registry.Agent}, "m"), nil, false},
		"node":      {enrolls(t, request, registry.Token{Role: registry.Agent, Node: "N1"}, "m"), nil, false},
		"jobs":      {enrolls(t, request, registry.Token{Role: registry.Job}, "m jobs"), nil, false},
		"server":    {enrolls(t, request, registry.Token{Role: registry.Upstream}, "new"), nil, false},
		"ledger":    {enrolls(t, request, registry.Token{Role: registry.Upstream}, "ledger"), fault.ErrDenied, false},
		"source":    {enrolls(t, request, registry.Token{Role: registry.Upstream, Node: "S1"}, "ledger"), nil, false},
		"not jobs":  {enrolls(t, request, registry.Token{Role: registry.Job}, "m"), fault.ErrDenied, false},
		"not bound": {enrolls(t, request, registry.Token{Role: registry.Agent, Node: "N1"}, "m jobs"), fault.ErrDenied, false},
		"wrong": {func(a *ca.Authority, _ *memory) func() error {
			text := token.New([5]byte{1}, [20]byte{2}, a.CA()).Reveal()
			return func() error { return second(a.Enroll(t.Context(), claimOf(text, request, "m"))) }
		}, fault.ErrDenied, false},
		"clone": {func(a *ca.Authority, _ *memory) func() error {
			return func() error { return second(a.EnrollBy(t.Context(), claimOf("", request, "m"), agent)) }
		}, nil, true},
		"jobs as a clone": {func(a *ca.Authority, _ *memory) func() error {
			return func() error { return second(a.EnrollBy(t.Context(), claimOf("", request, "m jobs"), agent)) }
		}, fault.ErrDenied, false},
		"renewal": {func(a *ca.Authority, _ *memory) func() error {
			return func() error { return second(a.Renew(t.Context(), claimOf("", request, "m"), agent)) }
		}, nil, false},
		"renewal of an unknown node": {func(a *ca.Authority, _ *memory) func() error {
			return func() error {
				return second(a.Renew(t.Context(), claimOf("", request, "m"), token.Principal{Node: "N9", Cluster: "lab", Role: registry.Agent}))
			}
		}, nil, false},
		"renewal of a server": {func(a *ca.Authority, _ *memory) func() error {
			return func() error {
				return second(a.Renew(t.Context(), claimOf("", request, "m"), token.Principal{Node: "S1", Cluster: "lab", Role: registry.Upstream}))
			}
		}, nil, false},
		"local": {func(a *ca.Authority, _ *memory) func() error {
			return func() error { return second(a.EnrollLocal(t.Context(), "m", "b", "n")) }
		}, nil, false},
		"token": {func(a *ca.Authority, _ *memory) func() error {
			return func() error {
				_, _, err := a.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer})
				return err
			}
		}, nil, false},
		"token for a node": {func(a *ca.Authority, _ *memory) func() error {
			return func() error {
				_, _, err := a.Tokens().Create(t.Context(), registry.Token{Role: registry.Agent, Node: "N1"})
				return err
			}
		}, nil, false},
		"list": {func(a *ca.Authority, _ *memory) func() error {
			return func() error { return second(a.Tokens().List(t.Context())) }
		}, nil, false},
		"revoke a token": {func(a *ca.Authority, reg *memory) func() error {
			reg.tokens = append(reg.tokens, registry.Token{ID: "T1"})
			return func() error { return a.Tokens().Revoke(t.Context(), "T1") }
		}, nil, false},
		"revoke a node": {func(a *ca.Authority, _ *memory) func() error {
			return func() error { return a.RevokeNode(t.Context(), "N1") }
		}, nil, false},
		"certificate": {func(a *ca.Authority, _ *memory) func() error {
			return func() error { return a.CheckAllowed(t.Context(), "N1") }
		}, nil, false},
		"viewer": {func(a *ca.Authority, _ *memory) func() error {
			text, _, err := a.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer})
			if err != nil {
				t.Fatal(err)
			}
			return func() error { return second(a.Identify(shows(text, "10.0.0.1"))) }
		}, nil, false},
		"job": {func(a *ca.Authority, _ *memory) func() error {
			text := a.JobKey(nodeA).Sign(jobOf(nodeA, time.Hour))
			return func() error { return second(a.IdentifyJob(shows(text, "10.0.0.1"))) }
		}, nil, false},
		"local node": {func(a *ca.Authority, _ *memory) func() error {
			r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/batches", nil)
			r.Header.Set(token.NodeHeader, "N1")
			return func() (err error) {
				ca.TrustLocal(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, err = a.Identify(r) })).ServeHTTP(nil, r)
				return err
			}
		}, nil, false},
	} {
		start := func() (*memory, func() error) {
			reg := &memory{delay: 6 * time.Second}
			reg.nodes = []registry.Node{{ID: "N1", Cluster: "lab", MachineID: "m", Boot: "b", Name: "n"}, {ID: "N2", Cluster: "lab", MachineID: "m jobs"}}
			reg.sources = []registry.Node{{ID: "S1", Cluster: "lab", MachineID: "ledger"}}
			a := open(t, ca.Config{Dir: dir, Local: true, Cluster: "lab"}, reg)
			do := c.prepare(a, reg)
			reg.calls = 0
			return reg, func() error { a.Forget(); return do() }
		}
		reg, do := start()
		if err := do(); !errors.Is(err, c.want) {
			t.Fatalf("%s without a failure: %v, want %v", name, err, c.want)
		}
		steps, nodes := reg.calls, len(reg.nodes)+len(reg.sources)
		for k := range steps {
			reg, do := start()
			reg.failAt = k + 1
			if err := do(); err == nil || !strings.Contains(err.Error(), errDisk.Error()) {
				t.Errorf("%s: call %d of %d fails: %v", name, k+1, steps, err)
			}
			if err := do(); !errors.Is(err, c.want) {
				t.Errorf("%s again, after call %d of %d failed: %v, want %v", name, k+1, steps, err, c.want)
			}
			if n := len(reg.nodes) + len(reg.sources); n != nodes && !c.more {
				t.Errorf("%s, after call %d of %d failed: %d nodes, want %d", name, k+1, steps, n, nodes)
			}
		}
		if steps == 0 {
			t.Errorf("%s makes no call", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func claimOf(text, request, machine string) token.Claim {
	return token.Claim{Token: text, CSR: request, Machine: machine, Boot: "b", Name: "n"}
}

// enrolls makes a token, and returns a function that enrolls a machine or a server with it.
func enrolls(t *testing.T, request string, want registry.Token, machine string) func(*ca.Authority, *memory) func() error {
	return func(a *ca.Authority, _ *memory) func() error {
		text, _, err := a.Tokens().Create(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		claim := claimOf(text, request, machine)
		if want.Role == registry.Upstream {
			claim.Role = registry.Upstream
		}
		return func() error { return second(a.Enroll(t.Context(), claim)) }
	}
}

// TestSigningFails checks that an authority that cannot sign grants nothing, and presents the
// certificate that it has.
func TestSigningFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg, request, log := &memory{}, csr(t, elliptic.P256()), &strings.Builder{}
		a, err := ca.Open(ca.Config{Dir: t.TempDir()}, reg, slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		text, _, err := a.Tokens().Create(t.Context(), registry.Token{Role: registry.Agent})
		if err != nil {
			t.Fatal(err)
		}
		a.SpoilKey()
		if g, err := a.Enroll(t.Context(), claimOf(text, request, "m")); err == nil {
			t.Errorf("enrolled as %+v", g)
		}
		if g, err := a.Renew(t.Context(), claimOf("", request, "m"), token.Principal{Node: "N1", Cluster: "lab", Role: registry.Agent}); err == nil {
			t.Errorf("renewed as %+v", g)
		}
		before := greeting(t, a)[0]
		if strings.Contains(log.String(), "not renewed") {
			t.Errorf("log: %s", log)
		}
		time.Sleep(61 * 24 * time.Hour)
		if now := greeting(t, a)[0]; !now.Equal(before) || !strings.Contains(log.String(), "not renewed") {
			t.Errorf("another certificate; log: %s", log)
		}
	})
}

// TestCertificateContent checks the fields of each kind of certificate, and that none outlives the
// authority.
func TestCertificateContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		begin, dir := time.Now().Truncate(time.Second), t.TempDir()
		a := open(t, ca.Config{Dir: dir}, &memory{})
		request := csr(t, elliptic.P256())
		client := func(role registry.Role) *x509.Certificate {
			g, err := a.Renew(t.Context(), claimOf("", request, "m"), token.Principal{Node: "N1", Cluster: "lab", Role: role})
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode([]byte(g.Certificate))
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		chain := greeting(t, a)
		for name, c := range map[string]struct {
			cert    *x509.Certificate
			life    time.Duration
			subject string // a pattern
			uri     string
			usage   x509.KeyUsage
			for_    []x509.ExtKeyUsage
		}{
			"authority": {chain[1], 3650 * day, "^CN=mete certificate authority [A-Z2-7]{8}$", "", x509.KeyUsageCertSign | x509.KeyUsageCRLSign, nil},
			"server":    {chain[0], 90 * day, "^CN=mete server$", "", x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
			"agent":     {client(registry.Agent), 30 * day, "^CN=N1,OU=agent$", "mete://lab/N1", x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
			"below":     {client(registry.Upstream), 30 * day, "^CN=N1,OU=upstream$", "mete://lab/N1", x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		} {
			var uri strings.Builder
			for _, u := range c.cert.URIs {
				uri.WriteString(u.String())
			}
			isCA := name == "authority"
			if !c.cert.NotBefore.Equal(begin.Add(-time.Hour)) || !c.cert.NotAfter.Equal(begin.Add(c.life)) || !regexp.MustCompile(c.subject).MatchString(c.cert.Subject.String()) || uri.String() != c.uri ||
				c.cert.KeyUsage != c.usage || !slices.Equal(c.cert.ExtKeyUsage, c.for_) || !c.cert.BasicConstraintsValid || c.cert.IsCA != isCA || c.cert.MaxPathLenZero != isCA || c.cert.SerialNumber.BitLen() < 64 {
				t.Errorf("%s: %s for %s, usage %b and %v, from %v to %v", name, c.cert.Subject, uri.String(), c.cert.KeyUsage, c.cert.ExtKeyUsage, c.cert.NotBefore, c.cert.NotAfter)
			}
		}
		if own, authority := a.OwnExpiry(); !own.Equal(chain[0].NotAfter) || !authority.Equal(chain[1].NotAfter) {
			t.Errorf("they end %v and %v", own, authority)
		}
		// The server's certificate is renewed after two thirds of its life, an hour of which is past.
		due := begin.Add(-time.Hour).Add((90*day + time.Hour) * 2 / 3)
		time.Sleep(time.Until(due))
		if !greeting(t, a)[0].Equal(chain[0]) {
			t.Error("renewed before two thirds of its life")
		}
		time.Sleep(time.Nanosecond)
		if greeting(t, a)[0].Equal(chain[0]) {
			t.Error("not renewed after two thirds of its life")
		}
		time.Sleep(time.Until(chain[1].NotAfter) - day)
		for name, c := range map[string]*x509.Certificate{"server": greeting(t, a)[0], "agent": client(registry.Agent)} {
			if !c.NotAfter.Equal(chain[1].NotAfter) {
				t.Errorf("%s: it ends %v, the authority %v", name, c.NotAfter, chain[1].NotAfter)
			}
		}
	})
}

// TestOpenLogs checks what an administrator learns at a start.
func TestOpenLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "authority")
		start := func(want ...string) {
			t.Helper()
			var log strings.Builder
			if _, err := ca.Open(ca.Config{Dir: dir}, &memory{}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))); err != nil {
				t.Error(err)
			}
			if n := strings.Count(log.String(), "\n"); n != len(want) {
				t.Errorf("%d warnings, want %d:\n%s", n, len(want), &log)
			}
			for _, text := range want {
				if !strings.Contains(log.String(), text) {
					t.Errorf("no warning %q:\n%s", text, &log)
				}
			}
		}
		start()
		began := time.Now().Truncate(time.Second)
		if err := os.Remove(filepath.Join(dir, "server.pem")); err != nil {
			t.Fatal(err)
		}
		start()
		if err := os.WriteFile(filepath.Join(dir, "server.pem"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		start("server certificate cannot be read")
		mode := func(name string, mode os.FileMode) {
			if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
				t.Fatal(err)
			}
		}
		for name, want := range map[string]os.FileMode{".": 0o700, "ca.pem": 0o600, "server.pem": 0o600} {
			mode(name, want|1)
			start("restricted permissions")
			if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != want {
				t.Errorf("%s: %v, %v, want %v", name, st.Mode().Perm(), err, want)
			}
			mode(name, want&^0o200)
			start()
			mode(name, want)
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, "server.pem")), os.MkdirAll(filepath.Join(dir, "server.pem", "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
		start("server certificate cannot be read", "server certificate not kept", "restricted permissions")
		if err := os.RemoveAll(filepath.Join(dir, "server.pem")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(began.Add((3650 - 365) * 24 * time.Hour)))
		start()
		time.Sleep(time.Nanosecond)
		start("certificate authority ends within a year")
	})
}

// TestOpenFails checks that an authority does not open without its files.
func TestOpenFails(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "a[b") // a name, not a pattern
	dir := filepath.Join(parent, "authority")
	fails := func(what, want string, cfg ca.Config) {
		t.Helper()
		if cfg.Dir == "" {
			cfg.Dir = dir
		}
		if a, err := ca.Open(cfg, &memory{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want an error with %q", what, a, err, want)
		}
	}
	if err := ca.Check(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no authority: %v", err)
	}
	fails("a name that no certificate can have", "certificate of mete server", ca.Config{Names: []string{"ä"}})
	open(t, ca.Config{Dir: dir}, &memory{})
	if st, err := os.Stat(parent); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory above: %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(filepath.Join(dir, "lock")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the lock: %v, %v", st.Mode(), err)
	}
	if err := ca.Check(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(parent, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fails("below a file", "mkdir", ca.Config{Dir: filepath.Join(parent, "file", "authority")})
	if err := errors.Join(os.Remove(filepath.Join(dir, "lock")), os.Mkdir(filepath.Join(dir, "lock"), 0o700)); err != nil {
		t.Fatal(err)
	}
	fails("no lock", "lock", ca.Config{})
	// Parts of the file that are neither a key nor a certificate.
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(filepath.Join(dir, "server.pem"))
	if err != nil {
		t.Fatal(err)
	}
	key, cert, _ := strings.Cut(string(whole), "-----BEGIN CERTIFICATE-----")
	cert = "-----BEGIN CERTIFICATE-----" + cert
	otherKey, _, _ := strings.Cut(string(other), "-----BEGIN CERTIFICATE-----")
	garbage := func(kind string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte("x")}))
	}
	for text, want := range map[string]string{
		garbage("PRIVATE KEY") + cert: "ca.pem: ", key + garbage("CERTIFICATE"): "ca.pem: ", cert: "has no ECDSA key", key: "has no certificate", otherKey + cert: "do not belong together",
		garbage("PRIVATE KEY") + string(whole): "ca.pem: ", garbage("CERTIFICATE") + string(whole): "ca.pem: ",
	} {
		if err := os.WriteFile(filepath.Join(dir, "ca.pem"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fails("a damaged file", want, ca.Config{})
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), append([]byte(garbage("OTHER")), whole...), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, ca.Config{Dir: dir}, &memory{}) // other parts do not matter
	server := filepath.Join(dir, "server.pem")
	if err := errors.Join(os.Remove(server), os.Symlink("server.pem", server)); err != nil {
		t.Fatal(err)
	}
	fails("permissions that cannot be restricted", "server.pem", ca.Config{})
}

// TestEnrollRequests checks the answers to requests that no client of mete sends.
func TestEnrollRequests(t *testing.T) {
	s := serve(t, ca.Config{})
	i := s.enrolled(s.agents(1), blade)
	caText, key := s.ca()
	own := func(r *http.Request, node string) {
		c := &x509.Certificate{}
		*c = *leafOf(t, s, node)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate(t, c, caText, key.Public(), key)}}
	}
	post := func(path string, claim string, change func(*http.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "https://localhost"+path, strings.NewReader(claim))
		r.Header.Set("Content-Type", "application/json")
		change(r)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	good := `{"machine_id":"4d1c","boot":"b","name":"n","csr":"` + strings.ReplaceAll(csr(t, elliptic.P256()), "\n", `\n`) + `"`
	for name, c := range map[string]struct {
		path, claim string
		change      func(*http.Request)
		status      int
		text        string
	}{
		"a clone":                      {"/v1/enroll", good + "}", func(r *http.Request) { own(r, i.Node()) }, 200, `"job_key"`},
		"token in the header":          {"/v1/enroll", good + "}", func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, 400, "belongs in the body"},
		"certificate and token":        {"/v1/enroll", good + `,"token":"x"}`, func(r *http.Request) { own(r, i.Node()) }, 400, "both a certificate and a token"},
		"a role that is not its own":   {"/v1/enroll", good + `,"role":"upstream"}`, func(r *http.Request) { own(r, i.Node()) }, 403, "by a certificate of role agent"},
		"another's certificate":        {"/v1/enroll", good + "}", func(r *http.Request) { r.TLS.PeerCertificates = []*x509.Certificate{caText} }, 403, "certificate is neither"},
		"no key":                       {"/v1/renew", `{"machine_id":"m","boot":"b","name":"n"}`, func(r *http.Request) { own(r, i.Node()) }, 400, "csr"},
		"no name":                      {"/v1/renew", strings.Replace(good, `"n"`, `""`, 1) + "}", func(r *http.Request) { own(r, i.Node()) }, 400, "name"},
		"renewal, another certificate": {"/v1/renew", good + "}", func(r *http.Request) { r.TLS.PeerCertificates = []*x509.Certificate{caText} }, 403, "certificate is neither"},
		"jobs by a machine's":          {"/v1/enroll", strings.Replace(good, "4d1c", "4d1c jobs", 1) + "}", func(r *http.Request) { own(r, i.Node()) }, 403, "as machine"},
		"a local role":                 {"/v1/enroll", `{"machine_id":"m","boot":"b","name":"n","role":"upstream"}`, func(r *http.Request) { trust(r) }, 403, "without a token"},
		"a key that is not PEM":        {"/v1/enroll", `{"machine_id":"m","boot":"b","name":"n","csr":"` + strings.ReplaceAll(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})), "\n", `\n`) + `"}`, func(*http.Request) {}, 400, "csr: "},
		"another kind of PEM":          {"/v1/enroll", strings.ReplaceAll(good, "CERTIFICATE REQUEST", "CERTIFICATE") + "}", func(*http.Request) {}, 400, "not a PEM certificate request"},
		"no token":                     {"/v1/enroll", good + "}", func(*http.Request) {}, 401, "neither a certificate nor a token"},
	} {
		if w := post(c.path, c.claim, c.change); w.Code != c.status || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s: %d %s, want %d, %q", name, w.Code, w.Body, c.status, c.text)
		}
	}
	for size, status := range map[int]int{64 << 10: 401, 64<<10 + 1: 413} {
		if w := post("/v1/enroll", good+"}"+strings.Repeat(" ", size-len(good)-1), func(*http.Request) {}); w.Code != status {
			t.Errorf("a request of %d bytes: %d, want %d", size, w.Code, status)
		}
	}
	for field, longest := range map[string]int{"machine_id": 128, "boot": 64, "name": 253} {
		for n, status := range map[int]int{longest: 401, longest + 1: 400} { // 401: it lacks a token
			values := map[string]string{"machine_id": "m", "boot": "b", "name": "n"}
			values[field] = strings.Repeat("x", n)
			if w := post("/v1/enroll", `{"machine_id":"`+values["machine_id"]+`","boot":"`+values["boot"]+`","name":"`+values["name"]+good[strings.Index(good, `","csr"`):]+"}", func(*http.Request) {}); w.Code != status {
				t.Errorf("%s of %d bytes: %d %s, want %d", field, n, w.Code, w.Body, status)
			}
		}
	}
}

// TestTokenOfAnotherProcess checks that a token that another process makes is valid at once.
func TestTokenOfAnotherProcess(t *testing.T) {
	reg, dir := &memory{}, filepath.Join(t.TempDir(), "authority")
	a, b := open(t, ca.Config{Dir: dir}, reg), open(t, ca.Config{Dir: dir}, reg)
	if err := a.CheckAllowed(t.Context(), "N1"); err != nil { // which reads the tokens
		t.Fatal(err)
	}
	text, _, err := b.Tokens().Create(t.Context(), registry.Token{Role: registry.Agent})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Enroll(t.Context(), claimOf(text, csr(t, elliptic.P256()), "m")); err != nil {
		t.Error(err)
	}
}

// TestEnrollLogs checks what the log and the audit log say of enrollments.
func TestEnrollLogs(t *testing.T) {
	reg, log := &memory{}, &strings.Builder{}
	a, err := ca.Open(ca.Config{Dir: filepath.Join(t.TempDir(), "authority")}, reg, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	key, other := csr(t, elliptic.P256()), csr(t, elliptic.P256())
	for _, c := range []struct {
		role             registry.Role // of the token
		request, machine string
		detail           string // begins the audit line
		warning          string // "" is none
	}{
		{registry.Agent, key, "m", `new: role agent, cluster "default", name "n", machine "m", boot "b"`, ""},
		{registry.Agent, key, "m", "again: ", ""},
		{registry.Agent, other, "m", "new, as the machine's id is in use by ", "gets a node id of its own"},
		{registry.Agent, key, "m jobs", "new: ", "jobs enrolled with a token that also enrolls machines"},
		{registry.Job, other, "m2 jobs", "new: ", ""},
		{registry.Upstream, key, "ledger", "new: role upstream", ""},
		{registry.Upstream, key, "ledger", "again: role upstream", ""},
	} {
		text, _, err := a.Tokens().Create(t.Context(), registry.Token{Role: c.role})
		if err != nil {
			t.Fatal(err)
		}
		log.Reset()
		claim := claimOf(text, c.request, c.machine)
		if c.role == registry.Upstream {
			claim.Role = registry.Upstream
		}
		g, err := a.Enroll(t.Context(), claim)
		if err != nil {
			t.Fatalf("%s of role %s: %v", c.machine, c.role, err)
		}
		tok, err := token.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if last := reg.audits[len(reg.audits)-1]; !strings.HasPrefix(last.Detail, c.detail) || last.Object != g.Node || last.Actor != tok.ID() {
			t.Errorf("%s of role %s: audited %+v, want %q", c.machine, c.role, last, c.detail)
		}
		if !strings.Contains(log.String(), c.warning) || (log.Len() == 0) != (c.warning == "") {
			t.Errorf("%s of role %s: log %q, want %q", c.machine, c.role, log, c.warning)
		}
	}
}

// TestEd25519 checks that a machine may have a key of this kind.
func TestEd25519(t *testing.T) {
	s := serve(t, ca.Config{})
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	request := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	g, err := s.Enroll(t.Context(), claimOf(s.agents(1).Reveal(), request, "m"))
	block, _ := pem.Decode([]byte(g.Certificate))
	if err != nil || block == nil {
		t.Fatal(err)
	}
	if c, err := x509.ParseCertificate(block.Bytes); err != nil || !key.Public().(ed25519.PublicKey).Equal(c.PublicKey) {
		t.Errorf("the certificate has another key: %v", err)
	}
}

// TestEndedHints checks which token the hint for an ended certificate names, and that no
// certificate identifies a job.
func TestEndedHints(t *testing.T) {
	s := serve(t, ca.Config{})
	caText, key := s.ca()
	for role, want := range map[registry.Role]string{registry.Agent: "--role agent", registry.Upstream: "--role upstream --node N1"} {
		g, err := s.Renew(t.Context(), claimOf("", csr(t, elliptic.P256()), "m"), token.Principal{Node: "N1", Cluster: "lab", Role: role})
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode([]byte(g.Certificate))
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "https://localhost/", nil)
		r.TLS.PeerCertificates = []*x509.Certificate{c}
		if _, err := s.IdentifyJob(r); !errors.Is(err, fault.ErrDenied) || ca.IsUnidentified(err) {
			t.Errorf("%s: the certificate as a job: %v", role, err)
		}
		r.Header.Set("Authorization", "Bearer "+s.JobKey("N1").Sign(jobOf("N1", time.Hour)))
		if _, err := s.IdentifyJob(r); !errors.Is(err, fault.ErrDenied) || ca.IsUnidentified(err) {
			t.Errorf("%s: the certificate and a token as a job: %v", role, err)
		}
		r.Header.Del("Authorization")
		if p, err := s.Identify(r); err != nil || p.Role != role {
			t.Errorf("%s: %+v, %v", role, p, err)
		}
		c.NotAfter = time.Now().Add(-time.Minute)
		r.TLS.PeerCertificates[0] = certificate(t, c, caText, key.Public(), key)
		if _, err := s.Identify(r); !ca.IsUnidentified(err) || !strings.HasSuffix(fault.Hint(err), want) {
			t.Errorf("%s: %v (hint %q), want %s", role, err, fault.Hint(err), want)
		}
	}
}

// trust marks a request as one of the server's own user.
func trust(r *http.Request) {
	r.TLS = nil
	ca.TrustLocal(http.HandlerFunc(func(_ http.ResponseWriter, trusted *http.Request) { *r = *trusted })).ServeHTTP(nil, r)
}

// leafOf returns a template of a node's certificate.
func leafOf(t *testing.T, s *server, node string) *x509.Certificate {
	t.Helper()
	g, err := s.Renew(t.Context(), claimOf("", csr(t, elliptic.P256()), "m"), token.Principal{Node: node, Cluster: "lab", Role: registry.Agent})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(g.Certificate))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
