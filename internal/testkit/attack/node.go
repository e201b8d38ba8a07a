package attack

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// A Node is an enrolled machine whose agent the test is: it sends what the test wants.
type Node struct {
	ID     string
	Facts  enroll.Facts
	Client *http.Client
	Server *Server

	// Boottime is what the node states as its CLOCK_BOOTTIME at present, in ns, and Offset the wall
	// time minus it.
	Boottime, Offset int64
	stream           batch.Stream
	number           uint64
	last             batch.Hash
}

// Enroll enrolls a machine with a token, and a key of its own. A server without TLS needs none, if
// METE_STATE is the server's.
func (s *Server) Enroll(t testing.TB, tok string, f enroll.Facts) (*Node, error) {
	t.Helper()
	return s.enroll(t, tok, registry.Agent, f)
}

func (s *Server) enroll(t testing.TB, tok string, role registry.Role, f enroll.Facts) (*Node, error) {
	t.Helper()
	cfg := enroll.Config{Dir: filepath.Join(ShortDir(t), "identity"), Server: s.URL, Role: role, Facts: f}
	if tok != "" {
		parsed, err := token.Parse(tok)
		if err != nil {
			return nil, err
		}
		cfg.Token = func() (token.Token, error) { return parsed, nil }
	}
	id, err := enroll.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := id.Enroll(t.Context()); err != nil {
		return nil, err
	}
	t.Cleanup(id.Client().CloseIdleConnections)
	n := &Node{ID: id.Node(), Facts: f, Client: id.Client(), Server: s, Boottime: int64(time.Hour)}
	n.Offset = time.Now().UnixNano() - n.Boottime
	n.NewStream(byte(time.Now().UnixNano()))
	return n, nil
}

// MustEnroll is Enroll with a new token for one machine of a cluster.
func (s *Server) MustEnroll(t testing.TB, cluster string, f enroll.Facts) *Node {
	t.Helper()
	n, err := s.Enroll(t, s.Token(t, "agent", "--cluster", cluster), f)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// NewStream makes the next batch the first one of another stream.
func (n *Node) NewStream(id byte) {
	n.stream, n.number, n.last = batch.Stream{id, 1}, 0, batch.Hash{}
	copy(n.stream[2:], n.ID)
}

// Name is a workload of the node.
func (n *Node) Name(key, name string, labels map[string]string) batch.Name {
	return batch.Name{ID: workload.NewID(n.ID, workload.Container, key), Kind: workload.Container, Key: key, Name: name, Labels: labels, Started: time.Now().Add(-time.Hour)}
}

// Window returns a window of the node's boot from a boottime to another, in ns, in which each of
// the named workloads used cpu ns of CPU time.
func (n *Node) Window(from, to, cpu int64, names ...batch.Name) usage.Window {
	w := usage.Window{Boot: n.Facts.Boot, Extent: usage.Extent{Scope: usage.Machine}, Start: from, End: to, Offset: n.Offset, StartReason: usage.StartContinued, CPUs: 4}
	whole := 4 * (to - from)
	left := whole
	for _, name := range names {
		r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: name.ID, Kind: name.Kind, Key: name.Key, Name: name.Name}})
		r.Usage.Put(usage.CPU, cpu, usage.Measured)
		r.Usage.Covered = time.Duration(to - from)
		w.Rows = append(w.Rows, r)
		left -= cpu
	}
	idle := workload.Workload{ID: workload.NewID(n.ID, workload.Idle, ""), Kind: workload.Idle, Name: "idle"}
	r := usage.NewRow(&usage.Identity{Workload: idle})
	r.Usage.Put(usage.CPU, left, usage.Measured)
	r.Usage.Covered = time.Duration(to - from)
	w.Rows = append(w.Rows, r)
	w.Balance.Whole[0], w.Balance.Workloads[0], w.Balance.Idle[0] = whole, whole-left, left
	return w
}

// A Reply is the answer to a batch: its verdict, or the title of the problem.
type Reply struct {
	Status  int
	Verdict string `json:"verdict"`
	Title   string `json:"title"`
	Detail  string `json:"detail"`
	Body    string
}

// Send sends the next batch of the node's stream.
func (n *Node) Send(t testing.TB, names []batch.Name, ws ...usage.Window) Reply {
	t.Helper()
	names = append(names, batch.Name{ID: workload.NewID(n.ID, workload.Idle, ""), Kind: workload.Idle, Name: "idle"})
	b := batch.Batch{Stream: n.stream, Number: n.number + 1, Previous: n.last, Names: names}
	for i := range ws {
		b.Windows = append(b.Windows, wire.Prepare(&ws[i]))
	}
	sent, err := wire.Encode(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	r := n.Post(t, sent)
	if r.Verdict == "taken" || r.Verdict == "known" {
		n.number++
		n.last = batch.HashOf(sent)
	}
	return r
}

// Post sends the bytes of a batch, with the node's clocks.
func (n *Node) Post(t testing.TB, sent []byte, headers ...string) Reply {
	t.Helper()
	a := Do(t, n.Client, http.MethodPost, n.Server.URL+"/v1/batches", bytes.NewReader(sent), append([]string{"Content-Type", wire.MediaType,
		wire.HeaderBoot, n.Facts.Boot, wire.HeaderBoottime, strconv.FormatInt(n.Boottime, 10), wire.HeaderWall, strconv.FormatInt(n.Boottime+n.Offset, 10)}, headers...)...)
	r := Reply{Status: a.Status, Body: a.Body}
	_ = json.Unmarshal([]byte(a.Body), &r) // an answer of another form has no verdict
	return r
}

// StreamByte and StreamText name the node's present stream.
func (n *Node) StreamByte() byte   { return n.stream[0] }
func (n *Node) StreamText() string { return n.stream.String() }

// EnrollServer enrolls a server below, which has a ledger with this id, with a token.
func (s *Server) EnrollServer(t testing.TB, tok, ledger string) (*Node, error) {
	t.Helper()
	return s.enroll(t, tok, registry.Upstream, enroll.Facts{Machine: ledger, Boot: ledger, Name: "below"})
}

// SendStates sends a page of row states, as a server below, from where the server's mark is.
func (n *Node) SendStates(t testing.TB, p *replica.Page) Answer {
	t.Helper()
	a := Do(t, n.Client, http.MethodGet, n.Server.URL+"/v1/states/mark", nil)
	if err := json.Unmarshal([]byte(a.Body), &p.From); err != nil {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	p.To = strconv.FormatUint(p.From.Sequence+1, 10)
	sent, err := wire.EncodeStates(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	return n.PostStates(t, sent)
}

// PostStates sends the bytes of a page.
func (n *Node) PostStates(t testing.TB, sent []byte) Answer {
	t.Helper()
	return Do(t, n.Client, http.MethodPost, n.Server.URL+"/v1/states", bytes.NewReader(sent), "Content-Type", wire.MediaTypeStates)
}
