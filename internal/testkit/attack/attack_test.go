package attack_test

import (
	"database/sql"
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/attack"
)

// mostMemory is what the server of the attacks may take, in bytes.
const mostMemory = 512 << 20

// An attempt is one attack on a real server.
type attempt struct {
	actor, name string
	attack      func(*testing.T, *scene)
}

// attempts are the attacks that need no more than requests. After each of them the server must
// live and be within its memory, the figures of the victim must be unchanged, its next batch must
// be taken, and no output may have a token.
var attempts = slices.Concat(readerAttempts, routeAttempts, nodeAttempts, belowAttempts)

// A scene is a server with a victim: a machine of the cluster prod, with a workload "payroll". The
// attackers have access to the cluster lab, except where an attack says otherwise.
type scene struct {
	*attack.Server
	victim                *attack.Node
	payroll               batch.Name
	at                    int64 // boottime through which the victim has sent
	admin                 string
	viewer, writer, agent string // tokens for lab
	prodAgent             string // token for prod
	secrets               []string
	before                string // the victim's figures before the attack
}

const windowLength = int64(10 * time.Second)

func newScene(t *testing.T, args ...string) *scene {
	s := &scene{Server: attack.StartServer(t, programs, attack.Config{Env: []string{"GOMEMLIMIT=384MiB"}}, args...)}
	s.admin = s.Token(t, "viewer")
	s.viewer = s.Token(t, "viewer", "--cluster", "lab")
	s.writer = s.Token(t, "writer", "--cluster", "lab")
	s.agent = s.Token(t, "agent", "--cluster", "lab", "--uses", "-1")
	s.prodAgent = s.Token(t, "agent", "--cluster", "prod", "--uses", "-1")
	s.secrets = []string{s.admin, s.viewer, s.writer, s.agent, s.prodAgent}
	tok := s.prodAgent
	if strings.HasPrefix(s.URL, "http:") {
		t.Setenv("METE_STATE", s.State)
		tok = ""
	}
	var err error
	if s.victim, err = s.Enroll(t, tok, enroll.Facts{Machine: "victim-machine-id", Boot: "victim-boot-id", Name: "payroll-host"}); err != nil {
		t.Fatal(err)
	}
	s.payroll = s.victim.Name("payroll", "payroll", map[string]string{"io.kubernetes.pod.namespace": "finance", "io.kubernetes.pod.name": "payroll-0"})
	s.at = s.victim.Boottime - 40*windowLength
	s.victimSends(t)
	return s
}

// partner is the address with which the victim exchanges traffic.
const partner = "203.0.113.77"

// victimSends lets the victim send one more window.
func (s *scene) victimSends(t *testing.T) {
	t.Helper()
	w := s.victim.Window(s.at, s.at+windowLength, windowLength, s.payroll)
	w.Rows[0].Connections = &connection.Sketch{Missed: 4321}
	w.Rows[0].Connections.Entries = []connection.Entry{{Edge: connection.Edge{Peer: netip.MustParseAddr(partner), Port: 443, Protocol: 6}, Traffic: connection.Traffic{RxBytes: 1e6, RxPackets: 9}}}
	w.Rows[0].Usage.Put(usage.NetworkRx, 2e6, usage.Measured)
	w.Rows[0].Usage.Put(usage.NetworkRxPackets, 20, usage.Measured)
	if r := s.victim.Send(t, []batch.Name{s.payroll}, w); r.Verdict != "taken" {
		t.Errorf("the victim's batch: %+v", r)
	}
	s.at += windowLength
}

// figures returns the victim's figures, as the administrator sees them.
func (s *scene) figures(t *testing.T) string {
	t.Helper()
	return s.figuresOf(t, "payroll-host")
}

