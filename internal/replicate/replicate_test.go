package replicate_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/replicate"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func TestMain(m *testing.M) { ledgertest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// An upper is a whole server above, over TLS.
type upper struct {
	*server.Server
	t   *testing.T
	url string

	mu     sync.Mutex
	seen   bytes.Buffer // all that came, without compression
	broken int          // number of next requests with a page whose answers are lost
	pages  int
}

func above(t *testing.T, dsn string) *upper {
	t.Helper()
	cfg := server.Default()
	cfg.State, cfg.Database = t.TempDir(), dsn
	s, err := server.Open(t.Context(), cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upper{Server: s, t: t, url: "https://" + ln.Addr().String()}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, ln, u.record(s.Handler()), s.Authority.ServerTLS()) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return u
}

// record keeps what comes.
func (u *upper) record(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			u.t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		u.mu.Lock()
		fmt.Fprintln(&u.seen, r.URL, r.Header)
		if r.URL.Path == "/v1/states" {
			u.pages++
			d, err := zstd.NewReader(nil)
			if err == nil {
				var raw []byte
				raw, err = d.DecodeAll(body, nil)
				u.seen.Write(raw)
				d.Close()
			}
			if err != nil && r.Header.Get("Torn") == "" {
				u.t.Error(err)
			}
		} else {
			u.seen.Write(body)
		}
		lose := r.URL.Path == "/v1/states" && u.broken > 0
		if lose {
			u.broken--
		}
		u.mu.Unlock()
		if lose {
			h.ServeHTTP(&nowhere{}, r)
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	})
}

// nowhere is where a lost answer goes.
type nowhere struct{ h http.Header }

func (n *nowhere) Header() http.Header {
	if n.h == nil {
		n.h = http.Header{}
	}
	return n.h
}
func (n *nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (n *nowhere) WriteHeader(int)             {}

func (u *upper) token(role registry.Role) token.Token {
	u.t.Helper()
	return u.make(registry.Token{Role: role, Cluster: "lab"})
}

// tokenFor returns a token for a server that enrolled.
func (u *upper) tokenFor(source string) token.Token {
	u.t.Helper()
	return u.make(registry.Token{Role: registry.Upstream, Node: source})
}

func (u *upper) make(want registry.Token) token.Token {
	u.t.Helper()
	text, _, err := u.Authority.Tokens().Create(u.t.Context(), want)
	if err != nil {
		u.t.Fatal(err)
	}
	tok, err := token.Parse(text)
	if err != nil {
		u.t.Fatal(err)
	}
	return tok
}

// below returns a ledger with use by workloads whose names are private.
func below(t *testing.T) *ledger.Ledger {
	t.Helper()
	cfg := ledger.Default()
	cfg.Upstream = true
	l, err := ledger.Open(t.Context(), ledgertest.SQLite(t), cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	n := registry.Node{ID: "01NODE", Cluster: "secretcluster", Name: "secretnode", MachineID: "secretmachine", Boot: "secretboot", At: ledgertest.Day}
	if err := l.PutNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	book(t, l, 1, 0)
	return l
}

// book books a batch with an hour and a half of use by three workloads, which begins
// the given number of minutes after [ledgertest.Day].
func book(t *testing.T, l *ledger.Ledger, number uint64, from int64) {
	t.Helper()
	e := &batch.Entry{Node: "01NODE", Stream: batch.Stream{1}, Number: number, Hash: batch.Hash{byte(number)}, Boot: "secretboot"}
	if number > 1 {
		e.Previous = batch.Hash{byte(number - 1)}
	}
	for i, key := range []string{"secretkey1", "secretkey2"} {
		name := batch.Name{
			ID: workload.NewID(e.Node, workload.Job, key), Kind: workload.Job, Key: key, Name: fmt.Sprint("secretname", i), Path: "/secretpath",
			Job: "secretjob", User: "secretuser", Project: fmt.Sprint("secretproject", i),
			Labels: map[string]string{"secretlabel": "secretvalue", "io.kubernetes.pod.namespace": "secretspace", "io.kubernetes.pod.name": "secretpod", "io.kubernetes.container.name": "secretcontainer"},
		}
		e.Names = append(e.Names, name)
		short, _ := workload.ShortIDOf(name.ID)
		for m := range int64(90) {
			row := batch.Minute{Workload: short, Minute: ledgertest.Day.Unix()/60 + from + m}
			row.Usage.Covered = time.Minute
			row.Usage.Put(usage.CPU, 1e9*(m+1), usage.Measured)
			row.Usage.Put(usage.Memory, 1<<40, usage.Apportioned)
			e.Minutes = append(e.Minutes, row)
			n := batch.NodeMinute{Minute: row.Minute, Covered: time.Minute, CPUs: 4}
			n.Whole[0] = 60e9
			e.Nodes = append(e.Nodes, n)
			e.Through = time.Unix(60*(row.Minute+1), 0)
		}
	}
	e.Gaps = []usage.Gap{{From: ledgertest.Day.Add(-time.Hour), To: ledgertest.Day, Reason: usage.Rebooted, Detail: "secretdetail"}}
	e.Shifts = []batch.Shift{{Boot: "secretboot", At: ledgertest.Day, By: time.Hour, From: ledgertest.Day}}
	results, err := l.Book(t.Context(), []*batch.Entry{e})
	if err != nil || results[0].Verdict != batch.Accepted {
		t.Fatal(results, err)
	}
}

// sums are what groups used in the tests' first two days.
func sums(t *testing.T, l *ledger.Ledger, by query.Dimension) map[string]string {
	t.Helper()
	a, err := l.Usage(t.Context(), query.Query{From: ledgertest.Day, To: ledgertest.Day.Add(48 * time.Hour), By: []query.Dimension{by}, Scope: query.Scope{All: true}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, g := range a.Groups {
		got[g.Keys[0]] = fmt.Sprint(g.Usage.Sum[usage.CPU], g.Usage.Sum[usage.Memory], g.Usage.Covered, g.First, g.Last, a.Capacity.Sum[usage.CPU], a.Gaps)
	}
	return got
}

func open(t *testing.T, l *ledger.Ledger, u *upper, change func(*replicate.Config)) *replicate.Sender {
	t.Helper()
	cfg := replicate.Default()
	cfg.URL, cfg.Dir, cfg.Name, cfg.PageRows = u.url, t.TempDir(), "secrethost", 50
	tok := u.token(registry.Upstream)
	cfg.Token = func() (token.Token, error) { return tok, nil }
	if change != nil {
		change(&cfg)
	}
	up, err := replicate.Open(t.Context(), cfg, l, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

// TestPush: SQLite below, SQLite or PostgreSQL above, TLS between them.
func TestPush(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { testPush(t, ledgertest.SQLite) })
	t.Run("PostgreSQL", func(t *testing.T) { testPush(t, ledgertest.PostgreSQL) })
}

func testPush(t *testing.T, place func(testing.TB) string) {
	for _, finest := range []replica.Resolution{replica.Minute, replica.Hour} {
		t.Run(fmt.Sprint(finest), func(t *testing.T) {
			l, u := below(t), above(t, place(t))
			up := open(t, l, u, func(c *replicate.Config) { c.Finest, c.PageRows = finest, 50-45*int(finest) })
			if err := l.Fold(t.Context(), ledgertest.Day.Add(3*time.Hour)); err != nil {
				t.Fatal(err)
			}
			u.broken = 2
			for range 2 { // each loses an answer, of a page that was taken
				if err := up.Push(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
					t.Fatalf("a lost answer: %v", err)
				}
			}
			if err := up.Push(t.Context()); err != nil {
				t.Fatal(err)
			}
			compare(t, l, u.Ledger)
			pages := u.pages
			if err := up.Push(t.Context()); err != nil || u.pages != pages {
				t.Errorf("%v, %d pages of nothing new", err, u.pages-pages)
			}
			// A late batch for hours that are folded on both sides.
			if err := u.Ledger.Fold(t.Context(), ledgertest.Day.Add(50*time.Hour)); err != nil {
				t.Fatal(err)
			}
			book(t, l, 2, 30)
			if err := errors.Join(l.Fold(t.Context(), ledgertest.Day.Add(50*time.Hour)), up.Push(t.Context()), u.Ledger.Fold(t.Context(), ledgertest.Day.Add(50*time.Hour))); err != nil {
				t.Fatal(err)
			}
			compare(t, l, u.Ledger)
			// Another identity of the same ledger is the same source by a token for it, and refused by
			// another one.
			if err := open(t, l, u, func(c *replicate.Config) { c.Finest = finest }).Push(t.Context()); !errors.Is(err, fault.ErrDenied) {
				t.Errorf("another identity: %v", err)
			}
			bound := u.tokenFor(u.sources()[0].ID)
			if err := open(t, l, u, func(c *replicate.Config) {
				c.Finest, c.Token = finest, func() (token.Token, error) { return bound, nil }
			}).Push(t.Context()); err != nil || len(u.sources()) != 1 {
				t.Errorf("%v, %d sources", err, len(u.sources()))
			}
			compare(t, l, u.Ledger)
			// Its node is revoked where it sends.
			w := httptest.NewRecorder()
			u.AdminHandler(nil).ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/v1/nodes/secretnode", nil))
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "is replicated from server") {
				t.Errorf("revoking a node of the server below: %d %s", w.Code, w.Body)
			}
			if err := u.Ledger.RevokeNode(t.Context(), "01NODE", ledgertest.Day); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("revoking it in the ledger: %v", err)
			}
		})
	}
}

func (u *upper) sources() []registry.Node {
	var all []registry.Node
	lines, err := u.Ledger.Audits(u.t.Context(), registry.AuditQuery{Limit: 100})
	if err != nil {
		u.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range lines {
		if a.Action == "node.enrol" && !seen[a.Object] {
			seen[a.Object] = true
			all = append(all, registry.Node{ID: a.Object})
		}
	}
	return all
}

func compare(t *testing.T, below, above *ledger.Ledger) {
	t.Helper()
	for _, by := range []query.Dimension{query.ByJob, query.ByNode, query.ByWorkload, query.ByNamespace, query.ByPod, query.ByUser, query.ByProject, query.ByLabel + "secretlabel"} {
		want, got := sums(t, below, by), sums(t, above, by)
		// Hours stand in their first minute: when exactly is not known above.
		for _, m := range []map[string]string{want, got} {
			for k, v := range m {
				m[k] = strings.NewReplacer("01:00:00", "01:xx:00", "01:01:00", "01:xx:00", "01:30:00", "01:xx:00", "02:00:00", "01:xx:00").Replace(v)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
			t.Errorf("by %s (-below +above):\n%s", by, diff)
		}
	}
	scope := query.Scope{Clusters: []string{"lab"}}
	sources, err := above.DownstreamServers(t.Context(), scope)
	if err != nil || len(sources) != 1 {
		t.Fatalf("servers below: %+v, %v", sources, err)
	}
	// On a slow machine the server has sent nothing for so long that it is silent.
	if s := sources[0]; s.Nodes != 1 || s.Pages == 0 || s.Epoch == "" || s.Seen.IsZero() || s.Through.IsZero() || s.State != "behind" && s.State != "silent" {
		t.Errorf("the server below: %+v", s)
	}
	if nodes, err := above.Nodes(t.Context(), scope); err != nil || len(nodes) != 1 || nodes[0].Name != "secretnode" || nodes[0].CPUs != 4 || nodes[0].Source != sources[0].ID {
		t.Errorf("nodes above: %v, %v", nodes, err)
	}
}

// TestPseudonyms: no name gets over the wire or into the database above, and
// what is alike below is alike above.
func TestPseudonyms(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	l, u := below(t), above(t, dsn)
	dir := t.TempDir()
	up := open(t, l, u, func(c *replicate.Config) { c.Dir, c.Pseudonyms = dir, true })
	if err := up.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u.seen.Len() < 1000 || !strings.Contains(u.seen.String(), "01NODE") {
		t.Fatalf("saw %d bytes", u.seen.Len())
	}
	for _, word := range []string{"secret"} {
		if i := strings.Index(u.seen.String(), word); i >= 0 {
			t.Errorf("on the wire: %.60q", u.seen.String()[i:])
		}
	}
	if text := dump(t, dsn); strings.Contains(text, "secret") || !strings.Contains(text, "p-") || len(text) < 1000 {
		i := max(strings.Index(text, "secret"), 0)
		t.Errorf("in the database, of %d bytes: %.60q", len(text), text[i:])
	}
	want, got := sums(t, l, query.ByJob), sums(t, u.Ledger, query.ByJob)
	for key, v := range got {
		if !strings.HasPrefix(key, "p-") || v != want["secretjob"] || len(got) != 1 {
			t.Errorf("above %q used %v, below %v", key, v, want)
		}
	}
	if got := sums(t, u.Ledger, query.ByProject); len(got) != 2 {
		t.Errorf("projects are %v, want two", got)
	}
	// Without pseudonyms the ledger sends all rows again.
	if err := open(t, l, u, func(c *replicate.Config) { c.Dir = dir }).Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	compare(t, l, u.Ledger)
}

// dump returns all that a database holds, as text.
func dump(t *testing.T, path string) string {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var b strings.Builder
	tables := all(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table'")
	for _, name := range tables {
		for _, v := range all(t, db, "SELECT * FROM "+name) {
			fmt.Fprintln(&b, v)
		}
	}
	return b.String()
}

// all are the values of an answer, one after the other.
func all(t *testing.T, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	values, into := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			out = append(out, fmt.Sprintf("%s", v))
		}
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return out
}

// TestRefused: what is not whole, not allowed or not in order changes nothing.
func TestRefused(t *testing.T) {
	dsn := ledgertest.SQLite(t)
	l, u := below(t), above(t, dsn)
	identity := func(role registry.Role) *enroll.Identity {
		tok := u.token(role)
		i, err := enroll.Open(enroll.Config{Dir: t.TempDir(), Server: u.url, Role: role, Token: func() (token.Token, error) { return tok, nil }, Facts: enroll.Facts{Machine: "m", Boot: "b", Name: "n"}}, quiet)
		if err == nil {
			err = i.Enroll(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	p, err := l.States(t.Context(), replica.Mark{}, replica.Offer{Rows: 1000})
	if err != nil {
		t.Fatal(err)
	}
	sent, err := wire.EncodeStates(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	early := *p
	early.From.Sequence = 3
	other, err := wire.EncodeStates(nil, &early)
	if err != nil {
		t.Fatal(err)
	}
	server, agent := identity(registry.Upstream).Client(), identity(registry.Agent).Client()
	before := sums(t, u.Ledger, query.ByNode)
	for i, c := range []struct {
		client *http.Client
		method string
		kind   string
		body   []byte
		status int
	}{
		{agent, http.MethodPost, wire.MediaTypeStates, sent, http.StatusForbidden},
		{server, http.MethodPost, "application/json", sent, http.StatusUnsupportedMediaType},
		{server, http.MethodPost, wire.MediaTypeStates, sent[:len(sent)/2], http.StatusBadRequest},
		{server, http.MethodPost, wire.MediaTypeStates, nil, http.StatusBadRequest},
		{server, http.MethodPost, wire.MediaTypeStates, make([]byte, wire.Default().Sent+1), http.StatusRequestEntityTooLarge},
		{server, http.MethodPost, wire.MediaTypeStates, other, http.StatusConflict},
		{server, http.MethodPut, wire.MediaTypeStates, sent, http.StatusMethodNotAllowed},
	} {
		q, err := http.NewRequestWithContext(t.Context(), c.method, u.url+"/v1/states", bytes.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", c.kind)
		q.Header.Set("Torn", "1")
		a, err := c.client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(a.Body)
		if err = errors.Join(err, a.Body.Close()); err != nil || a.StatusCode != c.status {
			t.Errorf("%d: %d %s, %v; want %d", i, a.StatusCode, body, err, c.status)
		}
	}
	if got := sums(t, u.Ledger, query.ByNode); len(got) != 0 || len(before) != 0 {
		t.Errorf("there is %v", got)
	}
	if u.seen.Len() == 0 {
		t.Error("nothing came")
	}
}