// figuresOf returns the figures of a node, as the administrator sees them.
func (s *scene) figuresOf(t *testing.T, node string) string {
	t.Helper()
	a := s.Do(t, http.MethodGet, "/v1/usage?by=node,pod,workload,cluster&format=csv&from="+url.QueryEscape(time.Now().Add(-2*time.Hour).UTC().Truncate(time.Hour).Format(time.RFC3339)), nil, attack.Bearer(s.admin)...)
	if a.Status != http.StatusOK {
		t.Fatalf("figures: %d %s", a.Status, a.Body)
	}
	rows, err := csv.NewReader(strings.NewReader(a.Body)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var own strings.Builder
	for _, row := range rows[1:] {
		// Where nodes of two clusters have one name, it has the id.
		row[0] = strings.Replace(row[0], "payroll-host "+s.victim.ID, "payroll-host", 1)
		if row[0] != node {
			continue
		}
		for i, column := range rows[0] {
			switch column { // others depend on the time of the query
			case "node", "pod", "workload", "cluster", "cpu_seconds", "covered_seconds", "nested":
				own.WriteString(column + "=" + row[i] + " ")
			}
		}
		own.WriteString("\n")
	}
	if own.Len() == 0 {
		t.Fatalf("%s has no figures: %s", node, a.Body)
	}
	return own.String()
}

// TestAttacks runs the attacks of the table, one after another on one server.
func TestAttacks(t *testing.T) { attackAll(t, newScene(t), attempts) }

// attackAll runs attacks and checks after each of them what must be true.
func attackAll(t *testing.T, s *scene, attempts []attempt) {
	for _, a := range attempts {
		t.Run(a.actor+"/"+a.name, func(t *testing.T) {
			s.before = s.figures(t)
			s.ResetPeak(t)
			a.attack(t, s)
			s.Check(t, mostMemory)
			if after := s.figures(t); after != s.before {
				t.Errorf("the victim's figures were\n%sand are\n%s", s.before, after)
			}
			s.victimSends(t)
			s.CheckSecrets(t, s.secrets...)
			t.Logf("peak RSS %d MiB", s.PeakRSS()>>20)
		})
	}
	if n := s.minuteDays(t); n > 10 {
		t.Errorf("the ledger has tables of minutes for %d days", n)
	}
	for _, name := range []string{"ledger.db", "ledger.db-wal"} {
		if i, err := os.Stat(filepath.Join(s.State, name)); err == nil && i.Size() > 64<<20 {
			t.Errorf("%s has %d MiB", name, i.Size()>>20)
		}
	}
}

// minuteDays returns the number of days for which the ledger has tables of minutes.
func (s *scene) minuteDays(t *testing.T) int64 { return s.ledger(t, "SELECT count(*) FROM kept") }

// awaitFloor waits until the server has decided which minutes are too old to be kept.
func (s *scene) awaitFloor(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the ledger has a floor of minutes", func() bool { return s.ledger(t, "SELECT minute_floor FROM counter") > 0 })
}

// changeLedger puts into the ledger what no attacker can, as a server that watches a cluster does.
func (s *scene) changeLedger(t *testing.T, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.State, "ledger.db")+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), statement); errors.Join(err, db.Close()) != nil {
		t.Fatal(err)
	}
}

// ledger returns the number that a query of the ledger has.
func (s *scene) ledger(t *testing.T, query string) (n int64) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.State, "ledger.db")+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // it was only read
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// is reports whether status is one of the wanted ones.
func is(status int, wanted ...int) bool {
	return slices.Contains(wanted, status)
}

// refused fails the test unless a request of the attacker has one of the statuses, and the answer
// shows nothing of the victim.
func (s *scene) refused(t *testing.T, method, path, body string, headers []string, wanted ...int) {
	t.Helper()
	a := s.Do(t, method, path, strings.NewReader(body), headers...)
	if !is(a.Status, wanted...) {
		t.Errorf("%s %.200s: %d %.300s, want one of %v", method, path, a.Status, a.Body, wanted)
	}
	s.hidden(t, path, a.Body)
}

// hidden fails the test if an answer shows something of the victim.
func (s *scene) hidden(t *testing.T, what, body string) {
	t.Helper()
	for _, secret := range []string{"payroll", "finance", "victim-machine-id", "victim-boot-id", `"prod"`, partner, s.victim.ID} {
		if strings.Contains(body, secret) && !strings.Contains(what, secret) {
			t.Errorf("%.200s shows %q: %.500s", what, secret, body)
		}
	}
}

func unix(t time.Time) string { return fmt.Sprint(t.Unix()) }
